"""Requests made by hand and answers as arrays, over plain grpcio with our stubs, so that nothing tidies them up.

door = Door("worker", "127.0.0.1:9000")
door.arrays(request("add", x=np.ones((1, 4), np.float32)))["y"]
assert door.refusal(bad) == ("INVALID_ARGUMENT", "INVALID_TENSOR", …)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np

from headrace_core import errors, tensors
from headrace_protos.inference import grpc_service_pb2 as pb
from headrace_protos.inference import grpc_service_pb2_grpc as rpc

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_MESSAGE_BYTES = 64 << 20
PATIENCE = 60.0
"""Seconds that a call may take on a slow and noisy machine. Where a case demands a time, the test says so."""


def request(
    model: str, *, named: str = "", version: str = "", outputs: Iterable[str] = (), **arrays: np.ndarray[Any, Any]
) -> pb.ModelInferRequest:
    """A request with raw contents, one input for each array. `named` is its id."""
    made = pb.ModelInferRequest(model_name=model, model_version=version, id=named)
    for name, array in arrays.items():
        described, raw = tensors.input_from_array(name, array=array)
        made.inputs.append(described)
        made.raw_input_contents.append(raw)
    made.outputs.extend(pb.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in outputs)
    return made


def raw_request(
    model: str, datatype: str, shape: Sequence[int], raw: bytes, *, name: str = "x"
) -> pb.ModelInferRequest:
    """A request with one input that says what it is told to say."""
    made = pb.ModelInferRequest(model_name=model, raw_input_contents=[raw])
    made.inputs.add(name=name, datatype=datatype, shape=shape)
    return made


def typed_request(
    model: str, datatype: str, shape: Sequence[int], *, name: str = "x", **contents: Any
) -> pb.ModelInferRequest:
    """A request with one input in typed contents: `int_contents=[…]`."""
    made = pb.ModelInferRequest(model_name=model)
    made.inputs.add(name=name, datatype=datatype, shape=shape, contents=pb.InferTensorContents(**contents))
    return made


def rows(*values: float, width: int = 4) -> np.ndarray[Any, Any]:
    """One row for each value, which fills it."""
    return np.repeat(np.array(values, np.float32)[:, None], width, axis=1)


@dataclass(frozen=True)
class Refusal:
    """How a call failed."""

    code: str
    reason: str
    message: str
    fields: tuple[str, ...]
    """The fields of its `BadRequest` details."""

    @classmethod
    def of(cls, error: grpc.RpcError) -> Refusal:
        assert isinstance(error, grpc.Call)
        message = error.details() or ""
        trailers = tuple(error.trailing_metadata() or ())
        told = errors.from_status(error.code(), message, trailers=trailers)
        return cls(error.code().name, told.reason, message, tuple(one.field for one in told.violations))


class Door:
    """A place to call at, and the calls."""

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address
        self.channel = grpc.insecure_channel(
            address,
            options=[
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        self.stub = rpc.GRPCInferenceServiceStub(self.channel)

    def __str__(self) -> str:
        return self.name

    def close(self) -> None:
        self.channel.close()

    def infer(self, message: pb.ModelInferRequest, *, timeout: float = PATIENCE) -> pb.ModelInferResponse:
        response: pb.ModelInferResponse = self.stub.ModelInfer(message, timeout=timeout)
        return response

    def arrays(self, message: pb.ModelInferRequest, *, timeout: float = PATIENCE) -> dict[str, np.ndarray[Any, Any]]:
        """The outputs by name."""
        return tensors.outputs_from_response(self.infer(message, timeout=timeout))

    def refusal(self, message: pb.ModelInferRequest, *, timeout: float = PATIENCE) -> Refusal:
        """How this request is refused; it is a failure if it is not."""
        outcome = self.outcome(message, timeout=timeout)
        assert isinstance(outcome, Refusal), f"accepted: {message!s:.500}"
        return outcome

    def outcome(self, message: pb.ModelInferRequest, *, timeout: float = PATIENCE) -> pb.ModelInferResponse | Refusal:
        return outcome(self.send(message, timeout=timeout))

    def send(self, message: pb.ModelInferRequest, *, timeout: float = PATIENCE) -> grpc.Future:
        """The call, under way."""
        sent: grpc.Future = self.stub.ModelInfer.future(message, timeout=timeout)
        return sent

    def together(self, messages: Iterable[pb.ModelInferRequest]) -> list[pb.ModelInferResponse | Refusal]:
        """All at once; each one's answer or refusal, in order."""
        return [outcome(one) for one in [self.send(message) for message in messages]]

    def statistics(self, model: str) -> pb.ModelStatistics:
        asked = pb.ModelStatisticsRequest(name=model)
        answer: pb.ModelStatisticsResponse = self.stub.ModelStatistics(asked, timeout=PATIENCE)
        return answer.model_stats[0]


def outcome(call: grpc.Future) -> pb.ModelInferResponse | Refusal:
    """A call's answer, or how it failed."""
    try:
        response: pb.ModelInferResponse = call.result()
    except grpc.FutureCancelledError:
        return Refusal("CANCELLED", "", "", ())
    except grpc.RpcError as error:
        return Refusal.of(error)
    return response
