import subprocess
import sys

BLOCKED = (
    "headrace_gateway headrace_worker headrace_jobs headrace_batcher onnxruntime typer click rich PIL tokenizers "
    "psutil nats yaml jinja2 pydantic_settings grpc_health grpc_reflection grpc_status ml_dtypes"
)

PROGRAM = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {BLOCKED.split()!r}:
            raise ImportError(name + " is not installed here")

sys.meta_path.insert(0, Blocked())
import headrace, numpy
client = headrace.Client("127.0.0.1:1", retries=headrace.NO_RETRIES)
try:
    client.infer("m", numpy.zeros(1))
except headrace.errors.Unreachable:
    print("fine")
"""


def test_the_client_needs_none_of_the_services_packages() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("fine\n", 0), done.stderr


def test_the_client_and_tritonclient_live_in_one_process_whichever_comes_first() -> None:
    for first, second in (("headrace", "tritonclient.grpc"), ("tritonclient.grpc", "headrace")):
        program = f"import warnings; warnings.simplefilter('ignore'); import {first}, {second}; print('fine')"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout == "fine\n", done.stderr
