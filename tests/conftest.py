"""What all tests share."""

import os

# grpc's own log lines would be mistaken for failures of what is tested.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
