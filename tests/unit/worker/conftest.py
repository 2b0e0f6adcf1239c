"""Tiny ONNX models, made in milliseconds, and a worker's parts around them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace_worker.loading import Defaults

if TYPE_CHECKING:
    from pathlib import Path

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


class Zoo:
    """Makes models in a folder; every method returns the file's path."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def save(
        self,
        name: str,
        nodes: list[Any],
        inputs: list[Any],
        outputs: list[Any],
        weights: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Path:
        initialisers = [numpy_helper.from_array(np.asarray(value), key) for key, value in (weights or {}).items()]
        graph = helper.make_graph(
            nodes,
            name.replace("/", "_"),
            [helper.make_tensor_value_info(*one) for one in inputs],
            [helper.make_tensor_value_info(*one) for one in outputs],
            initialisers,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        path = self.root / (name if name.endswith(".onnx") else f"{name}/model.onnx")
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(model, str(path), **kwargs)
        return path

    def identity(self, name: str, kind: int = FLOAT, shape: tuple[Any, ...] = ("N", 4)) -> Path:
        return self.save(name, [helper.make_node("Identity", ["x"], ["y"])], [("x", kind, shape)], [("y", kind, shape)])

    def add(self, name: str, amount: float = 1.0) -> Path:
        """y = x + amount, rows of four."""
        return self.save(
            name,
            [helper.make_node("Add", ["x", "b"], ["y"])],
            [("x", FLOAT, ("N", 4))],
            [("y", FLOAT, ("N", 4))],
            {"b": np.float32(amount)},
        )

    def matrix(self, name: str, size: int = 256) -> Path:
        """Several multiplications by a large matrix: batching pays."""
        weights = np.random.default_rng(1).standard_normal((size, size)).astype(np.float32) / size**0.5
        nodes = [
            helper.make_node("MatMul", ["x" if at == 0 else f"h{at}", "w"], ["y" if at == 3 else f"h{at + 1}"])
            for at in range(4)
        ]
        return self.save(name, nodes, [("x", FLOAT, ("N", size))], [("y", FLOAT, ("N", size))], {"w": weights})

    def mean_over_batch(self, name: str) -> Path:
        """Keeps a shape that could be a row's, and mixes all rows (V08 b)."""
        return self.save(
            name,
            [helper.make_node("ReduceMean", ["x"], ["y"], axes=[0], keepdims=1)],
            [("x", FLOAT, ("N", 4))],
            [("y", FLOAT, (1, 4))],
        )

    def centred(self, name: str) -> Path:
        """Every row less the batch's mean: all shapes are right, every value depends on the others."""
        return self.save(
            name,
            [
                helper.make_node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1),
                helper.make_node("Sub", ["x", "m"], ["y"]),
            ],
            [("x", FLOAT, ("N", 4))],
            [("y", FLOAT, ("N", 4))],
        )

    def constant_of_one_row(self, name: str) -> Path:
        """Declares N rows and concatenates a constant of one (V08 c)."""
        return self.save(
            name,
            [helper.make_node("Concat", ["x", "c"], ["y"], axis=1)],
            [("x", FLOAT, ("N", 4))],
            [("y", FLOAT, ("N", 6))],
            {"c": np.zeros((1, 2), np.float32)},
        )

    def gather(self, name: str, words: int = 10) -> Path:
        return self.save(
            name,
            [helper.make_node("Gather", ["table", "ids"], ["y"])],
            [("ids", INT64, ("batch", "length"))],
            [("y", FLOAT, ("batch", "length", 3))],
            {"table": np.arange(words * 3, dtype=np.float32).reshape(words, 3)},
        )

    def never_runs(self, name: str) -> Path:
        """A valid graph whose every run fails: rows of four into a shape of 35."""
        return self.save(
            name,
            [helper.make_node("Reshape", ["x", "shape"], ["y"])],
            [("x", FLOAT, ("N", 4))],
            [("y", FLOAT, ("M", "K"))],
            {"shape": np.array([7, 5], np.int64)},
        )

    def external(self, name: str) -> Path:
        """Weights in `model.onnx_data` beside the model."""
        weights = np.random.default_rng(2).standard_normal((64, 64)).astype(np.float32)
        return self.save(
            name,
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            [("x", FLOAT, ("N", 64))],
            [("y", FLOAT, ("N", 64))],
            {"w": weights},
            save_as_external_data=True,
            location="model.onnx_data",
            size_threshold=16,
        )

    def recurrent(self, name: str) -> Path:
        """A state whose batch is its second axis, and a scalar that counts no rows, as in silero."""
        nodes = [
            helper.make_node("ReduceSum", ["state", "axis0"], ["s"], keepdims=0),
            helper.make_node("Add", ["x", "s"], ["xs"]),
            helper.make_node("Cast", ["rate"], ["r"], to=FLOAT),
            helper.make_node("Mul", ["xs", "r"], ["y"]),
            helper.make_node("Add", ["state", "one"], ["next"]),
        ]
        return self.save(
            name,
            nodes,
            [("x", FLOAT, (None, 3)), ("state", FLOAT, (2, None, 3)), ("rate", INT64, ())],
            [("y", FLOAT, (None, 3)), ("next", FLOAT, (None, None, None))],
            {"axis0": np.array([0], np.int64), "one": np.float32(1)},
        )


