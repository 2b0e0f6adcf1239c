"""The load generator's binaries, and the requests that they send."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bench import models
from bench.procs import Server, busy_cores, printed_address, serving
from headrace_core import tensors
from headrace_protos.inference import grpc_service_pb2 as pb

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "bench"


@dataclass(frozen=True)
class Layout:
    """How many connections, and how many requests outstanding on each."""

    connections: int
    streams: int

    def __str__(self) -> str:
        return f"{self.connections}×{self.streams}"


@dataclass(frozen=True)
class Measured:
    """One run: what the load generator reports, and the CPU time of each server for each of its answers."""

    report: dict[str, Any]
    cpu_us: dict[str, float]
    """Microseconds a request by server's name, warm-up included in both."""
    busy_before: float
    """Cores that were busy with other things just before."""

    @property
    def rps(self) -> float:
        return float(self.report["rps"])

    @property
    def latency(self) -> dict[str, float]:
        return dict(self.report["latency_us"])


@cache
def binary(name: str) -> Path:
    """A release build of `headrace-load` or `headrace-echo`, brought up to date by cargo."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    command = ["cargo", "build", "--quiet", "--release", "--locked", "--package", "headrace-load"]
    subprocess.run(command, cwd=ROOT, check=True)
    return target / "release" / name


def request(bench: models.Bench, *, row: int = 0) -> bytes:
    """A `ModelInferRequest` of one row with raw contents."""
    array = models.rows(bench, row + 1)[row : row + 1]
    described, raw = tensors.input_from_array("x", array=array)
    message = pb.ModelInferRequest(model_name=bench.name, inputs=[described], raw_input_contents=[raw])
    return message.SerializeToString()


def request_file(bench: models.Bench) -> Path:
    """The same, in a file."""
    BUILD.mkdir(parents=True, exist_ok=True)
    path = BUILD / f"{bench.name}.request"
    path.write_bytes(request(bench))
    return path


def run(url: str, *, payload: Path, servers: tuple[Server, ...] = (), **fields: Any) -> Measured:
    """Runs `headrace-load`; `fields` are those of its configuration."""
    fields = {"url": url, "payloads": [{"path": str(payload)}], "duration_ms": 3000, **fields}
    busy = busy_cores(0.2)
    before = [server.cpu_seconds() for server in servers]
    with tempfile.TemporaryFile("w+") as config:
        json.dump(fields, config)
        config.seek(0)
        ended = subprocess.run(
            [binary("headrace-load"), "--config", "-"], stdin=config, stdout=subprocess.PIPE, check=False
        )
    if ended.returncode != 0:
        sys.exit(f"headrace-load failed against {url}")
    report = json.loads(ended.stdout)
    spent = [server.cpu_seconds() - was for server, was in zip(servers, before, strict=True)]
    answered = max(report["all_requests"], 1)
    return Measured(
        report,
        {server.name: seconds * 1e6 / answered for server, seconds in zip(servers, spent, strict=True)},
        busy,
    )


def closed(server_url: str, layout: Layout, *, payload: Path, servers: tuple[Server, ...], **fields: Any) -> Measured:
    """A closed loop of the given layout."""
    return run(
        server_url,
        payload=payload,
        servers=servers,
        connections=layout.connections,
        concurrency=layout.connections * layout.streams,
        **fields,
    )


@contextmanager
def echo(reply_bytes: int) -> Iterator[Server]:
    """The do-nothing server, answering with frames of this size."""
    command = [str(binary("headrace-echo")), "--reply-bytes", str(reply_bytes)]
    with serving("echo", command=command, address=printed_address) as server:
        yield server
