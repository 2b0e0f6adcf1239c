"""The tiny models that integration tests serve, made in milliseconds with `onnx.helper`.

    root = build(tmp_path / "models")                 # all of them, each with the model.yaml that it needs
    build(tmp_path / "models", "add", "gather")       # or only these

`MODELS` names each and says what it computes. `save` and the makers are for tests that lay out folders themselves.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING

DATATYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
}
"""Every datatype with elements of one size, and ONNX's word for it."""

WIDE = 1_310_720
"""Columns of `wide`'s output: 5 MiB of FP32."""
ENCODER_WIDTH = 8
LEAST_MS, LONGEST_MS = 0.2, 20_000.0
"""Bounds of what `slow` works. A run of no work at all would make a nonsense of the cost of others."""


def build(root: Path, *names: str) -> Path:
    """Writes the named models (all, if none is named) in Triton's layout. Returns the folder."""
    for name in names or MODELS:
        make, settings = MODELS[name]
        save(root / name / "1", make())
        if settings:
            (root / name / "model.yaml").write_text(settings)
    return root


def save(folder: Path, model: onnx.ModelProto, **options: Any) -> Path:
    """`folder/model.onnx`, its folder made. Options go to `onnx.save`."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(folder / "model.onnx"), **options)
    return folder / "model.onnx"


def model(
    nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: dict[str, Any] | None = None
) -> onnx.ModelProto:
    """A model from nodes, `(name, kind, shape)` of inputs and outputs, and constants."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(*one) for one in inputs],
        [helper.make_tensor_value_info(*one) for one in outputs],
        [numpy_helper.from_array(np.asarray(value), key) for key, value in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def identity(kind: int = FLOAT, shape: tuple[Any, ...] = ("N", 4)) -> onnx.ModelProto:
    """y = x."""
    return model([helper.make_node("Identity", ["x"], ["y"])], [("x", kind, shape)], [("y", kind, shape)])


def add(amount: float = 1.0, *, rows: Any = "N") -> onnx.ModelProto:
    """y = x + amount, rows of four."""
    return model(
        [helper.make_node("Add", ["x", "b"], ["y"])],
        [("x", FLOAT, (rows, 4))],
        [("y", FLOAT, (rows, 4))],
        {"b": np.float32(amount)},
    )


def external(folder: Path, *, data: str = "model.onnx_data") -> Path:
    """y = 2x over rows of 64, its weights in a file of their own."""
    made = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [("x", FLOAT, ("N", 64))],
        [("y", FLOAT, ("N", 64))],
        {"w": np.eye(64, dtype=np.float32) * 2},
    )
    return save(folder, made, save_as_external_data=True, location=data, size_threshold=16)


def never_runs() -> onnx.ModelProto:
    """A valid graph whose every run fails: rows of four into a shape of 35."""
    return model(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        [("x", FLOAT, ("N", 4))],
        [("y", FLOAT, ("M", "K"))],
        {"shape": np.array([7, 5], np.int64)},
    )


def _add_two() -> onnx.ModelProto:
    return model(
        [helper.make_node("Add", ["a", "b"], ["y"])],
        [("a", FLOAT, ("N", 4)), ("b", FLOAT, ("N", 4))],
        [("y", FLOAT, ("N", 4))],
    )


def _ids_and_mask() -> onnx.ModelProto:
    """y = the sum of the ids that the mask keeps."""
    nodes = [
        helper.make_node("Mul", ["ids", "mask"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "axis"], ["y"], keepdims=1),
    ]
    inputs = [("ids", INT64, ("N", "L")), ("mask", INT64, ("N", "L"))]
    return model(nodes, inputs, [("y", INT64, ("N", 1))], {"axis": np.array([1], np.int64)})


def _two_outputs() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Softmax", ["x"], ["probs"], axis=1),
        helper.make_node("ArgMax", ["x"], ["label"], axis=1, keepdims=0),
    ]
    return model(nodes, [("x", FLOAT, ("N", 4))], [("probs", FLOAT, ("N", 4)), ("label", INT64, ("N",))])


def _gather() -> onnx.ModelProto:
    """Row `id` of a table of ten: three values from 3·id on. Other ids make the runtime refuse."""
    return model(
        [helper.make_node("Gather", ["table", "ids"], ["y"])],
        [("ids", INT64, ("N", 1))],
        [("y", FLOAT, ("N", 1, 3))],
        {"table": np.arange(30, dtype=np.float32).reshape(10, 3)},
    )


