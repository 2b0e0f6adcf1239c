"""Peers that mean no good, on raw sockets: each is bounded, and a well-behaved neighbour's call takes less than a second meanwhile."""

from __future__ import annotations

import asyncio
import os
import resource
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from tests.load import repository, wire
from tests.load.ask import Traffic, canary, plain
from tests.load.rig import Process, Rig, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

DOORS = ["worker", "gateway"]
IDLE = 2000
MIB = 1 << 20


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Process]]:
    folder = tmp_path_factory.mktemp("floods")
    models = repository.build(folder / "models", "add", "nap", "big")
    with Rig(folder) as rig:
        worker = rig.worker(models, body_timeout="1s", handshake_timeout="1s")
        gateway = rig.gateway([worker.address], body_timeout="1s", handshake_timeout="1s")
        yield {"worker": worker, "gateway": gateway}


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest, doors: dict[str, Process]) -> Process:
    return doors[request.param]


@asynccontextmanager
async def unharmed(door: Process, *, spare: int = 24 * MIB) -> AsyncIterator[None]:
    """A neighbour asks ten times a second all the while; afterwards the process is the same and as large as before."""
    await canary(door.address)
    before = door.rss()
    async with Traffic(door.address, rate=10, timeout=5) as neighbour:
        yield
        await asyncio.sleep(0.2)
    assert neighbour.failed == []
    assert max(one.seconds for one in neighbour.ended) < 1.0
    await canary(door.address)
    assert door.alive

    async def small_again() -> bool:
        return door.rss() < before + spare

    await until(small_again, f"memory is given back ({before} before)", seconds=5)


async def _flood(door: Process, raw: bytes, *, times: int, **greeting: int) -> int:
    """Sends it so often, or until the other side hangs up; how often it was taken."""

    def send() -> int:
        with wire.Peer(door.address) as peer:
            peer.greet(**greeting)
            for n in range(times):
                if not peer.send_while_open(raw):
                    return n
            return times

    return await asyncio.to_thread(send)


async def test_a_rapid_reset_of_ten_thousand_streams(door: Process) -> None:
    message = wire.message(plain())

    def reset() -> None:
        with wire.Peer(door.address) as peer:
            peer.greet()
            for first in range(1, 20_000, 200):
                burst = b"".join(
                    wire.call(n) + wire.data(n, message, end=True) + wire.frame(wire.RST, 0, n, b"\0\0\0\x08")
                    for n in range(first, first + 200, 2)
                )
                if not peer.send_while_open(burst):
                    return

    async with unharmed(door):
        await asyncio.to_thread(reset)


async def test_a_flood_of_pings_that_nobody_reads_the_answers_of(door: Process) -> None:
    async with unharmed(door):
        await _flood(door, wire.frame(wire.PING, 0, 0, b"12345678") * 200, times=500)


async def test_a_flood_of_settings(door: Process) -> None:
    async with unharmed(door):
        await _flood(door, wire.settings(initial_window_size=70_000) * 200, times=500)


async def test_a_flood_of_empty_frames(door: Process) -> None:
    async with unharmed(door):
        raw = wire.frame(wire.DATA, 0, 1) * 200

        def send() -> None:
            with wire.Peer(door.address) as peer:
                peer.greet()
                peer.send(wire.call(1))
                for _ in range(500):
                    if not peer.send_while_open(raw):
                        return

        await asyncio.to_thread(send)


async def test_headers_without_an_end_are_refused_long_before_they_fill_the_memory(door: Process) -> None:
    async with unharmed(door):

        def send() -> int:
            with wire.Peer(door.address) as peer:
                peer.greet()
                peer.send(wire.frame(wire.HEADERS, 0, 1, wire.HEAD))
                for n in range(4000):
                    header = wire.literal(b"x-%06d" % n, b"v" * 120) * 100
                    if not peer.send_while_open(wire.frame(wire.CONTINUATION, 0, 1, header)):
                        return n
            return 4000

        assert await asyncio.to_thread(send) < 1000, "50 MB of headers were taken"


async def test_empty_continuations_do_not_keep_a_connection_busy_for_ever(door: Process) -> None:
    async with unharmed(door):

        def send() -> None:
            with wire.Peer(door.address) as peer:
                peer.greet()
                peer.send(wire.frame(wire.HEADERS, 0, 1, wire.HEAD))
                for _ in range(500):
                    if not peer.send_while_open(wire.frame(wire.CONTINUATION, 0, 1) * 200):
                        return

        await asyncio.to_thread(send)


async def test_readers_that_open_no_window_hold_back_only_themselves_and_are_let_go(door: Process) -> None:
    """Sixty-four replies of a mebibyte each wait for somebody who reads nothing; `body_timeout` ends it."""
    async with unharmed(door, spare=96 * MIB):
        before = door.rss()
        with wire.Peer(door.address) as peer:
            peer.greet(initial_window_size=0)
            message = wire.message(plain(model="big"))
            for n in range(64):
                peer.send(wire.call(2 * n + 1) + wire.data(2 * n + 1, message, end=True))
            await asyncio.sleep(0.5)
            assert door.rss() - before < 200 * MIB
            resets = await asyncio.to_thread(lambda: sum(kind == wire.RST for kind, *_ in peer.frames(seconds=3)))
        assert resets == 64


