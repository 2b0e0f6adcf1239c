"""numpy arrays to and from the tensors of the Open Inference Protocol.

Raw contents are row-major and little-endian; a `BYTES` element is a 4-byte little-endian length and the bytes.
The hot path never comes through here (Rust reads and writes tensors there): this is for the client, the command line,
tests, and the rare paths of the services.
"""

import math
import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from headrace_core.datatypes import BY_NAME, Datatype, of_array
from headrace_core.errors import InvalidTensor, Violation
from headrace_protos.inference import grpc_service_pb2 as pb

Array = np.ndarray[Any, Any]

_LENGTH: Final = struct.Struct("<I")

_TYPED_FIELD: Final = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def input_from_array(
    name: str, *, array: Array, datatype: str | None = None
) -> tuple[pb.ModelInferRequest.InferInputTensor, bytes]:
    """An input's description and its raw contents.

    `datatype` says what the bits are where numpy can't: `BF16` in an array of `uint16`.
    """
    kind = of_array(array) if datatype is None else _named(name, datatype)
    described = pb.ModelInferRequest.InferInputTensor(name=name, datatype=kind.name, shape=array.shape)
    return described, encode(array, datatype=kind.name)


def encode(array: Array, *, datatype: str) -> bytes:
    """The raw contents of an array, converted to little-endian row-major order where it isn't."""
    kind = BY_NAME[datatype]
    if kind.name == "BYTES":
        return _encode_strings(array)
    if kind.name == "BF16" and array.dtype.itemsize == 2:
        return np.ascontiguousarray(array).view(np.uint16).astype("<u2", copy=False).tobytes()
    return np.ascontiguousarray(array, dtype=kind.dtype.newbyteorder("<")).tobytes()


def decode(raw: bytes | memoryview, *, name: str, datatype: str, shape: Sequence[int]) -> Array:
    """The array in raw contents, without a copy except for `BYTES` (an object array of `bytes`).

    Raises:
        InvalidTensor: the length doesn't fit the shape and datatype.
    """
    kind = _named(name, datatype)
    count = math.prod(shape)
    if kind.size is None:
        return _decode_strings(bytes(raw), name=name, count=count).reshape(tuple(shape))
    if len(raw) != count * kind.size:
        raise _invalid(name, "contents", f"expected {count * kind.size} bytes for shape {list(shape)}, got {len(raw)}")
    return np.frombuffer(raw, dtype=kind.dtype.newbyteorder("<")).reshape(tuple(shape))


def decode_typed(contents: pb.InferTensorContents, *, name: str, datatype: str, shape: Sequence[int]) -> Array:
    """The array in typed contents.

    Raises:
        InvalidTensor: the datatype has no typed form, another field is filled, a value is out of range, or the count
            doesn't fit the shape.
    """
    kind = _named(name, datatype)
    field = _TYPED_FIELD.get(kind.name)
    if field is None:
        raise _invalid(name, "contents", f"{kind.name} has no typed form; send raw_input_contents")
    filled = [one.name for one, _ in contents.ListFields()]
    if filled not in ([], [field]):
        raise _invalid(name, "contents", f"{kind.name} belongs in {field}, got {', '.join(filled)}")
    values = list(getattr(contents, field))
    count = math.prod(shape)
    if len(values) != count:
        raise _invalid(name, "contents", f"expected {count} elements for shape {list(shape)}, got {len(values)}")
    if kind.name == "BYTES":
        return _objects(values).reshape(tuple(shape))
    try:
        return np.array(values, dtype=kind.dtype).reshape(tuple(shape))
    except OverflowError as error:
        raise _invalid(name, "contents", f"a value is out of range for {kind.name}") from error


def outputs_from_response(response: pb.ModelInferResponse) -> dict[str, Array]:
    """Every output of a reply as an array, by name, whichever form the server chose.

    Raises:
        InvalidTensor: the reply contradicts itself.
    """
    raw = response.raw_output_contents
    if raw and len(raw) != len(response.outputs):
        raise InvalidTensor(f"the reply has {len(response.outputs)} outputs and {len(raw)} raw contents")
    arrays: dict[str, Array] = {}
    for index, output in enumerate(response.outputs):
        shape = tuple(output.shape)
        if raw:
            arrays[output.name] = decode(raw[index], name=output.name, datatype=output.datatype, shape=shape)
        else:
            arrays[output.name] = decode_typed(output.contents, name=output.name, datatype=output.datatype, shape=shape)
    return arrays


def _named(name: str, datatype: str) -> Datatype:
    kind = BY_NAME.get(datatype)
    if kind is None:
        raise _invalid(name, "datatype", f"{datatype!r} is no datatype; known are {', '.join(BY_NAME)}")
    return kind


def _encode_strings(array: Array) -> bytes:
    parts: list[bytes] = []
    for element in array.reshape(-1).tolist():
        encoded = element if isinstance(element, bytes) else str(element).encode()
        parts.append(_LENGTH.pack(len(encoded)))
        parts.append(encoded)
    return b"".join(parts)


def _decode_strings(raw: bytes, *, name: str, count: int) -> Array:
    elements: list[bytes] = []
    at = 0
    while at < len(raw):
        if at + _LENGTH.size > len(raw):
            raise _invalid(name, "contents", f"element {len(elements)} ends inside its length")
        (length,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size
        if at + length > len(raw):
            raise _invalid(name, "contents", f"element {len(elements)} says {length} bytes, {len(raw) - at} are left")
        elements.append(raw[at : at + length])
        at += length
    if len(elements) != count:
        raise _invalid(name, "contents", f"expected {count} elements, got {len(elements)}")
    return _objects(elements)


def _objects(elements: Sequence[bytes]) -> Array:
    # np.array() would make a fixed-width `S` array, which drops trailing NULs (V04).
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array


def _invalid(name: str, part: str, description: str) -> InvalidTensor:
    return InvalidTensor(
        f"tensor {name!r}: {description}",
        violations=[Violation(field=f"inputs[{name}].{part}", description=description)],
    )
