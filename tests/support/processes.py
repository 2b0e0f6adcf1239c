"""The product's processes for tests: real ones, on free ports, ready when handed out, ended by their own pid.

    with Processes(tmp_path) as processes:
        worker = processes.worker(models, model_control="poll")
        gateway = processes.gateway([worker])

    with detached_stack(tmp_path, models) as stack:
        stack.address, stack.worker, stack.gateway, stack.pids()

Logs stay in the folder that was given; when a block ends with an error, their last lines are printed, which pytest
shows with the failure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

START_SECONDS = 90
STOP_SECONDS = 30
TAIL_BYTES = 4000


@dataclass
class Service:
    """A worker or gateway that runs."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    address: str = ""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def last_words(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-TAIL_BYTES:]

    def terminate(self) -> int:
        """SIGTERM, and the exit status once it has ended."""
        self.process.terminate()
        return self.process.wait(STOP_SECONDS)


class Processes:
    """Starts services and ends them all with its block."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._services: list[Service] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for one in reversed(self._services):
            if one.alive:
                one.process.terminate()
        for one in self._services:
            try:
                one.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()
        if kind is not None:
            for one in self._services:
                print(f"── {one.name} ({one.log})\n{one.last_words()}", file=sys.stderr)

    def worker(self, models: Path, **settings: object) -> Service:
        """A worker that has loaded what it could. Settings are those of `headrace_worker.settings`."""
        return self.start("worker", {"models": models, "drain_beat": "0.1s", **settings})

    def gateway(self, workers: Sequence[Service], **settings: object) -> Service:
        """A gateway over these workers."""
        replicas = ",".join(one.address for one in workers)
        return self.start("gateway", {"replicas": replicas, "drain_beat": "0.1s", **settings})

    def start(self, kind: str, settings: Mapping[str, object], *, wait: bool = True) -> Service:
        """`python -m headrace_<kind>`. Without `wait` it may not serve yet, or never will."""
        number = len(self._services)
        ready = self._folder / f"{kind}-{number}.ready.json"
        log = self._folder / f"{kind}-{number}.log"
        given = {"listen": "127.0.0.1:0", "ready_file": ready, **settings}
        variables = {f"HEADRACE_{kind.upper()}_{key.upper()}": str(value) for key, value in given.items()}
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", f"headrace_{kind}"],
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
            )
        service = Service(f"{kind}-{number}", process, log)
        self._services.append(service)
        if wait:
            wait_until(lambda: ready.exists() or not service.alive, f"{service.name} is ready", seconds=START_SECONDS)
            if not ready.exists():
                raise AssertionError(f"{service.name} ended with {process.returncode}:\n{service.last_words()}")
            service.address = json.loads(ready.read_text())["address"]
        return service


@dataclass(frozen=True)
class Stack:
    """A whole stack as `headrace up --detach` leaves it running."""

    state: Path
    address: str
    worker: str
    gateway: str

    def status(self) -> dict[str, Any]:
        """What `headrace status --json` says."""
        told: dict[str, Any] = json.loads(_headrace("status", "--json", "--state", str(self.state)))
        return told

    def pids(self) -> dict[str, int]:
        """Process ids by service."""
        return {one["name"]: one["pid"] for one in self.status()["services"]}


@contextmanager
def detached_stack(folder: Path, models: Path, *options: str, **variables: str) -> Iterator[Stack]:
    """Envoy → gateway → worker under the product's own supervisor. `variables` go into its environment."""
    state = folder / "state"
    up = ["up", str(models), "--detach", "--port", "0", "--json", "--state", str(state), *options]
    told = json.loads(_headrace(*up, variables=variables))
    services = {one["name"]: one["address"] for one in told["services"]}
    ended_well = False
    try:
        yield Stack(state, told["address"], services["worker-1"], services["gateway-1"])
        ended_well = True
    finally:
        if not ended_well:
            log = state / "headrace.log"
            print(f"── stack ({log})\n{log.read_text(errors='replace')[-TAIL_BYTES:]}", file=sys.stderr)
        _headrace("down", "--state", str(state))


def _headrace(*arguments: str, variables: Mapping[str, str] | None = None) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "headrace", *arguments],
        env={**os.environ, **(variables or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_SECONDS * 2,
        check=False,
    )
    assert ended.returncode == 0, f"headrace {' '.join(arguments)}: {ended.returncode}\n{ended.stderr}{ended.stdout}"
    return ended.stdout


def wait_until(true: Callable[[], object], what: str, *, seconds: float = 20) -> None:
    """Looks until it is true; fails after so long."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.02)
