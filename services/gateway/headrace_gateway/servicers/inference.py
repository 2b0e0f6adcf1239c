"""The inference service as grpc.aio serves it: all groups of RPCs in one class.

`ModelInfer` and `ModelStreamInfer` never get here: the Rust front answers them on the port itself.
"""

from headrace_gateway.servicers.models import ModelRpcs
from headrace_gateway.servicers.repository import RepositoryRpcs
from headrace_gateway.servicers.server import ServerRpcs
from headrace_gateway.servicers.settings import SettingRpcs
from headrace_gateway.servicers.shared_memory import SharedMemoryRpcs


class InferenceServicer(ServerRpcs, ModelRpcs, RepositoryRpcs, SettingRpcs, SharedMemoryRpcs):
    """Every RPC but the two hot ones."""
