"""The models that are measured, written as ONNX files: the same bytes each time.

`python -m bench.models FOLDER` writes `<folder>/<name>/1/model.onnx`, a repository that Triton reads too.

- `tiny`: an MLP 64 → 128 → 10. Hardly any work, so that what is measured is the server.
- `mid`: an MLP 256 → 1024 → 1024 → 256. Some 30 µs a row in a batch: a small real model.
- `heavy`: an MLP 256 → 2048 → 2048 → 2048 → 256. Some 300 µs a row: work enough that twice its capacity is no load for
  the server's front or for the load generator on the same two cores.
- `rnn`: one GRU step with 16 MiB of weights that every run must read, whatever its batch: ten rows cost little more than one.
- `identity8m`: 8 MiB in, the same 8 MiB out.
"""

import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 9


@dataclass(frozen=True)
class Bench:
    """A model's one input and one output, a row of each."""

    name: str
    features: int
    answers: int

    @property
    def reply_bytes(self) -> int:
        """About what a reply measures as a gRPC frame: the raw output and 45 bytes around it."""
        return 4 * self.answers + 45


TINY = Bench("tiny", 64, 10)
MID = Bench("mid", 256, 256)
HEAVY = Bench("heavy", 256, 256)
RNN = Bench("rnn", 256, 1024)
IDENTITY = Bench("identity8m", 2 * 1024 * 1024, 2 * 1024 * 1024)
ALL = (TINY, MID, HEAVY, RNN, IDENTITY)


def build(folder: Path) -> None:
    """Writes every model that is not there yet."""
    for bench, make in ((TINY, _tiny), (MID, _mid), (HEAVY, _heavy), (RNN, _rnn), (IDENTITY, _identity)):
        path = folder / bench.name / "1" / "model.onnx"
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        model = make(bench)
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, path)


def rows(bench: Bench, count: int) -> np.ndarray:
    """Rows that differ, the same each time."""
    return np.random.default_rng(len(bench.name)).standard_normal((count, bench.features), dtype=np.float32)


def _tiny(bench: Bench) -> onnx.ModelProto:
    return _mlp(bench, [64, 128, 10])


def _mid(bench: Bench) -> onnx.ModelProto:
    return _mlp(bench, [256, 1024, 1024, 256])


def _heavy(bench: Bench) -> onnx.ModelProto:
    return _mlp(bench, [256, 2048, 2048, 2048, 256])


def _mlp(bench: Bench, widths: list[int]) -> onnx.ModelProto:
    random = np.random.default_rng(7)
    nodes, weights, value = [], [], "x"
    for layer, (wide, narrow) in enumerate(pairwise(widths)):
        last = layer == len(widths) - 2
        weights += [
            _weight(f"w{layer}", random.standard_normal((wide, narrow)) / np.sqrt(wide)),
            _weight(f"b{layer}", random.standard_normal(narrow) * 0.1),
        ]
        out = "y" if last else f"h{layer}"
        nodes.append(helper.make_node("Gemm", [value, f"w{layer}", f"b{layer}"], [out if last else f"g{layer}"]))
        if not last:
            nodes.append(helper.make_node("Relu", [f"g{layer}"], [out]))
        value = out
    return _model(bench, nodes, weights)


def _rnn(bench: Bench) -> onnx.ModelProto:
    random = np.random.default_rng(11)
    hidden = bench.answers
    weights = [
        _weight("w", random.standard_normal((1, 3 * hidden, bench.features)) / np.sqrt(hidden)),
        _weight("r", random.standard_normal((1, 3 * hidden, hidden)) / np.sqrt(hidden)),
        _weight("b", np.zeros((1, 6 * hidden))),
        numpy_helper.from_array(np.array([0], np.int64), "zero"),
    ]
    nodes = [
        helper.make_node("Unsqueeze", ["x", "zero"], ["steps"]),
        helper.make_node("GRU", ["steps", "w", "r", "b"], ["", "last"], hidden_size=hidden),
        helper.make_node("Squeeze", ["last", "zero"], ["y"]),
    ]
    return _model(bench, nodes, weights)


def _identity(bench: Bench) -> onnx.ModelProto:
    return _model(bench, [helper.make_node("Identity", ["x"], ["y"])], [])


def _weight(name: str, values: np.ndarray) -> TensorProto:
    return numpy_helper.from_array(values.astype(np.float32), name)


def _model(bench: Bench, nodes: list[onnx.NodeProto], weights: list[TensorProto]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        bench.name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", bench.features])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", bench.answers])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
