"""Running on CUDA with pinned host buffers: copies to and from the device at full speed, without a detour.

Each instance has one pinned buffer per tensor, grown to the largest batch seen. A batch's inputs are copied there,
bound, and fetched by the device's DMA; outputs whose shape follows from the rows are written to pinned memory directly.

The pinned memory comes from the CUDA runtime that ONNX Runtime's own CUDA provider loads, through `ctypes`, so that
nothing else needs to be installed. Proven by `bench/gpu/`; see the documentation for when that last ran.
"""

import ctypes
import ctypes.util
import importlib
import logging
import math
from pathlib import Path
from typing import Any, Final

import numpy as np

from headrace_worker.executor import Batch, Executor, Output, view
from headrace_worker.session import BFLOAT16, Array, RunFailed, Session
from headrace_worker.signature import Signature, Tensor

log: Final = logging.getLogger(__name__)


class PinnedBuffer:
    """Page-locked host memory that grows on demand. Falls back to ordinary memory, once and loudly, if there is none."""

    def __init__(self, runtime: ctypes.CDLL | None) -> None:
        self._runtime = runtime
        self._address = ctypes.c_void_p()
        self._memory: Array = np.empty(0, dtype=np.uint8)

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An array of this shape in the buffer. The one from the call before is void."""
        needed = max(1, math.prod(shape) * dtype.itemsize)
        if needed > self._memory.nbytes:
            self._grow(1 << (needed - 1).bit_length())
        return self._memory[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)

    def close(self) -> None:
        self._memory = np.empty(0, dtype=np.uint8)
        if self._runtime is not None and self._address.value:
            self._runtime.cudaFreeHost(self._address)
            self._address = ctypes.c_void_p()

    def _grow(self, size: int) -> None:
        self.close()
        if self._runtime is not None:
            # Flag 1 is cudaHostAllocPortable: pinned for every device.
            answer = self._runtime.cudaHostAlloc(ctypes.byref(self._address), ctypes.c_size_t(size), ctypes.c_uint(1))
            if answer == 0:
                pinned = (ctypes.c_uint8 * size).from_address(self._address.value or 0)
                self._memory = np.ctypeslib.as_array(pinned)
                return
            log.warning("no pinned memory; copies to the device will be slower", extra={"bytes": size, "cuda": answer})
            self._address = ctypes.c_void_p()
            self._runtime = None
        self._memory = np.empty(size, dtype=np.uint8)

    def __del__(self) -> None:
        self.close()


def runtime_library() -> ctypes.CDLL | None:
    """The CUDA runtime of this process or machine, or None."""
    names = [ctypes.util.find_library("cudart"), "libcudart.so", "libcudart.so.13", "libcudart.so.12"]
    try:
        wheels = importlib.import_module("nvidia")  # the namespace of NVIDIA's wheels, where they are
        for folder in wheels.__path__:
            names += [str(one) for one in sorted(Path(folder).glob("**/libcudart.so.*"))]
    except ImportError:
        pass
    for name in names:
        if name is None:
            continue
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


class CudaExecutor(Executor):
    """An `Executor` that binds pinned buffers. For models without strings; others run through plain `Executor`s."""

    def __init__(self, session: Session, *, model: str, signature: Signature, shrink_arena: bool) -> None:
        super().__init__(session, model=model, signature=signature, shrink_arena=shrink_arena)
        runtime = runtime_library()
        self._outputs = {one.name: one for one in signature.outputs}
        self._inputs = {one.name: one for one in signature.inputs}
        self._buffers = {
            (side, name): PinnedBuffer(runtime)
            for side, tensors in (("in", self._inputs), ("out", self._outputs))
            for name in tensors
        }
        self._binding = session.binding()

    def __call__(self, batch: Batch) -> list[Output]:
        try:
            return self._run(batch)
        except RunFailed:
            # A bound run's error has lost its kind. Run again unbound, which tells the caller's fault from the model's.
            return super().__call__(batch)

    def _run(self, batch: Batch) -> list[Output]:
        binding = self._binding
        binding.clear_binding_inputs()
        binding.clear_binding_outputs()
        for one in batch.inputs:
            kind = self._inputs[one.name].datatype
            staged = self._buffers["in", one.name].array(tuple(one.shape), kind.raw)
            np.copyto(staged, view(one, kind.raw))
            element = BFLOAT16 if kind.name == "BF16" else kind.dtype.type
            binding.bind_input(one.name, "cpu", 0, element, list(one.shape), staged.ctypes.data)
        ready: dict[str, Array] = {}
        for name in batch.output_names:
            shape = _known_shape(self._outputs[name], batch.rows)
            if shape is None:
                binding.bind_output(name, "cpu")
                continue
            kind = self._outputs[name].datatype
            ready[name] = self._buffers["out", name].array(shape, kind.raw)
            element = BFLOAT16 if kind.name == "BF16" else kind.dtype.type
            binding.bind_output(name, "cpu", 0, element, list(shape), ready[name].ctypes.data)
        self._session.run_bound(binding, self._options)
        if len(ready) == len(batch.output_names):
            return [ready[name] for name in batch.output_names]
        # Shapes that only the run could know: the runtime allocated those.
        values = binding.get_outputs()
        return [ready[name] if name in ready else values[at].numpy() for at, name in enumerate(batch.output_names)]


def _known_shape(tensor: Tensor, rows: int) -> tuple[int, ...] | None:
    shape = tuple(rows if axis == tensor.batch_axis else size for axis, size in enumerate(tensor.dims))
    return None if any(size < 0 for size in shape) else shape
