"""Mixed load for minutes: sizes, lengths, errors, cancels, deadlines, streams, reloads, clients that vanish. Memory stays flat.

`make soak` runs it whole (`HEADRACE_SOAK_SECONDS`, 240 by default); a short slice of it runs with all tests.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from headrace_protos.inference import grpc_service_pb2 as pb
from tests.load import repository, wire
from tests.load.ask import Ended, ask, canary, channel, depth, nap, plain, request, stub
from tests.load.rig import Process, Rig

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    import grpc.aio

MIB = 1 << 20
EXPECTED = {
    ("OK", ""),
    ("INVALID_ARGUMENT", "INVALID_TENSOR"),
    ("NOT_FOUND", "MODEL_NOT_FOUND"),
    ("DEADLINE_EXCEEDED", ""),
    ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED"),
    ("DEADLINE_EXCEEDED", "EXPIRED_IN_QUEUE"),
    ("DEADLINE_EXCEEDED", "CANNOT_MEET_DEADLINE"),
    ("CANCELLED", ""),
}
# While a model is unloaded it is unknown or unavailable; nobody asked for anything else.
RELOADED = EXPECTED | {
    ("UNAVAILABLE", "NO_REPLICA"),
    ("UNAVAILABLE", "MODEL_LOADING"),
    ("UNAVAILABLE", "DRAINING"),
    ("FAILED_PRECONDITION", "MODEL_FAILED"),
}


class Soak:
    """Callers of every kind against one door, each in a loop."""

    def __init__(self, door: Process, worker: Process, *, seed: int) -> None:
        self.door, self.worker = door, worker
        self.random = random.Random(seed)
        self.told: Counter[tuple[str, str]] = Counter()
        self.wrong: list[object] = []
        self._over = asyncio.Event()

    async def run(self, seconds: float) -> None:
        kinds: list[Callable[[grpc.aio.Channel], Awaitable[None]]] = [
            *[self.rows] * 4, self.lengths, self.large, self.mistakes, self.impatient, self.changed_mind, self.stream,
            self.reload, self.vanish,
        ]  # fmt: skip
        async with asyncio.TaskGroup() as group:
            for kind in kinds:
                group.create_task(self._again_and_again(kind))
            await asyncio.sleep(seconds)
            self._over.set()

    async def _again_and_again(self, kind: Callable[[grpc.aio.Channel], Awaitable[None]]) -> None:
        while not self._over.is_set():
            # A connection lives for a while, as clients' do.
            async with channel(self.door.address) as link:
                end = time.monotonic() + self.random.uniform(0.5, 4)
                while time.monotonic() < end and not self._over.is_set():
                    await kind(link)

    def _note(self, ended: Ended, *, allowed: set[tuple[str, str]] = EXPECTED) -> None:
        self.told[ended.code, ended.reason] += 1
        if (ended.code, ended.reason) not in allowed:
            self.wrong.append(ended)

    async def rows(self, link: grpc.aio.Channel) -> None:
        """One to eight rows that must come back plus one."""
        rows = np.random.default_rng(self.random.randrange(1 << 30)).standard_normal((self.random.randint(1, 8), 4))
        values = rows.astype(np.float32)
        ended = await ask(link, request("add", values))
        self._note(ended)
        if ended.answer is not None and not np.array_equal(ended.answer, values + np.float32(1)):
            self.wrong.append("somebody else's rows")

    async def lengths(self, link: grpc.aio.Channel) -> None:
        values = np.full((self.random.randint(1, 4), self.random.randint(0, 512)), 7, np.float32)
        ended = await ask(link, request("echo", values))
        self._note(ended)
        if ended.answer is not None and ended.answer.shape != values.shape:
            self.wrong.append("another length")

    async def large(self, link: grpc.aio.Channel) -> None:
        """A mebibyte out, or up to two in and out."""
        if self.random.random() < 0.5:
            self._note(await ask(link, plain(model="big"), timeout=20))
        else:
            width = self.random.randrange(1, 512 * 1024)
            self._note(await ask(link, request("echo", np.ones((1, width), np.float32)), timeout=20))
        await asyncio.sleep(0.05)

    async def mistakes(self, link: grpc.aio.Channel) -> None:
        wrong = plain()
        wrong.raw_input_contents[0] = wrong.raw_input_contents[0][:-1]
        self._note(await ask(link, wrong))
        self._note(await ask(link, plain(model=f"nobody-{self.random.randrange(10_000)}")))
        await asyncio.sleep(0.01)

    async def impatient(self, link: grpc.aio.Channel) -> None:
        self._note(await ask(link, nap(20), timeout=self.random.uniform(0.001, 0.06)))

    async def changed_mind(self, link: grpc.aio.Channel) -> None:
        call = stub(link).ModelInfer(nap(20))
        await asyncio.sleep(self.random.uniform(0, 0.03))
        call.cancel()
        await asyncio.wait([asyncio.ensure_future(call.code())])

    async def stream(self, link: grpc.aio.Channel) -> None:
        call: Any = stub(link).ModelStreamInfer(timeout=20)
        for n in range(self.random.randint(1, 20)):
            await call.write(plain(float(n)))
        await call.done_writing()
        if self.random.random() < 0.3:
            call.cancel()
            return
        async for message in call:
            if message.error_message:
                self.wrong.append(message.error_message)

    async def reload(self, _link: grpc.aio.Channel) -> None:
        """Unloads and loads a model that others ask for meanwhile."""
        async with channel(self.worker.address) as straight:
            await stub(straight).RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="paced"), timeout=20)
            self._note(await ask(straight, plain(model="paced")), allowed=RELOADED)
            await stub(straight).RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="paced"), timeout=20)
            self._note(await ask(straight, plain(model="paced")))
        await asyncio.sleep(0.5)

    async def vanish(self, _link: grpc.aio.Channel) -> None:
        peer = await asyncio.to_thread(wire.Peer, self.door.address)
        peer.greet()
        message = wire.message(nap(5))
        for n in range(self.random.randint(1, 32)):
            peer.send(wire.call(2 * n + 1) + wire.data(2 * n + 1, message, end=True))
        await asyncio.sleep(self.random.uniform(0, 0.05))
        peer.close()
        await asyncio.sleep(0.2)


async def _soak(folder: Path, *, warm: float, seconds: float, samples: int) -> None:
    models = repository.build(folder / "models", "add", "nap", "paced", "big", "echo")
    with Rig(folder) as rig:
        worker = rig.worker(models)
        gateway = rig.gateway([worker.address])
        envoy = rig.envoy([gateway.address])
        services = (worker, gateway)
        threads = worker.threads(), gateway.threads()
        soak = Soak(envoy, worker, seed=1)
        await soak.run(warm)
        resident: list[tuple[int, ...]] = []
        begun = time.monotonic()
        for _ in range(samples):
            await soak.run(seconds / samples)
            await asyncio.sleep(0.3)
            resident.append(tuple(one.rss() for one in services))
        minutes = (time.monotonic() - begun) / 60
        print({f"{code} {reason}".strip(): count for (code, reason), count in sorted(soak.told.items())})
        assert soak.wrong == []
        for at, service in enumerate(services):
            sizes = np.array([one[at] for one in resident], float) / MIB
            slope = float(np.polyfit(np.linspace(0, minutes, samples), sizes, 1)[0])
            print(f"{service.name}: {sizes.round(1).tolist()} MiB, {slope:+.2f} MiB a minute")
            # Halves are compared: one sample may catch a large message on its way.
            first, second = np.median(sizes[: samples // 2]), np.median(sizes[samples // 2 :])
            assert second - first < max(8.0, 0.05 * first), sizes
        async with channel(worker.address) as link:
            for model in ("add", "nap", "echo", "big"):
                assert await depth(link, model) == (0, 0)
        assert worker.threads() <= threads[0] + 4
        assert gateway.threads() <= threads[1] + 4
        await canary(envoy.address)
        assert all(one.terminate() == 0 for one in (envoy, gateway, worker))


async def test_a_slice_of_mixed_load_ends_well(tmp_path: Path) -> None:
    await _soak(tmp_path, warm=2, seconds=4, samples=4)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_memory_stays_flat_under_minutes_of_mixed_load(tmp_path: Path) -> None:
    seconds = float(os.environ.get("HEADRACE_SOAK_SECONDS", "240"))
    await _soak(tmp_path, warm=30, seconds=seconds, samples=16)
