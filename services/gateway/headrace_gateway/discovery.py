"""Follows the registry in NATS: which workers there are, as a whole list of addresses, each time it changes.

The list comes from a watch that is opened anew every few seconds: a lease that runs out may pass a watcher by, and a
NATS server that was restarted has an empty bucket until workers renew. With NATS away nothing is reported, so whoever
listens keeps the last list; `connected` says which of the two it is.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any, Final

import nats.errors
from nats.js.errors import Error as JetStreamError

from headrace_core.registry import BUCKET, ReplicaRecord, connect, ensure_bucket

log: Final = logging.getLogger(__name__)

READ_AGAIN: Final = timedelta(seconds=3)


class Discovery:
    """Run it as a supervised task. `listed` is called with all addresses whenever they may have changed."""

    def __init__(
        self, *, urls: Sequence[str], listed: Callable[[frozenset[str]], None], read_again: timedelta = READ_AGAIN
    ) -> None:
        self._urls = urls
        self._listed = listed
        self._read_again = read_again.total_seconds()
        self.connected = False
        """Whether the list is fresh. False: it is the last that was seen."""

    async def run(self) -> None:
        """Follows until cancelled; NATS may come and go, or not be there at the start."""
        connection = await connect(self._urls, name="headrace gateway")
        try:
            while True:
                try:
                    store = await ensure_bucket(connection)
                    await self._follow(store)
                except (nats.errors.Error, JetStreamError, TimeoutError, OSError) as error:
                    self._note_trouble(error)
                    await asyncio.sleep(min(self._read_again, 1.0))
        finally:
            self.connected = False
            # Whatever state NATS is in: leaving takes no longer than a moment.
            try:
                async with asyncio.timeout(1):
                    await connection.close()
            except (nats.errors.Error, TimeoutError, OSError) as error:
                log.debug("NATS: closed unclean", extra={"detail": str(error)})

    async def _follow(self, store: Any) -> None:
        """Reads the bucket as a whole, then its changes, until it is time to read it again."""
        until = monotonic() + self._read_again
        records: dict[str, str] = {}
        complete = False
        watcher = await store.watchall()
        try:
            while (left := until - monotonic()) > 0:
                try:
                    entry = await watcher.updates(timeout=left)
                except TimeoutError:
                    break
                if entry is None:
                    complete = True
                else:
                    _take(records, entry)
                if complete:
                    self._note_fresh()
                    self._listed(frozenset(records.values()))
        finally:
            await watcher.stop()
        if not complete:
            raise TimeoutError("the registry did not answer")

    def _note_fresh(self) -> None:
        if not self.connected:
            self.connected = True
            log.info("following the registry", extra={"bucket": BUCKET})

    def _note_trouble(self, error: Exception) -> None:
        if self.connected:
            self.connected = False
            log.warning(
                "the registry is away; going on with the workers that are known",
                extra={"detail": f"{type(error).__name__}: {error}"},
            )


def _take(records: dict[str, str], entry: Any) -> None:
    if entry.operation in ("DEL", "PURGE") or not entry.value:
        records.pop(entry.key, None)
        return
    try:
        records[entry.key] = ReplicaRecord.from_json(entry.value).address
    except ValueError as error:
        log.warning("a registry record cannot be read", extra={"key": entry.key, "detail": str(error)})
