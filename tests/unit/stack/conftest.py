"""What the stack's tests share: stand-in services, and ways to wait for something to become true."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest

from headrace.stack.logs import Log, LogWriter, Text
from headrace.stack.plan import Programs, UpOptions
from headrace.stack.state import StackRecord, StateDir
from headrace.stack.supervisor import Supervisor

STAND_IN = str(Path(__file__).with_name("stand_in.py"))
PROGRAMS = Programs(python=sys.executable, gateway=(STAND_IN, "gateway"), worker=(STAND_IN, "worker"))


async def until(true: Callable[[], object], *, within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while not true():  # noqa: ASYNC110 - another process or task changes it
            await asyncio.sleep(0.01)


class Stack:
    """A supervisor that runs as a task beside the test."""

    def __init__(self, supervisor: Supervisor, state: StateDir, journal: Path, output: StringIO) -> None:
        self.supervisor = supervisor
        self.state = state
        self.journal_path = journal
        self.output = output
        self.ready = asyncio.Event()
        self.task: asyncio.Task[int] | None = None

    def journal(self) -> list[tuple[str, str, int]]:
        if not self.journal_path.exists():
            return []
        lines = [line.rsplit(" ", 1) for line in self.journal_path.read_text().splitlines()]
        return [(*head.split(" ", 1), int(pid)) for head, pid in lines]  # type: ignore[misc]

    def record(self) -> StackRecord:
        record = self.state.read()
        assert record is not None
        return record

    def pid(self, name: str) -> int | None:
        return next(service.pid for service in self.record().services if service.name == name)


async def no_models(
    *, address: str, gateways: Sequence[str], workers: Sequence[str], log: Log, patience: timedelta
) -> str:
    return "ready"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "some models"
    (folder / "tiny").mkdir(parents=True)
    (folder / "tiny" / "model.onnx").write_bytes(b"")
    return folder


@pytest.fixture
def run_stack(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch):
    journal = tmp_path / "journal"
    monkeypatch.setenv("STAND_IN_JOURNAL", str(journal))

    @asynccontextmanager
    async def run(
        *, state: StateDir | None = None, programs: Programs = PROGRAMS, wait: bool = True, **options: object
    ) -> AsyncIterator[Stack]:
        output = StringIO()
        writer = LogWriter(output)
        log = Log(writer, render=Text(colour=False), level="debug")
        folder = state or StateDir(tmp_path / "a state folder")
        asked = UpOptions(**{"models": (models,), "port": 0, "envoy": False, "nats": False, **options})  # type: ignore[arg-type]
        stack: Stack
        supervisor = Supervisor(
            asked, state=folder, log=log, programs=programs, warmup=no_models, on_ready=lambda _: stack.ready.set()
        )
        stack = Stack(supervisor, folder, journal, output)
        stack.task = asyncio.create_task(supervisor.run())
        try:
            if wait:
                ready = asyncio.create_task(stack.ready.wait())
                done, _ = await asyncio.wait({ready, stack.task}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
                ready.cancel()
                if stack.task in done:
                    stack.task.result()
                assert stack.ready.is_set(), output.getvalue()
            yield stack
        finally:
            if not stack.task.done():
                supervisor.request_stop()
            await asyncio.wait({stack.task}, timeout=30)
            writer.close()

    return run
