"""Discovery against a real nats-server: leases that run out, restarts, no server at the start."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from headrace.stack import tools
from headrace.stack.ports import Claim, claim
from headrace_core.registry import Announcer, ReplicaRecord
from headrace_gateway.discovery import Discovery
from tests.unit.gateway.conftest import until


class Nats:
    """A nats-server on a port of its own, which it keeps over restarts."""

    def __init__(self, folder: Path, port: Claim) -> None:
        self._program = tools.find(tools.NATS)
        self._folder = folder
        self._port = port
        self._process: asyncio.subprocess.Process | None = None
        self.url = f"nats://{port}"

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            self._program, "-js", "-sd", self._folder, "-a", self._port.host, "-p", str(self._port.port),
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()


class Follower:
    """A `Discovery` under way, and the last list that it told."""

    def __init__(self, url: str) -> None:
        self.addresses: frozenset[str] | None = None
        self.discovery = Discovery(urls=[url], listed=self._take, read_again=timedelta(seconds=0.5))
        self._task = asyncio.create_task(self.discovery.run())

    def _take(self, addresses: frozenset[str]) -> None:
        self.addresses = addresses

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


@contextlib.asynccontextmanager
async def announcing(url: str, record: ReplicaRecord) -> AsyncIterator[Announcer]:
    announcer = Announcer(urls=[url], record=lambda: record)
    task = asyncio.create_task(announcer.run())
    try:
        yield announcer
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        if announcer._connection is not None:
            await announcer._connection.close()


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[Nats]:
    port = claim("127.0.0.1")
    server = Nats(tmp_path / "js", port)
    yield server
    await server.stop()
    port.close()


@pytest.fixture
async def follower(nats: Nats) -> AsyncIterator[Follower]:
    made = Follower(nats.url)
    yield made
    await made.close()


async def test_nats_may_come_after_the_gateway(nats: Nats, follower: Follower):
    async with announcing(nats.url, ReplicaRecord("w1", "127.0.0.1:9001")):
        await asyncio.sleep(0)
        assert follower.addresses is None
        await nats.start()
        await until(lambda: follower.addresses == {"127.0.0.1:9001"})
        assert follower.discovery.connected


async def test_a_restarted_nats_costs_no_address_for_longer_than_a_renewal(nats: Nats, follower: Follower):
    await nats.start()
    async with announcing(nats.url, ReplicaRecord("w1", "127.0.0.1:9001")):
        await until(lambda: follower.addresses == {"127.0.0.1:9001"})
        await nats.stop()
        await until(lambda: not follower.discovery.connected)
        assert follower.addresses == {"127.0.0.1:9001"}
        await nats.start()
        await until(lambda: follower.discovery.connected and follower.addresses == {"127.0.0.1:9001"})


async def test_a_worker_that_stops_renewing_leaves_the_list_when_its_lease_ends(nats: Nats, follower: Follower):
    await nats.start()
    async with announcing(nats.url, ReplicaRecord("w1", "127.0.0.1:9001")):
        async with announcing(nats.url, ReplicaRecord("w2", "127.0.0.1:9002")):
            await until(lambda: follower.addresses == {"127.0.0.1:9001", "127.0.0.1:9002"})
        await until(lambda: follower.addresses == {"127.0.0.1:9001"}, within_s=10)


async def test_a_worker_that_withdraws_leaves_the_list_at_once(nats: Nats, follower: Follower):
    await nats.start()
    async with announcing(nats.url, ReplicaRecord("w1", "127.0.0.1:9001")) as announcer:
        await until(lambda: follower.addresses == {"127.0.0.1:9001"})
        await announcer.withdraw()
        await until(lambda: follower.addresses == frozenset(), within_s=2)
