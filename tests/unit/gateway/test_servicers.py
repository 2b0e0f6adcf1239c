"""The slow RPCs over real gRPC, in front of two small workers."""

from time import monotonic

import grpc
import grpc.aio
import pytest

from headrace_core.errors import ModelFailed, ModelNotFound, StateConflict, from_status
from headrace_gateway.upstream import _translated
from headrace_protos.inference import grpc_service_pb2 as pb
from tests.unit.gateway.conftest import until


def refusal(raised: pytest.ExceptionInfo[grpc.aio.AioRpcError]):
    error = raised.value
    return from_status(error.code(), error.details() or "", trailers=list(error.trailing_metadata() or ()))


async def test_a_worker_that_falls_silent_is_out_and_back_when_it_speaks(gateway, workers):
    one, two = workers
    await gateway.know(one, two)
    two.mute = True
    await until(lambda: set(gateway.routes.picture().replicas) == {"w1"})
    two.mute = False
    await until(lambda: set(gateway.routes.picture().replicas) == {"w1", "w2"})


async def test_a_worker_that_is_gone_is_out_at_once_and_found_again_at_its_address(gateway, workers):
    one, two = workers
    await gateway.know(one, two)
    await one.stop()
    await until(lambda: set(gateway.routes.picture().replicas) == {"w2"}, within_s=0.9)
    assert not (await gateway.stub.ModelReady(pb.ModelReadyRequest(name="b"))).ready
    assert (await gateway.stub.ModelReady(pb.ModelReadyRequest(name="a"))).ready
    await one.start(one.address)
    await until(lambda: set(gateway.routes.picture().replicas) == {"w1", "w2"})


async def test_a_worker_that_drains_and_ends_its_streams_is_not_asked_over_and_over(gateway, workers):
    one, _ = workers
    await gateway.know(one)
    watched = one.watched
    one.draining = True
    one.changes.note()
    await until(lambda: one.watched >= watched + 3)
    started = monotonic()
    await until(lambda: one.watched >= watched + 6)
    assert monotonic() - started > 0.2


def test_a_worker_that_does_not_answer_in_time_is_named_with_a_reason():
    late = grpc.aio.AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, grpc.aio.Metadata(), grpc.aio.Metadata(), "late")
    error = _translated("w2", late)
    assert (error.reason, error.message) == ("DEADLINE_EXCEEDED", "worker w2 did not answer in time")


async def test_what_waits_at_a_worker_counts_when_a_replica_is_chosen(gateway, workers):
    one, two = workers
    one.queue_rows, two.queue_rows = 0, 7
    await gateway.know(one, two)
    await until(lambda: gateway.queues == {"w1": 0, "w2": 7 * len(two.models)})
    two.queue_rows = 0
    await until(lambda: gateway.queues["w2"] == 0)


async def test_a_call_is_passed_on_with_no_more_time_than_the_caller_has_left(gateway, workers):
    await gateway.know(*workers)
    await gateway.stub.ModelMetadata(pb.ModelMetadataRequest(name="b"), timeout=2.0)
    request, left = workers[0].asked[-1]
    assert request.version == "1"
    # gRPC's own header rounds up by some per cent.
    assert 0 < left <= 2.0 * 1.05


async def test_metadata_comes_from_a_worker_that_has_the_model(gateway, workers):
    await gateway.know(*workers)
    for _ in range(4):
        told = await gateway.stub.ModelMetadata(pb.ModelMetadataRequest(name="b"))
        assert told.platform == "w1"
        assert list(told.versions) == ["1"]
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gateway.stub.ModelMetadata(pb.ModelMetadataRequest(name="nothing"))
    assert isinstance(refusal(raised), ModelNotFound)


async def test_a_worker_s_own_refusal_reaches_the_caller_whole(gateway, workers):
    await gateway.know(*workers)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gateway.stub.ModelConfig(pb.ModelConfigRequest(name="a"))
    assert isinstance(refusal(raised), ModelNotFound)
    assert refusal(raised).message == "no config of a"


