"""What the groups of RPCs have in common: the picture of the fleet, and the workers to ask."""

from collections.abc import Callable

from headrace_core.lifecycle import Changes
from headrace_gateway.fleet import Picture
from headrace_gateway.truth import Truth
from headrace_gateway.upstream import Workers
from headrace_protos.inference import grpc_service_pb2_grpc as rpc


class FleetServicer(rpc.GRPCInferenceServiceServicer):
    """The base of each group. `changes` moves with every new picture."""

    def __init__(self, *, picture: Callable[[], Picture], workers: Workers, truth: Truth, changes: Changes) -> None:
        self._picture = picture
        self._workers = workers
        self._truth = truth
        self._changes = changes
