"""`TraceSetting` and `LogSettings`, passed to every live worker."""

from typing import TypeVar

from headrace_core.errors import NoReplica
from headrace_gateway.servicers.base import FleetServicer
from headrace_gateway.upstream import QUICK, Ask, Context, time_left
from headrace_protos.inference import grpc_service_pb2 as pb

Answer = TypeVar("Answer")


class SettingRpcs(FleetServicer):
    """The RPCs that change how workers log and trace. The answer is one worker's: after a change all say the same."""

    async def TraceSetting(self, request: pb.TraceSettingRequest, context: Context) -> pb.TraceSettingResponse:
        return await self._everywhere(lambda stub, seconds: stub.TraceSetting(request, timeout=seconds), context)

    async def LogSettings(self, request: pb.LogSettingsRequest, context: Context) -> pb.LogSettingsResponse:
        return await self._everywhere(lambda stub, seconds: stub.LogSettings(request, timeout=seconds), context)

    async def _everywhere(self, ask: Ask[Answer], context: Context) -> Answer:
        answers, failures = await self._workers.every(
            self._picture().replicas, ask, seconds=time_left(context, at_most=QUICK)
        )
        if failures:
            raise failures[0].error
        if not answers:
            raise NoReplica("there is no worker whose settings could be read or changed")
        return next(iter(answers.values()))
