"""Triton's shared-memory RPCs, which a gateway cannot offer."""

from typing import NoReturn

from headrace_core.errors import Unsupported
from headrace_gateway.servicers.base import FleetServicer
from headrace_gateway.upstream import Context
from headrace_protos.inference import grpc_service_pb2 as pb


class SharedMemoryRpcs(FleetServicer):
    """Triton's shared-memory RPCs: a gateway and its workers share no memory with their clients."""

    async def SystemSharedMemoryStatus(
        self, _request: pb.SystemSharedMemoryStatusRequest, _context: Context
    ) -> NoReturn:
        raise _unsupported()

    async def SystemSharedMemoryRegister(
        self, _request: pb.SystemSharedMemoryRegisterRequest, _context: Context
    ) -> NoReturn:
        raise _unsupported()

    async def SystemSharedMemoryUnregister(
        self, _request: pb.SystemSharedMemoryUnregisterRequest, _context: Context
    ) -> NoReturn:
        raise _unsupported()

    async def CudaSharedMemoryStatus(self, _request: pb.CudaSharedMemoryStatusRequest, _context: Context) -> NoReturn:
        raise _unsupported()

    async def CudaSharedMemoryRegister(
        self, _request: pb.CudaSharedMemoryRegisterRequest, _context: Context
    ) -> NoReturn:
        raise _unsupported()

    async def CudaSharedMemoryUnregister(
        self, _request: pb.CudaSharedMemoryUnregisterRequest, _context: Context
    ) -> NoReturn:
        raise _unsupported()


def _unsupported() -> Unsupported:
    return Unsupported(
        "shared memory is not supported: workers may run on other machines; send tensors as raw contents"
    )
