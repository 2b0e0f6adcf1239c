"""What can go wrong with a call, as exceptions that carry a gRPC code, a stable reason and details.

A refusal by a Headrace server arrives as the very type that the server raised: `QueueFull`, `ModelNotFound`,
`InvalidTensor` and the others of `headrace_core.errors`, all of them a `ServingError` with `code`, `reason`,
`message`, `violations` and `retry_after`. What this client refuses before sending raises the same types. Two more
can only be known on this side, and any other server's status keeps its code::

    ServingError
    ├── InvalidTensor, ModelNotFound, QueueFull, DeadlineExceeded, …   (the server's own)
    └── ForeignStatus       another server's, a proxy's or gRPC's status; tell them apart by `code`
        ├── Unreachable     no connection could be made: certainly nothing ran      UNAVAILABLE, "UNREACHABLE"
        ├── ConnectionLost  it broke before the answer came: the request may have run  UNAVAILABLE, "CONNECTION_LOST"
        └── StreamError     an error inside a stream, from a server that gives only text   UNKNOWN, "STREAM_ERROR"
"""

from collections.abc import Sequence
from typing import Final, cast

import grpc

from headrace_core.errors import (
    Cancelled,
    CannotMeetDeadline,
    DeadlineExceeded,
    Draining,
    ExpiredInQueue,
    ForeignStatus,
    InferenceFailed,
    InternalError,
    InvalidParameter,
    InvalidRequest,
    InvalidTensor,
    MessageTooLarge,
    ModelFailed,
    ModelLoading,
    ModelNotFound,
    NoReplica,
    OverloadedConnections,
    OverQuota,
    QueueFull,
    ServingError,
    StateConflict,
    UnknownTensor,
    Unsupported,
    VersionNotFound,
    Violation,
    WorkerLost,
    from_status,
)

__all__ = [
    "Cancelled",
    "CannotMeetDeadline",
    "ConnectionLost",
    "DeadlineExceeded",
    "Draining",
    "ExpiredInQueue",
    "ForeignStatus",
    "InferenceFailed",
    "InternalError",
    "InvalidParameter",
    "InvalidRequest",
    "InvalidTensor",
    "MessageTooLarge",
    "ModelFailed",
    "ModelLoading",
    "ModelNotFound",
    "NoReplica",
    "OverQuota",
    "OverloadedConnections",
    "QueueFull",
    "ServingError",
    "StateConflict",
    "StreamError",
    "UnknownTensor",
    "Unreachable",
    "Unsupported",
    "VersionNotFound",
    "Violation",
    "WorkerLost",
    "from_rpc_error",
]


class Unreachable(ForeignStatus):
    """No connection to the server could be made, so certainly nothing ran."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = ""

    def __init__(self, message: str) -> None:
        """Say where nobody answers, and why."""
        super().__init__(grpc.StatusCode.UNAVAILABLE, message)
        # On the instance: reasons of classes are the server's table, and servers never say this one.
        self.reason = "UNREACHABLE"
        self.args = (message,)


class ConnectionLost(ForeignStatus):
    """The connection broke after the request was sent. It may have run: only the caller knows whether to repeat it."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = ""

    def __init__(self, message: str) -> None:
        """Say what broke."""
        super().__init__(grpc.StatusCode.UNAVAILABLE, message)
        self.reason = "CONNECTION_LOST"
        self.args = (message,)


class StreamError(ForeignStatus):
    """A request on a stream failed, and the server says so in words only. `request_id` is the request's, if given."""

    code = grpc.StatusCode.UNKNOWN
    reason = ""

    def __init__(self, message: str, request_id: str = "") -> None:
        """Keep the server's words."""
        super().__init__(grpc.StatusCode.UNKNOWN, message)
        self.reason = "STREAM_ERROR"
        self.request_id = request_id
        self.args = (message, request_id)


_NEVER_SENT: Final = (
    # gRPC's own words when no connection could be made…
    "failed to connect to all addresses",
    "dns resolution failed",
    "name resolution failure",
    # …and Envoy's when it had nowhere to send the request.
    "no healthy upstream",
    "reset reason: connection failure",
    "reset reason: remote connection failure",
)


def from_rpc_error(error: grpc.RpcError, *, url: str) -> ServingError:
    """The exception for a failed gRPC call to `url`, whoever made the status."""
    code, text, trailers = _parts(error)
    known = from_status(code, text, trailers=trailers)
    if not isinstance(known, ForeignStatus):
        return known
    if code is grpc.StatusCode.UNAVAILABLE:
        if any(phrase in text.lower() for phrase in _NEVER_SENT):
            return Unreachable(f"nothing answers at {url}: {_last_cause(text)}")
        return ConnectionLost(f"the connection to {url} was lost before the answer came: {text}")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(f"no answer from {url} within the timeout")
    if code is grpc.StatusCode.CANCELLED:
        return Cancelled(text or "the call was cancelled")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in text.lower():
        return MessageTooLarge(f"{text}: raise max_message_bytes here and on the server, or send less at once")
    if not text:
        return ForeignStatus(code, f"{url} answered {code.name} and gave no reason", retry_after=known.retry_after)
    return known


def _parts(error: grpc.RpcError) -> tuple[grpc.StatusCode, str, Sequence[tuple[str, str | bytes]]]:
    # Errors of grpc and of grpc.aio both have these methods, and the base class that they share declares none of them.
    code = error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    text = error.details() if hasattr(error, "details") else str(error)
    trailers = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
    # Pairs in both, though the stubs call them something else.
    pairs = cast("Sequence[tuple[str, str | bytes]]", trailers or ())
    return code, text or "", tuple((str(key), value) for key, value in pairs)


def _last_cause(text: str) -> str:
    # "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to remote host:
    # connect: Connection refused (111)" → the part that a person needs.
    return text.rsplit(": ", 1)[-1][:200]
