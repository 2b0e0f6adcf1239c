"""Models in the protocol's messages: metadata, Triton's configuration, statistics."""

from collections.abc import Mapping
from typing import Any, Final

from headrace_core.cards import CARD_PROPERTY
from headrace_protos.inference import grpc_service_pb2 as pb
from headrace_protos.inference import model_config_pb2 as config_pb
from headrace_worker.loading import PLATFORM, Loaded
from headrace_worker.models import State, Version
from headrace_worker.session import CPU
from headrace_worker.signature import Tensor

_PHASES: Final = ("compute_input", "compute_infer", "compute_output")


def metadata(loaded: Loaded, *, versions: list[str]) -> pb.ModelMetadataResponse:
    """What a client needs to call the model; `properties` say what was decided, and carry the card."""
    properties = {
        "headrace.batching": "on" if loaded.batching else "off",
        "headrace.notes": "; ".join(loaded.notes),
        "headrace.provider": loaded.provider,
    }
    if loaded.batching:
        properties["headrace.max_batch_rows"] = str(loaded.max_rows)
        axes = {one.name: one.batch_axis for one in (*loaded.signature.inputs, *loaded.signature.outputs)}
        properties["headrace.batch_axes"] = ",".join(
            f"{name}={axis}" for name, axis in axes.items() if axis is not None
        )
    if loaded.configured.card is not None:
        properties[CARD_PROPERTY] = loaded.configured.card.model_dump_json(exclude_defaults=True)
    return pb.ModelMetadataResponse(
        name=loaded.name,
        versions=versions,
        platform=PLATFORM,
        inputs=[_tensor(one) for one in loaded.signature.inputs],
        outputs=[_tensor(one) for one in loaded.signature.outputs],
        properties=properties,
    )


def _tensor(tensor: Tensor) -> pb.ModelMetadataResponse.TensorMetadata:
    return pb.ModelMetadataResponse.TensorMetadata(
        name=tensor.name, datatype=tensor.datatype.name, shape=list(tensor.dims)
    )


def configuration(loaded: Loaded) -> config_pb.ModelConfig:
    """What holds, in Triton's words. `max_batch_size` needs every batch axis to come first; else it is 0."""
    tensors = (*loaded.signature.inputs, *loaded.signature.outputs)
    leading = loaded.batching and all(one.batch_axis == 0 for one in tensors)
    skip = 1 if leading else 0
    queue = loaded.configured.config.queue
    message = config_pb.ModelConfig(
        name=loaded.name,
        platform=PLATFORM,
        backend="onnxruntime",
        max_batch_size=loaded.max_rows if leading else 0,
        default_model_filename="model.onnx",
        input=[
            config_pb.ModelInput(name=one.name, data_type=_type(one), dims=one.dims[skip:])
            for one in loaded.signature.inputs
        ],
        output=[
            config_pb.ModelOutput(name=one.name, data_type=_type(one), dims=one.dims[skip:])
            for one in loaded.signature.outputs
        ],
        instance_group=[
            config_pb.ModelInstanceGroup(
                name=f"{loaded.name}_0",
                count=loaded.instances,
                kind=config_pb.ModelInstanceGroup.KIND_CPU
                if loaded.provider == CPU
                else config_pb.ModelInstanceGroup.KIND_GPU,
            )
        ],
    )
    _set_versions(message, loaded)
    if loaded.batching:
        message.dynamic_batching.CopyFrom(
            config_pb.ModelDynamicBatching(
                max_queue_delay_microseconds=round(queue.max_queue_delay.total_seconds() * 1e6),
                priority_levels=queue.priority_levels,
                default_priority_level=queue.default_priority,
                default_queue_policy=config_pb.ModelQueuePolicy(
                    default_timeout_microseconds=round(queue.default_timeout.total_seconds() * 1e6),
                    allow_timeout_override=True,
                    max_queue_size=queue.max_queue_requests,
                ),
            )
        )
    for key in ("intra_op_threads", "inter_op_threads"):
        name = key.replace("threads", "thread_count")
        message.parameters[name].string_value = str(getattr(loaded.configured.config, key))
    return message


def _set_versions(message: config_pb.ModelConfig, loaded: Loaded) -> None:
    policy = loaded.configured.config.versions
    if policy.all:
        message.version_policy.all.SetInParent()
    elif policy.specific:
        message.version_policy.specific.versions.extend(policy.specific)
    else:
        message.version_policy.latest.num_versions = policy.latest


def _type(tensor: Tensor) -> config_pb.DataType.ValueType:
    return config_pb.DataType.Value(tensor.datatype.triton)


def statistics(name: str, version: str, *, counted: Mapping[str, Any]) -> pb.ModelStatistics:
    """One version's counters as the front counted them."""
    found = pb.ModelStatistics(
        name=name,
        version=version,
        last_inference=counted.get("last_inference_ms", 0),
        inference_count=counted.get("inference_count", 0),
        execution_count=counted.get("execution_count", 0),
    )
    for phase in ("success", "fail", "queue", *_PHASES):
        _fill(getattr(found.inference_stats, phase), counted.get(phase))
    for batch in counted.get("batches", ()):
        entry = found.batch_stats.add(batch_size=batch["rows"])
        for phase in _PHASES:
            _fill(getattr(entry, phase), batch.get(phase))
    return found


def _fill(duration: pb.StatisticDuration, total: Mapping[str, int] | None) -> None:
    if total:
        duration.count, duration.ns = total["count"], total["ns"]


def index_entry(version: Version) -> pb.RepositoryIndexResponse.ModelIndex:
    """A version in the repository's index, in Triton's states."""
    state = "UNAVAILABLE" if version.state is State.FAILED else version.state.value
    return pb.RepositoryIndexResponse.ModelIndex(
        name=version.name, version=version.version, state=state, reason=version.reason
    )
