"""One stack with the tiny models for all integration tests, and the rule that every module leaves it as it was."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from headrace_protos.control.v1 import control_pb2, control_pb2_grpc
from tests.support import models
from tests.support.calls import PATIENCE, Door, request, rows
from tests.support.processes import Stack, detached_stack, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

DOORS = ("worker", "gateway", "envoy")


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Envoy → gateway → worker with every model of `tests.support.models`."""
    folder = tmp_path_factory.mktemp("stack")
    with detached_stack(folder, models.build(folder / "models")) as running:
        yield running


@pytest.fixture(scope="session")
def doors(stack: Stack) -> Iterator[dict[str, Door]]:
    """The three places to call at: straight at the worker, at the gateway, and through Envoy."""
    addresses = (stack.worker, stack.gateway, stack.address)
    opened = {name: Door(name, address) for name, address in zip(DOORS, addresses, strict=True)}
    yield opened
    for one in opened.values():
        one.close()


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest, doors: dict[str, Door]) -> Door:
    """Each door in turn."""
    return doors[request.param]


@pytest.fixture
def worker_door(doors: dict[str, Door]) -> Door:
    """For what the way to the worker can't change."""
    return doors["worker"]


@pytest.fixture
def envoy_door(doors: dict[str, Door]) -> Door:
    """The whole way."""
    return doors["envoy"]


@pytest.fixture(scope="module")
def unharmed(stack: Stack, doors: dict[str, Door]) -> Iterator[None]:
    """After a module: the same processes, nothing queued, and the next request answered within a second."""
    before = stack.pids()
    yield
    for door in doors.values():
        began = time.monotonic()
        answer = door.arrays(request("add", x=rows(41.0)))
        took = time.monotonic() - began
        assert answer["y"].tolist() == rows(42.0).tolist(), door.name
        assert took < 1.0, f"the next request took {took:.2f} s at the {door.name}"
    assert stack.pids() == before, "a process was restarted"
    wait_until(lambda: queued(doors["worker"]) == {}, "nothing is queued or running")


def queued(worker: Door) -> dict[str, tuple[int, int]]:
    """Models with rows that wait or run, and how many, by the worker's own word."""
    stub = control_pb2_grpc.WorkerServiceStub(worker.channel)
    state = stub.GetState(control_pb2.GetStateRequest(), timeout=PATIENCE)
    return {one.name: (one.queue_rows, one.running_rows) for one in state.models if one.queue_rows or one.running_rows}
