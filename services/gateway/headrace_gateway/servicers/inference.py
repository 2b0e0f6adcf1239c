"""The inference service as grpc.aio serves it: all groups of RPCs in one class.

`ModelInfer` and `ModelStreamInfer` never get here: the Rust front answers them on the port itself.
"""

from collections.abc import AsyncIterator
from typing import NoReturn

from headrace_core.errors import Unsupported
from headrace_gateway.servicers.models import ModelRpcs
from headrace_gateway.servicers.repository import RepositoryRpcs
from headrace_gateway.servicers.server import ServerRpcs
from headrace_gateway.servicers.settings import SettingRpcs
from headrace_gateway.servicers.shared_memory import SharedMemoryRpcs
from headrace_gateway.upstream import Context
from headrace_protos.inference import grpc_service_pb2 as pb


class InferenceServicer(ServerRpcs, ModelRpcs, RepositoryRpcs, SettingRpcs, SharedMemoryRpcs):
    """Every RPC but the two hot ones."""

    async def ModelInfer(self, _request: pb.ModelInferRequest, _context: Context) -> NoReturn:
        raise Unsupported("inference is answered on the gateway's port, not on its private socket")

    def ModelStreamInfer(self, _requests: AsyncIterator[pb.ModelInferRequest], _context: Context) -> NoReturn:
        raise Unsupported("inference is answered on the gateway's port, not on its private socket")
