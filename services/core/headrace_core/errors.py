"""The errors that Headrace answers with, and how they travel as a gRPC status.

A code and a reason belong to an error's type; there is no default. Servicers raise, one interceptor translates
(`headrace_core.server`), and the client turns a status back into the same type (`from_status`). The Rust front holds
the same table (`headrace_batcher.status_table()`); a test compares the two.

Tree::

    ServingError
    ├── InvalidRequest, InvalidTensor, UnknownTensor, InvalidParameter      INVALID_ARGUMENT
    ├── ModelNotFound, VersionNotFound                                      NOT_FOUND
    ├── ModelLoading, NoReplica, Draining, WorkerLost, OverloadedConnections  UNAVAILABLE
    ├── ModelFailed, StateConflict                                          FAILED_PRECONDITION
    ├── QueueFull, OverQuota, MessageTooLarge                               RESOURCE_EXHAUSTED
    ├── ExpiredInQueue, CannotMeetDeadline, DeadlineExceeded                DEADLINE_EXCEEDED
    ├── Cancelled                                                           CANCELLED
    ├── InferenceFailed, InternalError                                      INTERNAL
    ├── Unsupported                                                         UNIMPLEMENTED
    └── ForeignStatus      a status that no Headrace service made; keeps the code it came with
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Final

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

DOMAIN: Final = "headrace"
"""The `google.rpc.ErrorInfo` domain of every error made here."""

REASON_KEY: Final = "headrace-reason"
"""Trailing metadata key that carries the reason for those who don't decode details."""

DETAILS_KEY: Final = "grpc-status-details-bin"
"""Trailing metadata key of the `google.rpc.Status` that gRPC libraries agree on."""

MAX_MESSAGE_BYTES: Final = 1024
"""A longer message is cut; status messages travel in HTTP/2 headers, whose size peers limit."""

Metadata = tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that is wrong with a request: `inputs[image].shape`, and what was expected and what came."""

    field: str
    description: str


_NONE: Final[tuple[Violation, ...]] = ()

_by_reason: dict[str, type["ServingError"]] = {}


class ServingError(Exception):
    """An error with a gRPC code and a stable reason. Raise a subclass."""

    code: grpc.StatusCode
    reason: str
    retryable_after: ClassVar[timedelta | None] = None
    """How long a caller should wait before it tries again, unless the raiser knows better."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "reason" not in cls.__dict__ or "code" not in cls.__dict__:
            raise TypeError(f"{cls.__name__} must name its own code and reason")
        if cls.reason:
            _by_reason[cls.reason] = cls

    def __init__(
        self,
        message: str,
        *,
        violations: Iterable[Violation] = (),
        retry_after: timedelta | None = None,
    ) -> None:
        super().__init__(message)
        self.message: str = message
        self.violations: tuple[Violation, ...] = tuple(violations)
        self.retry_after: timedelta | None = retry_after if retry_after is not None else self.retryable_after

    def __str__(self) -> str:
        return self.message


class InvalidRequest(ServingError):
    """The request as a whole is malformed."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_REQUEST"


class InvalidTensor(ServingError):
    """A tensor's shape, datatype or content is not what the model takes."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_TENSOR"


class UnknownTensor(ServingError):
    """The model has no input or output of that name."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "UNKNOWN_TENSOR"


class InvalidParameter(ServingError):
    """A request parameter has a wrong type or value."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_PARAMETER"


class ModelNotFound(ServingError):
    """No model or alias of that name."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "MODEL_NOT_FOUND"


class VersionNotFound(ServingError):
    """The model is there, this version of it is not."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "VERSION_NOT_FOUND"


class ModelLoading(ServingError):
    """The model is known and not ready yet."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "MODEL_LOADING"
    retryable_after = timedelta(seconds=1)


class NoReplica(ServingError):
    """The model is known and nobody can run it now."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "NO_REPLICA"
    retryable_after = timedelta(seconds=1)


class Draining(ServingError):
    """This server is stopping; another replica may do."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "DRAINING"
    retryable_after = timedelta(seconds=1)


class WorkerLost(ServingError):
    """The worker went away after it had begun."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "WORKER_LOST"


class OverloadedConnections(ServingError):
    """This server holds as many connections as it may."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "OVERLOADED_CONNECTIONS"


class ModelFailed(ServingError):
    """The model could not be loaded; the message says why."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "MODEL_FAILED"


class StateConflict(ServingError):
    """What was asked for doesn't fit the state that things are in."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "STATE_CONFLICT"


class QueueFull(ServingError):
    """This server is full; another replica, or a short wait, may do."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "QUEUE_FULL"
    retryable_after = timedelta(milliseconds=100)


class OverQuota(ServingError):
    """This tenant is over its share."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "OVER_QUOTA"


class MessageTooLarge(ServingError):
    """The message is over the size limit, which the message names with its setting."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "MESSAGE_TOO_LARGE"


class ExpiredInQueue(ServingError):
    """The deadline passed while the request waited."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "EXPIRED_IN_QUEUE"


class CannotMeetDeadline(ServingError):
    """The estimated wait is longer than the time left; refused at the door."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "CANNOT_MEET_DEADLINE"


