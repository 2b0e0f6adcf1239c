"""`headrace.control.v1.WorkerService`: this worker's state for gateways, at each change and once a second."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from headrace_protos.control.v1 import control_pb2 as pb
from headrace_protos.control.v1 import control_pb2_grpc as rpc
from headrace_worker.models import Models, State
from headrace_worker.servicers.inference import server_ready

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import grpc.aio

    from headrace_core.lifecycle import Readiness
    from headrace_worker.progress import Progress

    Context = grpc.aio.ServicerContext[Any, Any]

HEARTBEAT: Final = timedelta(seconds=1)

_STATES: Final = {
    State.LOADING: pb.ModelState.STATE_LOADING,
    State.READY: pb.ModelState.STATE_READY,
    State.UNLOADING: pb.ModelState.STATE_UNLOADING,
    State.FAILED: pb.ModelState.STATE_FAILED,
}


class WorkerServicer(rpc.WorkerServiceServicer):
    """Tells gateways what this worker can run and how busy it is."""

    def __init__(
        self, *, identity: str, address: str, models: Models, progress: Progress, readiness: Readiness
    ) -> None:
        self._identity = identity
        self._address = address
        self._models = models
        self._progress = progress
        self._readiness = readiness

    async def GetState(self, _request: pb.GetStateRequest, _context: Context) -> pb.WorkerState:
        return self.state()

    async def Watch(self, _request: pb.WatchRequest, _context: Context) -> AsyncIterator[pb.WorkerState]:
        while True:
            seen, state = self._models.changes.generation, self.state()
            yield state
            if state.draining:
                return  # a stream that never ends would hold up the drain
            await self._models.changes.beyond(seen, at_most=HEARTBEAT)

    def state(self) -> pb.WorkerState:
        """The state now. A version whose instances are all stuck or dead is told as failed: nothing should be sent."""
        models: list[pb.ModelState] = []
        for one in self._models:
            load = self._progress.load(one.name, one.version)
            state, reason = _STATES[one.state], one.reason
            if one.state is State.READY and not self._progress.moves(one.name, one.version):
                state, reason = pb.ModelState.STATE_FAILED, "its instances make no progress"
            models.append(
                pb.ModelState(
                    name=one.name,
                    version=one.version,
                    state=state,
                    reason=reason,
                    default=one.version == self._models.default(one.name),
                    queue_rows=load.queue_rows,
                    running_rows=load.running_rows,
                )
            )
        return pb.WorkerState(
            id=self._identity,
            address=self._address,
            ready=server_ready(self._readiness, self._models, self._progress),
            draining=self._readiness.draining,
            models=models,
            generation=self._models.changes.generation,
        )
