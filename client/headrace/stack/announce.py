"""What to call, ready to paste: a grpcurl line and four lines of Python, with a real model's name and inputs."""

import base64
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.stack.fleet import Fleet, Model
from headrace_protos.inference import grpc_service_pb2 as pb

# A line that somebody will paste into a terminal.
_MOST_ELEMENTS = 64
_TYPED = {
    "BOOL": ("bool_contents", "np.bool_"),
    "INT8": ("int_contents", "np.int8"),
    "INT16": ("int_contents", "np.int16"),
    "INT32": ("int_contents", "np.int32"),
    "INT64": ("int64_contents", "np.int64"),
    "UINT8": ("uint_contents", "np.uint8"),
    "UINT16": ("uint_contents", "np.uint16"),
    "UINT32": ("uint_contents", "np.uint32"),
    "UINT64": ("uint64_contents", "np.uint64"),
    "FP32": ("fp32_contents", "np.float32"),
    "FP64": ("fp64_contents", "np.float64"),
    "BYTES": ("bytes_contents", "object"),
}


@dataclass(frozen=True)
class Sample:
    """A small request for one model: every dynamic dimension is 1, every element a one (or the text "one")."""

    model: str
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    """Name, datatype, shape."""

    @property
    def elements(self) -> int:
        """Elements in all inputs together."""
        return sum(math.prod(shape) for _, _, shape in self.inputs)

    def request(self) -> pb.ModelInferRequest:
        """The request itself."""
        message = pb.ModelInferRequest(model_name=self.model)
        for name, datatype, shape in self.inputs:
            tensor = message.inputs.add(name=name, datatype=datatype, shape=shape)
            getattr(tensor.contents, _TYPED[datatype][0]).extend([_one(datatype)] * math.prod(shape))
        return message

    def grpcurl(self, address: str) -> str:
        """The same request as a shell line."""
        inputs = [
            {
                "name": name,
                "datatype": datatype,
                "shape": list(shape),
                "contents": {_TYPED[datatype][0]: [_json_one(datatype)] * math.prod(shape)},
            }
            for name, datatype, shape in self.inputs
        ]
        body = json.dumps({"model_name": self.model, "inputs": inputs}, separators=(",", ":"))
        # Inside single quotes only the single quote itself must be written differently.
        quoted = body.replace("'", "'\\''")
        return f"grpcurl -plaintext -d '{quoted}' {address} inference.GRPCInferenceService/ModelInfer"

    def python(self, address: str) -> str:
        """The same request as four lines of Python."""
        arrays = ", ".join(f"{json.dumps(name)}: {_array(datatype, shape)}" for name, datatype, shape in self.inputs)
        return (
            "import numpy as np\n"
            "from headrace import Client\n"
            f"client = Client({json.dumps(address)})\n"
            f"print(client.infer({json.dumps(self.model)}, {{{arrays}}}))"
        )


async def announce(fleet: Fleet, *, address: str, models: Sequence[Model]) -> str:
    """The text for the terminal. The sample in it has been tried: what is printed works."""
    ready = sorted({model.name for model in models if model.state == "READY"})
    head = f"Ready at {address} · {', '.join(ready)}"
    sample = await _sample(fleet, ready)
    if sample is None:
        body = json.dumps({"name": ready[0]}, separators=(",", ":")) if ready else "{}"
        call = f"grpcurl -plaintext -d '{body}' {address} inference.GRPCInferenceService/ModelMetadata"
        return f"{head}\n\nAsk a model for its inputs:\n\n{call}\n"
    return (
        f"{head}\n\nCall it from a shell:\n\n{sample.grpcurl(address)}\n\nor from Python:\n\n{sample.python(address)}\n"
    )


async def _sample(fleet: Fleet, names: Sequence[str]) -> Sample | None:
    samples: list[Sample] = []
    for name in names:
        metadata = await fleet.metadata(name)
        sample = sample_for(metadata) if metadata is not None else None
        if sample is not None and sample.elements <= _MOST_ELEMENTS:
            samples.append(sample)
    for sample in sorted(samples, key=lambda one: one.elements):
        if await fleet.infer(sample.request(), timeout_s=10.0):
            return sample
    return None


def sample_for(metadata: pb.ModelMetadataResponse) -> Sample | None:
    """A request that fits this signature, or None if an input's datatype has no typed form (16-bit floats)."""
    if any(tensor.datatype not in _TYPED for tensor in metadata.inputs):
        return None
    inputs = tuple(
        (tensor.name, tensor.datatype, tuple(dim if dim >= 0 else 1 for dim in tensor.shape))
        for tensor in metadata.inputs
    )
    return Sample(model=metadata.name, inputs=inputs)


def _one(datatype: str) -> object:
    return b"one" if datatype == "BYTES" else datatype == "BOOL" or (1.0 if datatype.startswith("FP") else 1)


def _json_one(datatype: str) -> object:
    return base64.b64encode(b"one").decode() if datatype == "BYTES" else _one(datatype)


def _array(datatype: str, shape: tuple[int, ...]) -> str:
    if datatype == "BYTES":
        return f'np.full({shape}, "one", dtype=object)'
    return f"np.ones({shape}, {_TYPED[datatype][1]})"
