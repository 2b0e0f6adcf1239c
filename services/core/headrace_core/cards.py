"""Model cards: what a person would have to know to feed a model a photo, a text or a file, and to read its answer.

A model's signature says "UINT8 [-1,224,224,3]"; its card says "an RGB photo, the middle of it, and here are the
class names". The card is written by hand under `card:` in the model's `model.yaml`, travels to clients as JSON in
`ModelMetadata.properties["headrace.card"]`, and serves people at a prompt: the server never applies it to a request.
`docs/model-cards.md` describes every field with examples.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

CARD_PROPERTY = "headrace.card"
"""The key in `ModelMetadata.properties` under which a card travels."""

MAX_LABEL_BYTES = 64 * 1024
"""Labels above this size, as JSON, stay on the server and the card travels without them."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ImageInput(_Part):
    """The model takes a picture."""

    kind: Literal["image"]
    tensor: str = ""
    """The input that holds the pixels. Empty: the model's only input."""
    size: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]
    """Height and width in pixels; one number in the file means both."""
    crop: float = Field(default=1.0, gt=0.0, le=1.0)
    """The middle square that is kept, as a share of the shorter side, before resizing."""
    resize: Literal["bicubic", "bilinear", "nearest"] = "bicubic"
    layout: Literal["NHWC", "NCHW"] = "NHWC"
    channels: Literal["RGB", "BGR", "L"] = "RGB"
    scale: float = 1.0
    """Pixels (0 to 255) are multiplied by this first…"""
    mean: tuple[float, ...] = ()
    """…then this is taken off, per channel…"""
    std: tuple[float, ...] = ()
    """…and the rest divided by this, per channel. Leave all three out where the graph does it."""

    @model_validator(mode="before")
    @classmethod
    def _square(cls, data: object) -> object:
        if isinstance(data, dict) and isinstance(data.get("size"), int):
            return {**data, "size": (data["size"], data["size"])}
        return data

    @model_validator(mode="after")
    def _one_value_a_channel(self) -> Self:
        channels = 1 if self.channels == "L" else 3
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values and len(values) != channels:
                msg = f"`{name}` has {len(values)} values for {channels} channels ({self.channels})"
                raise ValueError(msg)
        if 0.0 in self.std:
            msg = "`std` has a zero, and pixels are divided by it"
            raise ValueError(msg)
        return self


class TextInput(_Part):
    """The model takes token ids, made from text by a Hugging Face `tokenizer.json`."""

    kind: Literal["text"]
    tokenizer: str = "tokenizer.json"
    """A file in the model's folder. It stays there (these files have megabytes); clients name their own copy."""
    ids: str = "input_ids"
    mask: str = ""
    """The input for the attention mask. Empty: the model has none."""
    type_ids: str = ""
    """The input for segment ids. Empty: the model has none."""
    max_tokens: int = Field(default=512, ge=1)
    """Longer texts are cut, and the client says so."""


class FileInput(_Part):
    """The model takes the beginning and the end of a file, as magika does."""

    kind: Literal["file"]
    tensor: str = ""
    """The input that holds the bytes. Empty: the model's only input."""
    head: int = Field(ge=0)
    """Bytes kept from the beginning; missing ones are `pad` at the right."""
    tail: int = Field(default=0, ge=0)
    """Bytes kept from the end; missing ones are `pad` at the left."""
    window: int = Field(default=4096, ge=1)
    """How much of either end is read before blanks are stripped."""
    strip: bool = True
    """Whether blanks are stripped: before the head, after the tail."""
    pad: int = 256


class ClassesOutput(_Part):
    """One score per class, along the last axis."""

    kind: Literal["classes"]
    tensor: str = ""
    """The output with the scores. Empty: the model's first output."""
    labels: str | tuple[str, ...] = ()
    """Class names in order. In `model.yaml` a list, or the name of a text file in the model's folder, one a line."""
    softmax: bool = False
    """True where the scores are logits that still need a softmax to read as probabilities."""
    top: int = Field(default=5, ge=1)
    """How many classes are shown."""


class EmbeddingOutput(_Part):
    """One vector per row, compared by its angle."""

    kind: Literal["embedding"]
    tensor: str = ""
    """The output with the vectors. Empty: the model's first output."""


class Card(_Part):
    """How people feed this model and read its answers."""

    summary: str = ""
    """One line: what the model is for."""
    licence: str = ""
    input: Annotated[ImageInput | TextInput | FileInput, Field(discriminator="kind")] | None = None
    output: Annotated[ClassesOutput | EmbeddingOutput, Field(discriminator="kind")] | None = None

    def delivered(self, folder: Path) -> "Card":
        """The card as it travels: a label file's lines in place of its name, or none if they are too large.

        `folder` is the model's own; a label file outside it is refused.

        Raises:
            ValueError: the label file is missing, unreadable, or outside the folder.
        """
        output = self.output
        if not isinstance(output, ClassesOutput):
            return self
        labels = output.labels if not isinstance(output.labels, str) else _read_labels(folder, output.labels)
        delivered = output.model_copy(update={"labels": labels})
        if len(delivered.model_dump_json()) > MAX_LABEL_BYTES:
            delivered = output.model_copy(update={"labels": ()})
        return self.model_copy(update={"output": delivered})


def _read_labels(folder: Path, name: str) -> tuple[str, ...]:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        msg = f"the card's label file {name!r} is outside the model's folder"
        raise ValueError(msg)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"the card's label file {name!r} can't be read: {error}"
        raise ValueError(msg) from error
    return tuple(line.strip() for line in text.splitlines() if line.strip())