class DeadlineExceeded(ServingError):
    """The deadline passed."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "DEADLINE_EXCEEDED"


class Cancelled(ServingError):
    """The caller is gone."""

    code = grpc.StatusCode.CANCELLED
    reason = "CANCELLED"


class InferenceFailed(ServingError):
    """The model raised; the detail is in the server's log."""

    code = grpc.StatusCode.INTERNAL
    reason = "INFERENCE_FAILED"


class InternalError(ServingError):
    """Something went wrong on the server; the detail is in its log."""

    code = grpc.StatusCode.INTERNAL
    reason = "INTERNAL"


class Unsupported(ServingError):
    """This server doesn't do that; the message says what to use in its place."""

    code = grpc.StatusCode.UNIMPLEMENTED
    reason = "UNSUPPORTED"


class ForeignStatus(ServingError):
    """A status that something else on the way made (a proxy, gRPC itself). Its code is the one that came."""

    code = grpc.StatusCode.UNKNOWN
    reason = ""

    def __init_subclass__(cls) -> None:
        """A client's own kinds stay out of the table of what servers answer."""

    def __init__(self, code: grpc.StatusCode, message: str, *, retry_after: timedelta | None = None) -> None:
        super().__init__(message, retry_after=retry_after)
        self.code = code


def table() -> Mapping[str, grpc.StatusCode]:
    """Every reason and its code."""
    return {reason: error.code for reason, error in _by_reason.items()}


def cut(message: str) -> str:
    """The message, at most `MAX_MESSAGE_BYTES` long in UTF-8."""
    encoded = message.encode("utf-8", "replace")
    if len(encoded) <= MAX_MESSAGE_BYTES:
        return message
    return encoded[: MAX_MESSAGE_BYTES - 3].decode("utf-8", "ignore") + "…"


def to_rpc_status(error: ServingError) -> status_pb2.Status:
    """The `google.rpc.Status` of an error: ErrorInfo, then whatever else is known."""
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    details: list[any_pb2.Any] = [_packed(info)]
    if error.violations:
        bad = error_details_pb2.BadRequest(
            field_violations=[
                error_details_pb2.BadRequest.FieldViolation(field=cut(one.field), description=cut(one.description))
                # Details travel in a header too: the first few say what is wrong.
                for one in error.violations[:8]
            ]
        )
        details.append(_packed(bad))
    if error.retry_after is not None:
        delay = duration_pb2.Duration()
        delay.FromTimedelta(error.retry_after)
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    if isinstance(error, OverQuota):
        failure = error_details_pb2.QuotaFailure.Violation(subject="tenant", description=cut(error.message))
        details.append(_packed(error_details_pb2.QuotaFailure(violations=[failure])))
    number: int = error.code.value[0]
    return status_pb2.Status(code=number, message=cut(error.message), details=details)


def to_trailers(error: ServingError) -> Metadata:
    """The trailing metadata that goes with the error's code and message."""
    return ((REASON_KEY, error.reason), (DETAILS_KEY, to_rpc_status(error).SerializeToString()))


def from_status(
    code: grpc.StatusCode, message: str, *, trailers: Sequence[tuple[str, str | bytes]] = ()
) -> ServingError:
    """The error that a status stands for: the same type that the server raised, or `ForeignStatus`.

    A status without details but with the reason in its trailers is understood too, since some proxies drop the
    binary header.
    """
    reason, violations, retry_after = "", _NONE, None
    for key, value in trailers:
        if key == REASON_KEY and isinstance(value, str) and not reason:
            reason = value
        elif key == DETAILS_KEY and isinstance(value, bytes):
            found, violations, retry_after = _read_details(value)
            reason = found or reason
    kind = _by_reason.get(reason)
    if kind is None or kind.code is not code:
        return ForeignStatus(code, message, retry_after=retry_after)
    return kind(message, violations=violations, retry_after=retry_after)


def _read_details(encoded: bytes) -> tuple[str, tuple[Violation, ...], timedelta | None]:
    status = status_pb2.Status()
    try:
        status.ParseFromString(encoded)
    except DecodeError:
        return "", (), None
    info = error_details_pb2.ErrorInfo()
    bad = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    reason, violations, retry_after = "", _NONE, None
    for detail in status.details:
        if detail.Is(info.DESCRIPTOR) and detail.Unpack(info) and info.domain == DOMAIN:
            reason = info.reason
        elif detail.Is(bad.DESCRIPTOR) and detail.Unpack(bad):
            violations = tuple(Violation(field=one.field, description=one.description) for one in bad.field_violations)
        elif detail.Is(retry.DESCRIPTOR) and detail.Unpack(retry):
            retry_after = retry.retry_delay.ToTimedelta()
    return reason, violations, retry_after


def _packed(
    message: error_details_pb2.ErrorInfo
    | error_details_pb2.BadRequest
    | error_details_pb2.RetryInfo
    | error_details_pb2.QuotaFailure,
) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed
