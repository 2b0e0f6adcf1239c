"""Clients that vanish with everything in flight: killed, or gone with a TCP reset; Triton 2.51 crashes on this."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.load import repository, wire
from tests.load.ask import ask, canary, channel, depth, executed, nap
from tests.load.rig import Process, Rig, until

if TYPE_CHECKING:
    from collections.abc import Iterator

IN_FLIGHT = 256
CLIENT = """
import sys, time, grpc
from headrace_protos.inference import grpc_service_pb2_grpc as rpc, grpc_service_pb2 as pb
link = grpc.insecure_channel(sys.argv[1])
message = pb.ModelInferRequest.FromString(bytes.fromhex(sys.argv[2]))
calls = [rpc.GRPCInferenceServiceStub(link).ModelInfer.future(message) for _ in range(int(sys.argv[3]))]
print("sent", flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Process]]:
    folder = tmp_path_factory.mktemp("clients")
    models = repository.build(folder / "models", "add", "nap", "big")
    with Rig(folder) as rig:
        worker = rig.worker(models)
        gateway = rig.gateway([worker.address])
        yield {"worker": worker, "gateway": gateway, "envoy": rig.envoy([gateway.address])}


async def _queued(worker: Process, at_least: int) -> bool:
    async with channel(worker.address) as link:
        return sum(await depth(link, "nap")) >= at_least


async def _left_alone(doors: dict[str, Process], ran: int) -> None:
    """The queue is empty well before the work in it could have been done, and nobody noticed."""
    worker = doors["worker"]
    async with channel(worker.address) as link:

        async def empty() -> bool:
            return (await depth(link, "nap"))[0] == 0

        took = await until(empty, "the queue is empty", seconds=2)
        assert took < 1.0
        assert all(one.alive for one in doors.values())
        # The batch that ran is finished and no other was begun: 256 rows would have been 32 batches of 200 ms.
        ended = await ask(link, nap(0), timeout=5)
        assert ended.ok
        assert await executed(link, "nap") - ran <= 24
    await canary(doors["envoy"].address)
    await canary(doors["gateway"].address)


@pytest.mark.parametrize("through", ["worker", "gateway", "envoy"])
async def test_a_killed_client_with_256_requests_in_flight_leaves_an_empty_queue(
    doors: dict[str, Process], through: str
) -> None:
    async with channel(doors["worker"].address) as link:
        ran = await executed(link, "nap")
    message = nap(200).SerializeToString().hex()
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, doors[through].address, message, str(IN_FLIGHT)
    )
    try:
        await until(lambda: _queued(doors["worker"], 200), "requests wait", seconds=15)
    finally:
        client.kill()
        await client.wait()
    await _left_alone(doors, ran)


@pytest.mark.parametrize("through", ["worker", "gateway"])
async def test_a_connection_reset_with_256_requests_in_flight_leaves_an_empty_queue(
    doors: dict[str, Process], through: str
) -> None:
    async with channel(doors["worker"].address) as link:
        ran = await executed(link, "nap")
    frame = wire.message(nap(200))
    peer = wire.Peer(doors[through].address)
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.greet()
    for n in range(IN_FLIGHT):
        peer.send(wire.call(2 * n + 1) + wire.data(2 * n + 1, frame, end=True))
    await until(lambda: _queued(doors["worker"], 200), "requests wait")
    # Sends RST instead of FIN: all that was in flight is gone without a word of HTTP/2.
    peer.close()
    await _left_alone(doors, ran)


async def test_a_client_that_vanishes_while_it_is_sent_large_replies_frees_them(doors: dict[str, Process]) -> None:
    gateway, worker = doors["gateway"], doors["worker"]
    frame = wire.message(nap(0, model="big"))
    for _ in range(3):
        peer = wire.Peer(gateway.address)
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.greet()
        for n in range(16):
            peer.send(wire.call(2 * n + 1) + wire.data(2 * n + 1, frame, end=True))
        peer.sock.recv(1 << 16)
        await asyncio.sleep(0.05)
        peer.close()
    begun = time.monotonic()
    await canary(gateway.address)
    assert time.monotonic() - begun < 2
    assert gateway.alive
    assert worker.alive
