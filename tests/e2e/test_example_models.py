"""The example models through the whole stack give the answers that are known to be right (`examples/models/golden.json`).

The same values are held to ONNX Runtime alone in `tests/contract`: what fails only here, the servers did.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer

from tests.e2e.conftest import MODELS, NAMES, ROOT

if TYPE_CHECKING:
    from headrace import Client
    from tests.support.processes import Stack

GOLDEN = json.loads((ROOT / "examples" / "models" / "golden.json").read_text())
TIMEOUT = 60.0


def labels(name: str) -> list[str]:
    return (MODELS / name / "labels.txt").read_text().splitlines()


@pytest.mark.parametrize("name", NAMES)
def test_it_is_ready(client: Client, name: str) -> None:
    assert client.model_ready(name)


@pytest.mark.parametrize("photo", GOLDEN["efficientnet"]["photos"], ids=lambda photo: photo["label"])
def test_efficientnet_sees_what_is_in_the_photo(client: Client, photo: dict[str, Any]) -> None:
    with Image.open(ROOT / photo["file"]) as image:
        side = round(min(image.size) * 0.875)
        left, top = ((length - side) // 2 for length in image.size)
        square = image.convert("RGB").crop((left, top, left + side, top + side)).resize((224, 224))
    scores = client.infer("efficientnet", {"image": np.asarray(square)[None]}, timeout=TIMEOUT)["probabilities"][0]
    best = int(scores.argmax())
    assert (best, labels("efficientnet")[best]) == (photo["index"], photo["label"])
    assert scores[best] >= photo["at_least"]


def tokens(sentences: list[str]) -> dict[str, np.ndarray]:
    tokenizer = Tokenizer.from_file(str(MODELS / "minilm" / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(sentences)
    return {
        "input_ids": np.array([one.ids for one in encoded], np.int64),
        "attention_mask": np.array([one.attention_mask for one in encoded], np.int64),
    }


def test_minilm_finds_the_similarities_that_are_published(client: Client) -> None:
    golden = GOLDEN["minilm"]
    vectors = client.infer("minilm", tokens(golden["sentences"]), timeout=TIMEOUT)["sentence_embedding"]
    np.testing.assert_allclose(vectors @ vectors.T, golden["similarity"], atol=1e-4)


def test_sentences_sent_one_by_one_at_once_give_the_same(client: Client) -> None:
    golden = GOLDEN["minilm"]
    sentences = golden["sentences"] * 8

    def one(sentence: str) -> np.ndarray:
        vector: np.ndarray = client.infer("minilm", tokens([sentence]), timeout=TIMEOUT)["sentence_embedding"][0]
        return vector

    with ThreadPoolExecutor(12) as threads:
        vectors = np.stack(list(threads.map(one, sentences)))
    expected = np.tile(np.array(golden["similarity"]), (8, 8))
    np.testing.assert_allclose(vectors @ vectors.T, expected, atol=2e-4)


@pytest.mark.parametrize("file", GOLDEN["magika"]["files"], ids=lambda file: file["label"])
def test_magika_knows_the_type_of_the_file(client: Client, file: dict[str, Any]) -> None:
    content = (ROOT / file["file"]).read_bytes()
    head, tail = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
    row = np.full((1, 2048), 256, np.int32)
    row[0, : len(head)] = list(head)
    row[0, 2048 - len(tail) :] = list(tail)
    (scores,) = client.infer("magika", {"bytes": row}, timeout=TIMEOUT)["target_label"]
    assert labels("magika")[int(scores.argmax())] == file["label"]
    assert scores.max() >= file["at_least"]


RATE = np.array(GOLDEN["silero_vad"]["sample_rate"], np.int64)
ROW = int(GOLDEN["silero_vad"]["row"])


def listen(client: Client, sound: np.ndarray) -> list[float]:
    """A stream of 32 ms pieces, each with the state that the one before left."""
    state, heard = np.zeros((2, 1, 128), np.float32), []
    for piece in sound:
        told = client.infer("silero_vad", {"input": piece[None], "state": state, "sr": RATE}, timeout=TIMEOUT)
        assert told["stateN"].shape == (2, 1, 128)
        heard.append(told["output"].item())
        state = told["stateN"]
    return heard


def test_silero_hears_nobody_in_silence(client: Client) -> None:
    heard = listen(client, np.zeros((20, ROW), np.float32))
    assert max(heard) <= GOLDEN["silero_vad"]["silence_at_most"]


def test_silero_keeps_interleaved_streams_apart(client: Client) -> None:
    noise = np.random.default_rng(4)
    sounds = [noise.normal(0, 0.02 + 0.03 * number, (12, ROW)).astype(np.float32) for number in range(8)]
    alone = [listen(client, sound) for sound in sounds]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda sound: listen(client, sound), sounds))
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_silero_serves_rows_of_one_request_on_its_second_axis(client: Client) -> None:
    sounds = np.random.default_rng(5).normal(0, 0.1, (3, ROW)).astype(np.float32)
    states = np.random.default_rng(6).normal(0, 0.5, (2, 3, 128)).astype(np.float32)
    together = client.infer("silero_vad", {"input": sounds, "state": states, "sr": RATE}, timeout=TIMEOUT)
    for row in range(3):
        sent = {"input": sounds[row : row + 1], "state": np.ascontiguousarray(states[:, row : row + 1]), "sr": RATE}
        alone = client.infer("silero_vad", sent, timeout=TIMEOUT)
        np.testing.assert_allclose(together["output"][row], alone["output"][0], atol=1e-5)
        np.testing.assert_allclose(together["stateN"][:, row], alone["stateN"][:, 0], atol=1e-4)


def test_gbdt_scores_as_scikit_learn_does(client: Client) -> None:
    golden = GOLDEN["gbdt"]
    told = client.infer("gbdt", {"input": np.array(golden["rows"], np.float32)}, timeout=TIMEOUT)
    assert told["label"].tolist() == golden["labels"]
    np.testing.assert_allclose(told["probabilities"], golden["probabilities"], atol=golden["tolerance"])


def test_the_demonstration_prints_what_it_promises(stack: Stack) -> None:
    ended = subprocess.run(
        [sys.executable, ROOT / "examples" / "models" / "demo.py", "--url", stack.address],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "espresso" in ended.stdout
    assert "0.67" in ended.stdout or "0.666" in ended.stdout
