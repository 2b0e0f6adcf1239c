"""The batch loop and the door after abandoned calls, hopeless deadlines and bursts (V13, V15, V16), with real work in the model."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.integration.conftest import queued
from tests.support.calls import Door, Refusal, outcome, request, rows
from tests.support.processes import Stack, wait_until

if TYPE_CHECKING:
    from headrace_protos.inference import grpc_service_pb2 as pb

pytestmark = pytest.mark.usefixtures("unharmed")


def slow(milliseconds: float, *, model: str = "slow") -> pb.ModelInferRequest:
    return request(model, x=rows(milliseconds))


def test_abandoned_requests_leave_the_loop_alive(stack: Stack, door: Door, worker_door: Door) -> None:
    worker = psutil.Process(stack.pids()["worker-1"])
    threads, luck = worker.num_threads(), random.Random(13)
    for _ in range(3):
        calls = [door.send(slow(20.0), timeout=luck.choice([0.01, 0.05, 60.0])) for _ in range(64)]
        for call in luck.sample(calls, 32):
            call.cancel()
        ended = [outcome(call) for call in calls]
        refusals = [one for one in ended if isinstance(one, Refusal)]
        assert {one.code for one in refusals} <= {"CANCELLED", "DEADLINE_EXCEEDED"}
    wait_until(lambda: queued(worker_door) == {}, "nothing is left")
    ran = door.statistics("slow").inference_count
    began = time.monotonic()
    assert all(not isinstance(one, Refusal) for one in door.together(slow(1.0) for _ in range(10)))
    assert time.monotonic() - began < 2.0
    assert door.statistics("slow").inference_count == ran + 10
    assert worker.num_threads() <= threads + 1


def test_what_is_cancelled_while_it_waits_never_runs(door: Door, worker_door: Door) -> None:
    ran = worker_door.statistics("slow").inference_count
    first = door.send(slow(500.0))
    wait_until(lambda: "slow" in queued(worker_door), "the first runs")
    waiting = [door.send(slow(500.0)) for _ in range(24)]
    wait_until(lambda: queued(worker_door).get("slow", (0, 0))[0] > 0 or first.done(), "others wait")
    for call in waiting:
        call.cancel()
    assert not isinstance(outcome(first), Refusal)
    wait_until(lambda: queued(worker_door) == {}, "nothing is left", seconds=30)
    # At most the batch that was under way when the cancelling began.
    assert worker_door.statistics("slow").inference_count - ran <= 1 + 8


def test_a_request_that_waits_is_answered_at_its_deadline_and_never_runs(door: Door, worker_door: Door) -> None:
    ran = worker_door.statistics("slow").inference_count
    first = door.send(slow(1_500.0))
    wait_until(lambda: "slow" in queued(worker_door), "the first runs")
    began = time.monotonic()
    refused = door.refusal(slow(1.0), timeout=0.5)
    took = time.monotonic() - began
    assert refused.code == "DEADLINE_EXCEEDED"
    # Refused at the door, if the queue knows by now how long that takes; else at the deadline.
    assert took < 1.0
    assert not isinstance(outcome(first), Refusal)
    assert worker_door.statistics("slow").inference_count == ran + 1


def test_one_very_slow_run_does_not_make_later_deadlines_hopeless(worker_door: Door) -> None:
    assert not isinstance(worker_door.outcome(slow(2_000.0)), Refusal)
    ended = [worker_door.outcome(slow(0.0), timeout=0.5) for _ in range(20)]
    assert sum(not isinstance(one, Refusal) for one in ended) >= 10


def test_hopeless_deadlines_cost_next_to_nothing(door: Door, worker_door: Door) -> None:
    ran = worker_door.statistics("slow").inference_count
    first = door.send(slow(300.0))
    wait_until(lambda: "slow" in queued(worker_door) or first.done(), "the first runs")
    calls = [door.send(slow(200.0), timeout=0.001) for _ in range(500)]
    assert {one.code for one in map(outcome, calls) if isinstance(one, Refusal)} == {"DEADLINE_EXCEEDED"}
    outcome(first)
    wait_until(lambda: queued(worker_door) == {}, "nothing is left", seconds=30)
    assert worker_door.statistics("slow").inference_count - ran <= 1 + 16


def test_the_limit_of_a_queue_is_exact_in_every_wave(door: Door, worker_door: Door) -> None:
    for _ in range(2):
        # Whoever runs keeps the instance until the whole wave has arrived.
        first = door.send(slow(1_000.0, model="slow_ten"))
        wait_until(lambda: "slow_ten" in queued(worker_door), "one runs")
        calls = [door.send(slow(0.0, model="slow_ten")) for _ in range(50)]
        ended = [outcome(call) for call in calls]
        refusals = [one for one in ended if isinstance(one, Refusal)]
        assert {(one.code, one.reason) for one in refusals} == {("RESOURCE_EXHAUSTED", "QUEUE_FULL")}
        assert "10" in refusals[0].message
        assert len(ended) - len(refusals) == 10
        assert not isinstance(outcome(first), Refusal)
        wait_until(lambda: queued(worker_door) == {}, "nothing is left")
