"""Many requests at once from one asyncio task: the server puts them into batches. Needs `make up`.

.venv/bin/python examples/client_async.py
"""

import asyncio
import time

import numpy as np

from headrace import aio

REQUESTS = 500


async def main() -> None:
    """Send all the requests, 64 at a time, and look at what the server made of them."""
    dice = np.random.default_rng(1)
    rows = dice.standard_normal((REQUESTS, 1, 30)).astype(np.float32)
    room = asyncio.Semaphore(64)
    async with aio.Client() as client:
        await client.wait_ready("gbdt", timeout=30)

        async def ask(row: np.ndarray) -> int:
            async with room:
                result = await client.infer("gbdt", row, timeout=5)
                return int(result["label"][0])

        began = time.perf_counter()
        labels = await asyncio.gather(*(ask(row) for row in rows))
        took = time.perf_counter() - began
        statistics = (await client.statistics("gbdt"))[0]
    print(f"{len(labels)} answers in {took:.2f} s, {sum(labels)} of them class 1")
    print(f"the model ran {statistics['execution_count']} batches for {statistics['inference_count']} rows so far")


if __name__ == "__main__":
    asyncio.run(main())