class FakeBatchInput:
    """Stands in for the extension's `Input`: a name, a datatype, a shape and the bytes."""

    def __init__(self, name: str, datatype: str, shape: tuple[int, ...], data: bytes | list[str]) -> None:
        self.name, self.datatype, self.shape, self._data = name, datatype, shape, data

    def strings(self) -> list[str]:
        assert isinstance(self._data, list)
        return self._data


class FakeBatch:
    """Stands in for the extension's `Batch`."""

    def __init__(self, rows: int, inputs: list[Any], output_names: tuple[str, ...]) -> None:
        self.rows, self.inputs, self.output_names, self.parameters = rows, inputs, output_names, {}


class RawInput(bytes):
    """An input whose buffer is itself, as the extension's is."""

    name: str
    datatype: str
    shape: tuple[int, ...]


def raw_input(name: str, datatype: str, array: np.ndarray[Any, Any]) -> RawInput:
    made = RawInput(np.ascontiguousarray(array).tobytes())
    made.name, made.datatype, made.shape = name, datatype, array.shape
    return made


class RecordingFront:
    """Stands in for the extension's `WorkerFront`: notes what it is told."""

    def __init__(self) -> None:
        self.installed: dict[tuple[str, str], Any] = {}
        self.removed: list[tuple[str, str]] = []
        self.catalogs: list[dict[str, Any]] = []
        self.counted: dict[str, Any] = {"models": []}

    def install(self, model: str, executors: Any) -> None:
        spec = json.loads(model)
        self.installed[spec["name"], spec["version"]] = (spec, executors)

    def remove(self, name: str, version: str, timeout_s: float) -> bool:
        self.removed.append((name, version))
        self.installed.pop((name, version), None)
        return True

    def set_catalog(self, catalog: str) -> None:
        self.catalogs.append(json.loads(catalog))

    def statistics(self) -> str:
        return json.dumps(self.counted)


@pytest.fixture
def zoo(tmp_path: Path) -> Zoo:
    root = tmp_path / "models"
    root.mkdir()
    return Zoo(root)


@pytest.fixture
def defaults() -> Defaults:
    return Defaults(device="cpu", instances=1, processors=1)


@pytest.fixture
def front() -> RecordingFront:
    return RecordingFront()


@pytest.fixture
def batch_of() -> Any:
    """Makes a batch from `{name: (datatype, array or list of str)}`."""

    def make(outputs: tuple[str, ...], rows: int, **tensors: Any) -> FakeBatch:
        inputs: list[Any] = []
        for name, (datatype, value) in tensors.items():
            if datatype == "BYTES":
                inputs.append(FakeBatchInput(name, datatype, (len(value),), value))
            else:
                inputs.append(raw_input(name, datatype, value))
        return FakeBatch(rows, inputs, outputs)

    return make
