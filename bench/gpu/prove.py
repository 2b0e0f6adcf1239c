"""Proves the CUDA path in one run, on a machine that has a GPU: `python bench/gpu/prove.py` prints one JSON object.

It uses the worker's own code (`headrace_worker.session`, `cuda`, `executor`, `loading`) on three models made here and
checks, for each:

- the session runs on CUDA and nowhere else: with the CPU fall-back forbidden it still loads;
- cuDNN's algorithms are searched by HEURISTIC, and the session says so itself;
- batches run bound (IOBinding), never by the unbound fall-back;
- every staging buffer is page-locked, which the CUDA runtime is asked about;
- the answers are the CPU's, within a tolerance (CUDA multiplies float32 as TF32);
- how many rows a second CUDA and CPU run, by batch size. This is reported, not judged.

Needs `headrace[worker-gpu]` and `onnx`. Exit status: 0 all proven, 1 something was not as it should be, 2 no GPU here.
"""

import argparse
import ctypes
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from headrace_core import cpus
from headrace_worker import loading
from headrace_worker.cuda import CudaExecutor, runtime_library
from headrace_worker.executor import Executor
from headrace_worker.loading import Defaults, Loaded
from headrace_worker.repository import Repository
from headrace_worker.session import CUDA, RUNTIME_VERSION, LoadFailed, Options, Session, devices

ROWS: Final = (1, 4, 16, 64, 128)
TOLERANCE: Final = 5e-3
"""Largest difference from the CPU's answers, as a share of the output's largest value."""
NO_GPU: Final = 2


class Tensor(np.ndarray):  # type: ignore[type-arg]  # as the front hands inputs over: a buffer with a name and a datatype
    """One input of a batch."""

    name: str
    datatype: str

    @classmethod
    def of(cls, name: str, array: np.ndarray[Any, Any]) -> Self:
        tensor = array.view(cls)
        tensor.name, tensor.datatype = name, "FP32"
        return tensor

    def strings(self) -> list[str]:
        raise TypeError("these models take numbers")


@dataclass
class Batch:
    """What an executor is called with."""

    rows: int
    inputs: list[Any]
    output_names: list[str]


def main() -> int:
    """Runs all checks; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0", help="cuda or cuda:N (cuda:0)")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of each measurement (0.5)")
    options = parser.parse_args()
    if CUDA not in devices():
        return _no_gpu(f"this ONNX Runtime {RUNTIME_VERSION} is built without CUDA: install headrace[worker-gpu]")
    with tempfile.TemporaryDirectory() as folder:
        _write_models(Path(folder))
        try:
            Session(Path(folder) / "mlp" / "model.onnx", options=Options(device=options.device))
        except LoadFailed as error:
            return _no_gpu(str(error))
        models = {
            found.name: _prove(Path(folder), found.name, device=options.device, seconds=options.seconds)
            for found in Repository(Path(folder)).scan().values()
        }
    failed = [f"{name}: {check}" for name, one in models.items() for check, ok in one["checks"].items() if not ok]
    print(
        json.dumps(
            {"passed": not failed, "failed": failed, "onnxruntime": RUNTIME_VERSION, "gpu": _gpu(), "models": models},
            indent=2,
        )
    )
    return 1 if failed else 0


def _no_gpu(why: str) -> int:
    print(f"Nothing proven, for there is no usable GPU here: {why}", file=sys.stderr)
    return NO_GPU


def _prove(folder: Path, name: str, *, device: str, seconds: float) -> dict[str, Any]:
    on_cuda, on_cpu = _load(folder, name, device=device), _load(folder, name, device="cpu")
    cuda, cpu = on_cuda.executors[0], on_cpu.executors[0]
    strict = _strict_session(folder / name / "model.onnx", device=device)
    counted = _count_runs(cuda)
    worst, rates = 0.0, []
    for rows in ROWS:
        batch = _batch(on_cuda, rows)
        # The executor's arrays are its buffers: compare before it runs again.
        worst = max(worst, _difference(cuda(batch), cpu(batch)))
        speeds = {side: _rate(partial(run, batch), rows, seconds) for side, run in (("cuda", cuda), ("cpu", cpu))}
        rates.append({"rows": rows, **speeds})
    return {
        "checks": {
            "the worker runs it on CUDA": on_cuda.provider == CUDA and isinstance(cuda, CudaExecutor),
            "every node runs on CUDA": isinstance(strict, Session),
            "cuDNN search is HEURISTIC": isinstance(strict, Session)
            and strict.provider_options.get("cudnn_conv_algo_search") == "HEURISTIC",
            "every run was bound": counted["bound"] > 0 and counted["plain"] == 0,
            "staging buffers are page-locked": isinstance(cuda, CudaExecutor) and _all_pinned(cuda),
            "answers are the CPU's": worst <= TOLERANCE,
        },
        "notes": [*on_cuda.notes, *([strict] if isinstance(strict, str) else [])],
        "largest_difference": worst,
        "runs": counted,
        "rows_per_second": rates,
        "instances": on_cuda.instances,
        "batched": on_cuda.batching,
    }


def _load(folder: Path, name: str, *, device: str) -> Loaded:
    found = Repository(folder).scan()[name]
    return loading.load(
        found.versions["1"],
        loading.configure(found),
        defaults=Defaults(device=device, instances=0, processors=cpus.available()),
    )


def _strict_session(path: Path, *, device: str) -> Session | str:
    """A session that may not fall back to the CPU for any node, or why there is none."""
    try:
        return Session(path, options=Options(device=device, entries={"session.disable_cpu_ep_fallback": "1"}))
    except LoadFailed as error:
        return f"with the fall-back forbidden: {error}"


def _count_runs(executor: Executor) -> dict[str, int]:
    """Counts the executor's bound and plain runs from now on."""
    session, counted = executor._session, {"bound": 0, "plain": 0}
    plain, bound = session.run, session.run_bound

    def run(*args: Any, **kwargs: Any) -> Any:
        counted["plain"] += 1
        return plain(*args, **kwargs)

    def run_bound(*args: Any, **kwargs: Any) -> None:
        counted["bound"] += 1
        bound(*args, **kwargs)

    session.run, session.run_bound = run, run_bound  # type: ignore[method-assign]
    return counted


