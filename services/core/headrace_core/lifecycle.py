"""A service's life: signals, background tasks that are looked after, and the order of a drain.

lifecycle = Lifecycle()
lifecycle.catch_signals()
supervisor.start("announce", announcer.run)
await lifecycle.stop_requested.wait()
await drain(…)
"""

import asyncio
import logging
import os
import resource
import signal
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from time import monotonic
from typing import Final

log: Final = logging.getLogger(__name__)


class Changes:
    """A counter that grows with each change, and a way to wait for the next one. For one event loop."""

    def __init__(self) -> None:
        self.generation = 1
        self._changed = asyncio.Event()

    def note(self) -> None:
        """Something changed: everyone who waits goes on."""
        self.generation += 1
        waiting, self._changed = self._changed, asyncio.Event()
        waiting.set()

    async def beyond(self, generation: int, *, at_most: timedelta) -> int:
        """Returns once the generation is beyond the given one, or after that long; says which it is now."""
        if self.generation <= generation:
            try:
                async with asyncio.timeout(at_most.total_seconds()):
                    await self._changed.wait()
            except TimeoutError:
                pass
        return self.generation


class Readiness:
    """Whether this server wants new requests. Off until start-up is done, off for good once it drains."""

    def __init__(self, *, changes: Changes) -> None:
        self._changes = changes
        self._started = False
        self.draining = False

    @property
    def ready(self) -> bool:
        return self._started and not self.draining

    def start(self) -> None:
        self._started = True
        self._changes.note()

    def drain(self) -> None:
        self.draining = True
        self._changes.note()


def raise_file_limit() -> None:
    """Lets this process have as many files open as the system permits: each connection is one, and the usual 1024 are few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Lifecycle:
    """Turns the first SIGTERM or SIGINT into a request to stop, and the second into an end at once."""

    def __init__(self) -> None:
        self.stop_requested = asyncio.Event()

    def catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self.stop_requested.is_set():
            log.error("second signal: ending without finishing what is in flight", extra={"signal": number.name})
            os._exit(128 + number)
        log.info("stopping", extra={"signal": number.name})
        self.stop_requested.set()


async def drain(
    readiness: Readiness,
    *,
    beat: timedelta,
    stop_accepting: Callable[[timedelta], Awaitable[bool]],
    finish: Callable[[], Awaitable[None]],
    limit: timedelta,
) -> bool:
    """Readiness off, a beat for balancers to notice, nothing new, what is in flight finished, the rest.

    Returns whether everything in flight was finished within the limit.
    """
    readiness.drain()
    await asyncio.sleep(beat.total_seconds())
    started = monotonic()
    finished = await stop_accepting(limit)
    if not finished:
        log.error("drain limit reached with requests in flight", extra={"limit_s": limit.total_seconds()})
    await finish()
    log.info("drained", extra={"seconds": round(monotonic() - started, 3), "complete": finished})
    return finished


class Supervisor:
    """Owns background tasks: one that fails is logged and started again, with back-off; closing cancels them all."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(
        self,
        name: str,
        work: Callable[[], Coroutine[None, None, None]],
        *,
        back_off: timedelta = timedelta(seconds=0.5),
        longest_back_off: timedelta = timedelta(seconds=30),
    ) -> None:
        """Runs `work` until it returns. `work` is called anew after each failure."""
        task = asyncio.create_task(self._keep(name, work, back_off, longest_back_off), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(
        self,
        name: str,
        work: Callable[[], Coroutine[None, None, None]],
        back_off: timedelta,
        longest: timedelta,
    ) -> None:
        pause = back_off
        while True:
            started = monotonic()
            try:
                await work()
            except Exception:
                log.exception("background task failed; starting it again", extra={"task": name})
            else:
                return
            if monotonic() - started > longest.total_seconds():
                pause = back_off
            await asyncio.sleep(pause.total_seconds())
            pause = min(pause * 2, longest)
