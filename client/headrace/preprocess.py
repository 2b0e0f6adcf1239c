"""Photos, texts and files as tensors, by what a model's card says.

Pillow and tokenizers are imported when needed: the library doesn't depend on them, the command line's extra does.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headrace.console import CommandProblem
from headrace.metadata import ModelMetadata, TensorSpec
from headrace.values import read_bytes
from headrace_core.cards import FileInput, ImageInput, TextInput
from headrace_core.datatypes import BY_NAME
from headrace_core.tensors import Array

if TYPE_CHECKING:
    from PIL import Image


def images_to_tensor(paths: Sequence[Path], *, card: ImageInput, spec: TensorSpec) -> Array:
    """The pixels of some images, one row each, as the card wants them.

    Raises:
        CommandProblem: a file is no image.
    """
    rows = [_pixels(path, card) for path in paths]
    if spec.datatype == "UINT8":
        array = np.stack(rows).round().clip(0, 255).astype(np.uint8)
    else:
        scaled: Array = np.stack(rows) * np.float32(card.scale)
        if card.mean:
            scaled = scaled - np.array(card.mean, np.float32)
        if card.std:
            scaled = scaled / np.array(card.std, np.float32)
        array = scaled.astype(_dtype(spec))
    if card.layout == "NCHW":
        array = np.ascontiguousarray(array.transpose(0, 3, 1, 2))
    return _rows(array, spec)


def image_as_it_is(path: Path, *, spec: TensorSpec) -> Array:
    """An image's RGB pixels, for a model without a card that takes just these.

    Raises:
        CommandProblem: the model's input doesn't look like pixels in that layout.
    """
    if spec.datatype != "UINT8" or not spec.shape or spec.shape[-1] != 3:
        raise CommandProblem(
            f"{spec} is no plain RGB picture, and the model has no card that says how to make it from {path.name}; "
            "prepare the array yourself and send a .npy file"
        )
    card = ImageInput(kind="image", size=(1, 1))
    image = _open(path, card)
    return _rows(np.asarray(image, np.uint8)[None], spec)


def texts_to_tensors(
    texts: Sequence[str], *, card: TextInput, tokenizer: Path, metadata: ModelMetadata
) -> tuple[dict[str, Array], list[int]]:
    """Token ids (and mask, and segments) of some texts, one row each, padded to the longest.

    Also which texts were cut to the card's `max_tokens`, by their index.

    Raises:
        CommandProblem: the tokenizer can't be read.
    """
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 — an extra of the command line
    except ImportError as error:
        raise CommandProblem("--text needs the package tokenizers: pip install 'headrace[cli]'") from error
    try:
        loaded = Tokenizer.from_file(str(tokenizer))
    except Exception as error:
        raise CommandProblem(f"{tokenizer} is no tokenizer: {error}") from error
    padding = loaded.padding or {}
    pad_id = int(padding.get("pad_id", 0))
    loaded.no_padding()
    loaded.no_truncation()
    cut = [index for index, one in enumerate(loaded.encode_batch(list(texts))) if len(one.ids) > card.max_tokens]
    loaded.enable_truncation(card.max_tokens)
    encoded = loaded.encode_batch(list(texts))
    width = max(len(one.ids) for one in encoded)
    specs = {spec.name: spec for spec in metadata.inputs}
    tensors: dict[str, Array] = {}
    for name, fill, rows in (
        (card.ids, pad_id, [one.ids for one in encoded]),
        (card.mask, 0, [one.attention_mask for one in encoded]),
        (card.type_ids, 0, [one.type_ids for one in encoded]),
    ):
        if not name:
            continue
        if name not in specs:
            raise CommandProblem(f"the card of {metadata.name} names an input {name!r} that the model doesn't have")
        array = np.full((len(rows), width), fill, dtype=_dtype(specs[name]))
        for index, row in enumerate(rows):
            array[index, : len(row)] = row
        tensors[name] = array
    return tensors, cut


def files_to_tensor(paths: Sequence[Path], *, card: FileInput, spec: TensorSpec) -> Array:
    """The two ends of some files, one row each.

    Raises:
        CommandProblem: a file can't be read.
    """
    rows = np.full((len(paths), card.head + card.tail), card.pad, dtype=_dtype(spec))
    for row, path in zip(rows, paths, strict=True):
        contents = read_bytes(path)
        head, tail = contents[: card.window], contents[-card.window :]
        if card.strip:
            head, tail = head.lstrip(), tail.rstrip()
        head = head[: card.head]
        tail = tail[-card.tail :] if card.tail else b""
        row[: len(head)] = np.frombuffer(head, np.uint8)
        row[len(row) - len(tail) :] = np.frombuffer(tail, np.uint8)
    return rows


def find_tokenizer(model: str, *, card: TextInput, given: Path | None, models: Path | None) -> Path:
    """The tokenizer's file: the one that was named, or the one in the model's folder on this machine.

    Raises:
        CommandProblem: there is none.
    """
    if given is not None:
        return given
    folders = [models] if models is not None else [Path("models")]
    for folder in folders:
        for candidate in (folder / model / card.tokenizer, *sorted((folder / model).glob(f"*/{card.tokenizer}"))):
            if candidate.is_file():
                return candidate
    raise CommandProblem(
        f"{model} needs its tokenizer ({card.tokenizer}) on this machine: name it with --tokenizer, or the folder that "
        "holds the model's folder with --models"
    )


def _pixels(path: Path, card: ImageInput) -> Array:
    from PIL import Image  # noqa: PLC0415 — an extra of the command line

    image = _open(path, card)
    side = card.crop * min(image.size)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    height, width = card.size
    filters = {
        "bicubic": Image.Resampling.BICUBIC,
        "bilinear": Image.Resampling.BILINEAR,
        "nearest": Image.Resampling.NEAREST,
    }
    resized = image.resize((width, height), filters[card.resize], box=(left, top, left + side, top + side))
    array = np.asarray(resized, np.float32)
    if card.channels == "L":
        return array[:, :, None]
    return array[:, :, ::-1] if card.channels == "BGR" else array


def _open(path: Path, card: ImageInput) -> "Image.Image":
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError  # noqa: PLC0415 — an extra of the command line
    except ImportError as error:
        raise CommandProblem("images need the package pillow: pip install 'headrace[cli]'") from error
    try:
        with Image.open(path) as image:
            # Cameras store the picture lying and say which way is up.
            return ImageOps.exif_transpose(image).convert("L" if card.channels == "L" else "RGB")
    except UnidentifiedImageError as error:
        raise CommandProblem(f"{path} is no image that pillow can read") from error
    except OSError as error:
        raise CommandProblem(f"{path} can't be read: {error.strerror or error}") from error


def _rows(array: Array, spec: TensorSpec) -> Array:
    # A model without a batch axis takes the one picture itself.
    return array[0] if len(array) == 1 and len(spec.shape) == array.ndim - 1 else array


def _dtype(spec: TensorSpec) -> "np.dtype[np.generic]":
    kind = BY_NAME.get(spec.datatype)
    if kind is None or kind.size is None:
        raise CommandProblem(f"the model's card fills {spec}, which takes no numbers")
    return kind.dtype