def _all_pinned(executor: CudaExecutor) -> bool:
    runtime = runtime_library()
    if runtime is None:
        return False
    flags = ctypes.c_uint()
    used = [one._memory for one in executor._buffers.values() if one._memory.nbytes]
    # Answers 0 (cudaSuccess) only for memory that this runtime has page-locked.
    return bool(used) and all(
        runtime.cudaHostGetFlags(ctypes.byref(flags), ctypes.c_void_p(one.ctypes.data)) == 0 for one in used
    )


def _batch(loaded: Loaded, rows: int) -> Batch:
    dice = np.random.default_rng(rows)
    inputs = [
        Tensor.of(one.name, dice.standard_normal((rows, *one.dims[1:]), dtype=np.float32))
        for one in loaded.signature.inputs
    ]
    return Batch(rows=rows, inputs=inputs, output_names=[one.name for one in loaded.signature.outputs])


def _difference(ours: list[Any], theirs: list[Any]) -> float:
    return max(
        float(np.abs(one - other).max() / max(float(np.abs(other).max()), 1e-6))
        for one, other in zip(ours, theirs, strict=True)
    )


def _rate(run: Callable[[], Any], rows: int, seconds: float) -> float:
    run()
    done, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        run()
        done += rows
    return round(done / took, 1)


def _gpu() -> dict[str, Any]:
    runtime = runtime_library()
    if runtime is None:
        return {}
    version, count = ctypes.c_int(), ctypes.c_int()
    runtime.cudaRuntimeGetVersion(ctypes.byref(version))
    runtime.cudaGetDeviceCount(ctypes.byref(count))
    return {"cuda_runtime": version.value, "devices": count.value}


def _write_models(folder: Path) -> None:
    dice = np.random.default_rng(7)

    def weight(name: str, *shape: int) -> Any:
        scale = np.sqrt(np.prod(shape[1:]) if len(shape) > 2 else shape[0])
        return numpy_helper.from_array((dice.standard_normal(shape) / scale).astype(np.float32), name)

    node = helper.make_node
    _save(
        folder / "mlp",
        [node("MatMul", ["x", "a"], ["h"]), node("Relu", ["h"], ["r"]), node("MatMul", ["r", "b"], ["y"])],
        (256,),
        (256,),
        [weight("a", 256, 1024), weight("b", 1024, 256)],
    )
    _save(
        folder / "conv",
        [
            node("Conv", ["x", "a"], ["h"], pads=[1, 1, 1, 1], strides=[2, 2]),
            node("Relu", ["h"], ["r"]),
            node("Conv", ["r", "b"], ["c"], pads=[1, 1, 1, 1]),
            node("GlobalAveragePool", ["c"], ["p"]),
            node("Flatten", ["p"], ["y"]),
        ],
        (3, 64, 64),
        (64,),
        [weight("a", 32, 3, 3, 3), weight("b", 64, 32, 3, 3)],
    )
    _save(folder / "wide", [node("MatMul", ["x", "a"], ["y"])], (2048,), (2048,), [weight("a", 2048, 2048)])


def _save(
    folder: Path, nodes: list[Any], inside: tuple[int, ...], outside: tuple[int, ...], weights: list[Any]
) -> None:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        folder.name,
        [info("x", TensorProto.FLOAT, ["batch", *inside])],
        [info("y", TensorProto.FLOAT, ["batch", *outside])],
        weights,
    )
    folder.mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(folder / "model.onnx"))


if __name__ == "__main__":
    sys.exit(main())
