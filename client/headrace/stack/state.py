"""The folder of one stack, and the record by which `headrace status` and `headrace down` find it.

    DIR/lock        held (flock) by the supervisor for its whole life; also what keeps two NATS servers off one store
    DIR/stack.json  `StackRecord`, replaced atomically at each change
    DIR/nats/       JetStream's store, kept from run to run
    DIR/run/        ready files, rendered configuration, temporary files of the services; emptied at each start
    DIR/headrace.log  the merged log of a detached stack

With `--state DIR` the folder stays. Without it a stack gets `$XDG_STATE_HOME/headrace/run-…`, removed when it ends.
"""

import fcntl
import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from headrace.stack.problem import UsageProblem

# A unix socket's path must stay under 104 bytes on every system; the services add a name of their own.
_LONGEST_RUN_DIR = 60
# gRPC reads `unix:PATH` as a URI: anything else in the path would have to be escaped by every service.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/_.-]+")


# `TMPDIR` may be as long as the state folder's own path, so it is no way out. `mkdtemp` makes a private folder in it.
_SHORT_PLACE = "/tmp"  # noqa: S108


class ServiceRecord(BaseModel):
    """One process of the stack."""

    model_config = ConfigDict(frozen=True)

    name: str
    state: Literal["starting", "running", "restarting", "stopping", "stopped"]
    pid: int | None = None
    address: str | None = None
    admin: str | None = None
    restarts: int = 0


class StackRecord(BaseModel):
    """What a stack says about itself to the other commands."""

    model_config = ConfigDict(frozen=True)

    pid: int
    """Process id of the supervisor."""
    phase: Literal["starting", "ready", "stopping", "failed"]
    address: str
    """The one address for clients, `host:port`."""
    started: str
    """UTC, ISO 8601."""
    version: str
    run_dir: str
    problem: str | None = None
    """Why it failed, one sentence."""
    announcement: str | None = None
    """What to call, as printed when it became ready."""
    services: tuple[ServiceRecord, ...] = ()


class StateDir:
    """The paths of one stack's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()
        self.lock = self.path / "lock"
        self.record = self.path / "stack.json"
        self.nats = self.path / "nats"
        self.log = self.path / "headrace.log"

    def read(self) -> StackRecord | None:
        """The last record, or None if there is none that can be read."""
        try:
            return StackRecord.model_validate_json(self.record.read_bytes())
        except (OSError, ValidationError):
            return None

    def write(self, record: StackRecord) -> None:
        """Replaces the record; a reader sees the old or the new one, never half."""
        fresh = self.record.with_suffix(".new")
        fresh.write_text(record.model_dump_json(indent=2) + "\n", encoding="utf-8")
        fresh.replace(self.record)

    def is_held(self) -> bool:
        """Whether a supervisor is alive in this folder."""
        try:
            descriptor = os.open(self.lock, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Makes the folder ours. Raises `UsageProblem` if another stack runs in it or it cannot be written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as problem:
            raise UsageProblem(f"The state folder {self.path} cannot be used: {problem.strerror}.") from problem
        try:
            if not _lock(descriptor):
                other = self.read()
                who = f" (process {other.pid}, {other.address})" if other else ""
                raise UsageProblem(
                    f"A stack already runs in {self.path}{who}: stop it with `headrace down --state {shlex.quote(str(self.path))}`,"
                    " or choose another --state."
                )
            yield
        finally:
            os.close(descriptor)

    def make_run_dir(self) -> Path:
        """An empty folder with a short, plain path, for sockets and temporary files. What a killed stack left goes first."""
        before = self.read()
        if before is not None and _is_ours(Path(before.run_dir), self.path):
            shutil.rmtree(before.run_dir, ignore_errors=True)
        inside = self.path / "run"
        shutil.rmtree(inside, ignore_errors=True)
        if len(os.fsencode(inside)) <= _LONGEST_RUN_DIR and _PLAIN_PATH.fullmatch(str(inside)):
            inside.mkdir(mode=0o700)
            return inside
        return Path(tempfile.mkdtemp(prefix="headrace-", dir=_SHORT_PLACE))


def temporary_root() -> Path:
    """Where stacks without `--state` keep their folders."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "headrace"


def make_temporary() -> StateDir:
    """A folder for a stack that keeps nothing. Folders that a killed stack left behind are removed on the way."""
    root = temporary_root()
    for old in root.glob("run-*"):
        state = StateDir(old)
        # One without a lock file is being made this moment by somebody else.
        if state.lock.exists() and not state.is_held():
            remove(state)
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        return StateDir(Path(tempfile.mkdtemp(prefix="run-", dir=root)))
    except OSError as problem:
        raise UsageProblem(
            f"The state folder {root} cannot be used: {problem.strerror}; name another with --state."
        ) from problem


def remove(state: StateDir) -> None:
    """Removes a temporary folder, and its parent if that was the last."""
    record = state.read()
    if record is not None and _is_ours(Path(record.run_dir), state.path):
        shutil.rmtree(record.run_dir, ignore_errors=True)
    shutil.rmtree(state.path, ignore_errors=True)
    try:
        state.path.parent.rmdir()
    except OSError:
        # Others are still in there.
        return


def running() -> list[StateDir]:
    """The stacks that run without a `--state` of their own."""
    return [state for state in map(StateDir, sorted(temporary_root().glob("run-*"))) if state.is_held()]


def _lock(descriptor: int) -> bool:
    """Takes the lock. A few tries, since `is_held` in another process takes it for a moment to look."""
    for _ in range(10):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return True
    return False


def _is_ours(run_dir: Path, state: Path) -> bool:
    """A record is only a file: never remove a folder by its word alone."""
    return run_dir == state / "run" or (run_dir.parent == Path(_SHORT_PLACE) and run_dir.name.startswith("headrace-"))
