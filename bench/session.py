"""ONNX Runtime's own time: `session.run` in this process, nothing around it. The floor under every server.

`python -m bench.session MODEL.onnx` prints microseconds a run and a row at each batch.
"""

import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
import onnxruntime

BATCHES = (1, 2, 4, 8, 16, 32, 64)


def open_session(path: Path) -> onnxruntime.InferenceSession:
    """A session as our worker and every peer makes it: one thread, CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def microseconds(path: Path, *, batch: int, seconds: float = 0.5) -> float:
    """Median time of one run with `batch` rows, back to back."""
    session = open_session(path)
    features = session.get_inputs()[0].shape[1]
    feed = {"x": np.random.default_rng(1).standard_normal((batch, features), dtype=np.float32)}
    for _ in range(5):
        session.run(None, feed)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        begin = time.perf_counter()
        session.run(None, feed)
        times.append(time.perf_counter() - begin)
    return median(times) * 1e6


def paced_microseconds(path: Path, *, runs: int = 300, gap: float = 0.002) -> float:
    """Median time of one run of one row with a pause before it, as a server at concurrency 1 meets it: caches and core gone cold."""
    session = open_session(path)
    features = session.get_inputs()[0].shape[1]
    feed = {"x": np.zeros((1, features), np.float32)}
    times = []
    for _ in range(runs):
        time.sleep(gap)
        begin = time.perf_counter()
        session.run(None, feed)
        times.append(time.perf_counter() - begin)
    return median(times) * 1e6


def main() -> None:
    path = Path(sys.argv[1])
    print("batch  µs/run  µs/row")
    for batch in BATCHES:
        took = microseconds(path, batch=batch)
        print(f"{batch:5}  {took:6.1f}  {took / batch:6.2f}")
    print(f"paced, one row: {paced_microseconds(path):.1f} µs")


if __name__ == "__main__":
    main()
