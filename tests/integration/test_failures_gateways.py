"""Gateways that die, end and come back behind Envoy, and a NATS that is gone (V28)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio
import psutil
import pytest

from headrace_protos.inference import grpc_service_pb2 as pb
from tests.load import repository
from tests.load.ask import Traffic, ask, canary, channel, nap, plain, stub
from tests.load.rig import Process, Rig, until, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


DRAINING = "the server is shutting down: open a new stream"


class Stack:
    """Two gateways behind Envoy, one worker behind both."""

    def __init__(self, rig: Rig, models: Path) -> None:
        self.rig = rig
        self.worker = rig.worker(models)
        self.gateways = [self._gateway() for _ in range(2)]
        self.envoy = rig.envoy([one.address for one in self.gateways])

    def restart(self, gateway: Process) -> Process:
        fresh = self._gateway(gateway.address)
        self.gateways[self.gateways.index(gateway)] = fresh
        return fresh

    def _gateway(self, listen: str = "127.0.0.1:0") -> Process:
        # Envoy looks at a gateway's health once a second here: the beat must be longer.
        return self.rig.gateway([self.worker.address], listen=listen, drain_beat="2.5s", drain_timeout="10s")

    async def serves(self, gateway: Process) -> None:
        """Waits until a gateway has heard of its worker."""
        async with channel(gateway.address) as link:

            async def ready() -> bool:
                return (await ask(link, plain())).ok

            await until(ready, "the gateway serves")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("gateways")
    with Rig(folder) as rig:
        yield Stack(rig, repository.build(folder / "models", "add", "nap"))


async def test_restarting_the_gateways_one_by_one_fails_no_call_and_cuts_no_stream(stack: Stack) -> None:
    async with Traffic(stack.envoy.address, rate=200, timeout=8, connections=4) as traffic:
        streams = [asyncio.create_task(_stream(stack.envoy.address, messages=60, every=0.1)) for _ in range(5)]
        for gateway in list(stack.gateways):
            begun = time.monotonic()
            status = await asyncio.to_thread(gateway.terminate)
            assert status == 0, gateway.words()
            assert time.monotonic() - begun < 15
            await asyncio.to_thread(stack.restart, gateway)
            await stack.serves(stack.gateways[0])
        ended = await asyncio.gather(*streams)
    assert len(traffic.ended) > 500
    assert traffic.failed == []
    # Complete, or told why not: never cut without a status. The third is what grpc.aio makes of a status that came while it wrote.
    told = {("OK", ""), ("UNAVAILABLE", DRAINING), ("INTERNAL", "Internal error from Core")}
    assert set(ended) <= told, ended


async def test_a_killed_gateway_costs_only_the_requests_it_had_begun(stack: Stack) -> None:
    victim = stack.gateways[0]
    async with Traffic(stack.envoy.address, rate=150, nap_ms=20, model="nap", timeout=8, connections=4) as traffic:
        await asyncio.sleep(0.7)
        killed = time.monotonic()
        victim.kill()
        await asyncio.sleep(1.5)
    assert {one.code for one in traffic.failed} <= {"UNAVAILABLE"}
    assert all(one.begun < killed + 0.25 and one.begun + one.seconds < killed + 2 for one in traffic.failed)
    assert len(traffic.failed) <= 40
    stack.restart(victim)
    await stack.serves(stack.gateways[0])
    await canary(stack.envoy.address)


async def test_a_gateway_that_ends_answers_what_it_has_and_refuses_new_connections(stack: Stack) -> None:
    gateway = stack.rig.gateway([stack.worker.address], drain_beat="0.2s", drain_timeout="10s")
    await stack.serves(gateway)
    async with channel(gateway.address) as link:
        calls = [asyncio.create_task(ask(link, nap(300, tag=float(n)), timeout=15)) for n in range(24)]
        await asyncio.sleep(0.1)
        status = await asyncio.to_thread(gateway.terminate)
        ended = await asyncio.gather(*calls)
    assert status == 0
    assert [one.code for one in ended] == ["OK"] * 24


async def test_a_drain_ends_within_its_limit_and_tells_those_it_leaves(stack: Stack) -> None:
    gateway = stack.rig.gateway([stack.worker.address], drain_beat="0.1s", drain_timeout="0.5s")
    await stack.serves(gateway)
    async with channel(gateway.address) as link:
        call = asyncio.create_task(ask(link, nap(6000), timeout=15))
        await asyncio.sleep(0.2)
        begun = time.monotonic()
        await asyncio.to_thread(gateway.terminate)
        assert time.monotonic() - begun < 4.0
        ended = await call
    assert ended.code == "UNAVAILABLE", ended
    # The worker gives up the batch's reply, not the model.
    async with channel(stack.worker.address) as link:
        await until(lambda: _answers(link), "the model is free again", seconds=10)


async def _answers(link: grpc.aio.Channel) -> bool:
    return (await ask(link, nap(1), timeout=1)).ok


async def _stream(address: str, *, messages: int, every: float) -> tuple[str, str]:
    """One `ModelStreamInfer` with a message now and then: how it ended, code and text."""
    async with channel(address) as link:
        call: Any = stub(link).ModelStreamInfer(timeout=30)
        try:
            for n in range(messages):
                await call.write(plain(float(n)))
                message = await call.read()
                if not isinstance(message, pb.ModelStreamInferResponse):
                    break
                await asyncio.sleep(every)
            await call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # The second is grpc.aio's word for a write to a stream that the server has ended.
            pass
        return (await call.code()).name, await call.details()


async def test_the_synchronous_path_works_on_its_last_picture_while_nats_is_gone(tmp_path: Path) -> None:
    models = repository.build(tmp_path / "models", "add")
    state = tmp_path / "state"
    command = [str(_program("headrace")), "up", str(models), "--port", "0", "--detach", "--state", str(state), "--json"]
    record = json.loads(await _output(command))
    try:
        services = {one["name"]: one for one in record["services"]}
        nats = next(one for name, one in services.items() if name.startswith("nats"))
        worker = next(one for name, one in services.items() if name.startswith("worker"))
        async with Traffic(record["address"], rate=100, timeout=8) as traffic:
            await asyncio.sleep(0.5)
            # Longer than a worker's lease of five seconds would take to end.
            os.kill(nats["pid"], signal.SIGSTOP)
            await asyncio.sleep(6)
            os.kill(nats["pid"], signal.SIGKILL)
            await asyncio.sleep(1.5)
        assert traffic.failed == []
        assert len(traffic.ended) > 600
        # Its worker dies too, with everything: both come back by themselves.
        os.kill(worker["pid"], signal.SIGKILL)
        async with channel(record["address"]) as link:

            async def back() -> bool:
                return (await ask(link, plain(), timeout=2)).ok

            took = await until(back, "the dead worker is restarted and taken back", seconds=20)
        print(f"restarted and taken back after {took:.1f} s")
        assert not psutil.pid_exists(worker["pid"]), "the dead one was never waited for"
    finally:
        await _output([str(_program("headrace")), "down", "--state", str(state)])
    wait_until(lambda: not any(psutil.pid_exists(one["pid"]) for one in record["services"]), "all are gone", seconds=5)


async def _output(command: list[str]) -> bytes:
    """What a command that succeeds prints."""
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(60):
        printed, _ = await process.communicate()
    assert process.returncode == 0
    return printed


def _program(name: str) -> Path:
    return Path(sys.executable).with_name(name)
