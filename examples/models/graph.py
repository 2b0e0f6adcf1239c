"""Writes ONNX graphs node by node: the little that the builders here need of `onnx.helper`.

graph = Graph("relu")
x = graph.input("x", TensorProto.FLOAT, ["batch", 4])
graph.output(graph.add("Relu", x, name="y"), TensorProto.FLOAT, ["batch", 4])
graph.save(path, opset=21)
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

# The newest that any ONNX Runtime of the last two years reads.
IR_VERSION = 10


class Graph:
    """A graph under construction. Values are known by their names; every method returns the name it defined."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, element: int, shape: Sequence[int | str]) -> str:
        """Declares an input; a string in the shape is a dimension that may vary."""
        self._inputs.append(helper.make_tensor_value_info(name, element, shape))
        return name

    def output(self, name: str, element: int, shape: Sequence[int | str]) -> str:
        """Declares a value as an output."""
        self._outputs.append(helper.make_tensor_value_info(name, element, shape))
        return name

    def weight(self, name: str, array: np.ndarray[Any, Any] | np.generic) -> str:
        """Stores a constant; the same name again means the same constant."""
        if name not in self._weights:
            self._weights[name] = numpy_helper.from_array(np.ascontiguousarray(array).reshape(np.shape(array)), name)
        return name

    def add(self, operator: str, *inputs: str, name: str, **attributes: Any) -> str:
        """Appends a node with one output, which bears the node's name."""
        self._nodes.append(helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def save(self, path: Path, *, opset: int) -> None:
        """Checks the graph and writes it; the same graph gives the same bytes.

        Raises:
            onnx.checker.ValidationError: the graph is not valid ONNX.
        """
        graph = helper.make_graph(
            self._nodes, self._name, self._inputs, self._outputs, initializer=list(self._weights.values())
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", opset)], producer_name="headrace-examples"
        )
        model.ir_version = IR_VERSION
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, path)
