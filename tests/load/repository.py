"""The models that the failure and load tests serve, as ONNX files made in milliseconds.

- `add`: y = x + 1, rows of four; runs together.
- `nap`: the same, one instance, at most 8 rows a batch: rows may ask for a nap (`napping_worker`).
- `nap1`: the same, one request at a time and ten waiting (`max_queue_requests: 10`).
- `paced`: the same, one instance, at most 16 rows a batch.
- `big`: 1 row in, 1 MiB out.
- `echo`: any width, the same width out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from pathlib import Path

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
BIG_FLOATS = 256 * 1024


def build(root: Path, *names: str, queue: str = "") -> Path:
    """Writes the named models (all, if none is named) as a repository. `queue` goes into each one's `model.yaml`."""
    for name in names or _MODELS:
        make, settings = _MODELS[name]
        folder = root / name / "1"
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(make(), str(folder / "model.onnx"))
        text = settings + (f"queue: {{{queue}}}\n" if queue else "")
        if text:
            (root / name / "model.yaml").write_text(text)
    return root


def _model(
    nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: dict[str, Any] | None = None
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(*one) for one in inputs],
        [helper.make_tensor_value_info(*one) for one in outputs],
        [numpy_helper.from_array(np.asarray(value), key) for key, value in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _add() -> onnx.ModelProto:
    return _model(
        [helper.make_node("Add", ["x", "one"], ["y"])],
        [("x", FLOAT, ("N", 4))],
        [("y", FLOAT, ("N", 4))],
        {"one": np.float32(1)},
    )


def _big() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Slice", ["x", "zero", "one", "axis"], ["first"]),
        helper.make_node("Tile", ["first", "times"], ["y"]),
    ]
    weights = {
        "zero": np.array([0], np.int64),
        "one": np.array([1], np.int64),
        "axis": np.array([1], np.int64),
        "times": np.array([1, BIG_FLOATS], np.int64),
    }
    return _model(nodes, [("x", FLOAT, ("N", 4))], [("y", FLOAT, ("N", BIG_FLOATS))], weights)


def _echo() -> onnx.ModelProto:
    return _model(
        [helper.make_node("Identity", ["x"], ["y"])], [("x", FLOAT, ("N", "width"))], [("y", FLOAT, ("N", "width"))]
    )


_NAP = "instances: 1\n"
_MODELS = {
    "add": (_add, ""),
    "nap": (_add, _NAP + "max_batch_rows: 8\n"),
    "nap1": (_add, _NAP + "batching: off\nqueue: {max_queue_requests: 10}\n"),
    "paced": (_add, _NAP + "max_batch_rows: 16\n"),
    "big": (_big, "max_batch_rows: 4\n"),
    "echo": (_echo, ""),
}
