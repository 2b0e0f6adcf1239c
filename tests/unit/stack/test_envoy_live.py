"""Envoy with the rendered configuration, in front of small grpc.aio servers that stand for gateways."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from time import monotonic

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.stack import tools
from headrace.stack.envoy import Address, EnvoySettings, render
from headrace.stack.ports import claim
from headrace.stack.readiness import http

METHOD = "/inference.GRPCInferenceService/ModelInfer"
LIMIT = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]


class Gateway(grpc.GenericRpcHandler):
    """Answers every call with its own request; the request `sleep` takes a minute."""

    def __init__(self) -> None:
        self.metadata: list[dict[str, str | bytes]] = []
        self.left: list[float | None] = []
        self.cancelled = asyncio.Event()
        self.serving = health_pb2.HealthCheckResponse.SERVING
        self.port = 0
        self._server = grpc.aio.server(options=[*LIMIT, ("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((self,))
        health_pb2_grpc.add_HealthServicer_to_server(self, self._server)

    async def start(self) -> None:
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    def service(self, handler_call_details):
        if handler_call_details.method == METHOD:
            return grpc.unary_unary_rpc_method_handler(self._answer)
        return None

    async def _answer(self, request: bytes, context) -> bytes:
        self.metadata.append(dict(context.invocation_metadata()))
        self.left.append(context.time_remaining())
        if request == b"sleep":
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        return request

    async def Check(self, request, context):
        return health_pb2.HealthCheckResponse(status=self.serving)

    def Watch(self, request, context):
        raise NotImplementedError


class Door:
    """A running Envoy."""

    def __init__(self, channel: grpc.aio.Channel, port: int, admin: int) -> None:
        self.call = channel.unary_unary(METHOD)
        self.port = port
        self.admin = admin

    async def healthy(self, count: int) -> None:
        """Waits until Envoy sees so many gateways as healthy."""
        async with asyncio.timeout(15):
            while True:
                _, body = await http("GET", "/stats?filter=membership_healthy", host="127.0.0.1", port=self.admin)
                if f"membership_healthy: {count}" in body:
                    return
                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def envoy(folder: Path, *gateways: Gateway, **settings: object) -> AsyncIterator[Door]:
    public, admin = claim("127.0.0.1"), claim("127.0.0.1")
    config = folder / "envoy.yaml"
    addresses = tuple(Address(host="127.0.0.1", port=gateway.port) for gateway in gateways)
    told = EnvoySettings(port=public.port, admin_port=admin.port, gateways=addresses, **settings)  # type: ignore[arg-type]
    config.write_text(render(told))
    log = (folder / "access.log").open("w")
    process = await asyncio.create_subprocess_exec(
        tools.find(tools.ENVOY), "--config-path", config, "--concurrency", "1", "--disable-hot-restart",
        stdout=log, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    log.close()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{public.port}", options=LIMIT)
    try:
        door = Door(channel, public.port, admin.port)
        async with asyncio.timeout(20):
            await channel.channel_ready()
        await door.healthy(len(gateways))
        yield door
    finally:
        await channel.close()
        process.terminate()
        await process.wait()
        public.close()
        admin.close()


@pytest.fixture
async def gateways() -> AsyncIterator[tuple[Gateway, Gateway]]:
    pair = Gateway(), Gateway()
    for gateway in pair:
        await gateway.start()
    yield pair
    for gateway in pair:
        await gateway.stop()


async def test_the_caller_s_deadline_ends_the_call_and_reaches_the_gateway(gateways, tmp_path):
    async with envoy(tmp_path, gateways[0]) as door:
        began = monotonic()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await door.call(b"sleep", timeout=0.5)
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert monotonic() - began < 2
        assert gateways[0].left[0] is not None
        # gRPC's own header rounds up by some per cent.
        assert gateways[0].left[0] <= 0.5 * 1.05
        await asyncio.wait_for(gateways[0].cancelled.wait(), 5)


async def test_without_a_deadline_the_server_s_maximum_holds(gateways, tmp_path):
    async with envoy(tmp_path, gateways[0], max_timeout=timedelta(seconds=0.5)) as door:
        for deadline in (None, 30):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await door.call(b"sleep", timeout=deadline)
            assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_header_that_names_a_caller_does_not_pass(gateways, tmp_path):
    async with envoy(tmp_path, gateways[0]) as door:
        metadata = (
            ("x-tenant-id", "mallory"),
            ("headrace-peer", "10.0.0.1"),
            ("traceparent", f"00-{'1' * 32}-{'2' * 16}-01"),
        )
        await door.call(b"x", metadata=metadata)
        (seen,) = gateways[0].metadata
        assert not {"x-tenant-id", "headrace-peer", "x-request-id", "x-envoy-expected-rq-timeout-ms"} & seen.keys()
        assert seen["traceparent"] == f"00-{'1' * 32}-{'2' * 16}-01"


async def test_large_messages_pass_both_ways(gateways, tmp_path):
    async with envoy(tmp_path, gateways[0]) as door:
        message = bytes(60 << 20)
        assert await door.call(message, timeout=60) == message


async def test_a_gateway_that_went_away_costs_no_call(gateways, tmp_path):
    async with envoy(tmp_path, *gateways) as door:
        await gateways[0].stop()
        answers = await asyncio.gather(*(door.call(b"x", timeout=10) for _ in range(50)))
        assert answers == [b"x"] * 50


async def test_a_draining_gateway_gets_no_new_calls_before_it_stops_listening(gateways, tmp_path):
    async with envoy(tmp_path, *gateways) as door:
        gateways[0].serving = health_pb2.HealthCheckResponse.NOT_SERVING
        began = monotonic()
        await door.healthy(1)
        # The gateway's beat is a second: Envoy must have noticed by then.
        assert monotonic() - began < 1.5
        before = len(gateways[0].metadata)
        await asyncio.gather(*(door.call(b"x") for _ in range(20)))
        assert len(gateways[0].metadata) == before


async def test_what_is_no_grpc_is_refused_and_calls_are_logged_with_their_status(gateways, tmp_path):
    async with envoy(tmp_path, gateways[0]) as door:
        await door.call(b"x")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await door.call(b"sleep", timeout=0.2)
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    log = (tmp_path / "access.log").read_text()
    assert '"grpc_status":"OK"' in log
    assert '"message":"/inference.GRPCInferenceService/ModelInfer"' in log
