"""What a service owes at its end, seen by a caller who is right in front of it (V28)."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace_protos.inference import grpc_service_pb2 as pb
from tests.load import repository, wire
from tests.load.ask import ask, channel, depth, nap, plain, stub
from tests.load.rig import Process, Rig, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import grpc.aio


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as started:
        yield started


def _door(rig: Rig, tmp_path: Path, name: str, **settings: object) -> Process:
    models = repository.build(tmp_path / "models", "add", "nap")
    if name == "worker":
        return rig.worker(models, **settings)
    return rig.gateway([rig.worker(models).address], **settings)


async def _answers(link: grpc.aio.Channel) -> bool:
    return (await ask(link, plain())).ok


@pytest.mark.parametrize("name", ["worker", "gateway"])
async def test_readiness_falls_before_the_port_closes(rig: Rig, tmp_path: Path, name: str) -> None:
    door = _door(rig, tmp_path, name, drain_beat="1.5s")
    async with channel(door.address) as link:
        await until(lambda: _answers(link), "it serves")
        health: Any = health_pb2_grpc.HealthStub(link)
        check = health_pb2.HealthCheckRequest()
        assert (await health.Check(check)).status == health_pb2.HealthCheckResponse.SERVING
        watch = health.Watch(check)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        begun = time.monotonic()
        door.signal(signal.SIGTERM)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert time.monotonic() - begun < 1.0
        # Not ready, and alive; whoever hasn't heard yet is still served, on new connections too.
        assert not (await stub(link).ServerReady(pb.ServerReadyRequest())).ready
        assert (await stub(link).ServerLive(pb.ServerLiveRequest())).live
        async with channel(door.address) as late:
            assert (await ask(late, plain())).ok
        assert await asyncio.to_thread(door.popen.wait, 10) == 0


@pytest.mark.parametrize("name", ["worker", "gateway"])
async def test_idle_connections_are_told_to_go_and_hold_nothing_up(rig: Rig, tmp_path: Path, name: str) -> None:
    door = _door(rig, tmp_path, name)
    with wire.Peer(door.address) as peer, wire.Peer(door.address) as silent:
        peer.greet()
        peer.send(wire.frame(wire.PING, 0, 0, b"12345678"))
        # The other one has not even said hello.
        silent.send(wire.PREFACE[:5])
        begun = time.monotonic()
        reading = asyncio.create_task(asyncio.to_thread(lambda: list(peer.frames(seconds=8))))
        assert await asyncio.to_thread(door.terminate) == 0
        assert time.monotonic() - begun < 4.0
        kinds = [kind for kind, *_ in await reading]
    assert wire.GOAWAY in kinds


@pytest.mark.parametrize("name", ["worker", "gateway"])
async def test_a_second_signal_ends_it_at_once(rig: Rig, tmp_path: Path, name: str) -> None:
    door = _door(rig, tmp_path, name)
    async with channel(door.address) as link:
        await until(lambda: _answers(link), "it serves")
        call = asyncio.create_task(ask(link, nap(20_000), timeout=30))
        await asyncio.sleep(0.3)
        door.signal(signal.SIGTERM)
        await asyncio.sleep(0.5)
        begun = time.monotonic()
        door.signal(signal.SIGINT)
        assert await asyncio.to_thread(door.popen.wait, 5) == 128 + signal.SIGINT
        assert time.monotonic() - begun < 2.0
        assert (await call).code == "UNAVAILABLE"


async def test_a_worker_whose_batch_outlasts_the_drain_still_ends(rig: Rig, tmp_path: Path) -> None:
    door = _door(rig, tmp_path, "worker", drain_timeout="0.5s")
    async with channel(door.address) as link:
        call = asyncio.create_task(ask(link, nap(4_000), timeout=30))
        behind = []

        async def runs() -> bool:
            return (await depth(link, "nap"))[1] > 0

        await until(runs, "it runs")
        behind = [asyncio.create_task(ask(link, nap(1), timeout=30)) for _ in range(3)]
        await asyncio.sleep(0.1)
        begun = time.monotonic()
        await asyncio.to_thread(door.terminate)
        assert time.monotonic() - begun < 10
        # The batch gets a few seconds more; what waits behind it is told at once.
        assert (await call).code in {"OK", "UNAVAILABLE"}
        ended = await asyncio.gather(*behind)
    assert {(one.code, one.reason) for one in ended} == {("UNAVAILABLE", "DRAINING")}, ended
