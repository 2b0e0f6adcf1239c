"""Our stubs in one process with packages that define `inference.*` as well, whichever is imported first.

Each order needs a fresh process: protobuf's pools live as long as the interpreter. KServe and MLServer have
environments of their own (`.venv-kserve`, `.venv-mlserver`; `make interop` makes them), since neither can be installed
beside the other.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

OURS = """
from headrace_protos.inference import grpc_service_pb2 as ours, grpc_service_pb2_grpc, model_config_pb2
from headrace_protos.control.v1 import control_pb2, control_pb2_grpc
"""

# Maps are the delicate part: their entries are messages that are found by name in a pool.
USE_BOTH = """
mine = ours.ModelInferRequest(model_name="m", raw_input_contents=[b"12"])
mine.parameters["p"].string_param = "v"
other = theirs.ModelInferRequest.FromString(mine.SerializeToString())
assert other.parameters["p"].string_param == "v"
other.parameters["q"].int64_param = 4
back = ours.ModelInferRequest.FromString(other.SerializeToString())
assert back.parameters["q"].int64_param == 4
assert type(mine) is not type(other)
print("both work")
"""


def run(python: Path, *statements: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "protos" / "gen"), "PYTHONWARNINGS": ""}
    done = subprocess.run(
        [python, "-c", "\n".join(statements)], env=environment, capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.returncode, done.stdout.strip().splitlines()[-1:]) == (0, ["both work"]), done.stderr


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_with_tritonclient(first: str) -> None:
    theirs = "import tritonclient.grpc\nfrom tritonclient.grpc import service_pb2 as theirs"
    order = [OURS, theirs] if first == "ours" else [theirs, OURS]
    run(Path(sys.executable), *order, USE_BOTH)


@pytest.mark.interop
@pytest.mark.parametrize("first", ["ours", "theirs"])
@pytest.mark.parametrize(
    ("package", "stubs"),
    [
        ("kserve", "import kserve\nfrom kserve.protocol.grpc import grpc_predict_v2_pb2 as theirs"),
        ("mlserver", "import mlserver\nfrom mlserver.grpc import dataplane_pb2 as theirs"),
    ],
)
def test_with_other_servers_packages(package: str, stubs: str, first: str) -> None:
    python = ROOT / f".venv-{package}" / "bin" / "python"
    assert python.exists(), f"{python} is missing: run `make interop`"
    order = [OURS, stubs] if first == "ours" else [stubs, OURS]
    run(python, *order, USE_BOTH)
