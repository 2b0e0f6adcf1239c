"""What the stack serves: asks the workers and the public address over gRPC, as any client could."""

from collections.abc import Sequence
from dataclasses import dataclass

import grpc
import grpc.aio

from headrace.channel import DEFAULT_MAX_MESSAGE_BYTES, channel_options
from headrace_protos.control.v1 import control_pb2, control_pb2_grpc
from headrace_protos.inference import grpc_service_pb2 as pb
from headrace_protos.inference import grpc_service_pb2_grpc as rpc

_PATIENCE_S = 2.0
_NAMES = {
    control_pb2.ModelState.STATE_LOADING: "LOADING",
    control_pb2.ModelState.STATE_READY: "READY",
    control_pb2.ModelState.STATE_UNLOADING: "UNLOADING",
    control_pb2.ModelState.STATE_FAILED: "FAILED",
}


@dataclass(frozen=True)
class Model:
    """One version of one model, on one worker or merged over all of them."""

    name: str
    version: str
    state: str
    """READY, LOADING, UNLOADING, FAILED (a worker's word) or UNAVAILABLE (the repository index's)."""
    reason: str = ""


class Fleet:
    """Connections to the workers and to the public address, kept open while the stack starts."""

    def __init__(self, *, public: str, workers: Sequence[str] = (), gateways: Sequence[str] = ()) -> None:
        self._public = _channel(public)
        self._gateways = [_channel(address) for address in gateways]
        self._workers = [_channel(address) for address in workers]

    async def worker_models(self) -> list[list[Model]] | None:
        """The models of each worker in order, or None while one of them does not answer."""
        found: list[list[Model]] = []
        for channel in self._workers:
            stub = control_pb2_grpc.WorkerServiceStub(channel)
            try:
                state = await stub.GetState(control_pb2.GetStateRequest(), timeout=_PATIENCE_S)
            except grpc.aio.AioRpcError:
                return None
            found.append(
                [Model(one.name, one.version, _NAMES.get(one.state, "LOADING"), one.reason) for one in state.models]
            )
        return found

    async def models(self) -> list[Model] | None:
        """The repository index at the public address, or None while it does not answer."""
        return await _index(self._public)

    async def all_serve(self, names: frozenset[str]) -> bool:
        """Whether the public address and every gateway behind it know these models as ready."""
        for channel in (*self._gateways, self._public):
            models = await _index(channel)
            if models is None or not names <= {model.name for model in models if model.state == "READY"}:
                return False
        return True

    async def metadata(self, name: str) -> pb.ModelMetadataResponse | None:
        """A model's signature, or None if it is not to be had."""
        stub = rpc.GRPCInferenceServiceStub(self._public)
        try:
            return await stub.ModelMetadata(pb.ModelMetadataRequest(name=name), timeout=_PATIENCE_S)
        except grpc.aio.AioRpcError:
            return None

    async def infer(self, request: pb.ModelInferRequest, *, timeout_s: float) -> bool:
        """Whether this request is answered."""
        stub = rpc.GRPCInferenceServiceStub(self._public)
        try:
            await stub.ModelInfer(request, timeout=timeout_s)
        except grpc.aio.AioRpcError:
            return False
        return True

    async def close(self) -> None:
        """Closes the connections."""
        for channel in (self._public, *self._gateways, *self._workers):
            await channel.close(None)


def _channel(address: str) -> grpc.aio.Channel:
    # Every part of a stack is on this machine, whatever name its address has.
    options = dict(channel_options(DEFAULT_MAX_MESSAGE_BYTES, address=address)) | {"grpc.enable_http_proxy": 0}
    return grpc.aio.insecure_channel(address, options=tuple(options.items()))


async def _index(channel: grpc.aio.Channel) -> list[Model] | None:
    stub = rpc.GRPCInferenceServiceStub(channel)
    try:
        index = await stub.RepositoryIndex(pb.RepositoryIndexRequest(), timeout=_PATIENCE_S)
    except grpc.aio.AioRpcError:
        return None
    return [Model(one.name, one.version, one.state or "UNAVAILABLE", one.reason) for one in index.models]