def _raises() -> onnx.ModelProto:
    """y = x, rows of four, while the first column is 4 times the second; else no run succeeds."""
    nodes = [
        helper.make_node("Slice", ["x", "zero", "one", "axis"], ["head"]),
        helper.make_node("ReduceMax", ["head"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["columns"], to=INT64),
        helper.make_node("Reshape", ["columns", "list"], ["last"]),
        helper.make_node("Concat", ["rest", "last"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    weights = {
        "zero": np.array([0], np.int64),
        "one": np.array([1], np.int64),
        "axis": np.array([1], np.int64),
        "list": np.array([1], np.int64),
        "rest": np.array([-1], np.int64),
    }
    return model(nodes, [("x", FLOAT, ("N", 4))], [("y", FLOAT, ("N", "K"))], weights)


def _mean_over_rows() -> onnx.ModelProto:
    """Three columns' mean over all rows (V08 b): one row comes out, whoever sent how many."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1),
        helper.make_node("MatMul", ["m", "w"], ["y"]),
    ]
    return model(nodes, [("x", FLOAT, ("N", 4))], [("y", FLOAT, (1, 3))], {"w": np.eye(4, 3, dtype=np.float32)})


def _constant_of_one_row() -> onnx.ModelProto:
    """Declares N rows and concatenates a constant of one (V08 c)."""
    return model(
        [helper.make_node("Concat", ["x", "c"], ["y"], axis=1)],
        [("x", FLOAT, ("N", 4))],
        [("y", FLOAT, ("N", 6))],
        {"c": np.zeros((1, 2), np.float32)},
    )


def _wrong_output_shape() -> onnx.ModelProto:
    """Rows of four come out, though rows of two are declared."""
    return model(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        [("x", FLOAT, ("N", 2, 2))],
        [("y", FLOAT, ("N", 2))],
        {"shape": np.array([0, -1], np.int64)},
    )


def _scalar() -> onnx.ModelProto:
    """y = x · s, where s has no dimension at all."""
    return model(
        [helper.make_node("Mul", ["x", "s"], ["y"])],
        [("x", FLOAT, ("N", 4)), ("s", FLOAT, ())],
        [("y", FLOAT, ("N", 4))],
    )


def _encoder(*, masked: bool) -> onnx.ModelProto:
    """One layer of attention over embedded ids; the mask, if it has one, hides padding."""
    random = np.random.default_rng(11)
    weights: dict[str, Any] = {
        "table": random.standard_normal((100, ENCODER_WIDTH)).astype(np.float32),
        "q": random.standard_normal((ENCODER_WIDTH, ENCODER_WIDTH)).astype(np.float32),
        "k": random.standard_normal((ENCODER_WIDTH, ENCODER_WIDTH)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"]),
        helper.make_node("MatMul", ["e", "q"], ["eq"]),
        helper.make_node("MatMul", ["e", "k"], ["ek"]),
        helper.make_node("Transpose", ["ek"], ["ekt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["eq", "ekt"], ["scores"]),
    ]
    inputs, scores = [("ids", INT64, ("N", "L"))], "scores"
    if masked:
        weights |= {"one": np.float32(1), "far": np.float32(-1e9), "middle": np.array([1], np.int64)}
        nodes += [
            helper.make_node("Cast", ["mask"], ["kept"], to=FLOAT),
            helper.make_node("Sub", ["one", "kept"], ["hidden"]),
            helper.make_node("Mul", ["hidden", "far"], ["bias"]),
            helper.make_node("Unsqueeze", ["bias", "middle"], ["bias3"]),
            helper.make_node("Add", ["scores", "bias3"], ["masked"]),
        ]
        inputs.append(("mask", INT64, ("N", "L")))
        scores = "masked"
    nodes += [
        helper.make_node("Softmax", [scores], ["weights"], axis=2),
        helper.make_node("MatMul", ["weights", "e"], ["y"]),
    ]
    return model(nodes, inputs, [("y", FLOAT, ("N", "L", ENCODER_WIDTH))], weights)


def _total() -> onnx.ModelProto:
    return model(
        [helper.make_node("ReduceSum", ["x", "axis"], ["y"], keepdims=1)],
        [("x", FLOAT, ("N", "L"))],
        [("y", FLOAT, ("N", 1))],
        {"axis": np.array([1], np.int64)},
    )


def _wide() -> onnx.ModelProto:
    return model(
        [helper.make_node("Tile", ["x", "times"], ["y"])],
        [("x", FLOAT, ("N", 1))],
        [("y", FLOAT, ("N", WIDE))],
        {"times": np.array([1, WIDE], np.int64)},
    )


def _axis_one() -> onnx.ModelProto:
    """A state whose rows are its second axis: y = x + the state's sum, next = state + 1."""
    nodes = [
        helper.make_node("ReduceSum", ["state", "axis0"], ["s"], keepdims=0),
        helper.make_node("Add", ["x", "s"], ["y"]),
        helper.make_node("Add", ["state", "one"], ["next"]),
    ]
    return model(
        nodes,
        [("x", FLOAT, ("N", 3)), ("state", FLOAT, (2, "N", 3))],
        [("y", FLOAT, ("N", 3)), ("next", FLOAT, (2, "N", 3))],
        {"axis0": np.array([0], np.int64), "one": np.float32(1)},
    )


_SIDE = 96


def _slow() -> onnx.ModelProto:
    """y = x, after about as many milliseconds of work as the first column's greatest value says."""
    return _looping(_turns_per_millisecond())


def _looping(turns_per_unit: float) -> onnx.ModelProto:
    float_of = functools.partial(helper.make_tensor_value_info, elem_type=FLOAT)
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["carried", "w"], ["carried_on"]),
            helper.make_node("Identity", ["go"], ["go_on"]),
        ],
        "turn",
        [
            helper.make_tensor_value_info("turn", INT64, ()),
            helper.make_tensor_value_info("go", TensorProto.BOOL, ()),
            float_of("carried", shape=(_SIDE, _SIDE)),
        ],
        [helper.make_tensor_value_info("go_on", TensorProto.BOOL, ()), float_of("carried_on", shape=(_SIDE, _SIDE))],
    )
    nodes = [
        helper.make_node("Slice", ["x", "zero", "one", "axis"], ["asked"]),
        helper.make_node("ReduceMax", ["asked"], ["most"], keepdims=0),
        helper.make_node("Mul", ["most", "rate"], ["wanted"]),
        helper.make_node("Clip", ["wanted", "least", "limit"], ["bounded"]),
        helper.make_node("Cast", ["bounded"], ["turns"], to=INT64),
        helper.make_node("Loop", ["turns", "go", "start"], ["end"], body=body),
        helper.make_node("ReduceSum", ["end"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["sum", "none"], ["nothing"]),
        helper.make_node("Add", ["x", "nothing"], ["y"]),
    ]
    weights = {
        "zero": np.array([0], np.int64),
        "one": np.array([1], np.int64),
        "axis": np.array([1], np.int64),
        "rate": np.float32(turns_per_unit),
        "least": np.float32(LEAST_MS * turns_per_unit),
        "limit": np.float32(LONGEST_MS * turns_per_unit),
        "go": np.array(True),
        "start": np.eye(_SIDE, dtype=np.float32),
        "w": np.eye(_SIDE, dtype=np.float32),
        "none": np.float32(0),
    }
    return model(nodes, [("x", FLOAT, ("N", 4))], [("y", FLOAT, ("N", 4))], weights)


@functools.cache
def _turns_per_millisecond() -> float:
    """How many turns this machine makes in a millisecond, taken from its best of five."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(_looping(1).SerializeToString(), options, ["CPUExecutionProvider"])
    turns, best = 500, float("inf")
    for _ in range(5):
        began = time.perf_counter()
        session.run(None, {"x": np.full((1, 4), turns, np.float32)})
        best = min(best, time.perf_counter() - began)
    return turns / (best * 1e3)


_ON = "batching: on\n"
# One batch at a time, and few rows in it, so that tests know who waits for whom.
_ONE = "instances: 1\nmax_batch_rows: 8\nbatching: on\nqueue: {learn_costs: false}\nexamples: {x: [0, 0, 0, 0]}\n"

MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    # y = x over rows of four, in each datatype.
    **{
        f"same_{name.lower()}": (functools.partial(identity, kind), "batching: off\ninstances: 1\n")
        for name, kind in DATATYPES.items()
    },
    # y = x over text: rows without and with columns.
    "same_bytes": (functools.partial(identity, STRING, ("N",)), _ON),
    "same_bytes_columns": (functools.partial(identity, STRING, ("N", 1)), "batching: off\ninstances: 1\n"),
    # y = x over one value a row (V11).
    "same_one": (functools.partial(identity, FLOAT, ("N", 1)), _ON),
    # y = x, any width.
    "any_width": (functools.partial(identity, FLOAT, ("N", "L")), _ON),
    # One more than x.
    "add": (add, _ON + "instances: 1\nmax_batch_rows: 8\n"),
    # The sum of a and b.
    "add_two": (_add_two, _ON),
    # y = the sum of masked ids, per row (V07).
    "ids_and_mask": (_ids_and_mask, _ON),
    "two_outputs": (_two_outputs, _ON + "instances: 1\n"),
    "gather": (_gather, _ON + "instances: 1\n"),
    "raises": (_raises, "batching: off\nexamples: {x: [4, 0, 0, 0]}\ninstances: 1\n"),
    # Models that only look as if their rows could run together (V08).
    "one_row": (functools.partial(add, rows=1), ""),
    "mean_over_rows": (_mean_over_rows, ""),
    "constant_of_one_row": (_constant_of_one_row, ""),
    "wrong_output_shape": (_wrong_output_shape, ""),
    "scalar": (_scalar, ""),
    "encoder": (functools.partial(_encoder, masked=True), _ON),
    "encoder_without_mask": (functools.partial(_encoder, masked=False), _ON),
    "axis_one": (_axis_one, _ON),
    # 5 MB in and little out; little in and 5 MB out.
    "total": (_total, "batching: off\ninstances: 1\n"),
    "wide": (_wide, "batching: off\ninstances: 1\n"),
    # As many milliseconds as the first column says; `slow_ten` takes one request at a time and lets ten wait (V16).
    "slow": (_slow, _ONE),
    "slow_ten": (_slow, "instances: 1\nbatching: off\nqueue: {max_queue_requests: 10}\nexamples: {x: [0, 0, 0, 0]}\n"),
}
"""Each model's maker and its `model.yaml`."""
