"""Workers that die, stop, end and come back, under load, through the gateway and through Envoy (V13, V17)."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.load import repository
from tests.load.ask import EXIT, Traffic, ask, canary, channel, depth, executed, nap, plain, request
from tests.load.rig import Process, Rig, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    import grpc.aio

# A signal takes a moment to be acted on; calls made this long after a death must not know of it.
SETTLED_S = 0.25


class Stack:
    """Two workers behind one gateway behind Envoy."""

    def __init__(self, rig: Rig, models: Path) -> None:
        self.rig, self.models = rig, models
        self.workers = [rig.worker(models, id=f"w{n}") for n in range(2)]
        self.gateway = rig.gateway([one.address for one in self.workers])
        self.envoy = rig.envoy([self.gateway.address])

    def door(self, name: str) -> Process:
        return {"gateway": self.gateway, "envoy": self.envoy}[name]

    def restart(self, worker: Process) -> Process:
        """A new process at the old one's address, as a supervisor would start it."""
        fresh = self.rig.worker(self.models, listen=worker.address, id=f"w{self.workers.index(worker)}")
        self.workers[self.workers.index(worker)] = fresh
        return fresh

    async def both_serve(self) -> None:
        """Waits until the gateway sends requests to both."""

        async def spread() -> bool:
            before = [await self._executed(one) for one in self.workers]
            async with channel(self.gateway.address) as link:
                await asyncio.gather(*(ask(link, plain()) for _ in range(32)))
            after = [await self._executed(one) for one in self.workers]
            return all(now > then for then, now in zip(before, after, strict=True))

        await until(spread, "the gateway sends requests to both workers")

    async def _executed(self, worker: Process) -> int:
        async with channel(worker.address) as link:
            return await executed(link, "add")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("workers")
    with Rig(folder) as rig:
        yield Stack(rig, repository.build(folder / "models", "add", "nap", "nap1"))


@pytest.mark.parametrize("through", ["gateway", "envoy"])
async def test_a_killed_worker_costs_only_the_requests_it_had_begun(stack: Stack, through: str) -> None:
    await stack.both_serve()
    victim = stack.workers[0]
    async with Traffic(stack.door(through).address, rate=150, nap_ms=20, model="nap", timeout=8) as traffic:
        await asyncio.sleep(0.7)
        killed = time.monotonic()
        victim.kill()
        await asyncio.sleep(1.5)
    assert len(traffic.ended) > 250
    assert {(code, reason) for code, reason in traffic.codes() if code != "OK"} <= {("UNAVAILABLE", "WORKER_LOST")}
    assert all(killed - one.begun < 2.0 and one.begun < killed + SETTLED_S for one in traffic.failed), traffic.failed
    # One batch of at most eight runs and what waited behind it at this rate: far less than everything in flight since.
    assert len(traffic.failed) <= 40
    assert all(one.begun + one.seconds < killed + 2.0 for one in traffic.failed)
    stack.restart(victim)
    await stack.both_serve()


def _the_dead_of(victims: list[Process]) -> Callable[[], Awaitable[object]]:
    async def dead() -> object:
        return [one for one in victims if not one.alive]

    return dead


async def test_requests_in_a_model_that_ends_the_process_are_unavailable_and_the_other_worker_serves(
    stack: Stack,
) -> None:
    await stack.both_serve()
    victims = list(stack.workers)
    async with channel(stack.gateway.address) as link:
        ended = await ask(link, request("nap", [0, EXIT, 0, 0]), timeout=8)
        assert (ended.code, ended.reason) == ("UNAVAILABLE", "WORKER_LOST")
        assert ended.seconds < 2.0
        again = await ask(link, plain(1.0))
        assert again.ok
    # The socket closes a moment before the process is gone.
    await until(_the_dead_of(victims), "a worker is gone")
    # A request that may have run is not tried on the other worker: one death, not two.
    assert sum(one.alive for one in victims) == 1
    stack.restart(next(one for one in victims if not one.alive))
    await stack.both_serve()


