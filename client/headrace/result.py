"""What an inference gave back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace_core.tensors import Array, outputs_from_response
from headrace_protos.inference import grpc_service_pb2 as pb

Parameter = bool | int | float | str
"""The values that the protocol's parameters can hold."""


@dataclass(frozen=True, kw_only=True)
class InferResult:
    """The outputs of one request as numpy arrays: `result["probabilities"]`.

    Arrays are views of the received message and read-only; take `array.copy()` to write. Outputs of datatype `BYTES`
    are object arrays of `bytes`. `BF16` is `ml_dtypes.bfloat16` where that package is installed, else its bits as
    `uint16`.
    """

    model: str
    version: str
    """The version that ran, whatever was asked for."""
    id: str
    """The request's own id, sent back."""
    outputs: Mapping[str, Array]
    """Every output by name, in the server's order."""
    datatypes: Mapping[str, str]
    """The protocol's datatype of each output."""
    parameters: Mapping[str, Parameter]

    def __getitem__(self, name: str) -> Array:
        """One output.

        Raises:
            KeyError: there is none of that name; the message lists what there is.
        """
        try:
            return self.outputs[name]
        except KeyError:
            raise KeyError(f"{name!r}: {self.model} gave {', '.join(self.outputs) or 'no outputs'}") from None

    @property
    def only(self) -> Array:
        """The output of a model that has one.

        Raises:
            ValueError: there are none, or several.
        """
        if len(self.outputs) != 1:
            raise ValueError(f"{self.model} gave {', '.join(self.outputs) or 'no outputs'}, not one output")
        return next(iter(self.outputs.values()))

    @classmethod
    def from_proto(cls, message: pb.ModelInferResponse) -> "InferResult":
        """The protocol's reply as arrays.

        Raises:
            InvalidTensor: the reply contradicts itself.
        """
        return cls(
            model=message.model_name,
            version=message.model_version,
            id=message.id,
            outputs=outputs_from_response(message),
            datatypes={output.name: output.datatype for output in message.outputs},
            parameters={name: parameter_value(value) for name, value in message.parameters.items()},
        )


def parameter_value(message: pb.InferParameter) -> Parameter:
    """A parameter's value, whichever kind it is; an empty one reads as False."""
    chosen = message.WhichOneof("parameter_choice")
    value: Any = getattr(message, chosen) if chosen else False
    assert isinstance(value, bool | int | float | str)
    return value


def parameter_to_proto(value: Parameter) -> pb.InferParameter:
    """The message for a parameter's value.

    Raises:
        TypeError: the protocol has no such kind of parameter.
        ValueError: an integer needs more than 64 bits.
    """
    match value:
        case bool():
            return pb.InferParameter(bool_param=value)
        case int() if -(1 << 63) <= value < 1 << 63:
            return pb.InferParameter(int64_param=value)
        case int() if 0 <= value < 1 << 64:
            return pb.InferParameter(uint64_param=value)
        case int():
            raise ValueError(f"{value} needs more than 64 bits")
        case float():
            return pb.InferParameter(double_param=value)
        case str():
            return pb.InferParameter(string_param=value)
    raise TypeError(f"a {type(value).__name__} is no parameter: bool, int, float and str are")
