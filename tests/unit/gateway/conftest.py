"""A worker made of a few lines, served over real gRPC, and a gateway's Python half in front of it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import grpc.aio
import pytest

from headrace_core.errors import ModelNotFound, ServingError
from headrace_core.lifecycle import Changes, Readiness
from headrace_core.server import make_server
from headrace_gateway.fleet import Fleet
from headrace_gateway.routes import Routes
from headrace_gateway.servicers.inference import InferenceServicer
from headrace_gateway.truth import Truth
from headrace_gateway.upstream import Workers
from headrace_gateway.watch import Watches
from headrace_protos.control.v1 import control_pb2, control_pb2_grpc
from headrace_protos.inference import grpc_service_pb2 as pb
from headrace_protos.inference import grpc_service_pb2_grpc as rpc

MIB = 1 << 20
READY = control_pb2.ModelState.STATE_READY


async def until(true: Callable[[], object], *, within_s: float = 15.0) -> None:
    async with asyncio.timeout(within_s):
        while not true():  # noqa: ASYNC110 - another process or task changes it
            await asyncio.sleep(0.01)


class FakeWorker(rpc.GRPCInferenceServiceServicer, control_pb2_grpc.WorkerServiceServicer):
    """Says it has the models in `models`; `refuse` makes loads fail; `mute` stops its heartbeat."""

    def __init__(self, name: str, *models: str) -> None:
        self.name = name
        self.models = dict.fromkeys(models, READY)
        self.refuse: ServingError | None = None
        self.mute = False
        self.queue_rows = 0
        self.draining = False
        self.watched = 0
        self.address = ""
        self.changes = Changes()
        self.asked: list[object] = []
        self._server: grpc.aio.Server | None = None

    async def start(self, address: str = "127.0.0.1:0") -> None:
        self._server = make_server(max_message_bytes=MIB)
        rpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        control_pb2_grpc.add_WorkerServiceServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(address)
        self.address = f"127.0.0.1:{port}"
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)

    async def Watch(self, request, context):
        self.watched += 1
        while True:
            seen = self.changes.generation
            if not self.mute:
                yield control_pb2.WorkerState(
                    id=self.name,
                    address=self.address,
                    ready=True,
                    draining=self.draining,
                    models=[
                        control_pb2.ModelState(
                            name=name, version="1", state=state, default=True, queue_rows=self.queue_rows
                        )
                        for name, state in self.models.items()
                    ],
                )
            if self.draining:
                return
            await self.changes.beyond(seen, at_most=timedelta(seconds=0.2))

    async def ServerMetadata(self, request, context):
        return pb.ServerMetadataResponse(name="worker", extensions=["statistics"])

    async def ModelMetadata(self, request, context):
        self.asked.append((request, context.time_remaining()))
        return pb.ModelMetadataResponse(name=request.name, versions=[request.version], platform=self.name)

    async def ModelConfig(self, request, context):
        raise ModelNotFound(f"no config of {request.name}")

    async def ModelStatistics(self, request, context):
        if request.name and request.name not in self.models:
            raise ModelNotFound(request.name)
        names = [request.name] if request.name else list(self.models)
        return pb.ModelStatisticsResponse(
            model_stats=[pb.ModelStatistics(name=name, version="1", inference_count=5) for name in names]
        )

    async def RepositoryIndex(self, request, context):
        index = pb.RepositoryIndexResponse()
        for name in self.models:
            index.models.add(name=name, version="1", state="READY")
        return index

    async def RepositoryModelLoad(self, request, context):
        if self.refuse is not None:
            raise self.refuse
        self.models[request.model_name] = READY
        self.changes.note()
        return pb.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request, context):
        if self.refuse is not None:
            raise self.refuse
        del self.models[request.model_name]
        self.changes.note()
        return pb.RepositoryModelUnloadResponse()


class Gateway:
    """The Python half of a gateway; the front is a list of the tables it was handed."""

    def __init__(self, *, silence: timedelta) -> None:
        self.tables: list[str] = []
        self.queues: dict[str, int] = {}
        self.changes = Changes()
        self.readiness = Readiness(changes=self.changes)
        self.fleet = Fleet()
        self.routes = Routes(self.fleet, changes=self.changes, hand_over=self.tables.append)
        self.watches = Watches(
            self.fleet,
            changed=self.routes.refresh,
            report_queue=self.queues.__setitem__,
            silence=silence,
            max_message_bytes=MIB,
        )
        self.routes.follow = self.watches.follow
        self.truth = Truth(picture=self.routes.picture, readiness=self.readiness, registry_fresh=lambda: None)
        self.server = make_server(max_message_bytes=MIB)
        self.channel: grpc.aio.Channel | None = None

    async def start(self) -> None:
        workers = Workers(picture=self.routes.picture, channels=self.watches)
        servicer = InferenceServicer(
            picture=self.routes.picture, workers=workers, truth=self.truth, changes=self.changes
        )
        rpc.add_GRPCInferenceServiceServicer_to_server(servicer, self.server)
        port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        self.readiness.start()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")

    @property
    def stub(self) -> "rpc.GRPCInferenceServiceAsyncStub":
        return rpc.GRPCInferenceServiceStub(self.channel)

    async def know(self, *workers: FakeWorker) -> None:
        self.routes.listed(frozenset(worker.address for worker in workers))
        await until(lambda: {worker.name for worker in workers} <= set(self.routes.picture().replicas))

    async def close(self) -> None:
        assert self.channel is not None
        await self.channel.close()
        await self.watches.close()
        await self.server.stop(None)


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    made = Gateway(silence=timedelta(seconds=1))
    await made.start()
    yield made
    await made.close()


@pytest.fixture
async def workers() -> AsyncIterator[tuple[FakeWorker, FakeWorker]]:
    pair = FakeWorker("w1", "a", "b"), FakeWorker("w2", "a")
    for worker in pair:
        await worker.start()
    yield pair
    for worker in pair:
        await worker.stop()
