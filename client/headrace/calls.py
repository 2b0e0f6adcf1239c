"""Every call of the client, without a socket, a thread or an await: what to send next is a generator's answer.

A *flow* yields steps and ends with a result. `Send` means: make this RPC and send me the reply, or throw the
`ServingError`. `Wait` means: come back after so many seconds. `headrace.client` drives flows by blocking,
`headrace.aio` by awaiting; both get the same checks, cache, deadlines and retries from here.
"""

import json
import random
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypeVar

import grpc
from google.protobuf import json_format
from google.protobuf.message import Message

from headrace import errors
from headrace.channel import DEFAULT_MAX_MESSAGE_BYTES
from headrace.metadata import ModelMetadata, ModelStatus, ServerMetadata, TensorSpec
from headrace.result import InferResult, Parameter, parameter_to_proto
from headrace.retry import Refusal, RetryBudget, RetryPolicy, wait_before_retry
from headrace.tensors import TensorError, Value, check_inputs, check_outputs, infer_array
from headrace_core.tensors import Array, input_from_array
from headrace_protos import pool
from headrace_protos.inference import grpc_service_pb2 as pb

Timeout: TypeAlias = float | timedelta | None
"""Seconds, or a timedelta; None means none at all."""

Inputs: TypeAlias = Mapping[str, Value] | Value
"""Values by input name; for a model with a single input, just the value."""

_T = TypeVar("_T")


class Unset:
    """Stands for "whatever the client was made with", since None is a timeout too."""

    def __repr__(self) -> str:
        return "the client's timeout"


UNSET: Final = Unset()


@dataclass(frozen=True)
class Send:
    """Make this RPC of `GRPCInferenceService`."""

    method: str
    request: Message
    timeout: float | None


@dataclass(frozen=True)
class Wait:
    """Do nothing for so many seconds."""

    seconds: float


Step: TypeAlias = Send | Wait
Flow: TypeAlias = Generator[Step, Any, _T]


@dataclass(frozen=True, kw_only=True)
class InferRequest:
    """One request of a stream, where the inputs alone don't say enough."""

    inputs: Inputs
    id: str = ""
    outputs: Sequence[str] = ()
    parameters: Mapping[str, Parameter] | None = None
    priority: int = 0


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """How a client behaves, whatever carries its calls."""

    timeout: Timeout = 60.0
    """For each call that names none, retries included. None: calls without one wait for ever."""
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    """Largest message either way; the servers' own limit unless you changed it there."""
    check: bool = True
    """Whether inputs are compared with the model's signature before they are sent."""


