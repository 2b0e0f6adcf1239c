"""The grpc.aio half: errors become statuses once, unknown ones lose their text, health and reflection answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headrace_core import server
from headrace_core.errors import InvalidTensor, Violation, from_status
from headrace_core.health import HealthServicer
from headrace_core.lifecycle import Changes
from headrace_protos.inference import grpc_service_pb2 as pb
from headrace_protos.inference import grpc_service_pb2_grpc as rpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Servicer(rpc.GRPCInferenceServiceServicer):
    """Raises what it is told to."""

    def __init__(self) -> None:
        self.error: Exception = ValueError("secret of the house")

    async def ServerLive(self, request: Any, context: Any) -> pb.ServerLiveResponse:
        raise self.error

    async def ModelStreamInfer(self, requests: Any, context: Any) -> Any:
        yield pb.ModelStreamInferResponse()
        raise self.error


class House:
    def __init__(self, channel: Any, servicer: Servicer) -> None:
        self.channel, self.servicer = channel, servicer
        self.stub: Any = rpc.GRPCInferenceServiceStub(channel)
        self.changes = Changes()
        self.serving: dict[str, bool] = {"": True, "m": False}
        self.draining = False


# The servicer leaves most methods out, which the stubs' abstract class doesn't know at run time.
Servicer.__abstractmethods__ = frozenset()


@pytest.fixture
async def house() -> AsyncIterator[House]:
    serving, socket, servicer = server.make_server(max_message_bytes=1 << 20), server.PrivateSocket(), Servicer()
    rpc.add_GRPCInferenceServiceServicer_to_server(servicer, serving)
    async with grpc.aio.insecure_channel(socket.target) as channel:
        made = House(channel, servicer)
        health = HealthServicer(serving=made.serving.get, changes=made.changes, draining=lambda: made.draining)
        health_pb2_grpc.add_HealthServicer_to_server(health, serving)
        server.enable_reflection(serving, services=["inference.GRPCInferenceService"], files=[pb.DESCRIPTOR])
        serving.add_insecure_port(socket.target)
        await serving.start()
        yield made
    await serving.stop(None)
    socket.close()


async def test_a_serving_error_keeps_its_code_reason_and_details(house: House) -> None:
    house.servicer.error = InvalidTensor("bad x", violations=[Violation("inputs[x].shape", "rank 2, got 1")])
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await house.stub.ServerLive(pb.ServerLiveRequest())
    came = from_status(
        failed.value.code(), failed.value.details() or "", trailers=tuple(failed.value.trailing_metadata())
    )
    assert type(came) is InvalidTensor
    assert came.violations == (Violation("inputs[x].shape", "rank 2, got 1"),)


async def test_an_unknown_error_is_logged_whole_and_told_without_its_text(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await house.stub.ServerLive(pb.ServerLiveRequest())
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in (failed.value.details() or "")
    (record,) = [one for one in caplog.records if one.name == "headrace_core.server"]
    assert "secret of the house" in str(record.exc_info)


async def test_an_error_in_a_stream_comes_after_what_was_sent(house: House) -> None:
    house.servicer.error = InvalidTensor("later")
    call = house.stub.ModelStreamInfer()
    await call.write(pb.ModelInferRequest())
    assert isinstance(await call.read(), pb.ModelStreamInferResponse)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call.read()
    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_method_that_is_not_there_is_unimplemented(house: House) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await house.channel.unary_unary("/inference.GRPCInferenceService/Nope")(b"")
    assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_health_checks_and_watches_follow_the_truth(house: House) -> None:
    stub = health_pb2_grpc.HealthStub(house.channel)
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    assert (await stub.Check(health_pb2.HealthCheckRequest())).status == serving
    assert (await stub.Check(health_pb2.HealthCheckRequest(service="m"))).status == not_serving
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await stub.Check(health_pb2.HealthCheckRequest(service="x"))
    assert failed.value.code() is grpc.StatusCode.NOT_FOUND
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="later"), timeout=20)
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    house.serving["later"] = True
    house.changes.note()
    assert (await watch.read()).status == serving
    house.serving["later"], house.draining = False, True
    house.changes.note()
    assert (await watch.read()).status == not_serving
    assert await watch.read() is grpc.aio.EOF


async def test_reflection_knows_our_services_health_and_their_files(house: House) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(house.channel)
    call = stub.ServerReflectionInfo()
    request = reflection_pb2.ServerReflectionRequest
    await call.write(request(list_services=""))
    names = {one.name for one in (await call.read()).list_services_response.service}
    assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= names
    # grpcurl shows an error's details only if it can ask what they are.
    for name in (*names, "google.rpc.ErrorInfo", "google.rpc.BadRequest"):
        await call.write(request(file_containing_symbol=name))
        assert (await call.read()).file_descriptor_response.file_descriptor_proto
    await call.done_writing()


def test_a_folder_too_deep_for_a_socket_is_not_used(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    socket = server.PrivateSocket(parent=deep)
    path = socket.target.removeprefix("unix:")
    assert len(path) < 104
    assert not path.startswith(str(deep))
    assert Path(path).parent.stat().st_mode & 0o077 == 0
    socket.close()
    assert not Path(path).parent.exists()
