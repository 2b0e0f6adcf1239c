"""Values that people pass, turned into the tensors that a model takes: pure.

Arrays must already have the model's datatype: a silent cast is a wrong answer with status OK, so the error says which
cast to write. Python numbers have no width of their own and take the model's, if they fit it exactly enough: an
integer may become a float, a float never an integer, and nothing may overflow.
"""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

import numpy as np

from headrace.metadata import ModelMetadata, TensorSpec, format_shape
from headrace_core.datatypes import BFLOAT16, BY_NAME, of_array
from headrace_core.errors import InvalidTensor, UnknownTensor, Violation
from headrace_core.tensors import Array

Value = Any
"""An array of numpy, or of anything that numpy can view; a number; `str` or `bytes`; or nested lists of these."""

_BITS: Final = np.dtype(np.uint16)


class TensorError(ValueError):
    """A value can't become the tensor that was asked for. `part` is `shape`, `datatype` or `contents`."""

    def __init__(self, part: str, description: str) -> None:
        """Keep both for the violation that this becomes."""
        super().__init__(description)
        self.part = part
        self.description = description


def check_inputs(inputs: Mapping[str, Value], *, metadata: ModelMetadata) -> dict[str, Array]:
    """The arrays to send, in the model's order, once every value fits the model's signature.

    Raises:
        InvalidTensor, UnknownTensor: with one violation for everything that is wrong.
    """
    known = {spec.name: spec for spec in metadata.inputs}
    unknown = [name for name in inputs if name not in known]
    violations = [_unknown_input(name, known) for name in unknown]
    arrays: dict[str, Array] = {}
    for name, spec in known.items():
        if name not in inputs:
            if name not in metadata.optional_inputs:
                violations.append(Violation(f"inputs[{name}]", f"is missing; the model takes {spec}"))
            continue
        try:
            arrays[name] = check_value(inputs[name], spec=spec)
        except TensorError as error:
            violations.append(Violation(f"inputs[{name}].{error.part}", error.description))
    if violations:
        kind = UnknownTensor if unknown else InvalidTensor
        raise kind(_sentence(metadata.name, violations), violations=violations)
    return arrays


def check_outputs(outputs: Sequence[str], *, metadata: ModelMetadata) -> None:
    """Refuse outputs that the model doesn't have.

    Raises:
        UnknownTensor: with one violation for each.
    """
    known = [spec.name for spec in metadata.outputs]
    violations = [
        Violation(f"outputs[{name}]", f"the model has no such output{_suggestion(name, known)}")
        for name in outputs
        if name not in known
    ]
    if violations:
        raise UnknownTensor(_sentence(metadata.name, violations), violations=violations)


def check_value(value: Value, *, spec: TensorSpec) -> Array:
    """The array for one input, with the datatype and a shape that `spec` allows.

    Raises:
        TensorError: it doesn't fit, and can't be made to without changing what it says.
    """
    array = _as_datatype(value, spec.datatype)
    fits = len(array.shape) == len(spec.shape) and all(
        wanted in (-1, size) for wanted, size in zip(spec.shape, array.shape, strict=False)
    )
    if not fits:
        expected, got = format_shape(spec.shape), format_shape(array.shape)
        hint = ""
        if array.ndim + 1 == len(spec.shape) and spec.shape[0] == -1:
            hint = "; for a single row, put it in a list or use array[None]"
        raise TensorError("shape", f"expected {expected}, got {got}{hint}")
    return array


def infer_array(value: Value) -> Array:
    """The array for a value whose datatype nobody knows: numpy's own choice, text as `BYTES`.

    Raises:
        TensorError: no datatype of the protocol carries it.
    """
    array = _to_numpy(value)
    try:
        of_array(array)
    except TypeError as error:
        raise TensorError("datatype", str(error)) from error
    return _strings(value) if array.dtype.kind in "OUS" else array


def _as_datatype(value: Value, datatype: str) -> Array:
    kind = BY_NAME.get(datatype)
    if kind is None:
        # A server with a datatype that this client doesn't know: let the server judge.
        return infer_array(value)
    if datatype == "BYTES":
        return _strings(value)
    array = _to_numpy(value)
    if not hasattr(value, "dtype") and kind.dtype.kind in "iu" and array.dtype.kind in "fO":
        # numpy turns integers that need more than 63 bits into floats or objects: look at them one by one.
        array = _large_integers(value, datatype)
    if array.dtype.kind in "OUS":
        raise TensorError("datatype", f"expected {datatype}, got {_what(array)}")
    native = array.dtype.newbyteorder("=")
    if native == kind.dtype or (datatype == "BF16" and native == _BITS):
        return array
    if not hasattr(value, "dtype"):
        return _cast_numbers(array, datatype)
    raise TensorError("datatype", f"expected {datatype}, got {_what(array)}; convert it with {_conversion(datatype)}")


