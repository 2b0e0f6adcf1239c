"""How replicas find each other: a record with a lease in a NATS key-value bucket.

A worker writes `{"id", "address", "models"}` under its id and renews it; when it stops renewing, the record dies with
its lease. This is only an address book: model states come from the worker itself (`WorkerService.Watch`), and NATS
being down changes nothing for replicas that already know each other. Nothing here is ever on a request's path.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final

from nats.aio.client import Client
from nats.js.api import KeyValueConfig, StorageType
from nats.js.errors import BadRequestError

log: Final = logging.getLogger(__name__)

BUCKET: Final = "headrace_replicas"
LEASE: Final = timedelta(seconds=5)
RENEW_EVERY: Final = timedelta(seconds=1.5)


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """What a worker says of itself. `address` is where gateways dial; `models` are the names that are ready."""

    id: str
    address: str
    models: tuple[str, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> "ReplicaRecord":
        """Reads a record; fields of a later version are ignored.

        Raises:
            ValueError: this is no record.
        """
        read = json.loads(text)
        if (
            not isinstance(read, dict)
            or not isinstance(read.get("id"), str)
            or not isinstance(read.get("address"), str)
        ):
            raise ValueError("a replica record needs an id and an address")  # noqa: TRY004 - a wrong document, not a wrong call
        return cls(id=read["id"], address=read["address"], models=tuple(str(name) for name in read.get("models", ())))


async def connect(urls: Sequence[str], *, name: str) -> Client:
    """A connection that never gives up: with NATS away it keeps dialling, at start too.

    It returns only once NATS is there, so await it in a background task.
    """
    said: list[str] = []

    async def on_error(error: Exception) -> None:
        # nats-py calls this at every failed dial; one line for each new kind of trouble is enough.
        text = f"{type(error).__name__}: {error}"
        if text not in said[-1:]:
            said.append(text)
            log.warning("NATS: trouble", extra={"detail": text})

    async def on_disconnect() -> None:
        if connection.is_closed:
            return  # by ourselves
        log.warning("NATS: connection lost, dialling again")

    async def on_reconnect() -> None:
        said.clear()
        log.info("NATS: connected again")

    connection = Client()
    await connection.connect(
        servers=list(urls),
        name=name,
        max_reconnect_attempts=-1,
        reconnect_time_wait=0.5,  # type: ignore[arg-type]  # seconds, which it sleeps
        connect_timeout=2,
        ping_interval=2,
        max_outstanding_pings=2,
        error_cb=on_error,
        disconnected_cb=on_disconnect,
        reconnected_cb=on_reconnect,
    )
    return connection


async def ensure_bucket(connection: Client) -> Any:
    """The bucket, made if it isn't there. Its expiries reach watchers as purges (a marker lives for two seconds)."""
    stream = connection.jetstream(timeout=2)
    config = KeyValueConfig(bucket=BUCKET, history=1, storage=StorageType.MEMORY, limit_marker_ttl=2.0)
    try:
        return await stream.create_key_value(config)
    except BadRequestError:  # made before with other settings: use it as it is
        return await stream.key_value(BUCKET)


class Announcer:
    """Keeps one worker's record alive. Run it as a supervised task; `withdraw` removes the record at a drain."""

    def __init__(self, *, urls: Sequence[str], record: Callable[[], ReplicaRecord]) -> None:
        self._urls = urls
        self._record = record
        self._connection: Client | None = None
        self._withdrawn = False

    async def run(self) -> None:
        """Announces until cancelled or withdrawn. Troubles with NATS are logged by the connection and waited out."""
        if self._connection is None:
            self._connection = await connect(self._urls, name=f"headrace worker {self._record().id}")
        connection = self._connection
        have_bucket, failing = False, False
        while not self._withdrawn:
            try:
                if not have_bucket:
                    await ensure_bucket(connection)
                    have_bucket = True
                await self._renew(connection)
                if failing:
                    log.info("announcing to the registry again")
                failing = False
            except Exception as error:  # noqa: BLE001 - whatever NATS answers, the next beat tries again
                have_bucket = False
                if not failing:
                    log.warning(
                        "can't announce to the registry; gateways that know this worker go on",
                        extra={"detail": f"{type(error).__name__}: {error}"},
                    )
                failing = True
            await asyncio.sleep(RENEW_EVERY.total_seconds())

    async def withdraw(self) -> None:
        """Removes the record, if NATS can be reached quickly. The lease ends it otherwise."""
        self._withdrawn = True
        connection = self._connection
        if connection is None:
            return
        try:
            async with asyncio.timeout(1):
                if connection.is_connected:
                    store = await connection.jetstream(timeout=1).key_value(BUCKET)
                    await store.delete(self._record().id)
                await connection.close()
        except Exception as error:  # noqa: BLE001 - a drain must not fail on this
            log.info("the registry keeps this worker's record until its lease ends", extra={"detail": str(error)})

    async def _renew(self, connection: Client) -> None:
        record = self._record()
        # nats-py's put() has no TTL: a raw publish to the bucket's subject is the same thing with one.
        await connection.jetstream(timeout=1).publish(
            f"$KV.{BUCKET}.{record.id}",
            record.to_json().encode(),
            headers={"Nats-TTL": str(int(LEASE.total_seconds()))},
        )
