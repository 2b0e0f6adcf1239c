"""`ModelMetadata`, `ModelConfig`, `ModelStatistics`: asked of workers that have the model."""

from headrace_core.errors import ModelNotFound, NoReplica, VersionNotFound
from headrace_gateway.merge import sum_statistics
from headrace_gateway.servicers.base import FleetServicer
from headrace_gateway.upstream import QUICK, Context, time_left
from headrace_protos.inference import grpc_service_pb2 as pb


class ModelRpcs(FleetServicer):
    """The RPCs about one model."""

    async def ModelMetadata(self, request: pb.ModelMetadataRequest, context: Context) -> pb.ModelMetadataResponse:
        picture = self._picture()
        version, names = picture.resolve(request.name, version=request.version)
        asked = pb.ModelMetadataRequest(name=request.name, version=version)
        told = await self._workers.first(
            names,
            lambda stub, seconds: stub.ModelMetadata(asked, timeout=seconds),
            seconds=time_left(context, at_most=QUICK),
        )
        # One worker may have fewer versions than the fleet.
        ready = [number for number, one in picture.models[request.name].items() if one.replicas]
        told.versions[:] = sorted(ready, key=lambda number: (len(number), number))
        return told

    async def ModelConfig(self, request: pb.ModelConfigRequest, context: Context) -> pb.ModelConfigResponse:
        version, names = self._picture().resolve(request.name, version=request.version)
        asked = pb.ModelConfigRequest(name=request.name, version=version)
        return await self._workers.first(
            names,
            lambda stub, seconds: stub.ModelConfig(asked, timeout=seconds),
            seconds=time_left(context, at_most=QUICK),
        )

    async def ModelStatistics(self, request: pb.ModelStatisticsRequest, context: Context) -> pb.ModelStatisticsResponse:
        """Summed over the workers that answer. What a worker counted goes with it when it ends."""
        answers, failures = await self._workers.every(
            self._picture().replicas,
            lambda stub, seconds: stub.ModelStatistics(request, timeout=seconds),
            seconds=time_left(context, at_most=QUICK),
        )
        # A worker without this model refuses; that matters only if all of them do.
        missing = [one for one in failures if isinstance(one.error, ModelNotFound | VersionNotFound)]
        if failures and not answers:
            raise (missing or failures)[0].error
        if not answers and request.name:
            self._picture().resolve(request.name, version=request.version)
            raise NoReplica(f"no worker can tell about model {request.name!r} now")
        return sum_statistics(answers.values())
