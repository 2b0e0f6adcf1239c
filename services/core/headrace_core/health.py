"""The standard `grpc.health.v1.Health` service over a function that knows the truth.

Service name `""` is the server as a whole; any other name is a model. `Watch` tells each change, and looks again
every second, because progress can stop without anything being announced.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace_core.errors import ModelNotFound

LOOK_AGAIN: Final = timedelta(seconds=1)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import grpc.aio

    from headrace_core.lifecycle import Changes

    Context = grpc.aio.ServicerContext[Any, Any]


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # its stubs have no types
    """`serving(name)` says whether the name serves now, or None if there is no such name."""

    def __init__(
        self,
        *,
        serving: Callable[[str], bool | None],
        changes: Changes,
        draining: Callable[[], bool],
    ) -> None:
        self._serving = serving
        self._changes = changes
        self._draining = draining

    async def Check(self, request: health_pb2.HealthCheckRequest, _context: Context) -> health_pb2.HealthCheckResponse:
        serving = self._serving(request.service)
        if serving is None:
            raise ModelNotFound(f"no model named {request.service!r}")
        return health_pb2.HealthCheckResponse(status=_status(serving))

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, _context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        said: health_pb2.HealthCheckResponse.ServingStatus | None = None
        while True:
            seen, ending = self._changes.generation, self._draining()
            status = _status(self._serving(request.service))
            if status != said:
                yield health_pb2.HealthCheckResponse(status=status)
                said = status
            if ending:
                return  # a stream that never ends would hold up the drain
            await self._changes.beyond(seen, at_most=LOOK_AGAIN)


def _status(serving: bool | None) -> health_pb2.HealthCheckResponse.ServingStatus:  # noqa: FBT001 - the value itself
    if serving is None:
        return health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    return health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
