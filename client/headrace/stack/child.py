"""One process of the stack: started, watched, started again when it dies, stopped.

The process gets a group of its own (the terminal's Ctrl-C reaches only the supervisor) and cannot outlive the
supervisor (`shim`). Its output goes to the log, line by line.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Literal

from headrace.stack.backoff import Backoff
from headrace.stack.logs import Lines, Log, entry
from headrace.stack.plan import ChildSpec
from headrace.stack.problem import StackProblem
from headrace.stack.readiness import http, is_ready
from headrace.stack.state import ServiceRecord

_SHIM = str(Path(__file__).with_name("shim.py"))
_LOOK_EVERY_S = 0.03
_IN_FLIGHT = "http.public.downstream_rq_active"


class Child:
    """Keeps one program running until it is told to stop."""

    def __init__(
        self, spec: ChildSpec, *, log: Log, changed: Callable[[], None], backoff: Backoff | None = None
    ) -> None:
        self.spec = spec
        self._log = log
        self._changed = changed
        self._backoff = backoff or Backoff()
        self._process: Process | None = None
        self._state: Literal["starting", "running", "restarting", "stopping", "stopped"] = "stopped"
        self._restarts = 0
        self._stopping = asyncio.Event()
        self._ready = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._last_lines: deque[str] = deque(maxlen=20)

    async def start(self, *, patience: timedelta) -> None:
        """Returns when the program is ready for the first time. Raises `StackProblem` if it dies or is not by then."""
        self._keeper = asyncio.create_task(self._keep(), name=f"keep {self.spec.name}")
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait(
                {self._keeper, ready}, timeout=patience.total_seconds(), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            ready.cancel()
        if self._keeper.done():
            await self._keeper
        if not self._ready.is_set() and not self._stopping.is_set():
            raise StackProblem(
                f"{self.spec.name} was not ready after {patience.total_seconds():g} s.{self._last_words()}"
            )

    async def stop(self) -> None:
        """Ends the program: drain, SIGTERM, and SIGKILL if it takes too long. Returns when it is gone."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._become("stopping")
        process = self._process
        if process is not None and process.returncode is None:
            started = monotonic()
            if self.spec.drain_by_admin and self._ready.is_set():
                await self._drain_by_admin()
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), self.spec.stop_timeout.total_seconds())
            except TimeoutError:
                self._log.say(
                    f"{self.spec.name} did not stop in {monotonic() - started:.0f} s and is killed", level="warning"
                )
                self.kill()
        if self._keeper is not None:
            with contextlib.suppress(StackProblem, asyncio.CancelledError):
                await self._keeper
        self._become("stopped")

    def kill(self) -> None:
        """Ends the program and whatever it started, at once."""
        self._stopping.set()
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def record(self) -> ServiceRecord:
        """What `headrace status` shows."""
        process = self._process
        alive = process is not None and process.returncode is None
        return ServiceRecord(
            name=self.spec.name,
            state=self._state,
            pid=process.pid if process is not None and alive else None,
            address=self.spec.address,
            admin=self.spec.admin,
            restarts=self._restarts,
        )

    async def _keep(self) -> None:
        """Runs the program again and again until it is told to stop. Raises if the very first run ends unready."""
        while not self._stopping.is_set():
            born = monotonic()
            try:
                code = await self._run_once()
            except OSError as problem:
                if not self._ready.is_set():
                    raise StackProblem(f"{self.spec.name} cannot be started: {problem.strerror}.") from problem
                # Too many processes, or no memory for one, may be over soon.
                self._log.say(f"{self.spec.name} cannot be started: {problem.strerror}", level="error")
                code = 1
            if self._stopping.is_set():
                return
            if not self._ready.is_set():
                raise StackProblem(f"{self.spec.name} stopped before it was ready ({_how(code)}).{self._last_words()}")
            wait = self._backoff.after_death(lived=timedelta(seconds=monotonic() - born))
            self._become("restarting")
            self._log.say(
                f"{self.spec.name} {'died' if code else 'ended'} ({_how(code)}); it is started again in {wait.total_seconds():g} s",
                level="warning",
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait.total_seconds())
            self._restarts += 1

    async def _run_once(self) -> int:
        self._become("starting")
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            _SHIM,
            str(os.getpid()),
            *self.spec.argv,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            env={**os.environ, **self.spec.env},
            process_group=0,
        )
        self._changed()
        if self._stopping.is_set():
            # Told to stop between the decision to start and the start.
            process.kill()
        watch = asyncio.create_task(self._watch_readiness(process.pid))
        read = asyncio.create_task(self._read(process))
        try:
            code = await process.wait()
            # Something that it started may hold the pipe open; its own last words come at once.
            await asyncio.wait({read}, timeout=1.0)
        finally:
            watch.cancel()
            read.cancel()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        return code

    async def _watch_readiness(self, pid: int) -> None:
        # Another process becomes ready: there is no event to wait for.
        while not await is_ready(self.spec.ready, pid=pid):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_EVERY_S)
        if self._ready.is_set():
            self._log.say(f"{self.spec.name} is back", pid=pid)
        self._ready.set()
        if not self._stopping.is_set():
            self._become("running")

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None, "started with a pipe"
        lines = Lines()
        while data := await process.stdout.read(1 << 16):
            for line in lines.feed(data):
                self._heard(line)
        for line in lines.end():
            self._heard(line)

    def _heard(self, line: str) -> None:
        self._last_lines.append(line)
        self._log.line(self.spec.name, line)

    def _last_words(self) -> str:
        """The last thing it said that sounds like a reason, as the end of a sentence."""
        told = [entry(self.spec.name, line) for line in self._last_lines if line.strip()]
        loud = [one for one in told if one.rank >= 40] or told
        return f" It said: {loud[-1].message}" if loud else ""

    async def _drain_by_admin(self) -> None:
        """Envoy: accept nothing new, then wait until nothing is in flight."""
        assert self.spec.admin is not None, "drained by its administration page"
        host, _, port = self.spec.admin.rpartition(":")
        deadline = self.spec.stop_timeout.total_seconds()
        try:
            async with asyncio.timeout(deadline):
                await http("POST", "/healthcheck/fail", host=host, port=int(port))
                await http("POST", "/drain_listeners", host=host, port=int(port))
                while await _in_flight(host, int(port)):  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_EVERY_S)
        except TimeoutError:
            self._log.say(f"{self.spec.name} still had requests in flight after {deadline:g} s", level="warning")
        except (OSError, ValueError) as problem:
            self._log.say(f"{self.spec.name} could not be asked to drain: {problem}", level="warning")

    def _become(self, state: Literal["starting", "running", "restarting", "stopping", "stopped"]) -> None:
        self._state = state
        self._changed()


async def _in_flight(host: str, port: int) -> int:
    _, body = await http("GET", f"/stats?filter=^{_IN_FLIGHT}$", host=host, port=port)
    found = re.search(rf"{re.escape(_IN_FLIGHT)}: (\d+)", body)
    return int(found[1]) if found else 0


def _how(code: int) -> str:
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exit code {code}"
