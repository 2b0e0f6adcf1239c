"""A second of sound through a voice detector that remembers: one stream, state handed from answer to request.

Each request needs the state from the answer before, so the requests come from a generator that waits for it.
Needs `make up`.

    .venv/bin/python examples/stream.py
"""

import queue
from collections.abc import Iterator

import numpy as np

from headrace import Client
from headrace.calls import Inputs

RATE = 16_000
CHUNK, CONTEXT = 512, 64


def main() -> None:
    """Feed noise, chunk by chunk, and print how likely each is to be speech."""
    sound = np.random.default_rng(1).normal(0, 0.01, RATE).astype(np.float32)
    states: queue.SimpleQueue[np.ndarray] = queue.SimpleQueue()
    states.put(np.zeros((2, 1, 128), np.float32))

    def requests() -> Iterator[Inputs]:
        heard = np.concatenate([np.zeros(CONTEXT, np.float32), sound])
        for start in range(0, RATE - CHUNK + 1, CHUNK):
            chunk = heard[start : start + CONTEXT + CHUNK][None]
            yield {"input": chunk, "state": states.get(), "sr": np.array(RATE)}

    with Client() as client:
        client.wait_ready("silero_vad", timeout=30)
        for number, result in enumerate(client.stream("silero_vad", requests(), timeout=30)):
            states.put(result["stateN"])
            print(f"{number * CHUNK / RATE:5.2f} s  speech {float(result['output'][0, 0]):.3f}")


if __name__ == "__main__":
    main()
