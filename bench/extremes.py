"""What is rare and must not hurt: 8 MiB in and out, two thousand idle connections, a model whose weights bound it."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import sleep
from typing import Self

from bench import load, models, session, stack
from bench.figures import Table
from bench.load import Layout
from bench.procs import Server, wait_until_quiet

IDLE_CONNECTIONS = 2000


def large_messages(repository: Path, *, repeats: int, seconds: float) -> Iterator[Table]:
    """8 MiB each way, four at a time on one connection."""
    table = Table(
        "identity8m: 8 MiB in, 8 MiB out, 1×4",
        about="gb_s: GB/s each way. peak_mb: memory above idle, MB, all servers.",
    )
    bench = models.IDENTITY
    payload = load.request_file(bench)
    size = payload.stat().st_size
    with ExitStack() as running:
        echo = running.enter_context(load.echo(size))
        worker = running.enter_context(stack.worker(repository))
        gateway = running.enter_context(stack.gateway([worker], names=[bench.name]))
        paths = {"echo": (echo, (echo,)), "worker": (worker, (worker,)), "gateway": (gateway, (gateway,))}
        for _ in range(repeats):
            for name, (door, watched) in paths.items():
                wait_until_quiet()
                with Peak(watched) as peak:
                    run = load.closed(
                        door.address, Layout(1, 4), payload=payload, servers=watched, duration_ms=int(seconds * 1000)
                    )
                table.add(name, gb_s=run.rps * size / 1e9, p50=run.latency["p50"], peak_mb=peak.above / 1e6)
    for name in ("worker", "gateway"):
        share = table.value(name, figure="gb_s") / table.value("echo", figure="gb_s")
        table.goal(f"{name}: share of the echo's throughput", reached=share, wanted=0.7, at_most=False)
    table.goal("gateway: MB a stream", reached=table.value("gateway", figure="peak_mb") / 4, wanted=20)
    yield table


def idle_connections(repository: Path, *, repeats: int, seconds: float) -> Iterator[Table]:
    """Memory of connections that have asked once and then stay."""
    table = Table(f"{IDLE_CONNECTIONS:,} idle connections", about="kb: memory a connection, kB.")
    payload = load.request_file(models.TINY)
    for _ in range(repeats):
        with ExitStack() as running:
            worker = running.enter_context(stack.worker(repository))
            gateway = running.enter_context(stack.gateway([worker], names=["tiny"]))
            for server in (worker, gateway):
                load.closed(server.address, Layout(16, 4), payload=payload, servers=(server,), duration_ms=500)
                with Peak((server,)) as peak:
                    # Two thousand connections, of which each asks about once.
                    load.run(
                        server.address,
                        payload=payload,
                        connections=IDLE_CONNECTIONS,
                        rate=1000,
                        warmup_ms=0,
                        duration_ms=max(2000, int(seconds * 1000)),
                    )
                table.add(server.name, kb=peak.above / 1e3 / IDLE_CONNECTIONS)
    for name in ("worker", "gateway"):
        table.goal(f"{name}: kB a connection", reached=table.value(name, figure="kb"), wanted=15)
    yield table


def batching_pays(repository: Path, *, repeats: int, seconds: float) -> Iterator[Table]:
    """Rows a second beside the best fixed batch, found by sweep in this process; one instance, so that both have one core."""
    table = Table(
        "batching: rows a second beside the best fixed batch of one core", about="share: of the best fixed batch."
    )
    for bench in (models.RNN, models.MID):
        path = repository / bench.name / "1" / "model.onnx"
        payload = load.request_file(bench)
        with stack.worker(repository, instances=1) as worker:
            for _ in range(repeats):
                wait_until_quiet()
                best, batch = max(
                    (size / session.microseconds(path, batch=size) * 1e6, size) for size in session.BATCHES
                )
                run = load.closed(
                    worker.address, Layout(4, 32), payload=payload, servers=(worker,), duration_ms=int(seconds * 1000)
                )
                table.add(bench.name, best_fixed=best, best_batch=batch, served=run.rps, share=run.rps / best)
        table.goal(
            f"{bench.name}: share of the best",
            reached=table.value(bench.name, figure="share"),
            wanted=0.9,
            at_most=False,
        )
    yield table


class Peak:
    """Watches the memory of servers for the length of a block."""

    def __init__(self, servers: tuple[Server, ...]) -> None:
        self._servers = servers
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.above = 0.0

    def __enter__(self) -> Self:
        self._before = self._memory()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _memory(self) -> float:
        return float(sum(server.memory_bytes() for server in self._servers))

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.above = max(self.above, self._memory() - self._before)
            sleep(0.02)