class Calls:
    """The flows of one client, with its metadata cache and retry budget. Thread-safe."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        dice: Callable[[], float] = random.random,
    ) -> None:
        """Clock (monotonic seconds) and dice (numbers in [0, 1)) are arguments for the tests' sake."""
        self._settings = settings
        self._clock = clock
        self._dice = dice
        self._budget = RetryBudget()
        self._cache: dict[tuple[str, str], ModelMetadata] = {}
        self._cache_lock = threading.Lock()

    # -- inference

    def infer(self, model: str, request: InferRequest, *, version: str, timeout: Timeout | Unset) -> Flow[InferResult]:
        """Send one request and read its reply."""
        deadline = self.deadline(timeout)
        message = yield from self._checked_request(model, request, version=version, deadline=deadline)
        try:
            reply: pb.ModelInferResponse = yield from self._call("ModelInfer", message, deadline)
        except (errors.InvalidTensor, errors.UnknownTensor):
            # It passed our check: the signature that we know is not the server's any more.
            self.forget(model, version)
            raise
        return InferResult.from_proto(reply)

    def stream_request(
        self, model: str, item: InferRequest | Inputs, *, version: str, deadline: float | None
    ) -> Flow[pb.ModelInferRequest]:
        """The message for one item of a stream."""
        request = item if isinstance(item, InferRequest) else InferRequest(inputs=item)
        return (yield from self._checked_request(model, request, version=version, deadline=deadline))

    def _checked_request(
        self, model: str, request: InferRequest, *, version: str, deadline: float | None
    ) -> Flow[pb.ModelInferRequest]:
        named = isinstance(request.inputs, Mapping)
        if not self._settings.check and named:
            return self._encode(model, request, _unchecked(request.inputs), version=version)
        metadata, fresh = yield from self._cached_metadata(model, version, deadline)
        try:
            arrays = _checked(request, metadata)
        except errors.ServingError:
            if fresh:
                raise
            # The model may have been loaded anew with another signature since we asked. Ask once more.
            self.forget(model, version)
            metadata, _ = yield from self._cached_metadata(model, version, deadline)
            arrays = _checked(request, metadata)
        return self._encode(model, request, arrays, version=version)

    def _encode(
        self, model: str, request: InferRequest, arrays: Mapping[str, tuple[Array, str | None]], *, version: str
    ) -> pb.ModelInferRequest:
        message = pb.ModelInferRequest(model_name=model, model_version=version, id=request.id)
        for name, (array, datatype) in arrays.items():
            described, raw = input_from_array(name, array=array, datatype=datatype)
            message.inputs.append(described)
            message.raw_input_contents.append(raw)
        for name in request.outputs:
            message.outputs.add(name=name)
        for key, value in (request.parameters or {}).items():
            try:
                message.parameters[key].CopyFrom(parameter_to_proto(value))
            except (TypeError, ValueError) as error:
                field = f"parameters[{key}]"
                raise errors.InvalidParameter(
                    f"{model}: {field}: {error}", violations=[errors.Violation(field, str(error))]
                ) from error
        if request.priority:
            message.parameters["priority"].uint64_param = request.priority
        self._check_size(model, message)
        return message

    def _check_size(self, model: str, message: Message) -> None:
        size, limit = message.ByteSize(), self._settings.max_message_bytes
        if size > limit:
            raise errors.MessageTooLarge(
                f"the request to {model} has {size:,} bytes and the limit is {limit:,}: send fewer rows at once, "
                "or raise max_message_bytes here and on the server"
            )

    # -- what servers say about themselves

    def metadata(self, model: str, *, version: str, timeout: Timeout | Unset) -> Flow[ModelMetadata]:
        """The model's metadata, asked anew; the cache takes it too."""
        return (yield from self._fetch_metadata(model, version, self.deadline(timeout)))

    def _cached_metadata(self, model: str, version: str, deadline: float | None) -> Flow[tuple[ModelMetadata, bool]]:
        with self._cache_lock:
            known = self._cache.get((model, version))
        if known is not None:
            return known, False
        return (yield from self._fetch_metadata(model, version, deadline)), True

    def _fetch_metadata(self, model: str, version: str, deadline: float | None) -> Flow[ModelMetadata]:
        request = pb.ModelMetadataRequest(name=model, version=version)
        reply: pb.ModelMetadataResponse = yield from self._call("ModelMetadata", request, deadline)
        metadata = ModelMetadata.from_proto(reply)
        with self._cache_lock:
            self._cache[model, version] = metadata
        return metadata

    def forget(self, model: str, version: str = "") -> None:
        """Ask the server again before the next request to this model."""
        with self._cache_lock:
            self._cache.pop((model, version), None)

    def server_metadata(self, *, timeout: Timeout | Unset) -> Flow[ServerMetadata]:
        """Name, version and extensions of the server."""
        reply: pb.ServerMetadataResponse = yield from self._call(
            "ServerMetadata", pb.ServerMetadataRequest(), self.deadline(timeout)
        )
        return ServerMetadata(name=reply.name, version=reply.version, extensions=tuple(reply.extensions))

    def server_live(self, *, timeout: Timeout | Unset) -> Flow[bool]:
        """Whether the server answers; False where nobody does."""
        try:
            reply: pb.ServerLiveResponse = yield from self._call_once(
                "ServerLive", pb.ServerLiveRequest(), self.deadline(timeout)
            )
        except errors.ServingError as error:
            return _not_now(error)
        return reply.live

    def server_ready(self, *, timeout: Timeout | Unset) -> Flow[bool]:
        """Whether the server takes requests; False where nobody answers."""
        try:
            reply: pb.ServerReadyResponse = yield from self._call_once(
                "ServerReady", pb.ServerReadyRequest(), self.deadline(timeout)
            )
        except errors.ServingError as error:
            return _not_now(error)
        return reply.ready

    def model_ready(self, model: str, *, version: str, timeout: Timeout | Unset) -> Flow[bool]:
        """Whether the model takes requests; False where it is unknown or nobody answers."""
        request = pb.ModelReadyRequest(name=model, version=version)
        try:
            reply: pb.ModelReadyResponse = yield from self._call_once("ModelReady", request, self.deadline(timeout))
        except errors.ServingError as error:
            return _not_now(error)
        return reply.ready

    def models(self, *, ready: bool, timeout: Timeout | Unset) -> Flow[list[ModelStatus]]:
        """The repository's index."""
        reply: pb.RepositoryIndexResponse = yield from self._call(
            "RepositoryIndex", pb.RepositoryIndexRequest(ready=ready), self.deadline(timeout)
        )
        return [
            ModelStatus(name=one.name, version=one.version, state=one.state or "UNKNOWN", reason=one.reason)
            for one in reply.models
        ]

    def config(self, model: str, *, version: str, timeout: Timeout | Unset) -> Flow[dict[str, Any]]:
        """The model's settings in Triton's form, as plain values."""
        request = pb.ModelConfigRequest(name=model, version=version)
        reply: pb.ModelConfigResponse = yield from self._call("ModelConfig", request, self.deadline(timeout))
        return _plain(reply.config)

    def statistics(self, model: str, *, version: str, timeout: Timeout | Unset) -> Flow[list[dict[str, Any]]]:
        """What was counted since each model was loaded, as plain values."""
        request = pb.ModelStatisticsRequest(name=model, version=version)
        reply: pb.ModelStatisticsResponse = yield from self._call("ModelStatistics", request, self.deadline(timeout))
        return [_plain(one) for one in reply.model_stats]

    # -- load control

    def load(self, model: str, *, config: Mapping[str, Any] | None, timeout: Timeout | Unset) -> Flow[None]:
        """Load the model, or load it anew."""
        request = pb.RepositoryModelLoadRequest(model_name=model)
        if config is not None:
            request.parameters["config"].string_param = json.dumps(config)
        yield from self._call("RepositoryModelLoad", request, self.deadline(timeout))
        self._forget_all(model)

    def unload(self, model: str, *, timeout: Timeout | Unset) -> Flow[None]:
        """Unload the model once its work in flight is finished."""
        yield from self._call(
            "RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name=model), self.deadline(timeout)
        )
        self._forget_all(model)

    def _forget_all(self, model: str) -> None:
        with self._cache_lock:
            for key in [key for key in self._cache if key[0] == model]:
                del self._cache[key]

    # -- waiting for readiness

    def wait_ready(self, model: str | None, *, version: str, timeout: Timeout) -> Flow[None]:
        """Poll, ever less often, until the server (or the model) is ready."""
        deadline = self.deadline(timeout)
        pause = 0.05
        while True:
            # One poll is short: a server that accepts and never answers must not eat the whole wait.
            poll = min(2.0, _left(deadline, self._clock(), otherwise=2.0))
            if model is None:
                ready = yield from self.server_ready(timeout=max(poll, 0.01))
            else:
                ready = yield from self.model_ready(model, version=version, timeout=max(poll, 0.01))
            if ready:
                return
            left = _left(deadline, self._clock(), otherwise=float("inf"))
            if left <= pause:
                why = yield from self._why_not_ready(model, version)
                raise errors.DeadlineExceeded(
                    f"{model or 'the server'} is not ready after {_seconds(timeout)} s: {why}"
                )
            yield Wait(pause * (1.0 - 0.3 * self._dice()))
            pause = min(pause * 1.6, 1.0)

    def _why_not_ready(self, model: str | None, version: str) -> Flow[str]:
        try:
            index: pb.RepositoryIndexResponse = yield from self._call_once(
                "RepositoryIndex", pb.RepositoryIndexRequest(), self.deadline(1.0)
            )
        except errors.ServingError as error:
            return error.message
        if model is None:
            waiting = [f"{one.name} is {one.state}" for one in index.models if one.state != "READY"]
            return ", ".join(waiting) or "it gives no reason"
        mine = [one for one in index.models if one.name == model and version in ("", one.version)]
        if not mine:
            known = ", ".join(sorted({one.name for one in index.models}))
            return f"the server has no such model; it has {known or 'none'}"
        return ", ".join(f"version {one.version or '?'} is {one.state} {one.reason}".rstrip() for one in mine)

    # -- sending

    def deadline(self, timeout: Timeout | Unset) -> float | None:
        """The instant on this object's clock when a call that starts now must be over."""
        chosen = self._settings.timeout if isinstance(timeout, Unset) else timeout
        seconds = chosen.total_seconds() if isinstance(chosen, timedelta) else chosen
        if seconds is None:
            return None
        if seconds <= 0.0:
            raise ValueError(f"a timeout must be more than zero seconds, not {seconds:g}")
        return self._clock() + seconds

    def time_left(self, deadline: float | None) -> float | None:
        """Seconds until the deadline; None where there is none."""
        return None if deadline is None else deadline - self._clock()

    def _call(self, method: str, request: Message, deadline: float | None) -> Flow[Any]:
        """Send until answered, or until sending again would not be safe, or would not fit the deadline."""
        attempt = 0
        while True:
            attempt += 1
            try:
                reply = yield from self._call_once(method, request, deadline)
            except errors.ServingError as error:
                refusal = Refusal(
                    reason=error.reason,
                    retry_after=error.retry_after,
                    never_sent=isinstance(error, errors.Unreachable),
                )
                wait = wait_before_retry(
                    self._settings.retries,
                    attempt=attempt,
                    refusal=refusal,
                    time_left=self.time_left(deadline),
                    dice=self._dice(),
                )
                if wait is None or not self._budget.take():
                    raise
                yield Wait(wait)
            else:
                self._budget.succeeded()
                return reply

    def _call_once(self, method: str, request: Message, deadline: float | None) -> Flow[Any]:
        left = self.time_left(deadline)
        if left is not None and left <= 0.0:
            raise errors.DeadlineExceeded(f"the timeout passed before {method} was sent")
        return (yield Send(method, request, left))


