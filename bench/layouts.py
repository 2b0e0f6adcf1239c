"""Server CPU per request and requests a second, in the three layouts, beside the do-nothing echo and ONNX Runtime's own time."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import load, models, session, stack
from bench.figures import Table
from bench.load import Layout
from bench.procs import Server, wait_until_quiet

ONE_BY_64, SIXTEEN, SIXTY_FOUR = Layout(1, 64), Layout(16, 16), Layout(64, 1)
LAYOUTS = (ONE_BY_64, SIXTEEN, SIXTY_FOUR)


@contextmanager
def all_paths(repository: Path, *, reply_bytes: int) -> Iterator[dict[str, tuple[str, tuple[Server, ...]]]]:
    """Every way to an answer: its address, and the servers on it."""
    with ExitStack() as running:
        echo = running.enter_context(load.echo(reply_bytes))
        worker = running.enter_context(stack.worker(repository))
        gateway = running.enter_context(stack.gateway([worker], names=["tiny", "mid"]))
        envoy = running.enter_context(stack.envoy(gateway.address))
        yield {
            "echo": (echo.address, (echo,)),
            "worker": (worker.address, (worker,)),
            "gateway": (gateway.address, (gateway, worker)),
            "envoy": (envoy.address, (envoy, gateway, worker)),
        }


def measure(repository: Path, *, repeats: int, seconds: float) -> Iterator[Table]:
    for bench in (models.TINY, models.MID):
        table = Table(
            f"{bench.name}: layouts (connections × streams)",
            about="cpu: µs of server CPU a request, all servers on the path; cpu_NAME: that server's part. p50, p99: µs.",
        )
        payload = load.request_file(bench)
        with all_paths(repository, reply_bytes=bench.reply_bytes) as paths:
            for _ in range(repeats):
                for layout in LAYOUTS:
                    for name, (url, servers) in paths.items():
                        wait_until_quiet()
                        run = load.closed(
                            url, layout, payload=payload, servers=servers, duration_ms=int(seconds * 1000)
                        )
                        table.measured(str(layout), name, run=run)
        own = session.microseconds(repository / bench.name / "1" / "model.onnx", batch=32) / 32
        table.add("onnxruntime", "32 rows", cpu=own)
        _goals(table, bench, own=own)
        yield table


def _goals(table: Table, bench: models.Bench, *, own: float) -> None:
    for layout in map(str, LAYOUTS):
        cpu = {name: table.value(layout, name, figure="cpu") for name in ("echo", "worker")}
        if bench is models.TINY and layout == str(ONE_BY_64):
            table.goal(f"{layout}: worker / echo", reached=cpu["worker"] / cpu["echo"], wanted=2)
        if bench is models.MID and layout != str(SIXTEEN):
            wanted = own + 3 * cpu["echo"]
            table.goal(f"{layout}: worker, µs (ONNX Runtime + 3 echo)", reached=cpu["worker"], wanted=wanted)
        if layout != str(SIXTEEN):
            hop = table.value(layout, "gateway", figure="cpu_gateway")
            envoy = table.value(layout, "envoy", figure="cpu_envoy")
            table.goal(f"{layout}: gateway hop / Envoy hop", reached=hop / envoy, wanted=0.2)


def concurrency_one(repository: Path, *, repeats: int, seconds: float) -> Iterator[Table]:
    """Latency of a single caller, over the echo and a `session.run` of which the caches have gone cold."""
    for bench in (models.TINY, models.MID):
        table = Table(f"{bench.name}: concurrency 1", about="p50, p99: µs.")
        payload = load.request_file(bench)
        with all_paths(repository, reply_bytes=bench.reply_bytes) as paths:
            for _ in range(repeats):
                for name, (url, servers) in paths.items():
                    wait_until_quiet()
                    run = load.closed(
                        url, Layout(1, 1), payload=payload, servers=servers, duration_ms=int(seconds * 1000)
                    )
                    table.measured(name, run=run)
        paced = session.paced_microseconds(repository / bench.name / "1" / "model.onnx")
        table.add("paced session.run", p50=paced)
        floor = table.value("echo", figure="p50") + paced
        for name, wanted in (("worker", 100), ("gateway", 200)):
            table.goal(
                f"{name}: p50 over echo + session.run, µs",
                reached=table.value(name, figure="p50") - floor,
                wanted=wanted,
            )
        yield table