@pytest.mark.parametrize("through", ["gateway", "envoy"])
async def test_a_stopped_worker_is_found_ejected_and_taken_back(stack: Stack, through: str) -> None:
    await stack.both_serve()
    victim = stack.workers[0]
    async with Traffic(stack.door(through).address, rate=60, timeout=8) as traffic:
        await asyncio.sleep(0.5)
        stopped = time.monotonic()
        victim.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(3.5)
            until_then = len(traffic.ended)
            found = max((one.begun for one in traffic.failed), default=stopped)
        finally:
            victim.signal(signal.SIGCONT)
        await asyncio.sleep(0.5)
    # Everything that was asked has ended, long before its deadline, one way or the other.
    assert until_then > 60 * 3.0
    assert set(traffic.codes()) <= {("OK", ""), ("UNAVAILABLE", "WORKER_LOST"), ("UNAVAILABLE", "NO_REPLICA")}
    assert max(one.seconds for one in traffic.ended) < 3.5
    assert found - stopped < 3.0, "requests still went to the stopped worker"
    await stack.both_serve()


async def test_a_worker_that_ends_under_load_loses_no_request(stack: Stack) -> None:
    await stack.both_serve()
    victim = stack.workers[1]
    async with (
        Traffic(stack.gateway.address, rate=100, nap_ms=20, model="nap", timeout=8) as inner,
        Traffic(stack.envoy.address, rate=100, timeout=8, connections=4) as outer,
    ):
        await asyncio.sleep(0.5)
        status = await asyncio.to_thread(victim.terminate)
        await asyncio.sleep(0.3)
        await asyncio.to_thread(stack.restart, victim)
        await asyncio.sleep(0.5)
    assert status == 0, victim.words()
    assert inner.failed == []
    assert outer.failed == []
    await stack.both_serve()


async def test_a_client_straight_at_a_worker_that_ends_gets_every_answer_it_waits_for(stack: Stack) -> None:
    victim = stack.workers[0]
    async with channel(victim.address) as link:
        calls = [asyncio.create_task(ask(link, nap(100, tag=float(n)), timeout=15)) for n in range(40)]
        # Forty at eight rows a batch of 100 ms: half a second of work.
        await until(lambda: _waiting(victim), "requests wait")
        status = await asyncio.to_thread(victim.terminate)
        ended = await asyncio.gather(*calls)
    assert status == 0
    assert [one.code for one in ended] == ["OK"] * 40
    stack.restart(victim)
    await stack.both_serve()


async def _waiting(worker: Process) -> bool:
    async with channel(worker.address) as link:
        return (await depth(link, "nap"))[0] > 0


async def test_without_any_worker_requests_are_refused_at_once_and_work_when_one_is_back(stack: Stack) -> None:
    for victim in stack.workers:
        victim.kill()
    async with channel(stack.gateway.address) as link:

        async def gone() -> bool:
            return (await ask(link, plain(), timeout=3)).reason == "NO_REPLICA"

        await until(gone, "the gateway says that there is no replica", seconds=5)
        ended = [await ask(link, plain(), timeout=5) for _ in range(20)]
        assert {(one.code, one.reason) for one in ended} == {("UNAVAILABLE", "NO_REPLICA")}
        assert max(one.seconds for one in ended) < 0.5
        for victim in list(stack.workers):
            stack.restart(victim)
        await stack.both_serve()
    await canary(stack.envoy.address)


async def test_abandoned_requests_leave_the_batch_loop_alive_and_are_not_run(stack: Stack) -> None:
    worker = stack.workers[0]
    async with channel(worker.address) as link:
        await ask(link, nap(50))
        threads = worker.threads()
        for _ in range(5):
            ran = await executed(link, "nap1")
            first = asyncio.create_task(ask(link, nap(400, model="nap1")))
            await until(lambda: _runs(link, "nap1"), "the first runs")
            abandoned = [asyncio.create_task(ask(link, nap(100, model="nap1"), timeout=0.02)) for _ in range(8)]
            cancelled = [asyncio.create_task(ask(link, nap(100, model="nap1"))) for _ in range(2)]
            ended = await asyncio.gather(*abandoned)
            assert {one.code for one in ended} == {"DEADLINE_EXCEEDED"}
            for one in cancelled:
                one.cancel()
            await until(lambda: _queue_empty(link, "nap1"), "the cancelled ones leave", seconds=0.3)
            assert (await first).ok
            assert await executed(link, "nap1") == ran + 1
        ended = await asyncio.gather(*(ask(link, nap(5, model="nap1"), timeout=5) for _ in range(10)))
        assert all(one.ok and one.seconds < 2 for one in ended)
        assert worker.threads() <= threads


async def _queue_empty(link: grpc.aio.Channel, model: str) -> bool:
    return (await depth(link, model))[0] == 0


async def _runs(link: grpc.aio.Channel, model: str) -> bool:
    return (await depth(link, model))[1] > 0
