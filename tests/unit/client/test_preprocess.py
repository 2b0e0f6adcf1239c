from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

from headrace.console import CommandProblem
from headrace.metadata import ModelMetadata, TensorSpec
from headrace.preprocess import files_to_tensor, find_tokenizer, images_to_tensor, texts_to_tensors
from headrace_core.cards import Card, FileInput, ImageInput, TextInput

PIXELS = TensorSpec(name="x", datatype="UINT8", shape=(-1, 2, 2, 3))


def image(path: Path, array: np.ndarray) -> Path:
    Image.fromarray(array).save(path)
    return path


def test_the_middle_of_the_picture_is_kept_and_channels_are_in_order(tmp_path: Path) -> None:
    wide = np.zeros((2, 6, 3), np.uint8)
    wide[:, 2:4] = (10, 20, 30)
    path = image(tmp_path / "wide.png", wide)
    rgb = ImageInput.model_validate({"kind": "image", "size": 2, "resize": "nearest"})
    np.testing.assert_array_equal(
        images_to_tensor([path, path], card=rgb, spec=PIXELS), np.full((2, 2, 2, 3), [10, 20, 30])
    )
    bgr = rgb.model_copy(
        update={"channels": "BGR", "layout": "NCHW", "scale": 0.1, "mean": (1.0, 1.0, 1.0), "std": (2.0,) * 3}
    )
    floats = TensorSpec(name="x", datatype="FP32", shape=(-1, 3, 2, 2))
    array = images_to_tensor([path], card=bgr, spec=floats)
    assert array.dtype == np.float32
    np.testing.assert_allclose(array[0, :, 0, 0], [1.0, 0.5, 0.0], atol=1e-6)


def test_what_is_no_picture_is_said(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    path.write_text("no")
    card = ImageInput.model_validate({"kind": "image", "size": 2})
    with pytest.raises(CommandProblem, match="no image that pillow can read"):
        images_to_tensor([path], card=card, spec=PIXELS)
    with pytest.raises(CommandProblem, match="can't be read"):
        images_to_tensor([tmp_path / "missing.png"], card=card, spec=PIXELS)


def test_texts_are_padded_to_the_longest_and_cut_to_the_cards_limit(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"[PAD]": 7, "a": 1, "b": 2}, unk_token="[PAD]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    # As sentence-transformers ships them: padded to a fixed length, which is not what a request wants.
    tokenizer.enable_padding(length=128, pad_id=7, pad_token="[PAD]")
    (tmp_path / "m").mkdir()
    path = tmp_path / "m" / "tokenizer.json"
    tokenizer.save(str(path))
    card = TextInput(kind="text", ids="ids", mask="mask", max_tokens=3)
    metadata = ModelMetadata(
        name="m",
        versions=("1",),
        platform="",
        inputs=tuple(TensorSpec(name=name, datatype="INT64", shape=(-1, -1)) for name in ("ids", "mask")),
        outputs=(),
    )
    found = find_tokenizer("m", card=card, given=None, models=tmp_path)
    tensors, cut = texts_to_tensors(["a b", "b b b b"], card=card, tokenizer=found, metadata=metadata)
    assert tensors["ids"].tolist() == [[1, 2, 7], [2, 2, 2]]
    assert tensors["mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert cut == [1]


def test_a_missing_tokenizer_says_where_it_may_be_named(tmp_path: Path) -> None:
    with pytest.raises(CommandProblem, match="--tokenizer"):
        find_tokenizer("m", card=TextInput(kind="text"), given=None, models=tmp_path)


def test_files_give_both_ends_stripped_and_padded(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"  abc ")
    card = FileInput(kind="file", head=6, tail=8)
    spec = TensorSpec(name="bytes", datatype="INT32", shape=(-1, 14))
    row = files_to_tensor([path], card=card, spec=spec)[0].tolist()
    assert row == [*b"abc ", 256, 256, 256, 256, 256, *b"  abc"]


def test_a_card_that_makes_no_sense_is_refused() -> None:
    for wrong in (
        {"input": {"kind": "image"}},
        {"input": {"kind": "image", "size": 2, "mean": [1.0]}},
        {"input": {"kind": "image", "size": 2, "std": [0, 1, 1]}},
        {"input": {"kind": "sound"}},
        {"colour": "red"},
    ):
        with pytest.raises(ValueError, match="validation error"):
            Card.model_validate(wrong)


def test_label_files_travel_inside_the_card_unless_too_large(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    card = Card.model_validate({"output": {"kind": "classes", "labels": "labels.txt"}})
    delivered = card.delivered(tmp_path).output
    assert delivered is not None
    assert delivered.model_dump()["labels"] == ("cat", "dog")
    (tmp_path / "labels.txt").write_text("x" * 70_000)
    large = card.delivered(tmp_path).output
    assert large is not None
    assert large.model_dump()["labels"] == ()
    outside = Card.model_validate({"output": {"kind": "classes", "labels": "../labels.txt"}})
    with pytest.raises(ValueError, match="outside"):
        outside.delivered(tmp_path)
