"""Runs a supervisor under the process's signals: what `headrace up` does in the foreground and a detached stack behind it."""

import asyncio
import signal
from collections.abc import Callable

from headrace.stack.logs import Log, LogWriter
from headrace.stack.plan import UpOptions
from headrace.stack.state import StackRecord, StateDir, make_temporary, remove
from headrace.stack.supervisor import Supervisor


def serve(
    options: UpOptions,
    *,
    state: StateDir | None,
    log: Log,
    writer: LogWriter,
    on_ready: Callable[[StackRecord, StateDir], None],
) -> int:
    """Serves until SIGINT, SIGTERM or SIGHUP (a second one kills), or until nobody reads the log any more.

    Without `state` a temporary folder is made and removed. Returns the exit code; raises `StackProblem`.
    """
    folder = state or make_temporary()
    try:
        return asyncio.run(_serve(options, folder=folder, log=log, writer=writer, on_ready=on_ready))
    finally:
        if state is None:
            remove(folder)


async def _serve(
    options: UpOptions,
    *,
    folder: StateDir,
    log: Log,
    writer: LogWriter,
    on_ready: Callable[[StackRecord, StateDir], None],
) -> int:
    loop = asyncio.get_running_loop()
    supervisor = Supervisor(options, state=folder, log=log, on_ready=lambda record: on_ready(record, folder))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, supervisor.request_stop)
    writer.when_broken(lambda: loop.call_soon_threadsafe(supervisor.request_stop))
    return await supervisor.run()
