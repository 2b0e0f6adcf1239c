"""From a batch to a session and back: the one piece of Python that runs once per batch.

The Rust front calls an `Executor` on its instance's own thread. Inputs are views of the front's buffers and stay valid
for the call; outputs are arrays that the front reads before it calls again.
"""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import numpy as np

from headrace_batcher import InvalidInputError
from headrace_core.datatypes import BY_NAME
from headrace_worker.session import Array, Rejected, RunFailed, Session, bfloat16_value, run_options
from headrace_worker.signature import Signature

log: Final = logging.getLogger(__name__)


class Input(Protocol):
    """One joined input: a read-only buffer with a name, a datatype and a shape."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def strings(self) -> list[str]: ...


class Batch(Protocol):
    """Entries run together."""

    rows: int
    inputs: Sequence[Any]
    output_names: list[str]


Output = Array | tuple[tuple[int, ...], list[str]]


class InferenceFailedError(RuntimeError):
    """What the front hears of a failed run; the detail is in the log."""


class Executor:
    """One instance of a model: call it with a batch, get the outputs that the batch names, in that order.

    BYTES outputs are `(shape, list of str)`, bfloat16 is `uint16`. One thread at a time.

    Raises (when called):
        InvalidInputError: the runtime says that the input is wrong; the front finds out whose.
        InferenceFailedError: anything else.
    """

    def __init__(
        self,
        session: Session,
        *,
        model: str,
        signature: Signature,
        shrink_arena: bool,
    ) -> None:
        self._session = session
        self._model = model
        self._read: dict[str, Callable[[Any], Any]] = {one.name: _reader(one.datatype.name) for one in signature.inputs}
        self._strings_out = frozenset(one.name for one in signature.outputs if one.datatype.name == "BYTES")
        self._options = run_options(shrink_arena=shrink_arena) if shrink_arena else None
        self._told: set[str] = set()

    def __call__(self, batch: Batch) -> list[Output]:
        read = self._read
        names = batch.output_names
        try:
            feed = {one.name: read[one.name](one) for one in batch.inputs}
            outputs = self._session.run(names, feed, self._options)
        except Rejected as error:
            raise InvalidInputError(str(error)) from None
        except RunFailed as error:
            self._tell(error, batch)
            raise InferenceFailedError(f"model {self._model} failed") from None
        if self._strings_out:
            return [
                (array.shape, array.reshape(-1).tolist()) if name in self._strings_out else array
                for name, array in zip(names, outputs, strict=True)
            ]
        return outputs

    def _tell(self, error: RunFailed, batch: Batch) -> None:
        text = str(error)
        if text in self._told:
            log.debug("inference failed again", extra={"model": self._model, "detail": text})
            return
        if len(self._told) < 100:
            self._told.add(text)
        shapes = {one.name: list(one.shape) for one in batch.inputs}
        log.error(
            "inference failed", extra={"model": self._model, "rows": batch.rows, "shapes": shapes, "detail": text}
        )


def _reader(datatype: str) -> Callable[[Any], Any]:
    if datatype == "BYTES":
        return _read_strings
    if datatype == "BF16":
        return lambda tensor: bfloat16_value(view(tensor, np.dtype(np.uint16)))
    dtype = BY_NAME[datatype].dtype
    return lambda tensor: np.frombuffer(tensor, dtype).reshape(tensor.shape)


def view(tensor: Any, dtype: np.dtype[Any]) -> Array:
    """The input's elements where they lie, as an array."""
    return np.frombuffer(tensor, dtype).reshape(tensor.shape)


def _read_strings(tensor: Input) -> Array:
    # An object array of `str`: bytes objects and fixed-width arrays come out changed, silently.
    array = np.empty(math.prod(tensor.shape), dtype=np.object_)
    array[:] = tensor.strings()
    return array.reshape(tensor.shape)
