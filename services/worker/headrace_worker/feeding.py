"""Inputs for warm-up and probe, made up from a signature: random, but such as a model is likely to take.

What is likely can't be known, so there are several `Recipe`s to try in turn: sizes for dynamic dimensions, and ranges
for integers, which are often indices into something small.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from headrace_worker.session import Array, bfloat16_value
from headrace_worker.signature import Axes, Tensor

_SIZES: Final = (16, 32, 64, 8, 1, 224)
_SAMPLE_RATES: Final = {"sr", "sample_rate", "sampling_rate", "samplerate"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make inputs up: the size of every dynamic dimension but the batch, and the integers' greatest value."""

    size: int
    highest: int


def recipes(inputs: Sequence[Tensor], *, axes: Axes) -> Iterator[Recipe]:
    """What to try, the likeliest first."""
    dynamic = any(size < 0 and axis != axes.get(one.name) for one in inputs for axis, size in enumerate(one.dims))
    whole = any(one.datatype.dtype.kind in "iu" for one in inputs)
    for size in _SIZES if dynamic else (1,):
        for highest in (3, 1, 0) if whole else (0,):
            yield Recipe(size=size, highest=highest)


def leaves_no_doubt(inputs: Sequence[Tensor], *, axes: Axes) -> bool:
    """Whether made-up inputs must be acceptable: shapes fixed but for the first axis, and plain floating-point or boolean values."""
    return all(
        one.datatype.dtype.kind in "fb"
        and all(size >= 0 or at in {0, axes.get(one.name)} for at, size in enumerate(one.dims))
        for one in inputs
    )


class Rows:
    """Made-up rows of a model's inputs, and feeds that hold some of them."""

    def __init__(
        self,
        inputs: Sequence[Tensor],
        *,
        axes: Axes,
        recipe: Recipe,
        examples: Mapping[str, Any],
        rows: int,
    ) -> None:
        """Makes `rows` different rows.

        Raises:
            ValueError: an example doesn't fit its input.
        """
        random = np.random.default_rng(20)
        sizes: dict[str, int] = {}
        self._inputs = tuple(inputs)
        self._axes = axes
        self._made: dict[str, list[Array]] = {}
        for tensor in inputs:
            shape = _row_shape(tensor, axes.get(tensor.name), recipe.size, sizes)
            if tensor.name in examples:
                row = _from_example(tensor, examples[tensor.name], axes.get(tensor.name))
                self._made[tensor.name] = [row] * rows
            elif axes.get(tensor.name) is None:
                self._made[tensor.name] = [_values(tensor, shape, recipe, random)]
            else:
                self._made[tensor.name] = [_values(tensor, shape, recipe, random) for _ in range(rows)]

    def feed(self, rows: Sequence[int]) -> dict[str, Any]:
        """A feed of these rows together, in this order."""
        feed: dict[str, Any] = {}
        for tensor in self._inputs:
            axis, made = self._axes.get(tensor.name), self._made[tensor.name]
            array = made[0] if axis is None else np.concatenate([made[row % len(made)] for row in rows], axis=axis)
            feed[tensor.name] = bfloat16_value(array) if tensor.datatype.name == "BF16" else array
        return feed


def _row_shape(tensor: Tensor, axis: int | None, size: int, sizes: dict[str, int]) -> tuple[int, ...]:
    shape: list[int] = []
    for at, declared in enumerate(tensor.dims):
        symbol = tensor.symbols[at]
        if at == axis:
            shape.append(1)
        elif declared >= 0:
            shape.append(declared)
        elif axis is None and at == 0:
            # Without a known batch axis one row is still the safest guess for the first one.
            shape.append(1)
        else:
            shape.append(size if symbol is None else sizes.setdefault(symbol, size))
    return tuple(shape)


def _values(tensor: Tensor, shape: tuple[int, ...], recipe: Recipe, random: np.random.Generator) -> Array:
    kind = tensor.datatype.dtype.kind
    if tensor.datatype.name == "BYTES":
        made = np.empty(shape, dtype=np.object_)
        made.reshape(-1)[:] = [f"row {number}" for number in random.integers(0, 1000, made.size)]
        return made
    if tensor.name.lower() in _SAMPLE_RATES and kind in "iu":
        return np.full(shape, 16_000, dtype=tensor.datatype.dtype)
    if "mask" in tensor.name.lower() and kind in "iub":
        return np.ones(shape, dtype=tensor.datatype.dtype)
    if kind == "b":
        return np.asarray(random.integers(0, 2, shape), dtype=np.bool_)
    if kind in "iu":
        narrow = tensor.datatype.dtype.itemsize == 1 and recipe.highest == 3
        highest = 255 if narrow and kind == "u" else recipe.highest
        return np.asarray(random.integers(0, highest + 1, shape)).astype(tensor.datatype.dtype)
    if tensor.datatype.name == "BF16":
        # The upper half of a float32 is the bfloat16 nearest to zero.
        return (np.asarray(random.standard_normal(shape, dtype=np.float32)).view(np.uint32) >> 16).astype(np.uint16)
    return np.asarray(random.standard_normal(shape)).astype(tensor.datatype.dtype)


def _from_example(tensor: Tensor, example: Any, axis: int | None) -> Array:
    try:
        row = np.asarray(example, dtype=tensor.datatype.dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"the example for {tensor.name!r} is no {tensor.datatype.name}: {error}") from error
    if axis is None and row.ndim == len(tensor.dims) - 1 and tensor.dims[0] in {-1, 1}:
        # The same row fits whether the model turns out to batch or not: without a batch axis the first one counts.
        axis = 0
    row = row if axis is None else np.expand_dims(row, axis)
    if row.ndim != len(tensor.dims):
        raise ValueError(
            f"the example for {tensor.name!r} has {row.ndim - (axis is not None)} dimensions; "
            f"give one row of {list(tensor.dims)} without its batch axis"
        )
    return row.view(np.uint16) if tensor.datatype.name == "BF16" else row
