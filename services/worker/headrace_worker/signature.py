"""A model's inputs and outputs in the protocol's terms, and which axis of each counts rows.

The guess comes from the declared shapes; the probe (`headrace_worker.probe`) decides, because declarations lie: axis
names aren't unified, declared output shapes can be wrong, and a dynamic first axis need not be a batch.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace_core.datatypes import BY_ONNX, Datatype
from headrace_worker.session import LoadFailed, Port

# Names that exporters invent: two of them being different says nothing.
_INVENTED: Final = re.compile(
    r"(unk__\d+|dyn\w*|DynamicDimension\.\d+|D\d+|.*_dim_\d+|.*_dynamic_axes_\d+|None|\?|-1|)"
)
_BATCH_NAMES: Final = frozenset(
    {"batch", "batch_size", "batchsize", "batch-size", "batch_dim", "n", "b", "bs", "num_samples", "samples"}
)

Axes = Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output. `dims` has -1 where any size will do; `symbols` are the declared names of such sizes."""

    name: str
    datatype: Datatype
    dims: tuple[int, ...]
    symbols: tuple[str | None, ...]
    batch_axis: int | None = None

    def as_spec(self) -> dict[str, Any]:
        """As the Rust front reads it (`TensorSpec`)."""
        return {
            "name": self.name,
            "datatype": self.datatype.name,
            "dims": list(self.dims),
            "batch_axis": self.batch_axis,
            "optional": False,
        }


@dataclass(frozen=True, slots=True)
class Signature:
    """What a model takes and gives."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @property
    def varies(self) -> bool:
        """Whether a dimension other than the batch may differ from request to request."""
        return any(size < 0 and axis != one.batch_axis for one in self.inputs for axis, size in enumerate(one.dims))

    def with_axes(self, inputs: Axes, outputs: Axes) -> "Signature":
        """The same with batch axes; those axes become dynamic, whatever was declared."""
        return Signature(
            inputs=tuple(_on_axis(one, inputs.get(one.name)) for one in self.inputs),
            outputs=tuple(_on_axis(one, outputs.get(one.name)) for one in self.outputs),
        )

    def corrected(self, shapes: Mapping[str, Sequence[int]]) -> "Signature":
        """The same with output dimensions made dynamic where a run gave another size or rank than was declared."""
        return replace(
            self,
            outputs=tuple(
                one if one.name not in shapes else replace(one, dims=_agreed(one.dims, tuple(shapes[one.name])))
                for one in self.outputs
            ),
        )


def read(inputs: Sequence[Port], outputs: Sequence[Port]) -> Signature:
    """The signature that a session declares, without batch axes.

    Raises:
        LoadFailed: a tensor's type can't travel in the Open Inference Protocol.
    """
    return Signature(
        inputs=tuple(_tensor(one, "input") for one in inputs),
        outputs=tuple(_tensor(one, "output") for one in outputs),
    )


def guesses(inputs: Sequence[Tensor], *, given: Axes) -> list[dict[str, int | None]]:
    """Which axis of each input may count rows: the likeliest first. `given` is what the configuration says.

    Empty if no input has an axis that could.
    """
    symbol = _batch_symbol(inputs)
    careful = {one.name: given[one.name] if one.name in given else _axis(one, symbol) for one in inputs}
    plain = {
        one.name: given[one.name] if one.name in given else (0 if one.dims and one.dims[0] < 0 else careful[one.name])
        for one in inputs
    }
    found: list[dict[str, int | None]] = []
    for guess in (careful, plain):
        if any(axis is not None for axis in guess.values()) and guess not in found:
            found.append(guess)
    return found


def _batch_symbol(inputs: Sequence[Tensor]) -> str | None:
    first = [one.symbols[0] for one in inputs if one.dims and one.dims[0] < 0]
    named = [one for one in first if one is not None and not _INVENTED.fullmatch(one)]
    known = [one for one in named if one.lower() in _BATCH_NAMES]
    best = known or named
    return best[0] if best else None


def _axis(tensor: Tensor, symbol: str | None) -> int | None:
    if symbol is not None and symbol in tensor.symbols:
        return tensor.symbols.index(symbol)
    if not tensor.dims:
        return None
    dynamic = [axis for axis, size in enumerate(tensor.dims) if size < 0]
    unnamed = [axis for axis in dynamic if _INVENTED.fullmatch(tensor.symbols[axis] or "")]
    if tensor.dims[0] < 0:
        # A first axis with a name of its own, beside a batch of another name, is something else (tokens, say).
        return 0 if symbol is None or 0 in unnamed else None
    # States of recurrent models are [layers, batch, width].
    return unnamed[0] if len(dynamic) == 1 and unnamed else None


def _tensor(port: Port, role: str) -> Tensor:
    datatype = BY_ONNX.get(port.onnx_type)
    if datatype is None:
        raise LoadFailed(
            f"{role} {port.name!r} is a {port.onnx_type}, which the Open Inference Protocol can't carry"
            + ("; export the model without ZipMap" if port.onnx_type.startswith("seq(map") else "")
        )
    return Tensor(
        name=port.name,
        datatype=datatype,
        dims=tuple(one if isinstance(one, int) and one >= 0 else -1 for one in port.shape),
        symbols=tuple(one if isinstance(one, str) else None for one in port.shape),
    )


def _on_axis(tensor: Tensor, axis: int | None) -> Tensor:
    if axis is None:
        return replace(tensor, batch_axis=None)
    dims = tuple(-1 if at == axis else size for at, size in enumerate(tensor.dims))
    return replace(tensor, batch_axis=axis, dims=dims)


def _agreed(declared: tuple[int, ...], came: tuple[int, ...]) -> tuple[int, ...]:
    if len(declared) != len(came):
        return (-1,) * len(came)
    return tuple(size if size == got else -1 for size, got in zip(declared, came, strict=True))
