"""The slow half over a real grpc.aio server: what each RPC answers, and with which code and reason."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest

from headrace_core import logging as logs
from headrace_core import server
from headrace_core.errors import REASON_KEY
from headrace_core.lifecycle import Changes, Readiness
from headrace_protos.control.v1 import control_pb2, control_pb2_grpc
from headrace_protos.inference import grpc_service_pb2 as pb
from headrace_protos.inference import grpc_service_pb2_grpc as rpc
from headrace_worker.loader import Loader
from headrace_worker.models import Models
from headrace_worker.progress import Progress
from headrace_worker.repository import Repository
from headrace_worker.servicers.control import WorkerServicer
from headrace_worker.servicers.inference import InferenceServicer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from headrace_worker.loading import Defaults
    from tests.unit.worker.conftest import RecordingFront, Zoo


@dataclass
class Worker:
    """A worker without its front."""

    stub: Any
    control: Any
    loader: Loader
    models: Models
    readiness: Readiness
    progress: Progress

    async def refusal(self, call: Any) -> tuple[grpc.StatusCode, str, str]:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call
        reasons = [value for key, value in failed.value.trailing_metadata() or () if key == REASON_KEY]
        return failed.value.code(), str(reasons[0]), failed.value.details() or ""


@pytest.fixture
async def worker(zoo: Zoo, front: RecordingFront, defaults: Defaults, tmp_path: Path) -> AsyncIterator[Worker]:
    changes = Changes()
    models = Models(front=front, changes=changes)
    repository = Repository(zoo.root)
    readiness = Readiness(changes=changes)
    progress = Progress(front=front, models=models, stuck_after=timedelta(seconds=60))
    loader = Loader(
        repository=repository, models=models, front=front, defaults=defaults, unload_limit=timedelta(seconds=1)
    )
    serving = server.make_server(max_message_bytes=1 << 20)
    inference = InferenceServicer(
        models=models, loader=loader, repository=repository, progress=progress, readiness=readiness, controllable=True
    )
    rpc.add_GRPCInferenceServiceServicer_to_server(inference, serving)
    control = WorkerServicer(
        identity="w1", address="127.0.0.1:1", models=models, progress=progress, readiness=readiness
    )
    control_pb2_grpc.add_WorkerServiceServicer_to_server(control, serving)
    socket = server.PrivateSocket()
    serving.add_insecure_port(socket.target)
    await serving.start()
    async with grpc.aio.insecure_channel(socket.target) as channel:
        stub: Any = rpc.GRPCInferenceServiceStub(channel)
        yield Worker(stub, control_pb2_grpc.WorkerServiceStub(channel), loader, models, readiness, progress)
    await serving.stop(None)
    await loader.close()
    socket.close()


def add(zoo: Zoo, name: str = "m") -> None:
    path = zoo.matrix(f"{name}/1", 64)
    (path.parent / ".complete").touch()
    (zoo.root / name / "model.yaml").write_text("batching: on\nmax_batch_rows: 4\nwarmup: false\n")


async def test_every_question_about_a_loaded_model_is_answered(worker: Worker, zoo: Zoo) -> None:
    add(zoo)
    await worker.stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="m"))
    metadata = await worker.stub.ModelMetadata(pb.ModelMetadataRequest(name="m"))
    assert list(metadata.inputs[0].shape) == [-1, 64]
    config = (await worker.stub.ModelConfig(pb.ModelConfigRequest(name="m", version="1"))).config
    assert (config.max_batch_size, list(config.input[0].dims)) == (4, [64])
    statistics = await worker.stub.ModelStatistics(pb.ModelStatisticsRequest())
    assert [one.name for one in statistics.model_stats] == ["m"]
    assert (await worker.stub.ModelReady(pb.ModelReadyRequest(name="m"))).ready


async def test_unknown_models_versions_and_repositories_have_their_own_reasons(worker: Worker, zoo: Zoo) -> None:
    add(zoo)
    await worker.loader.load("m")
    not_found = grpc.StatusCode.NOT_FOUND
    assert (await worker.refusal(worker.stub.ModelMetadata(pb.ModelMetadataRequest(name="x"))))[:2] == (
        not_found,
        "MODEL_NOT_FOUND",
    )
    assert (await worker.refusal(worker.stub.ModelConfig(pb.ModelConfigRequest(name="m", version="2"))))[:2] == (
        not_found,
        "VERSION_NOT_FOUND",
    )
    request = pb.RepositoryModelLoadRequest(model_name="m", repository_name="other")
    assert (await worker.refusal(worker.stub.RepositoryModelLoad(request)))[1] == "INVALID_PARAMETER"
    assert not (await worker.stub.ModelReady(pb.ModelReadyRequest(name="x"))).ready


async def test_the_index_tells_states_with_reasons(worker: Worker, zoo: Zoo) -> None:
    add(zoo)
    add(zoo, "idle")
    broken = zoo.add("broken/1")
    broken.write_bytes(b"no")
    (broken.parent / ".complete").touch()
    await worker.loader.load("m")
    code, reason, text = await worker.refusal(
        worker.stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="broken"))
    )
    assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "MODEL_FAILED")
    assert str(zoo.root) not in text
    index = await worker.stub.RepositoryIndex(pb.RepositoryIndexRequest())
    told = {one.name: (one.state, one.reason) for one in index.models}
    assert told["m"] == ("READY", "")
    assert told["idle"] == ("UNAVAILABLE", "not loaded")
    assert told["broken"][0] == "UNAVAILABLE"
    assert "not a valid ONNX model" in told["broken"][1]
    ready = await worker.stub.RepositoryIndex(pb.RepositoryIndexRequest(ready=True))
    assert [one.name for one in ready.models] == ["m"]


async def test_unload_returns_when_it_holds(worker: Worker, zoo: Zoo) -> None:
    add(zoo)
    await worker.loader.load("m")
    await worker.stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="m"))
    assert not (await worker.stub.ModelReady(pb.ModelReadyRequest(name="m"))).ready
    index = await worker.stub.RepositoryIndex(pb.RepositoryIndexRequest())
    assert [(one.state, one.reason) for one in index.models] == [("UNAVAILABLE", "unloaded")]


async def test_model_files_in_a_load_request_are_refused_clearly(worker: Worker, zoo: Zoo) -> None:
    add(zoo)
    request = pb.RepositoryModelLoadRequest(model_name="m")
    request.parameters["config"].string_param = "{}"
    request.parameters["file:1/model.onnx"].bytes_param = b"x"
    code, reason, _ = await worker.refusal(worker.stub.RepositoryModelLoad(request))
    assert (code, reason) == (grpc.StatusCode.UNIMPLEMENTED, "UNSUPPORTED")


@pytest.mark.parametrize(
    "name",
    ["SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "CudaSharedMemoryStatus", "CudaSharedMemoryUnregister"],
)
async def test_shared_memory_is_unimplemented_with_a_reason(worker: Worker, name: str) -> None:
    request = getattr(pb, f"{name}Request")()
    code, reason, text = await worker.refusal(getattr(worker.stub, name)(request))
    assert (code, reason) == (grpc.StatusCode.UNIMPLEMENTED, "UNSUPPORTED")
    assert "shared memory is not supported" in text


async def test_the_log_level_changes_and_is_told(worker: Worker) -> None:
    before = logs.get_level()
    try:
        request = pb.LogSettingsRequest()
        request.settings["log_verbose_level"].uint32_param = 1
        told = await worker.stub.LogSettings(request)
        assert told.settings["log_verbose_level"].uint32_param == 1
        assert logs.get_level() == "debug"
        bad = pb.LogSettingsRequest()
        bad.settings["log_file"].string_param = "/tmp/x"
        assert (await worker.refusal(worker.stub.LogSettings(bad)))[1] == "UNSUPPORTED"
    finally:
        logs.set_level(before)


async def test_readiness_follows_start_progress_and_drain(worker: Worker, zoo: Zoo, front: RecordingFront) -> None:
    add(zoo)
    await worker.loader.load("m")

    async def ready() -> bool:
        worker.progress.forget()
        return bool((await worker.stub.ServerReady(pb.ServerReadyRequest())).ready)

    assert not await ready()
    worker.readiness.start()
    assert await ready()
    stuck = {"busy_ms": 61_000, "batches": 1, "alive": True}
    front.counted = {"models": [{"name": "m", "version": "1", "instances": [stuck]}]}
    assert not await ready()
    front.counted["models"][0]["instances"] = [{"busy_ms": 0, "batches": 1, "alive": False}]
    assert not await ready()
    state = await worker.control.GetState(control_pb2.GetStateRequest())
    assert state.models[0].state == control_pb2.ModelState.STATE_FAILED
    front.counted["models"][0]["instances"].append({"busy_ms": 5, "batches": 1, "alive": True})
    assert await ready()
    worker.readiness.drain()
    assert not await ready()


async def test_a_watch_tells_each_change_and_ends_with_the_drain(worker: Worker, zoo: Zoo) -> None:
    add(zoo)
    watch = worker.control.Watch(control_pb2.WatchRequest(), timeout=20)
    assert not (await watch.read()).models
    await worker.loader.load("m")
    while True:
        state = await watch.read()
        if state.models and state.models[0].state == control_pb2.ModelState.STATE_READY:
            break
    assert (state.id, state.address, state.models[0].default) == ("w1", "127.0.0.1:1", True)
    worker.readiness.drain()
    while not state.draining:
        state = await watch.read()
    assert await watch.read() is grpc.aio.EOF
