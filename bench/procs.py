"""Server processes: started, waited for, measured, stopped; and whether the machine is quiet enough to measure."""

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

START_SECONDS = 90
STOP_SECONDS = 10


@dataclass
class Patience:
    """How long each run waits for a quiet machine. Zero for a run that only shows that everything works."""

    seconds: float = 30


patience = Patience()


class NotStarted(RuntimeError):
    """A server ended, or said nothing, before it was ready; its last words are in the text."""


@dataclass
class Server:
    """A running server: where it listens, and the processes that make it up."""

    name: str
    address: str
    process: subprocess.Popen[bytes]

    def cpu_seconds(self) -> float:
        """CPU time of the process and all its descendants, the finished ones included."""
        total = 0.0
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def memory_bytes(self) -> int:
        """Memory that is this server's own (pages shared with others aside), over all its processes."""
        total = 0
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_full_info().uss
        return total

    def _tree(self) -> list[psutil.Process]:
        try:
            parent = psutil.Process(self.process.pid)
            return [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def stop(self) -> None:
        """Asks it to end, and ends what doesn't."""
        tree = self._tree()
        self.process.terminate()
        _, left = psutil.wait_procs(tree, timeout=STOP_SECONDS)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()


@contextlib.contextmanager
def serving(
    name: str,
    *,
    command: Sequence[str | Path],
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    address: Callable[[Path], str | None],
) -> Iterator[Server]:
    """Runs a server for the length of the block.

    `address` gets the folder in which it runs its log (`log`) and may write files; it answers the address once the server
    is ready and `None` until then.
    """
    with tempfile.TemporaryDirectory(prefix=f"headrace-bench-{name}-") as folder:
        scratch = Path(folder)
        log = scratch / "log"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [str(part).replace("{scratch}", folder) for part in command],
                env={**os.environ, **{k: v.replace("{scratch}", folder) for k, v in (environment or {}).items()}},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        server = Server(name, "", process)
        try:
            end = time.monotonic() + START_SECONDS
            while not (found := address(scratch)):
                if process.poll() is not None or time.monotonic() > end:
                    raise NotStarted(f"{name} did not start:\n{log.read_text(errors='replace')[-3000:]}")
                time.sleep(0.05)
            server.address = found
            yield server
        finally:
            server.stop()


def printed_address(scratch: Path) -> str | None:
    """For servers whose first line of output is their address."""
    text = (scratch / "log").read_text(errors="replace")
    return text.partition("\n")[0].strip() if "\n" in text else None


def ready_file(scratch: Path) -> str | None:
    """For our own services, which write `ready.json` once they serve."""
    path = scratch / "ready.json"
    return str(json.loads(path.read_text())["address"]) if path.exists() else None


def free_port() -> int:
    """A port that nothing listens on now."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def busy_cores(seconds: float = 0.5) -> float:
    """Cores that something else keeps busy right now; time stolen by neighbours of this virtual machine included."""
    before, begin = psutil.cpu_times(), time.monotonic()
    time.sleep(seconds)
    after, elapsed = psutil.cpu_times(), time.monotonic() - begin
    used = sum(
        getattr(after, field) - getattr(before, field) for field in ("user", "nice", "system", "steal", "softirq")
    )
    return float(used / elapsed)


def wait_until_quiet(limit: float = 0.15) -> float:
    """Waits until less than `limit` cores are busy; answers what still was when patience ended."""
    end = time.monotonic() + patience.seconds
    while (busy := busy_cores()) > limit and time.monotonic() < end:
        pass
    return busy
