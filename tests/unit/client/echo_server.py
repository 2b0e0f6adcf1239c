"""A real gRPC server for the client's tests: the protocol's service over numpy, echoing what it is sent.

It runs in a thread with its own event loop, so that blocking clients can be tested against it. `script` holds what the
next `ModelInfer` calls do instead of answering; `seen` holds the requests that arrived.
"""

import asyncio
import json
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
import numpy as np

from headrace_core import errors
from headrace_core.datatypes import BY_NAME
from headrace_core.tensors import decode, encode
from headrace_protos.inference import grpc_service_pb2 as pb
from headrace_protos.inference import grpc_service_pb2_grpc as rpc

Signature = tuple[list[tuple[str, str, list[int]]], list[tuple[str, str, list[int]]]]

CARD = {
    "summary": "tells red from green from blue",
    "input": {"kind": "image", "size": [8, 8]},
    "output": {"kind": "classes", "labels": ["red", "green", "blue"], "top": 2},
}

MODELS: dict[str, Signature] = {
    "echo": ([("x", "FP32", [-1, 4])], [("y", "FP32", [-1, 4])]),
    "pair": (
        [("ids", "INT64", [-1, -1]), ("weights", "FP32", [-1, 2]), ("bias", "FP32", [])],
        [("ids_out", "INT64", [-1, -1]), ("weights_out", "FP32", [-1, 2])],
    ),
    "photo": ([("image", "UINT8", [-1, 8, 8, 3])], [("probabilities", "FP32", [-1, 3])]),
    "big": ([("x", "FP32", [-1])], [("y", "FP32", [-1])]),
} | {f"identity_{name}": ([("x", name, [-1])], [("y", name, [-1])]) for name in BY_NAME}

Behaviour = Callable[[grpc.aio.ServicerContext], Any]


async def answer(context: Any) -> None:
    """For a script: answer as if there were none."""


