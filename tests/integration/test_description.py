"""What the servers say about themselves and their models, and whether it is true: metadata, configuration, statistics, settings, health."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace_protos.inference import grpc_service_pb2 as pb
from tests.integration.conftest import queued
from tests.support.calls import PATIENCE, Door, Refusal, request, rows, typed_request
from tests.support.models import MODELS, WIDE
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("unharmed")

EXTENSIONS = {
    "model_repository",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "logging",
}


def refused(door: Door, method: str, message: Any) -> Refusal:
    with pytest.raises(grpc.RpcError) as error:
        getattr(door.stub, method)(message, timeout=PATIENCE)
    return Refusal.of(error.value)


def test_the_server_lives_and_is_ready(door: Door) -> None:
    assert door.stub.ServerLive(pb.ServerLiveRequest(), timeout=PATIENCE).live
    assert door.stub.ServerReady(pb.ServerReadyRequest(), timeout=PATIENCE).ready


def test_the_extensions_are_exactly_those_that_work(door: Door) -> None:
    told = door.stub.ServerMetadata(pb.ServerMetadataRequest(), timeout=PATIENCE)
    assert told.name == "headrace"
    assert told.version
    assert sorted(told.extensions) == sorted(EXTENSIONS)


@pytest.mark.parametrize(("name", "ready"), [("add", True), ("nobody", False), ("", False)])
def test_a_model_is_ready_or_not(door: Door, name: str, ready: bool) -> None:
    assert door.stub.ModelReady(pb.ModelReadyRequest(name=name), timeout=PATIENCE).ready is ready


def test_a_version_is_ready_or_not(door: Door) -> None:
    for version, ready in (("1", True), ("2", False), ("01", False), ("x", False)):
        asked = pb.ModelReadyRequest(name="add", version=version)
        assert door.stub.ModelReady(asked, timeout=PATIENCE).ready is ready


def test_metadata_tell_names_datatypes_and_shapes(door: Door) -> None:
    told = door.stub.ModelMetadata(pb.ModelMetadataRequest(name="wide"), timeout=PATIENCE)
    assert (told.name, list(told.versions), told.platform) == ("wide", ["1"], "onnxruntime_onnx")
    assert [(one.name, one.datatype, list(one.shape)) for one in told.inputs] == [("x", "FP32", [-1, 1])]
    assert [(one.name, one.datatype, list(one.shape)) for one in told.outputs] == [("y", "FP32", [-1, WIDE])]


def test_metadata_tell_a_scalar_and_a_second_batch_axis(door: Door) -> None:
    scalar = door.stub.ModelMetadata(pb.ModelMetadataRequest(name="scalar"), timeout=PATIENCE)
    assert {one.name: list(one.shape) for one in scalar.inputs} == {"x": [-1, 4], "s": []}
    second = door.stub.ModelMetadata(pb.ModelMetadataRequest(name="axis_one"), timeout=PATIENCE)
    assert {one.name: list(one.shape) for one in second.inputs} == {"x": [-1, 3], "state": [2, -1, 3]}
    assert "state=1" in second.properties["headrace.batch_axes"].split(",")


def test_the_configuration_is_what_holds(door: Door) -> None:
    config = door.stub.ModelConfig(pb.ModelConfigRequest(name="slow"), timeout=PATIENCE).config
    assert (config.name, config.platform, config.backend) == ("slow", "onnxruntime_onnx", "onnxruntime")
    assert config.max_batch_size == 8
    assert [(one.name, list(one.dims)) for one in config.input] == [("x", [4])]
    assert config.HasField("dynamic_batching")
    assert config.instance_group[0].count == 1
    # Batched, but not along a leading axis everywhere, which is what Triton's number means.
    assert door.stub.ModelConfig(pb.ModelConfigRequest(name="axis_one"), timeout=PATIENCE).config.max_batch_size == 0


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("ModelMetadata", pb.ModelMetadataRequest(name="nobody")),
        ("ModelConfig", pb.ModelConfigRequest(name="nobody")),
        ("ModelStatistics", pb.ModelStatisticsRequest(name="nobody")),
        ("ModelMetadata", pb.ModelMetadataRequest(name="add", version="7")),
        ("ModelConfig", pb.ModelConfigRequest(name="add", version="7")),
        ("ModelStatistics", pb.ModelStatisticsRequest(name="add", version="7")),
    ],
)
def test_nothing_is_told_of_what_is_not_there(door: Door, method: str, message: Any) -> None:
    told = refused(door, method, message)
    assert told.code == "NOT_FOUND"
    assert told.reason == ("VERSION_NOT_FOUND" if message.version else "MODEL_NOT_FOUND")


# Statistics


def test_statistics_count_rows_runs_and_failures(door: Door) -> None:
    before, now = door.statistics("add_two"), time.time() * 1e3
    for _ in range(5):
        door.infer(request("add_two", a=rows(1.0, 2.0, 3.0), b=rows(1.0, 2.0, 3.0)))
    door.refusal(request("add_two", a=rows(1.0), b=rows(1.0, 2.0)))
    after = door.statistics("add_two")
    assert after.inference_count - before.inference_count == 15
    assert after.execution_count - before.execution_count == 5
    assert after.inference_stats.success.count - before.inference_stats.success.count == 5
    for phase in ("queue", "compute_input", "compute_infer", "compute_output"):
        counted, earlier = getattr(after.inference_stats, phase), getattr(before.inference_stats, phase)
        assert counted.count - earlier.count in {5, 15}, phase
        assert counted.ns >= earlier.ns
    assert (
        after.inference_stats.success.ns
        >= after.inference_stats.compute_infer.ns - before.inference_stats.compute_infer.ns
    )
    assert now - 2_000 <= after.last_inference <= time.time() * 1e3 + 1_000
    sizes = {one.batch_size: one.compute_infer.count for one in after.batch_stats}
    assert sum(sizes.values()) == after.execution_count
    assert sum(size * count for size, count in sizes.items()) == after.inference_count


def test_statistics_count_a_failed_inference(door: Door) -> None:
    before = door.statistics("raises").inference_stats
    door.refusal(request("raises", x=rows(7.0)))
    after = door.statistics("raises").inference_stats
    assert (after.fail.count - before.fail.count, after.success.count - before.success.count) == (1, 0)


def test_statistics_of_all_models_come_at_once(door: Door) -> None:
    told = door.stub.ModelStatistics(pb.ModelStatisticsRequest(), timeout=PATIENCE)
    assert {one.name for one in told.model_stats} == set(MODELS)


def test_statistics_follow_time_in_the_model(door: Door) -> None:
    before = door.statistics("slow").inference_stats.compute_infer.ns
    door.infer(request("slow", x=rows(200.0)))
    took = (door.statistics("slow").inference_stats.compute_infer.ns - before) / 1e6
    # The work was sized on a quiet machine; a busy one takes longer.
    assert 100 < took < 10_000


# Parameters


def test_priority_and_timeout_are_understood(door: Door) -> None:
    message = request("add", x=rows(1.0))
    message.parameters["priority"].uint64_param = 1
    message.parameters["timeout"].int64_param = 10_000_000
    message.parameters["an own one"].string_param = "passes"
    assert door.infer(message).outputs


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("priority", {"string_param": "high"}),
        ("priority", {"int64_param": -1}),
        ("timeout", {"int64_param": -5}),
        ("timeout", {"string_param": "soon"}),
    ],
)
def test_a_parameter_that_means_nothing_is_refused(door: Door, key: str, value: dict[str, Any]) -> None:
    message = request("add", x=rows(1.0))
    message.parameters[key].CopyFrom(pb.InferParameter(**value))
    told = door.refusal(message)
    assert (told.code, told.reason) == ("INVALID_ARGUMENT", "INVALID_PARAMETER")
    assert told.fields == (f"parameters[{key}]",)


def test_a_timeout_parameter_bounds_the_wait_in_the_queue(door: Door, worker_door: Door) -> None:
    first = worker_door.send(request("slow", x=rows(1_000.0)))
    # Once it runs, nothing can join it.
    wait_until(lambda: "slow" in queued(worker_door), "the first runs")
    message = request("slow", x=rows(0.0))
    message.parameters["timeout"].int64_param = 50_000  # µs
    told = door.refusal(message)
    assert told.code == "DEADLINE_EXCEEDED"
    assert not first.done(), "answered while the other still runs"
    first.result()


# What is not there


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest()),
        ("SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest(name="r", key="/k", byte_size=4)),
        ("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest()),
        ("CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest()),
        ("CudaSharedMemoryRegister", pb.CudaSharedMemoryRegisterRequest(name="r", raw_handle=b"x", byte_size=4)),
        ("CudaSharedMemoryUnregister", pb.CudaSharedMemoryUnregisterRequest()),
    ],
)
def test_shared_memory_is_refused_with_a_reason(door: Door, method: str, message: Any) -> None:
    told = refused(door, method, message)
    assert (told.code, told.reason) == ("UNIMPLEMENTED", "UNSUPPORTED")
    assert "shared memory is not supported" in told.message


def test_a_tensor_in_shared_memory_is_refused(door: Door) -> None:
    message = typed_request("add", "FP32", [1, 4])
    message.inputs[0].parameters["shared_memory_region"].string_param = "r"
    message.inputs[0].parameters["shared_memory_byte_size"].int64_param = 16
    told = door.refusal(message)
    assert told.code in {"UNIMPLEMENTED", "INVALID_ARGUMENT"}
    assert "shared" in told.message


def test_an_unknown_method_is_unimplemented(door: Door) -> None:
    for path in ("/inference.GRPCInferenceService/Nope", "/nobody.Service/Method"):
        with pytest.raises(grpc.RpcError) as error:
            door.channel.unary_unary(path)(b"", timeout=PATIENCE)
        assert Refusal.of(error.value).code == "UNIMPLEMENTED"


# Settings


def test_trace_settings_say_that_tracing_is_off_and_cannot_be_switched_on(door: Door) -> None:
    told = door.stub.TraceSetting(pb.TraceSettingRequest(), timeout=PATIENCE)
    assert list(told.settings["trace_level"].value) == ["OFF"]
    wanted = {"trace_level": pb.TraceSettingRequest.SettingValue(value=["TIMESTAMPS"])}
    assert refused(door, "TraceSetting", pb.TraceSettingRequest(settings=wanted)).code == "UNIMPLEMENTED"
    unchanged = {"trace_level": pb.TraceSettingRequest.SettingValue(value=["OFF"])}
    assert door.stub.TraceSetting(pb.TraceSettingRequest(settings=unchanged), timeout=PATIENCE).settings


def _verbose(door: Door, level: int | None = None) -> int:
    wanted = pb.LogSettingsRequest()
    if level is not None:
        wanted.settings["log_verbose_level"].uint32_param = level
    told: int = door.stub.LogSettings(wanted, timeout=PATIENCE).settings["log_verbose_level"].uint32_param
    return told


def test_log_settings_change_what_is_logged(door: Door, worker_door: Door) -> None:
    assert _verbose(door) == 0
    try:
        assert _verbose(door, 1) == 1
        assert _verbose(worker_door) == 1, "the worker itself has it"
    finally:
        assert _verbose(door, 0) == 0


def test_a_log_setting_that_cannot_be_is_refused(door: Door) -> None:
    wrong = pb.LogSettingsRequest()
    wrong.settings["log_file"].string_param = "/tmp/log"
    assert refused(door, "LogSettings", wrong).code == "UNIMPLEMENTED"
    unknown = pb.LogSettingsRequest()
    unknown.settings["log_colour"].string_param = "blue"
    assert refused(door, "LogSettings", unknown).code == "INVALID_ARGUMENT"


# Health

SERVING, UNKNOWN = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@pytest.fixture
def health(door: Door) -> health_pb2_grpc.HealthStub:
    return health_pb2_grpc.HealthStub(door.channel)


@pytest.mark.parametrize("service", ["", "add", "inference.GRPCInferenceService"])
def test_health_knows_the_server_and_each_model(health: health_pb2_grpc.HealthStub, service: str) -> None:
    assert health.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE).status == SERVING


def test_health_does_not_know_what_is_not_there(health: health_pb2_grpc.HealthStub) -> None:
    with pytest.raises(grpc.RpcError) as error:
        health.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=PATIENCE)
    assert Refusal.of(error.value).code == "NOT_FOUND"


@pytest.mark.parametrize(("service", "status"), [("", SERVING), ("add", SERVING), ("nobody", UNKNOWN)])
def test_a_watch_begins_with_the_state_and_stays_open(
    health: health_pb2_grpc.HealthStub, service: str, status: int
) -> None:
    watch: Iterator[health_pb2.HealthCheckResponse] = health.Watch(
        health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE
    )
    assert next(watch).status == status
    watch.cancel()


def test_numbers_stay_what_they_are_through_typed_contents(door: Door) -> None:
    values = [0.1, -2.5, 3e38, float("inf")]
    answer = door.infer(typed_request("same_fp32", "FP32", [1, 4], fp32_contents=values))
    np.testing.assert_array_equal(answer.outputs[0].contents.fp32_contents, np.array(values, np.float32))
