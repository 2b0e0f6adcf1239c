"""Reads weights from a PyTorch checkpoint of the old format (before 1.6) without PyTorch.

Such a file is three pickles (a magic number, a protocol number, facts about the writing machine), the pickled state
with references to its storages, the list of storage keys, and the storages' raw bytes. Unpickling is held to the few
names that tensors need, so that a file cannot run code.
"""

import pickle
import struct
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

Array = np.ndarray[Any, Any]

MAGIC = 0x1950A86A20F9469CFC6C
STORAGES = {"FloatStorage": np.dtype("<f4"), "LongStorage": np.dtype("<i8")}


@dataclass(frozen=True)
class Tensor:
    """A view of a storage: elements from `offset` on, `strides` elements apart."""

    storage: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def read(self, storages: dict[str, Array]) -> Array:
        """The elements as a row-major array; the file may store them in any order."""
        data = storages[self.storage][self.offset :]
        strides = [step * data.itemsize for step in self.strides]
        return np.ascontiguousarray(np.lib.stride_tricks.as_strided(data, self.shape, strides))


class StateUnpickler(pickle.Unpickler):
    """Knows tensors, ordered dictionaries and storages, and refuses everything else."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self.dtypes: dict[str, np.dtype[Any]] = {}

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a global name in the pickle."""
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return rebuild_tensor
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        msg = f"a checkpoint of weights has no use for {module}.{name}"
        raise pickle.UnpicklingError(msg)

    def persistent_load(self, reference: Any) -> str:
        """The key of a storage, whose element type is noted."""
        _kind, dtype, key, _location, _elements, *_view = reference
        self.dtypes[key] = dtype
        return str(key)


def rebuild_tensor(
    storage: str, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_rest: object
) -> Tensor:
    """Stands for `torch._utils._rebuild_tensor_v2`."""
    return Tensor(storage, offset, shape, strides)


def load(path: Path) -> dict[str, Array]:
    """The state dictionary's tensors by name.

    Raises:
        pickle.UnpicklingError: not such a file, or it holds more than weights.
    """
    with path.open("rb") as file:
        if StateUnpickler(file).load() != MAGIC:
            msg = f"{path.name} is not a PyTorch checkpoint of the old format"
            raise pickle.UnpicklingError(msg)
        for _ in ("protocol number", "facts about the machine"):
            StateUnpickler(file).load()
        unpickler = StateUnpickler(file)
        state: dict[str, Tensor] = unpickler.load()
        storages: dict[str, Array] = {}
        for key in StateUnpickler(file).load():
            (elements,) = struct.unpack("<q", file.read(8))
            dtype = unpickler.dtypes[key]
            storages[key] = np.frombuffer(file.read(elements * dtype.itemsize), dtype)
        return {name: tensor.read(storages) for name, tensor in state.items()}
