"""Our own servers, started for a measurement: worker, gateway, Envoy; each a process of its own, without NATS."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.load import BUILD, ROOT
from bench.procs import Server, free_port, ready_file, serving
from headrace.stack.envoy import Address, EnvoySettings, render
from headrace.stack.tools import ENVOY, find

READY = "{scratch}/ready.json"


@contextmanager
def worker(models: Path, *, instances: int = 0) -> Iterator[Server]:
    """A worker that serves the models of a folder."""
    environment = {
        "HEADRACE_WORKER_MODELS": str(models),
        "HEADRACE_WORKER_LISTEN": "127.0.0.1:0",
        "HEADRACE_WORKER_INSTANCES": str(instances),
        "HEADRACE_WORKER_READY_FILE": READY,
        "HEADRACE_WORKER_RUN_DIR": "{scratch}",
        "HEADRACE_WORKER_LOG_LEVEL": "warning",
    }
    command = [sys.executable, "-m", "headrace_worker"]
    with serving("worker", command=command, environment=environment, cwd=ROOT, address=ready_file) as server:
        wait_for_models(server.address, [folder.parent.parent.name for folder in models.glob("*/1/model.onnx")])
        yield server


@contextmanager
def gateway(workers: list[Server], *, names: list[str]) -> Iterator[Server]:
    """A gateway before these workers."""
    environment = {
        "HEADRACE_GATEWAY_REPLICAS": ",".join(server.address for server in workers),
        "HEADRACE_GATEWAY_LISTEN": "127.0.0.1:0",
        "HEADRACE_GATEWAY_READY_FILE": READY,
        "HEADRACE_GATEWAY_RUN_DIR": "{scratch}",
        "HEADRACE_GATEWAY_LOG_LEVEL": "warning",
    }
    command = [sys.executable, "-m", "headrace_gateway"]
    with serving("gateway", command=command, environment=environment, cwd=ROOT, address=ready_file) as server:
        wait_for_models(server.address, names)
        yield server


@contextmanager
def envoy(upstream: str) -> Iterator[Server]:
    """Envoy as `headrace up` configures it, before one gateway (or anything else that speaks gRPC)."""
    host, _, number = upstream.rpartition(":")
    port, admin = free_port(), free_port()
    settings = EnvoySettings(
        gateways=(Address(host=host, port=int(number)),), port=port, admin_port=admin, access_log="errors"
    )
    BUILD.mkdir(parents=True, exist_ok=True)
    path = BUILD / f"envoy-{port}.yaml"
    path.write_text(render(settings))
    # As `headrace up` starts it: one worker thread a core is its default, one is enough for a test on two cores.
    command = [
        str(find(ENVOY)),
        "--config-path",
        str(path),
        "--log-level",
        "warning",
        "--concurrency",
        "1",
        "--disable-hot-restart",
    ]

    def listening(_: Path) -> str | None:
        import socket

        with socket.socket() as probe:
            return f"127.0.0.1:{port}" if probe.connect_ex(("127.0.0.1", port)) == 0 else None

    with serving("envoy", command=command, address=listening) as server:
        yield server
    path.unlink()


def wait_for_models(address: str, names: list[str], *, seconds: float = 60) -> None:
    """Blocks until every one of these models is ready."""
    import time

    import grpc

    from headrace_protos.inference import grpc_service_pb2 as pb
    from headrace_protos.inference import grpc_service_pb2_grpc as rpc

    end = time.monotonic() + seconds
    with grpc.insecure_channel(address) as channel:
        stub = rpc.GRPCInferenceServiceStub(channel)
        for name in names:
            while not _is_ready(stub, pb.ModelReadyRequest(name=name)):
                if time.monotonic() > end:
                    raise TimeoutError(f"{name} is not ready at {address} after {seconds} s")
                time.sleep(0.05)


def _is_ready(stub: Any, request: Any) -> bool:
    import grpc

    try:
        return bool(stub.ModelReady(request, timeout=5).ready)
    except grpc.RpcError as error:
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND):
            return False
        raise