async def test_statistics_are_summed_over_workers(gateway, workers):
    await gateway.know(*workers)
    told = await gateway.stub.ModelStatistics(pb.ModelStatisticsRequest())
    assert [(one.name, one.inference_count) for one in told.model_stats] == [("a", 10), ("b", 5)]
    # Only one of the two knows b: the other's refusal is no failure.
    told = await gateway.stub.ModelStatistics(pb.ModelStatisticsRequest(name="b"))
    assert [(one.name, one.inference_count) for one in told.model_stats] == [("b", 5)]
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gateway.stub.ModelStatistics(pb.ModelStatisticsRequest(name="c"))
    assert isinstance(refusal(raised), ModelNotFound)


async def test_a_loaded_model_is_in_the_routes_when_the_call_returns(gateway, workers):
    await gateway.know(*workers)
    await gateway.stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="new"))
    version, replicas = gateway.routes.picture().resolve("new")
    assert (version, sorted(replicas)) == ("1", ["w1", "w2"])
    await gateway.stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="new"))
    assert "new" not in gateway.routes.picture().models


async def test_unload_goes_only_to_workers_that_have_the_model(gateway, workers):
    await gateway.know(*workers)
    workers[1].refuse = StateConflict("was not to be asked")
    await gateway.stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="b"))
    assert "b" not in workers[0].models


async def test_a_partial_failure_names_each_worker(gateway, workers):
    await gateway.know(*workers)
    workers[1].refuse = ModelFailed("no memory")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gateway.stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="new"))
    error = refusal(raised)
    assert isinstance(error, ModelFailed)
    assert error.message == "model 'new' was not loaded on 1 of 2 workers (w2: no memory); done on w1"


async def test_a_worker_whose_repository_lacks_the_model_need_not_load_it(gateway, workers):
    await gateway.know(*workers)
    workers[1].refuse = ModelNotFound("not here")
    await gateway.stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="new"))
    workers[0].refuse = ModelNotFound("nor here")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gateway.stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="other"))
    assert isinstance(refusal(raised), ModelNotFound)


async def test_the_index_is_merged_and_keeps_what_only_lost_workers_had(gateway, workers):
    one, two = workers
    await gateway.know(one, two)
    await one.stop()
    await until(lambda: set(gateway.routes.picture().replicas) == {"w2"})
    told = await gateway.stub.RepositoryIndex(pb.RepositoryIndexRequest())
    assert [(model.name, model.state) for model in told.models] == [("a", "READY"), ("b", "UNAVAILABLE")]
    told = await gateway.stub.RepositoryIndex(pb.RepositoryIndexRequest(ready=True))
    assert [model.name for model in told.models] == ["a"]


async def test_readiness_and_health_tell_the_truth(gateway, workers):
    assert not (await gateway.stub.ServerReady(pb.ServerReadyRequest())).ready
    assert (await gateway.stub.ServerLive(pb.ServerLiveRequest())).live
    await gateway.know(*workers)
    assert (await gateway.stub.ServerReady(pb.ServerReadyRequest())).ready
    assert gateway.truth.health("") is True
    assert gateway.truth.health("a") is True
    assert gateway.truth.health("nothing") is None
    assert gateway.truth.health("inference.GRPCInferenceService") is True
    gateway.readiness.drain()
    assert not (await gateway.stub.ServerReady(pb.ServerReadyRequest())).ready
    assert gateway.truth.health("inference.GRPCInferenceService") is False


async def test_shared_memory_is_refused_with_a_reason(gateway):
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gateway.stub.SystemSharedMemoryStatus(pb.SystemSharedMemoryStatusRequest())
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "raw contents" in (raised.value.details() or "")


async def test_extensions_are_the_workers(gateway, workers):
    assert list((await gateway.stub.ServerMetadata(pb.ServerMetadataRequest())).extensions) == []
    await gateway.know(*workers)
    assert list((await gateway.stub.ServerMetadata(pb.ServerMetadataRequest())).extensions) == ["statistics"]


async def test_a_heartbeat_hands_no_new_table_to_the_front(gateway, workers):
    await gateway.know(*workers)
    before = len(gateway.tables)
    workers[0].changes.note()
    workers[1].models["c"] = 2
    workers[1].changes.note()
    await until(lambda: "c" in gateway.routes.picture().models)
    assert len(gateway.tables) == before + 1
