"""A cross-check of our load generator by another one: nghttp2's h2load against the same server."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from bench import load, models, stack
from bench.figures import Table
from bench.layouts import LAYOUTS
from bench.load import BUILD
from bench.procs import wait_until_quiet


def measure(repository: Path, *, repeats: int, seconds: float) -> Iterator[Table]:
    program = shutil.which("h2load")
    if program is None:
        print("\nh2load is not installed (Debian: nghttp2-client): no cross-check.")
        return
    table = Table(
        "tiny: cross-check by h2load",
        about="ratio: requests a second by headrace-load / by h2load. cpu: µs of the worker a request.",
    )
    payload = load.request_file(models.TINY)
    message = payload.read_bytes()
    frame = BUILD / "tiny.frame"
    frame.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
    with stack.worker(repository) as worker:
        for _ in range(repeats):
            for layout in LAYOUTS:
                wait_until_quiet()
                ours = load.closed(
                    worker.address, layout, payload=payload, servers=(worker,), duration_ms=int(seconds * 1000)
                )
                count = max(int(ours.rps * seconds), 1000)
                before = worker.cpu_seconds()
                # By number: with a duration it cuts what is in flight at the end, and counts it as failed.
                said = subprocess.run(
                    [
                        *[
                            program,
                            "-n",
                            str(count),
                            "-c",
                            str(layout.connections),
                            "-m",
                            str(layout.streams),
                            "-d",
                            str(frame),
                        ],
                        *["-H", "content-type: application/grpc", "-H", "te: trailers"],
                        f"http://{worker.address}/inference.GRPCInferenceService/ModelInfer",
                    ],
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
                cpu = (worker.cpu_seconds() - before) * 1e6 / count
                theirs = float(_found(r"([\d.]+) req/s", said))
                succeeded = int(_found(r"(\d+) succeeded", said))
                table.add(
                    str(layout),
                    rps=ours.rps,
                    h2load_rps=theirs,
                    ratio=ours.rps / theirs,
                    cpu=ours.cpu_us["worker"],
                    h2load_cpu=cpu,
                    h2load_failed=count - succeeded,
                )
    yield table


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise ValueError(f"h2load said nothing like {pattern}:\n{text}")
    return match[1]
