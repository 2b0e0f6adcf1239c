"""Triton's `config.pbtxt`, read for what maps onto `model.yaml`; what doesn't is named, never silently dropped.

A `model.yaml` beside it wins, key by key.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from google.protobuf import json_format, text_format

from headrace_protos.inference import model_config_pb2 as pb
from headrace_worker.model_config import ConfigProblem

_PLATFORMS: Final = {"", "onnxruntime_onnx"}
_BACKENDS: Final = {"", "onnxruntime"}
_ACCELERATORS: Final = {"tensorrt": "TensorrtExecutionProvider"}
_GRAPH_LEVELS: Final = {-1: "basic", 0: "all", 1: "extended", 2: "all"}


@dataclass(frozen=True, slots=True)
class Translated:
    """A Triton configuration in our terms."""

    document: dict[str, Any]
    """Keys of `model.yaml` with their values."""
    notes: tuple[str, ...]
    """One sentence for each setting that has no meaning here."""
    message: pb.ModelConfig


def read(path: Path, *, model: str) -> Translated:
    """The configuration in a `config.pbtxt`.

    Raises:
        ConfigProblem: it can't be parsed, or is for another backend or model.
    """
    try:
        message = text_format.Parse(path.read_text(encoding="utf-8"), pb.ModelConfig())
    except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
        raise ConfigProblem(f"{path.name}: {error}") from error
    return translate(message, model=model, source=path.name)


def read_json(text: str, *, model: str) -> Translated:
    """The configuration in the JSON that a load request may carry. Raises as `read` does."""
    try:
        message = json_format.Parse(text, pb.ModelConfig())
    except json_format.ParseError as error:
        # Protobuf goes on with the names of all fields there are.
        raise ConfigProblem(f"config: {str(error).partition(' Available Fields')[0]}") from error
    return translate(message, model=model, source="config")


def translate(message: pb.ModelConfig, *, model: str, source: str) -> Translated:
    """The same in our terms. Raises `ConfigProblem` if it is for another backend or model."""
    if message.platform not in _PLATFORMS or message.backend not in _BACKENDS:
        kind = message.backend or message.platform
        raise ConfigProblem(f"{source}: backend {kind!r} isn't here; this worker runs onnxruntime")
    if message.name not in {"", model}:
        raise ConfigProblem(f"{source}: name {message.name!r} isn't the model's, {model!r}")
    document: dict[str, Any] = {}
    notes: list[str] = []
    for name in (field.name for field, _ in message.ListFields()):
        translation = _TRANSLATIONS.get(name)
        if translation is not None:
            translation(message, document, notes)
        elif name not in _UNDERSTOOD:
            notes.append(f"{source}: {name} has no meaning here")
    if message.max_batch_size == 0:
        # In Triton, where nothing is guessed, this says that the model doesn't batch.
        document["batching"] = "off"
    return Translated(document=document, notes=tuple(notes), message=message)


def disagreements(message: pb.ModelConfig, *, inputs: dict[str, str], outputs: dict[str, str]) -> list[str]:
    """Where the configuration's tensors aren't the model's. `inputs` and `outputs`: name to Triton's `TYPE_…`."""
    found: list[str] = []
    sides = (("input", message.input, inputs), ("output", message.output, outputs))
    for side, declared, actual in sides:
        for one in declared:
            kind = pb.DataType.Name(one.data_type)
            if one.name not in actual:
                found.append(f"{side} {one.name!r} isn't in the model; it has {', '.join(actual)}")
            elif kind not in {"TYPE_INVALID", actual[one.name]}:
                found.append(f"{side} {one.name!r} is {actual[one.name]}, not {kind}")
    return found


def _versions(message: pb.ModelConfig, document: dict[str, Any], _: list[str]) -> None:
    policy = message.version_policy
    which = policy.WhichOneof("policy_choice")
    if which == "all":
        document["versions"] = "all"
    elif which == "specific":
        document["versions"] = list(policy.specific.versions)
    elif which == "latest" and policy.latest.num_versions:
        document["versions"] = {"latest": policy.latest.num_versions}


def _batch_size(message: pb.ModelConfig, document: dict[str, Any], _: list[str]) -> None:
    if message.max_batch_size > 0:
        document["max_batch_rows"] = message.max_batch_size


def _dynamic_batching(message: pb.ModelConfig, document: dict[str, Any], notes: list[str]) -> None:
    batching = message.dynamic_batching
    queue: dict[str, Any] = {}
    if batching.max_queue_delay_microseconds:
        queue["max_queue_delay"] = batching.max_queue_delay_microseconds / 1e6
    if batching.priority_levels:
        queue["priority_levels"] = batching.priority_levels
        queue["default_priority"] = batching.default_priority_level or 1
    policy = batching.default_queue_policy
    if policy.max_queue_size:
        queue["max_queue_requests"] = policy.max_queue_size
    if policy.default_timeout_microseconds:
        queue["default_timeout"] = policy.default_timeout_microseconds / 1e6
    if policy.timeout_action == pb.ModelQueuePolicy.DELAY:
        notes.append("dynamic_batching.default_queue_policy.timeout_action DELAY has no meaning here: late is refused")
    if batching.preferred_batch_size:
        notes.append("dynamic_batching.preferred_batch_size has no meaning here: batches stop growing where it pays")
    if batching.preserve_ordering:
        notes.append(
            "dynamic_batching.preserve_ordering has no meaning here: a stream's answers keep their order anyway"
        )
    if batching.priority_queue_policy:
        notes.append("dynamic_batching.priority_queue_policy has no meaning here: one policy holds for all priorities")
    if queue:
        document["queue"] = queue


def _instances(message: pb.ModelConfig, document: dict[str, Any], notes: list[str]) -> None:
    groups = message.instance_group
    document["instances"] = sum(max(1, one.count) for one in groups)
    first = groups[0]
    if first.kind == pb.ModelInstanceGroup.KIND_CPU:
        document["device"] = "cpu"
    elif first.kind == pb.ModelInstanceGroup.KIND_GPU:
        document["device"] = f"cuda:{first.gpus[0]}" if first.gpus else "cuda"
    if len(groups) > 1 or len(first.gpus) > 1:
        notes.append("instance_group: one worker serves one device; the first is taken, start a worker for each other")
    if any(one.rate_limiter.resources or one.profile or one.passive for one in groups):
        notes.append("instance_group: rate_limiter, profile and passive have no meaning here")


def _optimization(message: pb.ModelConfig, document: dict[str, Any], notes: list[str]) -> None:
    policy = message.optimization
    if policy.HasField("graph"):
        document["optimisation"] = _GRAPH_LEVELS.get(policy.graph.level, "all")
    accelerators = policy.execution_accelerators
    providers: list[dict[str, Any]] = []
    for one in accelerators.gpu_execution_accelerator:
        if one.name in _ACCELERATORS:
            providers.append({"name": _ACCELERATORS[one.name], "options": dict(one.parameters)})
        else:
            notes.append(f"optimization: accelerator {one.name!r} isn't known here")
    notes += [
        f"optimization: accelerator {one.name!r} isn't known here" for one in accelerators.cpu_execution_accelerator
    ]
    if providers:
        document["providers"] = [*providers, "CUDAExecutionProvider", "CPUExecutionProvider"]
    understood = {"graph", "execution_accelerators", "input_pinned_memory", "output_pinned_memory"}
    notes += [
        f"optimization.{field.name} has no meaning here"
        for field, _ in policy.ListFields()
        if field.name not in understood
    ]


def _parameters(message: pb.ModelConfig, document: dict[str, Any], notes: list[str]) -> None:
    for name, parameter in message.parameters.items():
        value = parameter.string_value
        if name in {"intra_op_thread_count", "inter_op_thread_count"} and value.isdigit():
            if int(value) > 0:
                document[name.replace("thread_count", "threads")] = int(value)
        else:
            notes.append(f"parameters.{name} has no meaning here")


def _file_name(message: pb.ModelConfig, _: dict[str, Any], notes: list[str]) -> None:
    if message.default_model_filename not in {"", "model.onnx"}:
        notes.append("default_model_filename has no meaning here: the file is model.onnx")


_Translation = Callable[[pb.ModelConfig, dict[str, Any], list[str]], None]
_TRANSLATIONS: Final[dict[str, _Translation]] = {
    "version_policy": _versions,
    "max_batch_size": _batch_size,
    "dynamic_batching": _dynamic_batching,
    "instance_group": _instances,
    "optimization": _optimization,
    "parameters": _parameters,
    "default_model_filename": _file_name,
}
_UNDERSTOOD: Final = {"name", "platform", "backend", "input", "output"}
