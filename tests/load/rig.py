"""Processes of the product for tests that hurt them: started on free ports, watched, killed by pid, and left behind by nobody.

    with Rig(tmp_path) as rig:
        worker = rig.worker(models)
        gateway = rig.gateway([worker.address])
        door = rig.envoy([gateway.address])

Every process is one that this module started; each ends with the block, whatever state it was left in (stopped ones too).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import grpc
import psutil

from headrace.stack import tools
from headrace.stack.envoy import Address, EnvoySettings, render
from headrace.stack.ports import Claim, claim
from headrace_protos.inference import grpc_service_pb2 as pb
from headrace_protos.inference import grpc_service_pb2_grpc as rpc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

NAPPING_WORKER = Path(__file__).with_name("napping_worker.py")
START_SECONDS = 60
STOP_SECONDS = 20


@dataclass
class Process:
    """A running program and where it listens."""

    name: str
    popen: subprocess.Popen[bytes]
    address: str
    log: Path

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to this process, and to no other."""
        if self.alive:
            self.popen.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.popen.wait(STOP_SECONDS)

    def terminate(self) -> int:
        """SIGTERM, and the exit status."""
        self.signal(signal.SIGTERM)
        return self.popen.wait(STOP_SECONDS)

    def rss(self) -> int:
        """Resident memory, bytes."""
        return psutil.Process(self.pid).memory_info().rss

    def threads(self) -> int:
        return psutil.Process(self.pid).num_threads()

    def words(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-4000:]


class Rig:
    """Starts processes and ends them all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[Process] = []
        self._claims: list[Claim] = []
        self._count = 0
        self.wrapper: list[str] = []
        """Put before the command of every service; must execute it in its own place."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._running):
            if process.alive:
                # A stopped process would not hear SIGTERM; nothing here is owed a drain.
                process.popen.kill()
        for process in self._running:
            process.popen.wait(STOP_SECONDS)
        for one in self._claims:
            one.close()

    def worker(self, models: Path, *, listen: str = "127.0.0.1:0", wait: bool = True, **settings: object) -> Process:
        """A worker; its `nap` models sleep as asked (see `napping_worker`)."""
        command = [sys.executable, str(NAPPING_WORKER)]
        environment = _environment("WORKER", {"models": models, "listen": listen, "drain_beat": "0.2s", **settings})
        return self._start("worker", command, environment, wait=wait)

    def gateway(self, replicas: Sequence[str], *, listen: str = "127.0.0.1:0", **settings: object) -> Process:
        """A gateway with a fixed list of workers."""
        command = [sys.executable, "-m", "headrace_gateway"]
        given = {"replicas": ",".join(replicas), "listen": listen, "drain_beat": "0.3s", **settings}
        started = self._start("gateway", command, _environment("GATEWAY", given))
        # Ready means that it answers; what its workers have it hears a moment later.
        with grpc.insecure_channel(started.address) as link:
            models = rpc.GRPCInferenceServiceStub(link)
            wait_until(
                lambda: any(
                    one.state == "READY"
                    for one in models.RepositoryIndex(pb.RepositoryIndexRequest(), timeout=5).models
                ),
                "the gateway has heard of a model",
                process=started,
            )
        return started

    def envoy(self, gateways: Sequence[str], **settings: Any) -> Process:
        """Envoy as `headrace up` configures it; ready when it sees every gateway as healthy."""
        public, admin = claim("127.0.0.1"), claim("127.0.0.1")
        self._claims += [public, admin]
        parts = [address.rsplit(":", 1) for address in gateways]
        config = self._folder / f"envoy-{public.port}.yaml"
        config.write_text(
            render(
                EnvoySettings(
                    gateways=tuple(Address(host=host, port=int(port)) for host, port in parts),
                    port=public.port,
                    admin_port=admin.port,
                    access_log="off",
                    **settings,
                )
            )
        )
        command = [
            str(tools.find(tools.ENVOY)), "--config-path", str(config), "--disable-hot-restart",
            "--concurrency", "1", "--log-level", "warning",
        ]  # fmt: skip
        started = self._spawn("envoy", command, {})
        started.address = str(public)
        wait_until(
            lambda: f"membership_healthy: {len(gateways)}" in _page(admin.port, "/stats?filter=membership_healthy"),
            "Envoy sees all gateways",
            process=started,
        )
        return started

    def run(self, command: Sequence[str | Path], **environment: str) -> Process:
        """Any other program; it is ready when it has written an address as its first line."""
        started = self._spawn("program", [str(part) for part in command], environment)
        wait_until(lambda: "\n" in started.log.read_text(), "the program says where it listens", process=started)
        started.address = started.log.read_text().partition("\n")[0].strip()
        return started

    def _start(self, name: str, command: Sequence[str], environment: dict[str, str], *, wait: bool = True) -> Process:
        ready = self._folder / f"ready-{name}-{self._count}.json"
        started = self._spawn(
            name, [*self.wrapper, *command], {**environment, f"HEADRACE_{name.upper()}_READY_FILE": str(ready)}
        )
        if wait:
            wait_until(ready.exists, f"{name} is ready", process=started)
            started.address = json.loads(ready.read_text())["address"]
        return started

    def _spawn(self, name: str, command: Sequence[str], environment: dict[str, str]) -> Process:
        log = self._folder / f"{name}-{self._count}.log"
        self._count += 1
        with log.open("wb") as sink:
            popen = subprocess.Popen(
                command,
                env={**os.environ, "GRPC_VERBOSITY": "ERROR", **environment},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started = Process(name, popen, "", log)
        self._running.append(started)
        return started


def wait_until(
    holds: Callable[[], object], what: str, *, seconds: float = START_SECONDS, process: Process | None = None
) -> None:
    """Looks often until it holds; fails with the process's last words when it ends, or after that long."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError):
            if holds():
                return
        if process is not None and not process.alive:
            raise AssertionError(f"{process.name} ended before {what}:\n{process.words()}")
        if time.monotonic() > end:
            words = process.words() if process is not None else ""
            raise AssertionError(f"not within {seconds:g} s: {what}\n{words}")
        time.sleep(0.02)


async def until(holds: Callable[[], Awaitable[object]], what: str, *, seconds: float = 10) -> float:
    """`wait_until` for a test's event loop; answers how long it took, seconds."""
    begin = time.monotonic()
    while not await holds():
        if time.monotonic() - begin > seconds:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        await asyncio.sleep(0.01)
    return time.monotonic() - begin


def _environment(service: str, settings: dict[str, object]) -> dict[str, str]:
    return {f"HEADRACE_{service}_{key.upper()}": _text(value) for key, value in settings.items()}


def _text(value: object) -> str:
    return f"{value.total_seconds()}s" if isinstance(value, timedelta) else str(value)


def _page(port: int, path: str) -> str:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    except http.client.HTTPException:
        return ""
    finally:
        connection.close()
