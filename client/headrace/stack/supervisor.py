"""Starts a stack, keeps it up, takes it down: the one place that owns the order.

Start: NATS, then all others together. Stop: Envoy → gateways → workers → NATS, each tier after the one in front of it
has finished what was in flight. The first stop request drains, the second kills.
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import metadata as packages
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from headrace.stack import tools
from headrace.stack.announce import announce
from headrace.stack.child import Child
from headrace.stack.fleet import Fleet, Model
from headrace.stack.logs import Log
from headrace.stack.plan import Ports, Programs, UpOptions, plan
from headrace.stack.ports import Claim, PortTaken, claim
from headrace.stack.problem import StackProblem, UsageProblem
from headrace.stack.repository import assemble
from headrace.stack.state import StackRecord, StateDir

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_PORT = 8001
_LOOK_EVERY_S = 0.1
_PROGRESS_EVERY_S = 5.0
_KILLED = 130
_SERVICES = ("headrace_gateway", "headrace_worker")


class Warmup(Protocol):
    """Waits until what was started serves, and says what to call. The tests put a stand-in here."""

    async def __call__(
        self, *, address: str, gateways: Sequence[str], workers: Sequence[str], log: Log, patience: timedelta
    ) -> str: ...


class Supervisor:
    """One stack, from nothing to nothing."""

    def __init__(
        self,
        options: UpOptions,
        *,
        state: StateDir,
        log: Log,
        programs: Programs | None = None,
        warmup: Warmup | None = None,
        on_ready: Callable[[StackRecord], None] = lambda _: None,
    ) -> None:
        self._options = options
        self._state = state
        self._log = log
        self._programs = programs or Programs()
        self._warmup = warmup or wait_for_models
        self._on_ready = on_ready
        self._stop = asyncio.Event()
        self._kill = asyncio.Event()
        self._tiers: list[list[Child]] = []
        self._record: StackRecord | None = None
        self._ports: Ports | None = None
        self._run_dir: Path | None = None

    def request_stop(self) -> None:
        """Drains and stops; asked a second time, kills."""
        if self._stop.is_set():
            self._kill.set()
        self._stop.set()

    async def run(self) -> int:
        """Returns the exit code when nothing is left. Raises `StackProblem` if the stack cannot start."""
        with self._state.hold():
            try:
                await self._until_stopped(self._start())
                await self._stop.wait()
            except StackProblem as problem:
                self._note(phase="failed", problem=str(problem))
                raise
            finally:
                killed = await self._take_down()
        return _KILLED if killed else 0

    async def _start(self) -> None:
        self._run_dir = run_dir = self._state.make_run_dir()
        repository = assemble(self._options.models, links=run_dir / "models")
        programs = _find_programs(self._options, self._programs)
        self._ports = ports = _claim_ports(self._options, self._log)
        self._record = StackRecord(
            pid=os.getpid(),
            phase="starting",
            address=str(ports.public),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            version=_version(),
            run_dir=str(run_dir),
        )
        self._note()
        tiers = plan(
            self._options,
            programs=programs,
            ports=ports,
            repository=repository,
            nats_dir=self._state.nats,
            run_dir=run_dir,
        )
        # NATS first, since workers announce themselves there. The rest comes up together, each telling the truth about
        # itself meanwhile: loading models takes longest by far, and nothing else has to wait for it.
        for specs in tiers:
            self._tiers.append([Child(spec, log=self._log, changed=self._note) for spec in specs])
        if ports.nats is not None:
            await self._start_children(self._tiers[0])
        await self._start_children([child for tier in self._tiers[ports.nats is not None :] for child in tier])
        text = await self._warmup(
            address=str(ports.public),
            gateways=[str(gateway) for gateway in ports.gateways],
            workers=[str(worker) for worker in ports.workers],
            log=self._log,
            patience=self._options.start_timeout,
        )
        self._note(phase="ready", announcement=text)
        assert self._record is not None, "made above"
        self._on_ready(self._record)

    async def _start_children(self, children: Sequence[Child]) -> None:
        self._log.say(f"starting {', '.join(child.spec.name for child in children)}")
        starts = [asyncio.create_task(child.start(patience=self._options.start_timeout)) for child in children]
        try:
            await asyncio.gather(*starts)
        finally:
            for start in starts:
                start.cancel()

    async def _until_stopped(self, work: Coroutine[object, object, None]) -> None:
        """Runs `work` unless a stop is requested first."""
        task = asyncio.create_task(work)
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            return
        await task

    async def _take_down(self) -> bool:
        """Stops everything, removes what was temporary. True if it had to be killed on request."""
        self._note(phase="stopping")
        if self._tiers:
            self._log.say("stopping; once more to kill" if not self._kill.is_set() else "stopping")
        drain = asyncio.create_task(self._drain())
        kill = asyncio.create_task(self._kill.wait())
        await asyncio.wait({drain, kill}, return_when=asyncio.FIRST_COMPLETED)
        kill.cancel()
        killed = not drain.done()
        if killed:
            self._log.say("killing", level="warning")
            for child in self._children():
                child.kill()
        # Each stop ends once its process is gone, killed or not.
        await drain
        if self._ports is not None:
            self._ports.close()
        if self._run_dir is not None:
            shutil.rmtree(self._run_dir, ignore_errors=True)
        self._state.record.unlink(missing_ok=True)
        return killed

    async def _drain(self) -> None:
        for tier in reversed(self._tiers):
            await asyncio.gather(*(child.stop() for child in tier))

    def _children(self) -> list[Child]:
        return [child for tier in self._tiers for child in tier]

    def _note(self, **changes: object) -> None:
        """Writes down what has changed, for `headrace status`."""
        if self._record is None:
            return
        services = tuple(child.record() for child in self._children())
        self._record = self._record.model_copy(update={**changes, "services": services})
        self._state.write(self._record)


async def wait_for_models(
    *, address: str, gateways: Sequence[str], workers: Sequence[str], log: Log, patience: timedelta
) -> str:
    """Waits until every model is loaded or has failed and the public address serves the ready ones.

    Says what failed and, while a load takes long, what it waits for. Raises `StackProblem` if no model became ready.
    """
    fleet = Fleet(public=address, gateways=gateways, workers=workers)
    try:
        async with asyncio.timeout(patience.total_seconds()):
            loaded = await _wait_for_workers(fleet, log)
            # Another process learns of it: there is no event to wait for.
            while not await fleet.all_serve(frozenset(model.name for model in loaded)):  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_EVERY_S)
        return await announce(fleet, address=address, models=loaded)
    except TimeoutError as problem:
        raise StackProblem(f"No model was ready after {patience.total_seconds():g} s.") from problem
    finally:
        await fleet.close()


async def _wait_for_workers(fleet: Fleet, log: Log) -> list[Model]:
    """The ready models."""
    told: set[Model] = set()
    started = last_progress = monotonic()
    while True:
        by_worker = await fleet.worker_models()
        models = {model for one in by_worker or () for model in one}
        for model in sorted(models - told, key=lambda one: (one.name, one.version)):
            told.add(model)
            if model.state == "FAILED":
                log.say(f"{model.name} {model.version} could not be loaded: {model.reason}", level="error")
        waiting = sorted({model.name for model in models if model.state in ("LOADING", "UNLOADING")})
        if by_worker is not None and not waiting and all(by_worker):
            break
        if monotonic() - last_progress >= _PROGRESS_EVERY_S:
            last_progress = monotonic()
            what = ", ".join(waiting) or "the workers"
            log.say(f"still waiting for {what} ({monotonic() - started:.0f} s)")
        await asyncio.sleep(_LOOK_EVERY_S)
    ready = [model for model in models if model.state == "READY"]
    if not ready:
        failed = sorted(models, key=lambda one: one.name)
        reasons = "; ".join(f"{model.name}: {model.reason}" for model in failed) or "none was found"
        raise StackProblem(f"No model could be loaded ({reasons}).")
    return ready


def _find_programs(options: UpOptions, programs: Programs) -> Programs:
    for module, for_what in (
        *((module, "the services") for module in _SERVICES if module in (*programs.gateway, *programs.worker)),
        *((("jinja2", "Envoy's configuration"),) if options.envoy else ()),
    ):
        if find_spec(module) is None:
            raise StackProblem(f"{module} is missing, which {for_what} needs: run `pip install 'headrace[local]'`.")
    if options.envoy and programs.envoy is None:
        programs = replace(programs, envoy=tools.find(tools.ENVOY))
    if options.nats and programs.nats is None:
        programs = replace(programs, nats=tools.find(tools.NATS))
    return programs


def _claim_ports(options: UpOptions, log: Log) -> Ports:
    claims: list[Claim] = []

    def free() -> Claim:
        claims.append(claim("127.0.0.1"))
        return claims[-1]

    try:
        public = _claim_public(options, log)
        claims.append(public)
        return Ports(
            public=public,
            workers=tuple(free() for _ in range(options.workers)),
            gateways=tuple(free() for _ in range(options.gateways)) if options.envoy else (),
            nats=free() if options.nats else None,
            envoy_admin=free() if options.envoy else None,
        )
    except BaseException:
        for one in claims:
            one.close()
        raise


def _claim_public(options: UpOptions, log: Log) -> Claim:
    wanted = DEFAULT_PORT if options.port is None else options.port
    try:
        try:
            return claim(options.host, port=wanted)
        except PortTaken as problem:
            if options.port is not None:
                raise UsageProblem(
                    f"Port {wanted} on {options.host} is taken: stop what listens there, or choose another --port (0: any)."
                ) from problem
            other = claim(options.host)
            log.say(f"port {wanted} is taken, so this stack listens on {other.port}", level="warning")
            return other
    except UsageProblem:
        raise
    except OSError as problem:
        raise UsageProblem(f"{options.host}:{wanted} cannot be listened on: {problem.strerror}.") from problem


def _version() -> str:
    try:
        return packages.version("headrace")
    except packages.PackageNotFoundError:
        return "0"
