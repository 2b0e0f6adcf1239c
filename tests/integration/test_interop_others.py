"""Clients that live in environments of their own: KServe's gRPC client and Triton's `perf_analyzer`, both unmodified.

`make interop` makes KServe's environment. `perf_analyzer` comes with an old tritonclient wheel, installed into a
throw-away environment by the test itself; it needs Debian's `libb64-0d`.
"""

from __future__ import annotations

import ctypes.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.calls import Door

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("unharmed")]

ROOT = Path(__file__).parents[2]

KSERVE = """
import asyncio, sys
import grpc
import numpy as np
from kserve import InferenceGRPCClient, InferInput, InferRequest

async def main(url):
    async with InferenceGRPCClient(url) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("add")
        x = np.arange(8, dtype=np.float32).reshape(2, 4)
        for raw in (True, False):
            one = InferInput("x", list(x.shape), "FP32")
            one.set_data_from_numpy(x, binary_data=raw)
            answer = await client.infer(InferRequest(model_name="add", infer_inputs=[one], request_id="seven"))
            assert answer.id == "seven", answer.id
            np.testing.assert_array_equal(answer.outputs[0].as_numpy().reshape(2, 4), x + 1)
        words = InferInput("x", [2], "BYTES")
        words.set_data_from_numpy(np.array([b"duck", "🦆".encode()], np.object_), binary_data=True)
        answer = await client.infer(InferRequest(model_name="same_bytes", infer_inputs=[words]))
        assert list(answer.outputs[0].as_numpy()) == [b"duck", "🦆".encode()]
        try:
            bad = InferInput("x", [1, 3], "FP32")
            bad.set_data_from_numpy(np.zeros((1, 3), np.float32), binary_data=True)
            await client.infer(InferRequest(model_name="add", infer_inputs=[bad]))
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error
        else:
            raise AssertionError("accepted")

for url in sys.argv[1:]:
    asyncio.run(main(url))
print("all well")
"""


def test_kserves_client(doors: dict[str, Door]) -> None:
    python = ROOT / ".venv-kserve" / "bin" / "python"
    assert python.exists(), f"{python} is missing: run `make interop`"
    addresses = [one.address for one in doors.values()]
    ended = subprocess.run([python, "-c", KSERVE, *addresses], capture_output=True, text=True, timeout=110, check=False)
    assert "all well" in ended.stdout, ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def perf_analyzer(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs it."""
    if ctypes.util.find_library("b64") is None and not list(Path("/usr/lib").glob("*/libb64.so.0d")):
        pytest.skip("perf_analyzer needs libb64.so.0d (Debian: libb64-0d)")
    folder = tmp_path_factory.mktemp("perf") / "venv"
    uv = Path(sys.executable).with_name("uv")
    python = folder / "bin" / "python"
    for command in (
        [uv, "venv", "--quiet", "--python", sys.executable, folder],
        [uv, "pip", "install", "--quiet", "--python", python, "--no-deps", "tritonclient==2.41.0",
         "nvidia-cuda-runtime-cu12==12.9.79"],
    ):  # fmt: skip
        ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        if ended.returncode != 0:
            pytest.skip(f"perf_analyzer can't be installed: {ended.stderr.strip()[-300:]}")
    program = folder / "bin" / "perf_analyzer"
    if not program.exists():
        pytest.skip("the tritonclient wheel for this platform carries no perf_analyzer")
    program.chmod(0o755)
    (libraries,) = folder.glob("lib/python*/site-packages/nvidia/cuda_runtime/lib")
    return ["env", f"LD_LIBRARY_PATH={libraries}:{os.environ.get('LD_LIBRARY_PATH', '')}", str(program)]


def test_perf_analyzer_measures(door: Door, perf_analyzer: list[str]) -> None:
    measure(door, perf_analyzer)


def test_perf_analyzer_measures_a_stream(envoy_door: Door, perf_analyzer: list[str]) -> None:
    measure(envoy_door, perf_analyzer, "--streaming")


def measure(door: Door, perf_analyzer: list[str], *options: str) -> None:
    ended = subprocess.run(
        [*perf_analyzer, "-i", "grpc", "-u", door.address, "-m", "add", "--concurrency-range", "4",
         "-p", "500", "-s", "60", "-r", "6", *options],
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    told = ended.stdout + ended.stderr
    # It exits with 0 or, on a machine too restless for its taste, says that it did not settle; it must have measured.
    rates = [float(one) for one in re.findall(r"throughput: ([\d.]+) infer/sec", told)]
    assert rates, told
    assert max(rates) > 50, told
    for word in ("Failed to", "error:", "Error:"):
        assert word not in told, told