def _to_numpy(value: Value) -> Array:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise TensorError("shape", "the nested lists are not rectangular") from error
    except OverflowError as error:
        raise TensorError("contents", "a number is too large for any datatype") from error


def _large_integers(value: Value, datatype: str) -> Array:
    dtype = BY_NAME[datatype].dtype
    limits = np.iinfo(dtype)
    array = np.array(value, dtype=np.object_)
    for element in array.reshape(-1).tolist():
        if isinstance(element, float):
            raise TensorError("datatype", f"expected {datatype}, got numbers with a fraction part")
        if not isinstance(element, int) or isinstance(element, bool):
            raise TensorError("datatype", f"expected {datatype}, got a {type(element).__name__}")
        if not limits.min <= element <= limits.max:
            raise TensorError("contents", f"{element} is outside {datatype} ({limits.min} to {limits.max})")
    return array.astype(dtype)


def _cast_numbers(array: Array, datatype: str) -> Array:
    kind = BY_NAME[datatype]
    if array.size == 0:
        return array.astype(kind.dtype)
    if kind.dtype.kind == "b" or array.dtype.kind == "b":
        raise TensorError(
            "datatype", f"expected {datatype}, got {'true and false' if array.dtype.kind == 'b' else 'numbers'}"
        )
    if kind.dtype.kind in "iu":
        limits = np.iinfo(kind.dtype)
        outside: Array = (array < limits.min) | (array > limits.max)
        if outside.any():
            worst = array[outside].reshape(-1)[0]
            raise TensorError("contents", f"{worst} is outside {datatype} ({limits.min} to {limits.max})")
        return array.astype(kind.dtype)
    if datatype == "BF16" and kind.dtype == _BITS:
        return _bfloat16_bits(array)
    with np.errstate(over="ignore"):
        cast = array.astype(kind.dtype)
    overflowed = np.isfinite(array.astype(np.float64)) & ~np.isfinite(cast.astype(np.float64))
    if overflowed.any():
        raise TensorError("contents", f"{array[overflowed].reshape(-1)[0]} is too large for {datatype}")
    return cast


def _bfloat16_bits(array: Array) -> Array:
    # Round to nearest, ties to even, as ml_dtypes does; NaN and infinities keep their upper bits.
    single = array.astype(np.float32)
    bits = single.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isfinite(single), rounded, (bits >> 16).astype(np.uint16)).astype(np.uint16)


def _strings(value: Value) -> Array:
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "OUS":
            raise TensorError("datatype", f"expected BYTES, got {_what(value)}; pass str or bytes")
        flat, shape = value.reshape(-1).tolist(), value.shape
    else:
        flat, shape = _flatten(value)
    # An object array: numpy's fixed-width strings would drop trailing NUL bytes.
    array = np.empty(len(flat), dtype=np.object_)
    for index, element in enumerate(flat):
        if isinstance(element, str):
            array[index] = element.encode()
        elif isinstance(element, bytes | bytearray | memoryview):
            array[index] = bytes(element)
        else:
            raise TensorError("contents", f"element {index} is a {type(element).__name__}, not str or bytes")
    return array.reshape(shape)


def _flatten(value: Value) -> tuple[list[object], tuple[int, ...]]:
    if not isinstance(value, list | tuple):
        return [value], ()
    if not value:
        return [], (0,)
    parts = [_flatten(element) for element in value]
    shapes = {shape for _, shape in parts}
    if len(shapes) != 1:
        raise TensorError("shape", "the nested lists are not rectangular")
    return [element for flat, _ in parts for element in flat], (len(parts), *shapes.pop())


def _what(array: Array) -> str:
    try:
        name = of_array(array).name
    except TypeError:
        return f"numpy's {array.dtype}"
    return f"{name} (numpy's {array.dtype})" if name != "BYTES" else "text"


def _conversion(datatype: str) -> str:
    kind = BY_NAME[datatype]
    if datatype == "BF16":
        return "array.astype(ml_dtypes.bfloat16)" if kind.dtype == BFLOAT16 != _BITS else "the package ml_dtypes"
    return f"array.astype(numpy.{kind.dtype.name})"


def _unknown_input(name: str, known: Iterable[str]) -> Violation:
    return Violation(f"inputs[{name}]", f"the model has no such input{_suggestion(name, list(known))}")


def _suggestion(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(known) or 'none'}"


def _sentence(model: str, violations: Sequence[Violation]) -> str:
    return f"{model}: " + "; ".join(f"{one.field}: {one.description}" for one in violations)
