"""ONNX Runtime sessions: made with explicit settings, checked to be on the device that was asked for, run safely.

The only module that imports `onnxruntime`. Its traps (silent fall-back to the CPU, pools sized from the host, paths in
messages, links that count as outside) end here: callers see plain arrays and `LoadFailed`, `Rejected` or `RunFailed`.
"""

import contextlib
import functools
import io
import logging
import mmap
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

# ONNX Runtime would keep a device id and a database of events in the user's cache folder. It reads this when it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as native

Array = np.ndarray[Any, Any]

log: Final = logging.getLogger(__name__)

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"
ON_CUDA: Final = frozenset({CUDA, "TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider"})
"""Providers whose device is an NVIDIA GPU."""
BFLOAT16: Final = 16
"""`TensorProto.BFLOAT16`, which numpy has no name for."""

RUNTIME_VERSION: Final[str] = ort.__version__

# Everything that goes wrong is raised to us and logged once, by us; ONNX Runtime's own lines would double it.
ort.set_default_logger_severity(4)

_OPTIMISATION: Final = {
    "none": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}

_PREFIX: Final = re.compile(r"^\s*\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
_NODE: Final = re.compile(
    r"Non-zero status code returned while running (\S+) node\. Name:'([^']*)' Status Message: ", re.DOTALL
)
_SOURCE: Final = re.compile(r"(/\S*/)?[\w./-]+\.(?:cc|h|cpp|hpp|cu|cuh):\d+\s*(?:[\w:~<>,&* ]+\([^)]*\)\s*(?:const)?)?")
_PATH: Final = re.compile(r"[\"']?(?:/[^\s\"':,]+)+/?[\"']?")


class LoadFailed(Exception):
    """A session can't be made. The text is fit for callers (no path of this machine); `detail` is for the log."""

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail or message


class Rejected(Exception):
    """The runtime says that this input is wrong (a bad index, rank or datatype). The text is fit for callers."""


class RunFailed(Exception):
    """A run failed for another reason. The text is for the log only."""


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output as the model declares it. In `shape`: a size, a symbol, or None for an unnamed dynamic size."""

    name: str
    onnx_type: str
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a session is made. Threads are always explicit: 0 would mean the host's cores, pinned (V42)."""

    intra_op_threads: int = 1
    inter_op_threads: int = 1
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`."""
    providers: tuple[tuple[str, Mapping[str, str]], ...] = ()
    """Execution providers with their options, in order, instead of those that `device` stands for."""
    optimisation: Literal["all", "extended", "basic", "none"] = "all"
    disabled_optimizers: tuple[str, ...] = ()
    arena: bool = True
    entries: Mapping[str, str] = field(default_factory=dict)
    """Session configuration entries, passed on as they are."""


class Session:
    """A loaded model. May be run from several threads at once.

    Raises (when made):
        LoadFailed: the file, its data, the device or the graph is not usable.
    """

    def __init__(self, model: Path, *, options: Options, linked_data: Mapping[str, Path] | None = None) -> None:
        """`linked_data` are external-data files that are links: their names beside the model, and where they are."""
        # Mapped files must outlive the session, whose weights may point into them.
        self._maps: list[mmap.mmap] = []
        settings = self._settings(options, linked_data or {})
        self._session, self.provider = _open(model, settings, options)
        self.device_id = _device_id(self._session, self.provider)
        self.inputs = tuple(Port(one.name, one.type, tuple(one.shape)) for one in self._session.get_inputs())
        self.outputs = tuple(Port(one.name, one.type, tuple(one.shape)) for one in self._session.get_outputs())
        self.metadata: dict[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)
        self._bfloat16_out = any(one.onnx_type == "tensor(bfloat16)" for one in self.outputs)

    @property
    def on_cuda(self) -> bool:
        return self.provider in ON_CUDA

    def run(self, outputs: Sequence[str], feed: Mapping[str, Any], options: Any = None) -> list[Any]:
        """Runs the model. Arrays in and out; BFLOAT16 is `uint16` both ways (`bfloat16_value` wraps an input).

        Raises:
            Rejected: the input is wrong.
            RunFailed: anything else.
        """
        try:
            if self._bfloat16_out:
                return self._run_with_values(outputs, feed, options)
            return self._session.run(outputs, feed, options)  # type: ignore[no-any-return]
        except native.InvalidArgument as error:
            raise Rejected(safe_message(str(error))) from error
        except (ValueError, TypeError) as error:  # a missing or mistyped input
            raise Rejected(safe_message(str(error))) from error
        except Exception as error:
            raise RunFailed(str(error).strip()) from error

    def _run_with_values(self, outputs: Sequence[str], feed: Mapping[str, Any], options: Any) -> list[Any]:
        # numpy can't hold bfloat16: take the outputs as values of the runtime and copy their bits.
        wrapped = {
            name: value if isinstance(value, ort.OrtValue) else ort.OrtValue.ortvalue_from_numpy(value)
            for name, value in feed.items()
        }
        values = self._session.run_with_ort_values(outputs, wrapped, options)
        return [_bits(one) if one.element_type() == BFLOAT16 else one.numpy().copy() for one in values]

    @property
    def provider_options(self) -> Mapping[str, str]:
        """The options that the provider really runs with."""
        return dict(self._session.get_provider_options().get(self.provider, {}))

    def binding(self) -> Any:
        """A fresh IOBinding for one instance."""
        return self._session.io_binding()

    def run_bound(self, binding: Any, options: Any = None) -> None:
        """Runs with inputs and outputs bound before.

        Raises:
            RunFailed: whatever the kind, which the runtime doesn't tell here.
        """
        try:
            binding.synchronize_inputs()
            self._session.run_with_iobinding(binding, options)
            binding.synchronize_outputs()
        except Exception as error:
            raise RunFailed(str(error).strip()) from error

    def _settings(self, options: Options, linked_data: Mapping[str, Path]) -> Any:
        settings = ort.SessionOptions()
        settings.intra_op_num_threads = options.intra_op_threads
        settings.inter_op_num_threads = options.inter_op_threads
        settings.execution_mode = (
            ort.ExecutionMode.ORT_PARALLEL if options.inter_op_threads > 1 else ort.ExecutionMode.ORT_SEQUENTIAL
        )
        settings.graph_optimization_level = _OPTIMISATION[options.optimisation]
        settings.log_severity_level = 4
        settings.enable_cpu_mem_arena = options.arena
        # A pattern is kept for every shape seen, for ever: with dynamic shapes that only grows (V41).
        settings.enable_mem_pattern = False
        # Spinning burns a core at 5 % load; what it wins is a few hundred microseconds on multi-threaded runs.
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
        settings.add_session_config_entry("session.inter_op.allow_spinning", "0")
        for key, value in options.entries.items():
            settings.add_session_config_entry(key, value)
        if linked_data:
            self._map_linked(settings, linked_data)
        return settings

    def _map_linked(self, settings: Any, linked_data: Mapping[str, Path]) -> None:
        # The runtime refuses data whose resolved path is outside the model's folder (V21). The links were checked
        # against the allowed roots before, so hand it the mapped files; they cost no memory of their own.
        names: list[str] = []
        for name, path in linked_data.items():
            if path.stat().st_size == 0:
                continue
            with path.open("rb") as file:
                self._maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            names.append(name)
        settings.add_external_initializers_from_files_in_memory(names, self._maps, [len(one) for one in self._maps])


def run_options(*, shrink_arena: bool) -> Any:
    """Options for one instance's runs. `shrink_arena` gives memory back after each run, so one giant costs once."""
    options = ort.RunOptions()
    options.log_severity_level = 4
    if shrink_arena:
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


def bfloat16_value(bits: Array) -> Any:
    """An input from an array of `uint16` that holds bfloat16 bits."""
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, BFLOAT16)


def safe_message(text: str) -> str:
    """What the runtime said, without its prefixes, its source positions and this machine's paths."""
    text = _PREFIX.sub("", text)
    node = _NODE.search(text)
    if node:
        where = f"{node[1]} node {node[2]!r}" if node[2] else f"{node[1]} node"
        text = f"{where}: {text[node.end() :]}"
    text = _SOURCE.sub("", text)
    text = _PATH.sub("…", text)
    return " ".join(text.split()) or "the runtime gave no reason"


def devices() -> list[str]:
    """The execution providers that this build of ONNX Runtime has. A GPU build lists CUDA even without a driver."""
    return list(ort.get_available_providers())


def _open(model: Path, settings: Any, options: Options) -> tuple[Any, str]:
    disabled = list(options.disabled_optimizers) or None
    tried = ""
    for wanted in _candidates(options):
        first = wanted[0][0]
        if first not in ort.get_available_providers():
            raise LoadFailed(
                f"this build of ONNX Runtime has no {first}; it has {', '.join(ort.get_available_providers())}"
            )
        if first in ON_CUDA:
            _load_cuda_libraries()
        try:
            session = ort.InferenceSession(
                str(model),
                settings,
                providers=[(name, dict(extra)) for name, extra in wanted],
                disabled_optimizers=disabled,
            )
        except native.NoSuchFile as error:
            raise LoadFailed("the model file is missing", detail=str(error)) from error
        except (native.InvalidProtobuf, native.InvalidGraph) as error:
            raise LoadFailed(f"not a valid ONNX model: {safe_message(str(error))}", detail=str(error)) from error
        except native.NotImplemented as error:
            raise LoadFailed(f"this runtime can't run it: {safe_message(str(error))}", detail=str(error)) from error
        except Exception as error:
            raise LoadFailed(safe_message(str(error)), detail=str(error)) from error
        # The runtime falls back to the CPU with a warning at most, whatever was asked for. Compare, every time.
        got = session.get_providers()[0]
        if got == first:
            return session, first
        tried = f"{first} was asked for and {got} came; the driver or a library is missing"
    raise LoadFailed(tried)


@functools.cache
def _load_cuda_libraries() -> None:
    """Finds CUDA and cuDNN where `headrace[worker-gpu]` installs them: beside this package, not on the loader's path.

    Without them CUDA's provider can't be loaded and the runtime falls back, which `_open` refuses.
    """
    said = io.StringIO()
    # It prints what it can't find, to where logs don't go.
    with contextlib.redirect_stdout(said):
        ort.preload_dlls()
    if text := said.getvalue().strip():
        log.warning("not all of CUDA's libraries could be loaded", extra={"detail": text})


def _candidates(options: Options) -> list[list[tuple[str, Mapping[str, str]]]]:
    """Lists of providers to try in turn. Only `auto` has more than one."""
    if options.providers:
        return [list(options.providers)]
    kind, _, number = options.device.partition(":")
    cuda: list[tuple[str, Mapping[str, str]]] = [
        (
            CUDA,
            {
                "device_id": number or "0",
                # The default tries every algorithm at the first run of each shape: seconds of stall.
                "cudnn_conv_algo_search": "HEURISTIC",
                "arena_extend_strategy": "kSameAsRequested",
            },
        ),
        (CPU, {}),
    ]
    cpu: list[tuple[str, Mapping[str, str]]] = [(CPU, {})]
    if kind == "cuda":
        return [cuda]
    if kind == "auto" and CUDA in ort.get_available_providers():
        return [cuda, cpu]
    return [cpu]


def _device_id(session: Any, provider: str) -> int:
    return int(session.get_provider_options().get(provider, {}).get("device_id", 0))


def _bits(value: Any) -> Array:
    """The bits of a bfloat16 value as `uint16`, copied."""
    shape = tuple(value.shape())
    bits = np.empty(shape, dtype=np.uint16)
    if bits.size:
        import ctypes  # noqa: PLC0415 - for bfloat16 models only

        ctypes.memmove(bits.ctypes.data, value.data_ptr(), bits.nbytes)
    return bits
