"""Asks workers over gRPC on behalf of a caller: within the caller's time, and with the worker's errors kept whole."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar, cast

import grpc
import grpc.aio

from headrace_core.errors import DeadlineExceeded, ForeignStatus, NoReplica, ServingError, WorkerLost, from_status
from headrace_gateway.fleet import Picture
from headrace_protos.inference import grpc_service_pb2_grpc as rpc

QUICK: Final = timedelta(seconds=10)
"""Longest wait for an answer that a worker has at hand."""
LONG: Final = timedelta(minutes=10)
"""Longest wait for a model to be loaded or unloaded."""

Context = grpc.aio.ServicerContext[Any, Any]
Answer = TypeVar("Answer")
Ask = Callable[["rpc.GRPCInferenceServiceAsyncStub", float], Awaitable[Answer]]
"""A call on a worker's stub within so many seconds."""


class Channels(Protocol):
    """Where connections to workers come from."""

    def channel(self, address: str) -> grpc.aio.Channel | None: ...


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker's refusal."""

    replica: str
    error: ServingError


class Workers:
    """The live workers, as something to call."""

    def __init__(self, *, picture: Callable[[], Picture], channels: Channels) -> None:
        self._picture = picture
        self._channels = channels

    async def first(self, names: Iterable[str], ask: Ask[Answer], *, seconds: float) -> Answer:
        """The answer of the first of these workers that gives one; only one that cannot be reached is passed over.

        Raises:
            ServingError: what the worker answered.
            NoReplica: none could be reached.
        """
        for name in names:
            try:
                return await self._ask(name, ask, seconds)
            except WorkerLost:
                continue
        raise NoReplica("no worker could be reached")

    async def every(
        self, names: Iterable[str], ask: Ask[Answer], *, seconds: float
    ) -> tuple[dict[str, Answer], list[Failure]]:
        """The answers of all these workers, by name, and the refusals."""
        asked = list(names)
        results = await asyncio.gather(*(self._ask(name, ask, seconds) for name in asked), return_exceptions=True)
        answers: dict[str, Answer] = {}
        failures: list[Failure] = []
        for name, result in zip(asked, results, strict=True):
            if isinstance(result, ServingError):
                failures.append(Failure(name, result))
            elif isinstance(result, BaseException):
                raise result
            else:
                answers[name] = result
        return answers, failures

    async def _ask(self, name: str, ask: Ask[Answer], seconds: float) -> Answer:
        address = self._picture().replicas.get(name)
        channel = self._channels.channel(address) if address is not None else None
        if channel is None:
            raise WorkerLost(f"worker {name} is gone")
        try:
            return await ask(rpc.GRPCInferenceServiceStub(channel), seconds)
        except grpc.aio.AioRpcError as error:
            raise _translated(name, error) from error


def _translated(name: str, error: grpc.aio.AioRpcError) -> ServingError:
    trailers = list(cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ()))
    translated = from_status(error.code(), error.details() or "", trailers=trailers)
    # A status without our reason comes from gRPC itself: the connection, not the worker's mind.
    if isinstance(translated, ForeignStatus) and error.code() is grpc.StatusCode.UNAVAILABLE:
        return WorkerLost(f"worker {name} cannot be reached")
    if isinstance(translated, ForeignStatus) and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(f"worker {name} did not answer in time")
    return translated


def time_left(context: Context, *, at_most: timedelta) -> float:
    """Seconds for a call to a worker: what the caller has left, capped."""
    left = cast("float | None", context.time_remaining())  # None without a deadline, whatever its stubs say
    most = at_most.total_seconds()
    return most if left is None else max(0.0, min(left, most))
