"""`make bench-peers`: our worker and our whole stack beside other servers, with the same models, on this machine, in one run.

    python -m bench.peers                     all of them, three times over; about ten minutes
    python -m bench.peers --quick triton      one peer, once, short

Each peer gets an environment of its own below `.venv-peers/`, made from `bench/peers/<name>/requirements.txt`. What each was set
to, and why, is written at the top of its `server.py`.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench import figures, layouts, load, models, stack
from bench.figures import Table
from bench.layouts import LAYOUTS, ONE_BY_64, SIXTEEN, SIXTY_FOUR
from bench.load import BUILD, ROOT, Layout
from bench.procs import Server, free_port, patience, serving, wait_until_quiet

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = ROOT / ".venv-peers"


@dataclass(frozen=True)
class Peer:
    name: str
    http1: bool = False
    """Speaks HTTP/1.1, so a request a connection at a time, and one model a server."""

    def layouts(self) -> tuple[Layout, ...]:
        return tuple(layout for layout in LAYOUTS if layout.streams == 1) if self.http1 else LAYOUTS


PEERS = (Peer("triton"), Peer("mosec", http1=True), Peer("mlserver"), Peer("grpcaio"))


def environment(peer: Peer) -> Path:
    """The peer's Python, with what its requirements say."""
    folder = ENVIRONMENTS / peer.name
    python = folder / "bin" / "python"
    uv = Path(sys.executable).with_name("uv")
    if not python.exists():
        subprocess.run([uv, "venv", "--quiet", "--python", "3.11", folder], check=True)
    requirements = HERE / peer.name / "requirements.txt"
    subprocess.run([uv, "pip", "sync", "--quiet", "--python", python, requirements], check=True)
    return python


@contextmanager
def serve(peer: Peer, *, model: models.Bench, repository: Path) -> Iterator[Server]:
    """A peer's server, ready to answer for `model`."""
    port = free_port()
    extra: dict[str, tuple[str, ...]] = {
        "triton": ("{scratch}",),
        "mosec": (model.name,),
        "mlserver": ("{scratch}", str(free_port())),
    }
    command = [environment(peer), HERE / peer.name / "server.py", repository, str(port), *extra.get(peer.name, ())]

    def listening(_: Path) -> str | None:
        return f"127.0.0.1:{port}" if _listens(port) else None

    protos = {"PYTHONPATH": str(ROOT / "protos" / "gen")} if peer.name == "grpcaio" else {}
    with serving(peer.name, command=command, environment=protos, address=listening) as server:
        yield server


def _listens(port: int) -> bool:
    # gRPC listens on IPv4 through a socket of IPv6.
    connections = psutil.net_connections("tcp")
    return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in connections)


def payload(peer: Peer | None, model: models.Bench) -> Path:
    """A request; for HTTP/1.1 just the raw tensor."""
    if peer is None or not peer.http1:
        return load.request_file(model)
    path = BUILD / f"{model.name}.raw"
    path.write_bytes(models.rows(model, 1).tobytes())
    return path


def measure(peers: list[Peer], *, repository: Path, repeats: int, seconds: float) -> Iterator[Table]:
    for model in (models.TINY, models.MID):
        table = Table(
            f"{model.name}: beside the peers (connections × streams)",
            about="cpu: µs of CPU a request, all of the server's processes. p50, p99: µs. One server runs at a time.",
        )
        for _ in range(repeats):
            with layouts.all_paths(repository, reply_bytes=model.reply_bytes) as paths:
                for name in ("echo", "worker", "envoy"):
                    url, servers = paths[name]
                    _run(table, name, url, servers, LAYOUTS, payload=payload(None, model), seconds=seconds)
            for peer in peers:
                with serve(peer, model=model, repository=repository) as server, ExitStack() as door:
                    fields = {"protocol": "http1", "path": "/inference"} if peer.http1 else {}
                    _warm(server, peer, model, fields)
                    files = payload(peer, model)
                    _run(
                        table,
                        peer.name,
                        server.address,
                        (server,),
                        peer.layouts(),
                        payload=files,
                        seconds=seconds,
                        **fields,
                    )
                    if peer.name == "triton":
                        envoy = door.enter_context(stack.envoy(server.address))
                        pair = (envoy, server)
                        _run(table, "envoy+triton", envoy.address, pair, LAYOUTS, payload=files, seconds=seconds)
        _goals(table, model)
        yield table


