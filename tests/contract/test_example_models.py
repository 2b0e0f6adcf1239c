"""The built example models against `examples/models/golden.json`, by ONNX Runtime alone.

What a server adds is tested elsewhere; if these fail, the models are wrong and not the server.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import yaml
from PIL import Image
from tokenizers import Tokenizer

from headrace_core.cards import Card

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "models"
GOLDEN = json.loads((ROOT / "examples" / "models" / "golden.json").read_text())

Run = Callable[..., list[np.ndarray[Any, Any]]]


def load(name: str) -> Run:
    path = MODELS / name / "1" / "model.onnx"
    assert path.exists(), f"{path} is missing: run `make models`"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda **inputs: session.run(None, inputs)


def labels(name: str) -> list[str]:
    return (MODELS / name / "labels.txt").read_text().splitlines()


def test_minilm_finds_the_similarities_that_are_published() -> None:
    golden = GOLDEN["minilm"]
    tokenizer = Tokenizer.from_file(str(MODELS / "minilm" / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(golden["sentences"])
    ids = np.array([e.ids for e in encoded], np.int64)
    mask = np.array([e.attention_mask for e in encoded], np.int64)
    assert ids.tolist() == golden["input_ids"]
    assert mask.tolist() == golden["attention_mask"]
    (vectors,) = load("minilm")(input_ids=ids, attention_mask=mask)
    np.testing.assert_allclose(vectors @ vectors.T, golden["similarity"], atol=golden["tolerance"])


def test_minilm_gives_a_sentence_the_same_vector_with_and_without_padding() -> None:
    golden = GOLDEN["minilm"]
    ids, mask = np.array(golden["input_ids"], np.int64), np.array(golden["attention_mask"], np.int64)
    run = load("minilm")
    (together,) = run(input_ids=ids, attention_mask=mask)
    (alone,) = run(input_ids=ids[:1, :8], attention_mask=mask[:1, :8])
    np.testing.assert_allclose(together[0], alone[0], atol=1e-5)


@pytest.mark.parametrize("photo", GOLDEN["efficientnet"]["photos"], ids=lambda photo: photo["label"])
def test_efficientnet_sees_what_is_in_the_photo(photo: dict[str, Any]) -> None:
    with Image.open(ROOT / photo["file"]) as image:
        width, height = image.size
        side = round(min(width, height) * 0.875)
        left, top = (width - side) // 2, (height - side) // 2
        square = (
            image.convert("RGB").crop((left, top, left + side, top + side)).resize((224, 224), Image.Resampling.BICUBIC)
        )
    (probabilities,) = load("efficientnet")(image=np.asarray(square)[None])
    best = int(probabilities[0].argmax())
    assert (best, labels("efficientnet")[best]) == (photo["index"], photo["label"])
    assert probabilities[0, best] >= photo["at_least"]
    assert probabilities.sum() == pytest.approx(1.0, abs=1e-4)


def test_efficientnet_has_a_thousand_names_and_only_the_two_cranes_share_theirs() -> None:
    names = Counter(labels("efficientnet"))
    assert names.total() == 1000
    assert {name for name, uses in names.items() if uses > 1} == {"crane"}


@pytest.mark.parametrize("file", GOLDEN["magika"]["files"], ids=lambda file: file["label"])
def test_magika_knows_the_type_of_the_file(file: dict[str, Any]) -> None:
    content = (ROOT / file["file"]).read_bytes()
    head, tail = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
    row = np.full((1, 2048), 256, np.int32)
    row[0, : len(head)] = list(head)
    row[0, 2048 - len(tail) :] = list(tail)
    (scores,) = load("magika")(bytes=row)
    assert labels("magika")[int(scores[0].argmax())] == file["label"]
    assert scores.max() >= file["at_least"]


def test_silero_hears_nobody_in_silence() -> None:
    golden = GOLDEN["silero_vad"]
    run = load("silero_vad")
    state = np.zeros((2, 1, 128), np.float32)
    for _ in range(20):
        speech, state = run(
            input=np.zeros((1, golden["row"]), np.float32), state=state, sr=np.array(golden["sample_rate"], np.int64)
        )
        assert speech.item() <= golden["silence_at_most"]


def test_silero_keeps_streams_apart_on_its_second_axis() -> None:
    golden = GOLDEN["silero_vad"]
    run, rate = load("silero_vad"), np.array(golden["sample_rate"], np.int64)
    noise = np.random.default_rng(0).normal(0, 0.1, (3, golden["row"])).astype(np.float32)
    states = np.random.default_rng(1).normal(0, 0.5, (2, 3, 128)).astype(np.float32)
    together, after = run(input=noise, state=states, sr=rate)
    for row in range(3):
        alone, state = run(input=noise[row : row + 1], state=states[:, row : row + 1], sr=rate)
        np.testing.assert_allclose(together[row], alone[0], atol=1e-6)
        np.testing.assert_allclose(after[:, row], state[:, 0], atol=1e-5)


def test_gbdt_scores_as_scikit_learn_does() -> None:
    golden = GOLDEN["gbdt"]
    label, probabilities = load("gbdt")(input=np.array(golden["rows"], np.float32))
    assert label.tolist() == golden["labels"]
    np.testing.assert_allclose(probabilities, golden["probabilities"], atol=golden["tolerance"])


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_its_card_can_be_read_and_names_its_licence(name: str) -> None:
    folder = MODELS / name
    card = Card.model_validate(yaml.safe_load((folder / "model.yaml").read_text())["card"])
    assert card.summary
    assert card.licence
    assert card.delivered(folder).licence == card.licence


def test_building_again_gives_the_same_bytes(tmp_path: Path) -> None:
    names = ["efficientnet", "gbdt"]
    builder = ROOT / "examples" / "models" / "build.py"
    subprocess.run([sys.executable, builder, "--out", tmp_path, *names], check=True, capture_output=True)
    for name in names:
        fresh = (tmp_path / name / "1" / "model.onnx").read_bytes()
        assert fresh == (MODELS / name / "1" / "model.onnx").read_bytes(), name
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