async def test_connections_without_a_preface_are_closed(door: Process) -> None:
    async with unharmed(door):
        peers = [wire.Peer(door.address) for _ in range(100)]
        for peer in peers[50:]:
            peer.send(wire.PREFACE[:9])
        closed = await asyncio.gather(*(asyncio.to_thread(peer.hung_up, seconds=5) for peer in peers))
        for peer in peers:
            peer.close()
        assert all(closed)


async def test_a_body_that_stands_still_is_refused(door: Process) -> None:
    async with unharmed(door):
        with wire.Peer(door.address) as peer:
            peer.greet()
            message = wire.message(plain())
            # One has sent half of its message, one nothing, one only the prefix of a length within the limit.
            peer.send(wire.call(1) + wire.data(1, message[: len(message) // 2]))
            peer.send(wire.call(3))
            peer.send(wire.call(5) + wire.data(5, b"\0" + (32 * MIB).to_bytes(4, "big")))
            answered = {stream for kind, _, stream, _ in await asyncio.to_thread(_all, peer) if kind == wire.HEADERS}
        assert answered == {1, 3, 5}


def _all(peer: wire.Peer) -> list[tuple[int, int, int, bytes]]:
    return list(peer.frames(seconds=3))


async def test_random_bytes_are_no_requests(door: Process) -> None:
    async with unharmed(door):
        for n in range(60):
            with wire.Peer(door.address) as peer:
                if n % 3:
                    peer.send(wire.PREFACE)
                if n % 3 == 2:
                    peer.send(wire.settings() + wire.call(1))
                peer.send_while_open(os.urandom(4096))
                assert await asyncio.to_thread(peer.hung_up, seconds=3), n


async def test_a_tls_hello_and_an_http_1_request_are_hung_up_on(door: Process) -> None:
    hello = bytes.fromhex("160301002f0100002b0303") + b"\0" * 32 + bytes.fromhex("000002130101000000")
    async with unharmed(door):
        for raw in (hello, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            with wire.Peer(door.address) as peer:
                peer.send(raw)
                assert await asyncio.to_thread(peer.hung_up, seconds=3)


async def test_an_absurd_length_reserves_nothing(door: Process) -> None:
    async with unharmed(door):
        before = door.rss()
        with wire.Peer(door.address) as peer:
            peer.greet()
            for n in range(200):
                # Just under the limit of 64 MiB each, if the word counted.
                length = (64 * MIB - 1).to_bytes(4, "big")
                peer.send(wire.call(2 * n + 1) + wire.data(2 * n + 1, b"\0" + length + b"x" * 100))
            await asyncio.sleep(0.3)
            assert door.rss() - before < 64 * MIB


@pytest.mark.parametrize("name", DOORS)
async def test_two_thousand_idle_connections_cost_little_memory(tmp_path: Path, name: str) -> None:
    """Each has asked once and then stays. In fresh processes: memory that others gave back would hide what these take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8192)), hard))
    ask = wire.call(1) + wire.data(1, wire.message(plain()), end=True)
    peers: list[wire.Peer] = []

    def connect(count: int, door: Process) -> None:
        fresh = [wire.Peer(door.address) for _ in range(count)]
        peers.extend(fresh)
        for peer in fresh:
            peer.greet()
            peer.send(ask)
        for peer in fresh:
            ends = wire.END_STREAM
            assert any(kind == wire.HEADERS and flags & ends for kind, flags, *_ in peer.frames(seconds=10))

    try:
        with Rig(tmp_path) as rig:
            worker = rig.worker(repository.build(tmp_path / "models", "add"))
            door = worker if name == "worker" else rig.gateway([worker.address])
            await canary(door.address)
            # The first ones also pay for what the process makes once.
            await asyncio.to_thread(connect, 50, door)
            before = door.rss()
            async with Traffic(door.address, rate=20, timeout=5) as neighbour:
                await asyncio.to_thread(connect, IDLE, door)
            each = (door.rss() - before) / IDLE / 1e3
            print(f"{name}: {each:.1f} kB a connection")
            # HTTP/2 itself takes some 16: a buffer to read, one to write, one to decode headers, of which a page each is touched.
            assert each < 26
            assert neighbour.failed == []
            assert max(one.seconds for one in neighbour.ended) < 1.0
            await canary(door.address)
            for peer in peers:
                peer.close()
            await canary(door.address)
    finally:
        for peer in peers:
            peer.close()


def test_services_may_have_as_many_files_open_as_the_system_lets_them(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        rig.wrapper = ["sh", "-c", 'ulimit -Sn 256; ulimit -Hn 3000; exec "$@"', "sh"]
        worker = rig.worker(repository.build(tmp_path / "models", "add"))
        gateway = rig.gateway([worker.address])
        for service in (worker, gateway):
            assert resource.prlimit(service.pid, resource.RLIMIT_NOFILE) == (3000, 3000)


async def test_connections_beyond_the_limit_are_closed_and_leave_the_others_alone(tmp_path: Path) -> None:
    models = repository.build(tmp_path / "models", "add")
    with Rig(tmp_path) as rig:
        worker = rig.worker(models, max_connections=20)
        async with Traffic(worker.address, rate=20, timeout=5) as neighbour:
            await asyncio.sleep(0.2)
            peers = [wire.Peer(worker.address) for _ in range(40)]
            for peer in peers:
                peer.send_while_open(wire.PREFACE + wire.settings())
            closed = await asyncio.gather(*(asyncio.to_thread(peer.hung_up, seconds=1) for peer in peers))
            for peer in peers:
                peer.close()
        assert 19 <= sum(closed) <= 22
        assert neighbour.failed == []
        await canary(worker.address)
