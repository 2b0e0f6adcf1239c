"""`ServerLive`, `ServerReady`, `ServerMetadata`, `ModelReady`."""

from importlib.metadata import PackageNotFoundError, version

from headrace_core.errors import NoReplica
from headrace_gateway.servicers.base import FleetServicer
from headrace_gateway.upstream import QUICK, Context, time_left
from headrace_protos.inference import grpc_service_pb2 as pb


class ServerRpcs(FleetServicer):
    """The RPCs about the server as a whole."""

    _extensions: tuple[str, ...] = ()

    async def ServerLive(self, _request: pb.ServerLiveRequest, _context: Context) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, _request: pb.ServerReadyRequest, _context: Context) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self._truth.server())

    async def ModelReady(self, request: pb.ModelReadyRequest, _context: Context) -> pb.ModelReadyResponse:
        return pb.ModelReadyResponse(ready=self._truth.model(request.name, version=request.version))

    async def ServerMetadata(self, _request: pb.ServerMetadataRequest, context: Context) -> pb.ServerMetadataResponse:
        """The workers' extensions are the gateway's: it passes all of them on."""
        try:
            told = await self._workers.first(
                self._picture().replicas,
                lambda stub, seconds: stub.ServerMetadata(pb.ServerMetadataRequest(), timeout=seconds),
                seconds=time_left(context, at_most=QUICK),
            )
        except NoReplica:
            # Clients ask this first; the last answer, or none, is better than a refusal.
            return pb.ServerMetadataResponse(name="headrace", version=_version(), extensions=self._extensions)
        self._extensions = tuple(told.extensions)
        return pb.ServerMetadataResponse(name="headrace", version=_version(), extensions=self._extensions)


def _version() -> str:
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "0"
