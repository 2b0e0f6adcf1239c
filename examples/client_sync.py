"""Two sentences, one request: how near are they? Needs `make up` (or any server with the model `minilm`).

.venv/bin/python examples/client_sync.py
"""

import numpy as np

import headrace

# What the model's tokenizer makes of "The weather is lovely today." and "It's so sunny outside!".
IDS = np.array(
    [[101, 1996, 4633, 2003, 8403, 2651, 1012, 102, 0], [101, 2009, 1005, 1055, 2061, 11559, 2648, 999, 102]],
    dtype=np.int64,
)
MASK = (IDS != 0).astype(np.int64)


def main() -> None:
    """Ask, and print how near the two are."""
    with headrace.Client() as client:
        client.wait_ready("minilm", timeout=30)
        result = client.infer("minilm", {"input_ids": IDS, "attention_mask": MASK}, timeout=5)
        first, second = result["sentence_embedding"]
        print(f"{result.model} version {result.version}: similarity {float(first @ second):.4f}")

        # What doesn't fit is refused before it is sent, and says how to make it fit.
        try:
            client.infer("minilm", {"input_ids": IDS.astype(np.int32), "attention_mask": MASK})
        except headrace.errors.InvalidTensor as error:
            print("refused:", error)


if __name__ == "__main__":
    main()
