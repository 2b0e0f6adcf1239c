"""Deadlines on every hop (V15, V24, V26), and limits that stay exact (V16)."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import pytest

from headrace.stack.envoy import Address, EnvoySettings, render
from headrace_batcher import GatewayFront
from tests.load import repository
from tests.load.ask import Ended, ask, canary, channel, depth, executed, load, nap, plain, stub
from tests.load.rig import Process, Rig, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DOORS = ["worker", "gateway", "envoy"]
EXPIRED = {"EXPIRED_IN_QUEUE", "CANNOT_MEET_DEADLINE", "DEADLINE_EXCEEDED"}
ONCE = {"requests": 1, "concurrency": 1, "warmup_ms": 0, "cancel_at_deadline": False, "drain_ms": 8000}


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Process]]:
    folder = tmp_path_factory.mktemp("deadlines")
    models = repository.build(folder / "models", "add", "nap", "nap1")
    with Rig(folder) as rig:
        worker = rig.worker(models)
        gateway = rig.gateway([worker.address])
        yield {"worker": worker, "gateway": gateway, "envoy": rig.envoy([gateway.address])}


async def _busy(worker: Process, link: grpc.aio.Channel, *, seconds: float) -> asyncio.Task[Ended]:
    """Keeps the one instance of `nap1` busy for so long; returns when it is."""
    async with channel(worker.address) as straight:
        running = asyncio.create_task(ask(link, nap(seconds * 1e3, model="nap1"), timeout=None))

        async def runs() -> bool:
            return (await depth(straight, "nap1"))[1] > 0

        await until(runs, "it runs")
    return running


@pytest.mark.parametrize("through", DOORS)
async def test_a_queued_request_is_answered_when_its_deadline_passes_and_is_never_run(
    doors: dict[str, Process], through: str
) -> None:
    async with channel(doors[through].address) as link, channel(doors["worker"].address) as straight:
        ran = await executed(straight, "nap1")
        running = await _busy(doors["worker"], link, seconds=1.5)
        # The generator keeps no timer of its own: the servers have to say so.
        report = await load(doors[through].address, nap(1, model="nap1"), **ONCE, timeout_us=500_000)
        assert report["errors"] == {"DEADLINE_EXCEEDED": 1}
        assert set(report["reasons"]) <= EXPIRED
        assert report["error_latency_us"]["max"] < 800_000
        assert not running.done()
        assert (await running).ok
        assert await executed(straight, "nap1") == ran + 1


async def test_a_thousand_hopeless_calls_are_not_run_and_leave_the_queue_empty(doors: dict[str, Process]) -> None:
    async with channel(doors["worker"].address) as straight:
        for _ in range(3):
            assert (await ask(straight, nap(200, model="nap1"))).ok
        running = await _busy(doors["worker"], straight, seconds=1.0)
        ran = await executed(straight, "nap1")
        report = await load(
            doors["gateway"].address,
            nap(200, model="nap1"),
            requests=1000,
            concurrency=64,
            warmup_ms=0,
            timeout_us=1000,
            cancel_at_deadline=False,
        )
        assert report["ok"] == 0
        assert set(report["errors"]) <= {"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}, report
        assert set(report["reasons"]) <= {*EXPIRED, "QUEUE_FULL"}, report
        assert (await depth(straight, "nap1"))[0] == 0
        assert (await running).ok
        # Nothing was learnt that would keep a request out now, and hardly any row was run for nobody.
        ended = await ask(straight, nap(1, model="nap1"), timeout=5)
        assert ended.ok
        assert ended.seconds < 0.5
        assert await executed(straight, "nap1") - ran <= 3


@pytest.mark.parametrize("through", ["gateway", "envoy"])
async def test_a_gateway_keeps_the_deadline_of_a_worker_that_is_stuck(doors: dict[str, Process], through: str) -> None:
    report = await load(doors[through].address, nap(1500), **ONCE, timeout_us=400_000)
    assert report["errors"] == {"DEADLINE_EXCEEDED": 1}
    assert report["error_latency_us"]["max"] < 900_000
    async with channel(doors["worker"].address) as straight:
        assert (await ask(straight, nap(1), timeout=5)).ok
    await canary(doors[through].address)


async def test_a_stopped_worker_does_not_hold_a_deadline_up(doors: dict[str, Process]) -> None:
    worker = doors["worker"]
    worker.signal(signal.SIGSTOP)
    try:
        report = await load(doors["gateway"].address, plain(), **ONCE, timeout_us=300_000)
    finally:
        worker.signal(signal.SIGCONT)
    assert report["ok"] == 0
    assert set(report["errors"]) <= {"DEADLINE_EXCEEDED", "UNAVAILABLE"}
    assert report["error_latency_us"]["max"] < 600_000
    async with channel(doors["gateway"].address) as link:

        async def back() -> bool:
            return (await ask(link, plain(), timeout=2)).ok

        await until(back, "the worker is taken back")


async def test_calls_longer_than_envoys_own_limits_would_allow_are_not_cut(doors: dict[str, Process]) -> None:
    """Envoy cuts a route at 15 s and a stream at 5 min of silence by itself: the configuration switches both off."""
    text = render(EnvoySettings(gateways=(Address(host="127.0.0.1", port=1),), max_timeout=timedelta(seconds=600)))
    assert "timeout: 0s" in text
    assert "grpc_timeout_header_max" in text or "max_grpc_timeout" in text or "max_stream_duration" in text
    async with channel(doors["envoy"].address) as link:
        ended = await ask(link, nap(3000), timeout=None)
    assert ended.ok
    assert ended.seconds >= 3


async def test_a_worker_is_told_less_time_than_the_gateway_was_given() -> None:
    left: list[float] = []

    class StandIn(grpc.GenericRpcHandler):
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(self.answer)

        async def answer(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
            left.append(context.time_remaining())
            return b""

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((StandIn(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    front = GatewayFront(json.dumps({"listen": "127.0.0.1:0", "max_timeout_ms": 60_000}))
    front.start()
    front.set_routes(json.dumps(_routes(f"127.0.0.1:{port}")))
    try:
        async with channel(front.address) as link:
            for given in (0.7, 5.0, 300.0, None):
                await stub(link).ModelInfer(plain(), timeout=given)
    finally:
        await asyncio.to_thread(front.stop)
        await server.stop(None)
    # gRPC's own client rounds a timeout up to hundredths.
    assert 0.3 < left[0] < 0.71
    assert 4.0 < left[1] < 5.02
    # Beyond the gateway's own maximum, and without a deadline, its maximum is what the worker hears.
    assert 59.0 < left[2] <= 60.0
    assert 59.0 < left[3] <= 60.0


def _routes(address: str) -> dict[str, object]:
    versions = {"1": {"replicas": ["w"], "state": "READY", "reason": ""}}
    return {
        "generation": 1,
        "replicas": {"w": {"address": address}},
        "models": {"add": {"default": {"1": 100}, "versions": versions, "sticky": None}},
        "aliases": {},
    }


async def test_the_queue_limit_holds_in_every_wave(doors: dict[str, Process]) -> None:
    """`nap1` takes one request at a time and lets ten wait."""
    async with channel(doors["worker"].address) as link:
        for _ in range(4):
            # Fifty calls in twenty milliseconds, while one run takes a hundred and twenty.
            calls = []
            for _ in range(50):
                calls.append(asyncio.create_task(ask(link, nap(120, model="nap1"), timeout=10)))
                await asyncio.sleep(0.0004)
            ended = await asyncio.gather(*calls)
            told = Counter((one.code, one.reason) for one in ended)
            assert set(told) == {("OK", ""), ("RESOURCE_EXHAUSTED", "QUEUE_FULL")}
            # One may have begun to run before the wave was over; then its place was free again.
            assert 10 <= told["OK", ""] <= 13, told
            refused = sorted(one.seconds for one in ended if not one.ok)
            assert refused[len(refused) // 2] < 0.05, "refusals must be quick"
            assert await depth(link, "nap1") == (0, 0)
    await canary(doors["worker"].address)


@pytest.mark.parametrize("through", DOORS)
async def test_a_client_that_pings_an_idle_connection_often_is_not_thrown_out(
    doors: dict[str, Process], through: str
) -> None:
    """Ten pings in the time in which a stricter server would have counted three strikes (V24), then a stream."""
    options = {
        "keepalive_time_ms": 100,
        "keepalive_timeout_ms": 5000,
        "keepalive_permit_without_calls": 1,
        "http2.max_pings_without_data": 0,
        "http2.min_time_between_pings_ms": 100,
    }
    async with channel(doors[through].address, **options) as link:
        assert (await ask(link, plain())).ok
        await asyncio.sleep(1.5)
        assert link.get_state() == grpc.ChannelConnectivity.READY
        call = stub(link).ModelStreamInfer(timeout=15)
        for n in range(10):
            await call.write(plain(float(n)))
            assert not (await call.read()).error_message
            await asyncio.sleep(0.1)
        await call.done_writing()
        assert await call.code() == grpc.StatusCode.OK


async def test_a_deadline_beyond_the_servers_maximum_is_cut_to_it(tmp_path: Path) -> None:
    models = repository.build(tmp_path / "models", "nap")
    with Rig(tmp_path) as rig:
        worker = rig.worker(models, max_timeout="0.5s", instances=1)
        async with channel(worker.address) as link:
            first = asyncio.create_task(ask(link, nap(1500), timeout=None))
            await asyncio.sleep(0.1)
            # Behind a run of 1.5 s, with no deadline of its own: the documented maximum counts.
            ended = await ask(link, nap(1), timeout=None)
            assert ended.code == "DEADLINE_EXCEEDED", ended
            assert ended.seconds < 1.0
            await first