def _run(
    table: Table,
    name: str,
    url: str,
    servers: tuple[Server, ...],
    over: tuple[Layout, ...],
    *,
    payload: Path,
    seconds: float,
    **fields: object,
) -> None:
    for layout in (*over, Layout(1, 1)):
        wait_until_quiet()
        run = load.closed(url, layout, payload=payload, servers=servers, duration_ms=int(seconds * 1000), **fields)
        table.measured(str(layout), name, run=run)


def _warm(server: Server, peer: Peer, model: models.Bench, fields: dict[str, str]) -> None:
    """Waits until the peer really answers: some listen before their models are loaded."""
    for _ in range(120):
        run = load.closed(
            server.address,
            Layout(1, 1),
            payload=payload(peer, model),
            servers=(),
            warmup_ms=0,
            duration_ms=250,
            **fields,
        )
        if run.report["ok"] and not run.report["errors"]:
            return
    raise TimeoutError(f"{peer.name} gives no answer: {run.report['messages']}")


def _goals(table: Table, model: models.Bench) -> None:
    def ratio(what: str, layout: Layout, ours: str, theirs: str, wanted: float, *, figure: str = "cpu") -> None:
        if (str(layout), theirs) not in table.rows:
            return
        reached = table.value(str(layout), ours, figure=figure) / table.value(str(layout), theirs, figure=figure)
        table.goal(f"{layout}: {what}", reached=reached, wanted=wanted, at_most=figure == "cpu")

    if model is models.TINY:
        ratio("worker / Triton, CPU", ONE_BY_64, "worker", "triton", 0.1)
        ratio("worker / Triton, requests a second", SIXTEEN, "worker", "triton", 10, figure="rps")
        if (str(SIXTY_FOUR), "mosec") in table.rows:
            theirs = table.value(str(SIXTY_FOUR), "mosec", figure="rps")
            ours = table.value(str(SIXTEEN), "worker", figure="rps")
            table.goal(
                "worker 16×16 / mosec 64×1, requests a second",
                reached=ours / theirs,
                wanted=2,
                at_most=False,
            )
    ratio("worker / mosec, CPU", SIXTY_FOUR, "worker", "mosec", 0.5 if model is models.TINY else 0.75)
    ratio("Envoy → gateway → worker / Envoy → Triton, CPU", ONE_BY_64, "envoy", "envoy+triton", 0.4)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("peers", nargs="*", help=f"some of: {', '.join(peer.name for peer in PEERS)}; none is all")
    parser.add_argument("--repeats", type=int, default=3, help="how often everything is repeated (3)")
    parser.add_argument("--seconds", type=float, default=3, help="length of each run (3)")
    parser.add_argument("--quick", action="store_true", help="once, one second each, without waiting for quiet")
    parser.add_argument(
        "--models", type=Path, default=ROOT / "build" / "bench-models", help="where the models are made"
    )
    options = parser.parse_args()
    chosen = [peer for peer in PEERS if not options.peers or peer.name in options.peers]
    if unknown := set(options.peers) - {peer.name for peer in PEERS}:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}")
    if options.quick:
        patience.seconds = 0
    repeats, seconds = (1, 1.0) if options.quick else (options.repeats, options.seconds)

    models.build(options.models)
    for peer in chosen:
        print(f"Preparing {peer.name}")
        environment(peer)
    tables = []
    for table in measure(chosen, repository=options.models, repeats=repeats, seconds=seconds):
        table.print()
        tables.append(table)
    print(f"\nWritten to {figures.write(tables, name='peers', command=sys.argv)}")


if __name__ == "__main__":
    main()
