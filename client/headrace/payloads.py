"""Random requests that a model takes, made from its signature: what `headrace bench` sends unless it is given inputs."""

from typing import Any

import numpy as np

from headrace.console import CommandProblem
from headrace.metadata import ModelMetadata, TensorSpec
from headrace_core.datatypes import BY_NAME
from headrace_core.tensors import Array

_WORDS = ("penstock", "turbine", "weir", "spillway", "forebay", "sluice", "tailrace", "headrace")


def random_inputs(metadata: ModelMetadata, *, rows: int, dynamic: int, seed: int) -> dict[str, Any]:
    """A value for every input that can't be left out: `rows` for a dynamic first dimension, `dynamic` for the others.

    Integers are small and masks are ones, so that token ids are in any vocabulary and no row is masked whole. That
    fits most models and can't fit all: a model that wants particular values needs `--input`.
    """
    dice = np.random.default_rng(seed)
    return {
        spec.name: _random(spec, _shape(spec, rows=rows, dynamic=dynamic), dice)
        for spec in metadata.inputs
        if spec.name not in metadata.optional_inputs
    }


def _shape(spec: TensorSpec, *, rows: int, dynamic: int) -> tuple[int, ...]:
    return tuple(
        size if size >= 0 else (rows if position == 0 else dynamic) for position, size in enumerate(spec.shape)
    )


def _random(spec: TensorSpec, shape: tuple[int, ...], dice: np.random.Generator) -> Array:
    kind = BY_NAME.get(spec.datatype)
    if kind is None:
        raise CommandProblem(f"no random values can be made for {spec}; give --input")
    if kind.name == "BYTES":
        array = np.empty(shape, dtype=np.object_)
        for index in np.ndindex(shape):
            array[index] = str(dice.choice(_WORDS)).encode()
        return array
    if "mask" in spec.name.lower():
        return np.ones(shape, kind.dtype)
    if kind.dtype.kind == "b":
        return dice.integers(0, 2, shape).astype(np.bool_)
    if kind.dtype.kind in "iu" and kind.name != "BF16":
        return dice.integers(0, 256 if kind.name == "UINT8" else 10, shape).astype(kind.dtype)
    if kind.name == "BF16":
        # The upper half of a float32 is a bfloat16.
        bits = dice.standard_normal(shape, np.float32).view(np.uint32) >> 16
        return np.asarray(bits, dtype=np.uint16)
    return dice.standard_normal(shape).astype(kind.dtype)