class EchoService(rpc.GRPCInferenceServiceServicer):
    def __init__(self) -> None:
        self.models = dict(MODELS)
        self.script: deque[Exception | Behaviour] = deque()
        self.seen: list[pb.ModelInferRequest] = []
        self.metadata_calls = 0
        self.timeouts: list[float | None] = []
        self.stream_metadata: dict[str, str | bytes] = {}
        self.ready = True
        self.unloaded: set[str] = set()
        self.in_band_errors = False

    async def ServerLive(self, request: pb.ServerLiveRequest, context: Any) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: pb.ServerReadyRequest, context: Any) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self.ready)

    async def ModelReady(self, request: pb.ModelReadyRequest, context: Any) -> pb.ModelReadyResponse:
        await self._known(request.name, context)
        return pb.ModelReadyResponse(ready=request.name not in self.unloaded)

    async def ServerMetadata(self, request: pb.ServerMetadataRequest, context: Any) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(name="echo", version="1.2", extensions=["statistics"])

    async def ModelMetadata(self, request: pb.ModelMetadataRequest, context: Any) -> pb.ModelMetadataResponse:
        self.metadata_calls += 1
        await self._known(request.name, context)
        inputs, outputs = self.models[request.name]
        reply = pb.ModelMetadataResponse(name=request.name, versions=["1"], platform="numpy")
        for name, datatype, shape in inputs:
            reply.inputs.add(name=name, datatype=datatype, shape=shape)
        for name, datatype, shape in outputs:
            reply.outputs.add(name=name, datatype=datatype, shape=shape)
        if request.name == "pair":
            reply.properties["optional_inputs"] = "bias"
        if request.name == "photo":
            reply.properties["headrace.card"] = json.dumps(CARD)
        return reply

    async def ModelInfer(self, request: pb.ModelInferRequest, context: Any) -> pb.ModelInferResponse:
        self.seen.append(request)
        self.timeouts.append(context.time_remaining())
        if self.script:
            behaviour = self.script.popleft()
            if isinstance(behaviour, errors.ServingError):
                await _abort(context, behaviour)
            elif isinstance(behaviour, Exception):
                raise behaviour
            else:
                await behaviour(context)
        await self._known(request.model_name, context)
        return self._answer(request)

    async def ModelStreamInfer(
        self, requests: AsyncIterator[pb.ModelInferRequest], context: Any
    ) -> AsyncIterator[pb.ModelStreamInferResponse]:
        self.stream_metadata = dict(context.invocation_metadata())
        async for request in requests:
            self.seen.append(request)
            if self.script:
                behaviour = self.script.popleft()
                if self.in_band_errors:
                    failed = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
                    yield pb.ModelStreamInferResponse(error_message=str(behaviour), infer_response=failed)
                    continue
                if isinstance(behaviour, errors.ServingError):
                    await _abort(context, behaviour)
            # As a generating model does: as many answers as the request asks for.
            for _ in range(request.parameters["answers"].int64_param if "answers" in request.parameters else 1):
                yield pb.ModelStreamInferResponse(infer_response=self._answer(request))

    async def RepositoryIndex(self, request: pb.RepositoryIndexRequest, context: Any) -> pb.RepositoryIndexResponse:
        reply = pb.RepositoryIndexResponse()
        for name in ("echo", "pair", "photo"):
            down = name in self.unloaded
            if not (down and request.ready):
                reply.models.add(
                    name=name, version="1", state="UNAVAILABLE" if down else "READY", reason="unloaded" if down else ""
                )
        return reply

    async def RepositoryModelLoad(
        self, request: pb.RepositoryModelLoadRequest, context: Any
    ) -> pb.RepositoryModelLoadResponse:
        await self._known(request.model_name, context)
        self.unloaded.discard(request.model_name)
        return pb.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(
        self, request: pb.RepositoryModelUnloadRequest, context: Any
    ) -> pb.RepositoryModelUnloadResponse:
        await self._known(request.model_name, context)
        self.unloaded.add(request.model_name)
        return pb.RepositoryModelUnloadResponse()

    async def ModelConfig(self, request: pb.ModelConfigRequest, context: Any) -> pb.ModelConfigResponse:
        await self._known(request.name, context)
        reply = pb.ModelConfigResponse()
        reply.config.name = request.name
        reply.config.max_batch_size = 8
        return reply

    async def ModelStatistics(self, request: pb.ModelStatisticsRequest, context: Any) -> pb.ModelStatisticsResponse:
        reply = pb.ModelStatisticsResponse()
        reply.model_stats.add(name=request.name or "echo", version="1", inference_count=len(self.seen))
        return reply

    async def _known(self, model: str, context: Any) -> None:
        if model not in self.models:
            await _abort(context, errors.ModelNotFound(f"no model {model!r}"))

    def _answer(self, request: pb.ModelInferRequest) -> pb.ModelInferResponse:
        reply = pb.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
        for key, value in request.parameters.items():
            reply.parameters[key].CopyFrom(value)
        sent = {
            one.name: decode(raw, name=one.name, datatype=one.datatype, shape=one.shape)
            for one, raw in zip(request.inputs, request.raw_input_contents, strict=True)
        }
        _, outputs = self.models[request.model_name]
        wanted = [one.name for one in request.outputs] or [name for name, _, _ in outputs]
        for index, (name, datatype, _) in enumerate(outputs):
            if name not in wanted:
                continue
            if request.model_name == "photo":
                means = sent["image"].mean(axis=(1, 2)).astype(np.float32)
                array = means / means.sum(axis=1, keepdims=True)
            else:
                array = list(sent.values())[index]
            if "times" in request.parameters:
                array = np.tile(array, request.parameters["times"].int64_param)
            reply.outputs.add(name=name, datatype=datatype, shape=array.shape)
            reply.raw_output_contents.append(encode(array, datatype=datatype))
        return reply


async def _abort(context: Any, error: errors.ServingError) -> None:
    await context.abort(error.code, error.message, errors.to_trailers(error))


class EchoServer:
    """The service on a free port of 127.0.0.1, in a thread, until `stop`."""

    def __init__(self, *, max_message_bytes: int = 64 * 1024 * 1024) -> None:
        self.service = EchoService()
        self.port = 0
        self._max_message_bytes = max_message_bytes
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        assert self._started.wait(10)

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(10)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._run())
        self._loop.close()

    async def _run(self) -> None:
        limit = self._max_message_bytes
        server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", limit),
                ("grpc.max_send_message_length", limit),
            ]
        )
        rpc.add_GRPCInferenceServiceServicer_to_server(self.service, server)
        self.port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self._started.set()
        await self._stopping.wait()
        await server.stop(0.2)
