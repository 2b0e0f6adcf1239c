"""One tensor datatype, four spellings: Open Inference Protocol, numpy, ONNX and Triton's `TYPE_*`.

`BF16` is `ml_dtypes.bfloat16` in numpy where that package is installed, and otherwise `uint16` holding the same bits:
numpy itself has no such type.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

try:
    from ml_dtypes import bfloat16 as _bfloat16
except ImportError:  # an optional package; its absence costs the arithmetic, not the bits
    _bfloat16 = np.uint16

BFLOAT16: Final[np.dtype[Any]] = np.dtype(_bfloat16)


@dataclass(frozen=True, slots=True)
class Datatype:
    """A datatype under all its names. `size` is in bytes per element, or None for `BYTES`."""

    name: str
    dtype: np.dtype[Any]
    onnx: str
    triton: str
    onnx_number: int
    size: int | None

    @property
    def raw(self) -> np.dtype[Any]:
        """The numpy type to move bits with: the datatype's own, except `uint16` for BF16."""
        return np.dtype(np.uint16) if self.name == "BF16" else self.dtype


def _of(name: str, dtype: Any, onnx: str, triton: str, /, *, number: int, size: int | None) -> Datatype:
    return Datatype(name, np.dtype(dtype), f"tensor({onnx})", f"TYPE_{triton}", number, size)


ALL: Final = (
    _of("BOOL", np.bool_, "bool", "BOOL", number=9, size=1),
    _of("UINT8", np.uint8, "uint8", "UINT8", number=2, size=1),
    _of("UINT16", np.uint16, "uint16", "UINT16", number=4, size=2),
    _of("UINT32", np.uint32, "uint32", "UINT32", number=12, size=4),
    _of("UINT64", np.uint64, "uint64", "UINT64", number=13, size=8),
    _of("INT8", np.int8, "int8", "INT8", number=3, size=1),
    _of("INT16", np.int16, "int16", "INT16", number=5, size=2),
    _of("INT32", np.int32, "int32", "INT32", number=6, size=4),
    _of("INT64", np.int64, "int64", "INT64", number=7, size=8),
    _of("FP16", np.float16, "float16", "FP16", number=10, size=2),
    _of("FP32", np.float32, "float", "FP32", number=1, size=4),
    _of("FP64", np.float64, "double", "FP64", number=11, size=8),
    _of("BYTES", np.object_, "string", "STRING", number=8, size=None),
    _of("BF16", BFLOAT16, "bfloat16", "BF16", number=16, size=2),
)

BY_NAME: Final = {one.name: one for one in ALL}
BY_ONNX: Final = {one.onnx: one for one in ALL}
BY_TRITON: Final = {one.triton: one for one in ALL}


def of_array(array: np.ndarray[Any, Any]) -> Datatype:
    """The datatype of a numpy array. Text and object arrays are `BYTES`.

    Raises:
        TypeError: numpy holds something that no OIP datatype can carry (complex numbers, dates, …).
    """
    if array.dtype.kind in "OUS":
        return BY_NAME["BYTES"]
    native = array.dtype.newbyteorder("=")
    if native == BFLOAT16 and np.dtype(np.uint16) != BFLOAT16:
        return BY_NAME["BF16"]
    for one in ALL:
        if one.dtype == native and one.name not in {"BF16", "BYTES"}:
            return one
    raise TypeError(f"no Open Inference datatype carries numpy's {array.dtype}")
