"""Finds a running stack, asks it how it is, and stops it: `headrace status` and `headrace down`."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta

from headrace.stack.fleet import Fleet, Model
from headrace.stack.problem import StackProblem
from headrace.stack.state import StackRecord, StateDir, running

NOT_RUNNING = 3
_LOOK_EVERY_S = 0.05


@dataclass(frozen=True)
class Status:
    """A stack as it is now."""

    state: StateDir
    record: StackRecord | None
    """None when nothing runs there, or the stack is just starting or ending."""
    models: tuple[Model, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """For `--json`."""
        record = self.record.model_dump() if self.record else {"phase": "stopped", "services": []}
        return {
            "running": self.record is not None,
            "state_dir": str(self.state.path),
            **record,
            "models": [asdict(model) for model in self.models],
        }


def locate(state: StateDir | None) -> StateDir:
    """The folder meant: the named one, or the only stack that runs without a folder of its own. Raises `StackProblem`."""
    if state is not None:
        return state
    found = running()
    if len(found) == 1:
        return found[0]
    if not found:
        raise StackProblem(
            "No stack is running; if one was started with --state, name it here too.", exit_code=NOT_RUNNING
        )
    names = ", ".join(str(one.path) for one in found)
    raise StackProblem(f"Several stacks are running; name one with --state: {names}.", exit_code=2)


def look(state: StateDir) -> Status:
    """Reads the record and asks the public address for its models."""
    if not state.is_held():
        return Status(state, None)
    record = state.read()
    models = asyncio.run(_models(record.address)) if record is not None and record.phase == "ready" else []
    return Status(state, record, tuple(models))


async def _models(address: str) -> list[Model]:
    fleet = Fleet(public=address)
    try:
        return await fleet.models() or []
    finally:
        await fleet.close()


def take_down(state: StateDir, *, patience: timedelta, kill: bool, say: Callable[[str], None]) -> bool:
    """Asks the supervisor to drain and waits until nothing of the stack is left. False if nothing ran there.

    `kill` cuts what is in flight. Raises `StackProblem` if it is still there after `patience`.
    """
    if not state.is_held():
        return False
    deadline = time.monotonic() + patience.total_seconds()
    record = state.read()
    while record is None and state.is_held() and time.monotonic() < deadline:
        # It is about to write its record, or about to be gone.
        time.sleep(_LOOK_EVERY_S)
        record = state.read()
    if record is not None and state.is_held():
        say(f"stopping the stack at {record.address}")
        _signal(record.pid)
        if kill:
            # Signals that arrive together count as one: the second goes when the first was heard.
            while (
                state.is_held()
                and (now := state.read()) is not None
                and now.phase != "stopping"
                and time.monotonic() < deadline
            ):
                time.sleep(_LOOK_EVERY_S)
            _signal(record.pid)
    while state.is_held():
        if time.monotonic() > deadline:
            raise StackProblem(
                f"The stack in {state.path} is still stopping after {patience.total_seconds():g} s; --kill ends it at once."
            )
        time.sleep(_LOOK_EVERY_S)
    return True


def _signal(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    except PermissionError as problem:
        raise StackProblem(f"The stack belongs to another user (process {pid}).") from problem
