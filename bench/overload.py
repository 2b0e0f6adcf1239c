"""An open loop at twice the capacity: how much is still answered in time, whatever the queue's limit and the callers' deadline.

One instance: the front and the load generator need the other core. With an instance on each of two cores the open loop
measures how three programs share them, not how the queue refuses."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from bench import load, models, stack
from bench.figures import Table
from bench.load import BUILD, Layout
from bench.procs import wait_until_quiet

QUEUE_ROWS = (256, 4096)
DEADLINES_MS = (20, 50, 100, 300, 1000, None)
CONNECTIONS = 16
REFUSALS = ("CANNOT_MEET_DEADLINE", "QUEUE_FULL")


def measure(repository: Path, *, repeats: int, seconds: float) -> Iterator[Table]:
    table = Table(
        "heavy: open loop at 2 × capacity",
        about="share: answered within the deadline a second / capacity (closed loop, 16×16, in the same run). "
        "refused: share of requests refused at the door. after_p99: µs, at half the capacity, in the second after the overload.",
    )
    payload = load.request_file(models.HEAVY)
    duration = int(seconds * 1000)
    for limit in QUEUE_ROWS:
        with stack.worker(_with_limit(repository, limit)) as worker:
            for _ in range(repeats):
                wait_until_quiet()
                closed = load.closed(
                    worker.address, Layout(16, 16), payload=payload, servers=(worker,), duration_ms=duration
                )
                for deadline in DEADLINES_MS:
                    run = load.run(
                        worker.address,
                        payload=payload,
                        servers=(worker,),
                        rate=2 * closed.rps,
                        connections=CONNECTIONS,
                        max_outstanding=4 * 65536,
                        timeout_us=deadline and deadline * 1000,
                        duration_ms=duration,
                    )
                    after = load.run(
                        worker.address,
                        payload=payload,
                        rate=closed.rps / 2,
                        connections=CONNECTIONS,
                        warmup_ms=0,
                        duration_ms=1000,
                    )
                    table.add(
                        f"queue {limit}",
                        f"{deadline} ms" if deadline else "none",
                        share=run.report["goodput_rps"] / closed.rps,
                        refused=sum(run.report["reasons"].get(why, 0) for why in REFUSALS) / run.report["requests"],
                        capacity=closed.rps,
                        p50=run.latency["p50"],
                        p99=run.latency["p99"],
                        sender_late_p99=run.report["lag_us"]["p99"],
                        client_busy=run.report["client_busy"],
                        after_p99=after.latency["p99"],
                    )
    worst = min((cells["share"].value, row) for row, cells in table.rows.items())
    table.goal(f"least share of capacity ({', '.join(worst[1])})", reached=worst[0], wanted=0.95, at_most=False)
    yield table


def _with_limit(repository: Path, rows: int) -> Path:
    """A copy of `heavy` whose queue holds this many rows."""
    folder = BUILD / f"queue-{rows}"
    version = folder / "heavy" / "1"
    version.mkdir(parents=True, exist_ok=True)
    shutil.copy(repository / "heavy" / "1" / "model.onnx", version)
    (folder / "heavy" / "model.yaml").write_text(
        f"instances: 1\nqueue:\n  max_queue_rows: {rows}\n  max_queue_requests: {rows}\n"
    )
    return folder
