"""A first inference: what is in a photo, and which sentences mean much the same.

    python examples/models/demo.py [--url HOST:PORT]

Asks a running Headrace that serves the example models (`make up`) with the client that anybody uses.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from tokenizers import Tokenizer

import headrace

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "models"
SENTENCES = ("The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium.")


def classify(client: headrace.Client, photo: Path) -> str:
    """The likeliest of 1,000 classes, with its probability."""
    with Image.open(photo) as image:
        # The middle of the picture, as in training: 7/8 of the shorter side, at 224 × 224 pixels.
        side = round(min(image.size) * 0.875)
        left, top = ((length - side) // 2 for length in image.size)
        square = image.convert("RGB").crop((left, top, left + side, top + side)).resize((224, 224))
    scores = client.infer("efficientnet", {"image": np.asarray(square)[None]}, timeout=30.0)["probabilities"][0]
    labels = (MODELS / "efficientnet" / "labels.txt").read_text().splitlines()
    best = int(scores.argmax())
    return f"{labels[best]} ({scores[best]:.0%})"


def similarities(client: headrace.Client, sentences: tuple[str, ...]) -> np.ndarray:
    """How near each sentence is to each other one in meaning: 1 is the same."""
    tokenizer = Tokenizer.from_file(str(MODELS / "minilm" / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    tokens = tokenizer.encode_batch(list(sentences))
    inputs = {
        "input_ids": np.array([one.ids for one in tokens], np.int64),
        "attention_mask": np.array([one.attention_mask for one in tokens], np.int64),
    }
    vectors = client.infer("minilm", inputs, timeout=30.0)["sentence_embedding"]
    return np.asarray(vectors @ vectors.T)


def main() -> int:
    """Prints both answers."""
    parser = argparse.ArgumentParser(description="Ask a running Headrace for a first inference.")
    parser.add_argument("--url", help="where it listens; default: HEADRACE_URL, else 127.0.0.1:8001")
    url: str | None = parser.parse_args().url
    try:
        with headrace.Client(url) as client:
            photo = MODELS / "efficientnet" / "coffee.png"
            print(f"\n{photo.relative_to(ROOT)} shows: {classify(client, photo)}")
            near = similarities(client, SENTENCES)
    except (headrace.ServingError, OSError) as problem:
        print(f"The first inference failed: {problem}", file=sys.stderr)
        return 1
    for other in range(1, len(SENTENCES)):
        print(f"“{SENTENCES[0]}” and “{SENTENCES[other]}” are {near[0, other]:.2f} alike")
    return 0


if __name__ == "__main__":
    sys.exit(main())