def _checked(request: InferRequest, metadata: ModelMetadata) -> dict[str, tuple[Array, str | None]]:
    inputs = request.inputs if isinstance(request.inputs, Mapping) else _single(request.inputs, metadata)
    arrays = check_inputs(inputs, metadata=metadata)
    check_outputs(request.outputs, metadata=metadata)
    datatypes = {spec.name: spec.datatype for spec in metadata.inputs}
    return {name: (array, datatypes[name]) for name, array in arrays.items()}


def _single(value: Value, metadata: ModelMetadata) -> dict[str, Value]:
    required: list[TensorSpec] = [spec for spec in metadata.inputs if spec.name not in metadata.optional_inputs]
    candidates = required or list(metadata.inputs)
    if len(candidates) != 1:
        names = ", ".join(str(spec) for spec in metadata.inputs) or "none"
        raise errors.InvalidRequest(
            f"{metadata.name} takes {len(metadata.inputs)} inputs ({names}): give them by name, as in {{name: array}}"
        )
    return {candidates[0].name: value}


def _unchecked(inputs: Mapping[str, Value]) -> dict[str, tuple[Array, str | None]]:
    arrays: dict[str, tuple[Array, str | None]] = {}
    for name, value in inputs.items():
        try:
            arrays[name] = (infer_array(value), None)
        except TensorError as error:
            field = f"inputs[{name}].{error.part}"
            raise errors.InvalidTensor(
                f"{field}: {error.description}", violations=[errors.Violation(field, error.description)]
            ) from error
    return arrays


_NOT_NOW: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.NOT_FOUND}
    | {grpc.StatusCode.FAILED_PRECONDITION}
)


def _not_now(error: errors.ServingError) -> bool:
    """Readiness answered by an error: False for those that mean "not now"; others are for the caller."""
    if error.code in _NOT_NOW:
        return False
    raise error


def _plain(message: Message) -> dict[str, Any]:
    values: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True, descriptor_pool=pool.POOL
    )
    return values


def _left(deadline: float | None, now: float, *, otherwise: float) -> float:
    return otherwise if deadline is None else deadline - now


def _seconds(timeout: Timeout) -> str:
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    return f"{seconds:g}" if seconds is not None else "?"
