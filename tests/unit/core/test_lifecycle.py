"""Waiting for changes, tasks that are started again, and the order of a drain."""

import asyncio
from datetime import timedelta

import pytest

from headrace_core.lifecycle import Changes, Readiness, Supervisor, drain

NEVER = timedelta(seconds=10)


async def test_a_change_wakes_everyone_who_waits() -> None:
    changes = Changes()
    seen = changes.generation
    waiting = [asyncio.create_task(changes.beyond(seen, at_most=NEVER)) for _ in range(3)]
    await asyncio.sleep(0)
    changes.note()
    assert await asyncio.gather(*waiting) == [seen + 1] * 3


async def test_a_change_from_before_is_not_waited_for_and_none_ends_in_time() -> None:
    changes = Changes()
    assert await changes.beyond(changes.generation - 1, at_most=NEVER) == changes.generation
    assert await changes.beyond(changes.generation, at_most=timedelta(0)) == changes.generation


async def test_a_failing_task_is_started_again_and_closing_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    supervisor, tries, third = Supervisor(), 0, asyncio.Event()

    async def work() -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise RuntimeError("trouble")
        third.set()
        await asyncio.Event().wait()

    supervisor.start("work", work, back_off=timedelta(milliseconds=1))
    await asyncio.wait_for(third.wait(), 5)
    await supervisor.close()
    assert tries == 3
    assert [one.message for one in caplog.records] == ["background task failed; starting it again"] * 2


@pytest.mark.parametrize("complete", [True, False])
async def test_a_drain_goes_in_order(*, complete: bool) -> None:
    readiness = Readiness(changes=Changes())
    readiness.start()
    order: list[str] = []

    async def stop_accepting(limit: timedelta) -> bool:
        order.append(f"stop, ready {readiness.ready}, {limit.total_seconds():.0f} s")
        return complete

    async def finish() -> None:
        order.append("finish")

    done = await drain(
        readiness, beat=timedelta(0), stop_accepting=stop_accepting, finish=finish, limit=timedelta(seconds=7)
    )
    assert done is complete
    assert order == ["stop, ready False, 7 s", "finish"]
    assert readiness.draining
