"""The client of Headrace, and of every server that speaks the Open Inference Protocol over gRPC.

    import headrace

    with headrace.Client() as client:              # HEADRACE_URL, else 127.0.0.1:8001
        result = client.infer("tiny", {"x": array})  # numpy in…
        print(result["y"])                           # …numpy out

`headrace.aio.Client` is the same for asyncio. Errors are in `headrace.errors`; `ServingError` is their root.
"""

from headrace import aio, errors
from headrace.calls import InferRequest
from headrace.client import Client
from headrace.errors import ServingError
from headrace.metadata import ModelMetadata, ModelStatus, ServerMetadata, TensorSpec
from headrace.result import InferResult
from headrace.retry import NO_RETRIES, RetryPolicy

__all__ = [
    "NO_RETRIES",
    "Client",
    "InferRequest",
    "InferResult",
    "ModelMetadata",
    "ModelStatus",
    "RetryPolicy",
    "ServerMetadata",
    "ServingError",
    "TensorSpec",
    "aio",
    "errors",
]
