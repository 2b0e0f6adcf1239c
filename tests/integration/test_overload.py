"""Twice what the worker can do, in an open loop: nearly all of the capacity is still answered in time, whatever the callers'
deadline and the queue's limit; what is refused is told why; and it is over when the load is.

The benchmarks publish the share (`docs/performance.md`); here, beside noisy neighbours, the line is lower. Capacity is
measured right before and right after each run, and the lower one counts: a machine that slows down in the middle must not
look like a collapse, which leaves a tenth.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.load import repository
from tests.load.ask import PACE, ask, channel, depth, load, request
from tests.load.rig import Process, Rig, until

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALL, LARGE = 64, 4096
SHARE = 0.9
REASONS = {"QUEUE_FULL", "CANNOT_MEET_DEADLINE", "EXPIRED_IN_QUEUE", "DEADLINE_EXCEEDED", "CLIENT_DEADLINE"}
# A batch takes 1 ms and 0.3 ms a row: 2,750 rows a second in batches of 16, 770 alone. It sleeps instead of computing, so that
# what is measured is who gets in, not who else needs the processors.
ROW = request("paced", [1.0, PACE, 300.0, 0.0])


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Process]]:
    folder = tmp_path_factory.mktemp("overload")
    with Rig(folder) as rig:
        yield {
            limit: rig.worker(
                repository.build(
                    folder / str(limit), "paced", queue=f"max_queue_rows: {limit}, max_queue_requests: {limit}"
                ),
                instances=1,
            )
            for limit in (SMALL, LARGE)
        }


async def _capacity(worker: Process) -> float:
    """Answers a second in a closed loop."""
    report = await load(worker.address, ROW, connections=8, concurrency=48, warmup_ms=200, duration_ms=500)
    assert not report["errors"], report
    return float(report["rps"])


async def _overload(worker: Process, *, rate: float, deadline_ms: int | None) -> dict[str, Any]:
    return await load(
        worker.address,
        ROW,
        rate=rate,
        connections=8,
        max_outstanding=100_000,
        timeout_us=deadline_ms and deadline_ms * 1000,
        warmup_ms=700,
        duration_ms=1000,
        drain_ms=15_000,
    )


@pytest.mark.parametrize("limit", [SMALL, LARGE])
@pytest.mark.parametrize("deadline_ms", [20, 100, 1000, None])
async def test_twice_the_capacity_leaves_the_capacity_answered_in_time(
    workers: dict[int, Process], limit: int, deadline_ms: int | None
) -> None:
    worker = workers[limit]
    shares = []
    # A neighbour may take the machine for a second: the rule is what the server can do, so one good run of three is enough.
    for _ in range(3):
        before = await _capacity(worker)
        report = await _overload(worker, rate=2 * before, deadline_ms=deadline_ms)
        async with channel(worker.address) as link:
            begun = time.monotonic()
            await until(lambda: _empty(link), "the queue empties", seconds=5)
            ended = await ask(link, ROW, timeout=5)
        # Without deadlines a long queue is still worked off; with them, whatever waited is over by now.
        if deadline_ms is not None or limit == SMALL:
            assert time.monotonic() - begun < 1.0
        assert ended.ok
        assert ended.seconds < 0.5
        assert set(report["reasons"]) <= REASONS, report["messages"]
        assert set(report["errors"]) <= {"RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}
        assert report["mismatches"] == 0
        assert report["reconnects"] == 0
        capacity = min(before, await _capacity(worker))
        shares.append(report["goodput_rps"] / capacity)
        print(
            f"queue {limit}, deadline {deadline_ms} ms: {shares[-1]:.3f} of {capacity:.0f}/s, p50 "
            f"{report['latency_us']['p50']} µs, p99 {report['latency_us']['p99']} µs, {report['reasons']}, lag p99 "
            f"{report['lag_us']['p99']}, busy {report['client_busy']:.2f}"
        )
        if shares[-1] >= SHARE:
            return
    raise AssertionError(f"answered in time, of the capacity: {shares}")


async def _empty(link: Any) -> bool:
    return await depth(link, "paced") == (0, 0)


async def test_latency_is_back_within_a_second_of_the_end_of_an_overload(workers: dict[int, Process]) -> None:
    worker = workers[LARGE]
    capacity = await _capacity(worker)
    await _overload(worker, rate=3 * capacity, deadline_ms=100)
    begun = time.monotonic()
    calm = await load(
        worker.address, ROW, rate=capacity / 3, connections=8, timeout_us=100_000, warmup_ms=1, duration_ms=900
    )
    assert time.monotonic() - begun < 4
    assert calm["ok"] >= 0.95 * calm["requests"], calm


async def test_a_refused_caller_is_told_when_to_come_back(workers: dict[int, Process]) -> None:
    worker = workers[SMALL]
    async with channel(worker.address) as link:
        ended = await asyncio.gather(*(ask(link, ROW, timeout=10) for _ in range(600)))
    refused = [one for one in ended if not one.ok]
    assert {(one.code, one.reason) for one in refused} <= {("RESOURCE_EXHAUSTED", "QUEUE_FULL")}
    assert all("limit" in one.message or "full" in one.message for one in refused)
