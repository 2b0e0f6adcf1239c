"""Replies of `ModelStreamInfer` in Triton's form: a result, or an error in its place."""

from typing import Final

from headrace.errors import StreamError
from headrace.result import InferResult
from headrace_protos.inference import grpc_service_pb2 as pb

STREAM_METADATA: Final = (("triton_grpc_error", "true"),)
"""Asks that a failed request end the stream with a gRPC status: that has a code and details, an in-band error only text."""


def read_reply(reply: pb.ModelStreamInferResponse) -> InferResult:
    """The result in a reply.

    Raises:
        StreamError: the server put an error in its place.
    """
    if reply.error_message:
        raise StreamError(reply.error_message, reply.infer_response.id)
    return InferResult.from_proto(reply.infer_response)
