"""Large messages on every hop, one port for one server, and what a worker takes of the machine (V22, V23, V41, V42)."""

from __future__ import annotations

import os
import random
import socket
import statistics
import threading
import time
from typing import TYPE_CHECKING

import grpc
import numpy as np
import psutil
import pytest

from headrace_protos.inference import grpc_service_pb2 as pb
from tests.support import models
from tests.support.calls import MAX_MESSAGE_BYTES, Door, Refusal, request, rows
from tests.support.processes import Processes, Stack, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("unharmed")

MB = 1_000_000


def floats(count: int) -> np.ndarray:
    return np.ones((1, count), np.float32)


# V22


def test_five_megabytes_in_and_little_out(door: Door) -> None:
    assert door.arrays(request("total", x=floats(1_250_000)))["y"].tolist() == [[1_250_000.0]]


def test_little_in_and_five_megabytes_out(door: Door) -> None:
    answer = door.arrays(request("wide", x=np.array([[3.0]], np.float32)))["y"]
    assert answer.shape == (1, models.WIDE)
    assert (answer == 3.0).all()


def test_sixty_three_megabytes_both_ways(door: Door) -> None:
    sent = np.arange(63 * MB // 4, dtype=np.float32)[None]
    assert door.infer(request("any_width", x=sent)).raw_output_contents[0] == sent.tobytes()


def test_typed_contents_of_megabytes_are_understood(door: Door) -> None:
    message = pb.ModelInferRequest(model_name="total")
    message.inputs.add(name="x", datatype="FP32", shape=[1, MB]).contents.fp32_contents.extend([1.0] * MB)
    assert door.infer(message).outputs[0].contents.fp32_contents[0] == MB


@pytest.mark.parametrize("size", [MAX_MESSAGE_BYTES + 4, 200 * MB])
def test_a_message_over_the_limit_is_refused_before_it_is_held(stack: Stack, door: Door, size: int) -> None:
    pids = stack.pids()
    held = [psutil.Process(pids[name]) for name in ("worker-1", "gateway-1", "envoy")]
    before = [one.memory_info().rss for one in held]
    refused = door.refusal(request("any_width", x=floats(size // 4)))
    assert refused.code == "RESOURCE_EXHAUSTED"
    assert refused.reason == "MESSAGE_TOO_LARGE"
    assert str(MAX_MESSAGE_BYTES) in refused.message
    assert "max_message_bytes" in refused.message
    grown = [one.memory_info().rss - earlier for one, earlier in zip(held, before, strict=True)]
    assert max(grown) < 120 * MB, grown


def test_an_answer_over_the_limit_is_refused(door: Door) -> None:
    # Fourteen rows of 5 MiB each.
    refused = door.refusal(request("wide", x=np.ones((14, 1), np.float32)))
    assert refused.code == "RESOURCE_EXHAUSTED"
    assert str(MAX_MESSAGE_BYTES) in refused.message


def test_small_calls_go_on_beside_large_ones(door: Door) -> None:
    def typical(count: int) -> float:
        took = []
        for number in range(count):
            began = time.perf_counter()
            door.infer(request("add", x=rows(float(number))))
            took.append(time.perf_counter() - began)
        return statistics.quantiles(took, n=100)[-1]

    idle = typical(200)
    over = threading.Event()
    failures: list[grpc.RpcError] = []

    def pour() -> None:
        heavy = Door("heavy", door.address)
        while not over.is_set():
            try:
                heavy.infer(request("total", x=floats(5 * MB)))
            except grpc.RpcError as error:
                failures.append(error)
        heavy.close()

    thread = threading.Thread(target=pour)
    thread.start()
    try:
        beside = typical(200)
    finally:
        over.set()
        thread.join()
    assert not failures
    # Two processors carry client, three servers and the model: no ratio holds here, but nothing may stand still.
    assert beside < max(0.25, 5 * idle)


# V23


@pytest.mark.parametrize("kind", ["worker", "gateway"])
def test_a_second_server_on_the_same_port_fails_at_once(
    stack: Stack, tmp_path: Path, kind: str, doors: dict[str, Door]
) -> None:
    taken = {"worker": stack.worker, "gateway": stack.gateway}[kind]
    with Processes(tmp_path) as processes:
        second = processes.start(kind, {"listen": taken, "models": tmp_path}, wait=False)
        wait_until(lambda: not second.alive, "it ends", seconds=30)
        assert second.process.returncode not in {0, None}
        words = second.last_words()
    assert taken in words
    assert "in use" in words
    assert "Traceback" not in words
    for number in range(50):
        assert doors[kind].arrays(request("add", x=rows(float(number))))["y"][0, 0] == number + 1


def test_a_port_that_somebody_merely_holds_is_not_shared(tmp_path: Path) -> None:
    with socket.socket() as held, Processes(tmp_path) as processes:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        held.listen()
        second = processes.start(
            "worker", {"listen": f"127.0.0.1:{held.getsockname()[1]}", "models": tmp_path}, wait=False
        )
        wait_until(lambda: not second.alive, "it ends", seconds=30)
        assert second.process.returncode not in {0, None}


# V41


def test_memory_does_not_follow_the_number_of_shapes(tmp_path: Path) -> None:
    luck = random.Random(41)
    with Processes(tmp_path) as processes:
        worker = processes.worker(models.build(tmp_path / "models", "encoder"))
        door, seen = Door("worker", worker.address), psutil.Process(worker.pid)

        def shapes(count: int) -> None:
            for _ in range(count // 8):
                sent = []
                for _ in range(8):
                    ids = np.zeros((luck.randint(1, 8), luck.randint(1, 256)), np.int64)
                    sent.append(request("encoder", ids=ids, mask=np.ones_like(ids)))
                assert not [one for one in door.together(sent) if isinstance(one, Refusal)]

        shapes(600)
        settled = seen.memory_info().rss
        shapes(1_200)
        assert seen.memory_info().rss < settled * 1.1 + 20 * MB
        giant = np.zeros((4, 2_048), np.int64)  # a 4 × 2048 × 2048 matrix of scores: 64 MiB
        door.infer(request("encoder", ids=giant, mask=np.ones_like(giant)), timeout=60)
        shapes(8)
        wait_until(lambda: seen.memory_info().rss < settled * 1.5, "the giant's memory is given back", seconds=20)
        door.close()


# V42


def test_threads_follow_the_processors_that_the_worker_may_use(tmp_path: Path) -> None:
    allowed = os.sched_getaffinity(0)
    names = ["add", "any_width", "encoder", "total"]
    # A child inherits the affinity of whoever starts it.
    os.sched_setaffinity(0, {min(allowed)})
    try:
        with Processes(tmp_path) as processes:
            worker = processes.worker(models.build(tmp_path / "models", *names))
            door = Door("worker", worker.address)
            for _ in range(20):
                door.together([request("add", x=rows(1.0)), request("total", x=floats(1000))])
            threads = psutil.Process(worker.pid).num_threads()
            config = door.stub.ModelConfig(pb.ModelConfigRequest(name="encoder"), timeout=30).config
            door.close()
            log = worker.log.read_text()
    finally:
        os.sched_setaffinity(0, allowed)
    assert config.instance_group[0].count == 1
    assert config.parameters["intra_op_thread_count"].string_value == "1"
    assert config.parameters["inter_op_thread_count"].string_value == "1"
    # Interpreter, front, slow half and its pools, and one instance for each model; no pool for each of the host's cores.
    assert threads <= 24, threads
    assert "affinity" not in log.lower()
