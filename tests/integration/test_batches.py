"""Requests that run together: whose rows are whose, what may be merged, and what a batch may hold (V07–V12, V14)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from headrace_core import tensors
from headrace_protos.inference import grpc_service_pb2 as pb
from tests.integration.conftest import queued
from tests.support.calls import PATIENCE, Door, Refusal, request, rows
from tests.support.models import ENCODER_WIDTH
from tests.support.processes import wait_until

if TYPE_CHECKING:
    import grpc

pytestmark = pytest.mark.usefixtures("unharmed")


def y(answer: pb.ModelInferResponse | Refusal) -> np.ndarray:
    assert isinstance(answer, pb.ModelInferResponse), answer
    return tensors.outputs_from_response(answer)["y"]


class Busy:
    """While its block runs, the one instance of `slow` works, so what is sent to it meanwhile waits for one batch."""

    def __init__(self, worker: Door, *, milliseconds: float) -> None:
        self._worker, self._milliseconds = worker, milliseconds

    def __enter__(self) -> None:
        self._call = self._worker.send(request("slow", x=rows(self._milliseconds)))
        wait_until(lambda: "slow" in queued(self._worker) or self._call.done(), "it runs")

    def __exit__(self, *_: object) -> None:
        self._call.result()


def batch_rows(door: Door, model: str) -> dict[int, int]:
    """How many batches of each size were run."""
    return {one.batch_size: one.compute_infer.count for one in door.statistics(model).batch_stats}


def since(before: dict[int, int], after: dict[int, int]) -> dict[int, int]:
    return {size: count - before.get(size, 0) for size, count in after.items() if count > before.get(size, 0)}


# V07


def test_inputs_that_disagree_about_the_rows_are_refused_and_their_neighbours_are_not(door: Door) -> None:
    ones = np.ones((1, 8), np.int64)
    good = [request("ids_and_mask", ids=ones * number, mask=ones) for number in range(7)]
    bad = request("ids_and_mask", ids=np.ones((2, 8), np.int64), mask=np.ones((3, 8), np.int64))
    *answers, refused = door.together([*good, bad])
    assert isinstance(refused, Refusal)
    assert refused.code == "INVALID_ARGUMENT"
    assert "ids" in refused.message or "mask" in refused.message
    assert {field.rpartition(".")[2] for field in refused.fields} == {"shape"}
    assert [y(one).item() for one in answers] == [8 * number for number in range(7)]


def test_a_second_input_without_dimensions_is_refused_where_rows_are_wanted(door: Door) -> None:
    refused = door.refusal(request("ids_and_mask", ids=np.ones((1, 8), np.int64), mask=np.array(1)))
    assert refused.code == "INVALID_ARGUMENT"
    assert "mask" in refused.message


def test_scalars_of_different_requests_stay_apart(door: Door) -> None:
    sent = [request("scalar", x=rows(1.0), s=np.array(number, np.float32)) for number in range(16)]
    assert [y(one)[0, 0] for one in door.together(sent)] == list(range(16))


# V08


def test_a_model_for_one_row_answers_each_and_refuses_two(door: Door) -> None:
    answers = door.together(request("one_row", x=rows(float(number))) for number in range(5))
    assert [y(one)[0, 0] for one in answers] == [1, 2, 3, 4, 5]
    refused = door.refusal(request("one_row", x=rows(1.0, 2.0)))
    assert refused.code == "INVALID_ARGUMENT"
    assert refused.fields == ("inputs[x].shape",)


@pytest.mark.parametrize("model", ["mean_over_rows", "constant_of_one_row", "one_row"])
def test_a_model_that_only_looks_batchable_says_why_it_is_not(door: Door, model: str) -> None:
    told = door.stub.ModelMetadata(pb.ModelMetadataRequest(name=model), timeout=PATIENCE)
    assert told.properties["headrace.batching"] == "off"
    assert told.properties["headrace.notes"].startswith("served unbatched: ")
    config = door.stub.ModelConfig(pb.ModelConfigRequest(name=model), timeout=PATIENCE).config
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")


def test_a_mean_over_rows_is_never_over_strangers_rows(door: Door) -> None:
    sent = [request("mean_over_rows", x=rows(float(number), float(number + 2))) for number in range(32)]
    assert [y(one).tolist() for one in door.together(sent)] == [[[number + 1.0] * 3] for number in range(32)]


def test_a_constant_of_one_row_inside_fails_nobodys_single_row(door: Door) -> None:
    answers = door.together(request("constant_of_one_row", x=rows(float(number))) for number in range(32))
    assert [y(one).tolist() for one in answers] == [[[number] * 4 + [0, 0]] for number in range(32)]


def test_an_output_shape_declared_wrongly_is_told_and_answered_as_it_is(door: Door) -> None:
    told = door.stub.ModelMetadata(pb.ModelMetadataRequest(name="wrong_output_shape"), timeout=PATIENCE)
    assert told.outputs[0].shape[-1] in {4, -1}
    values = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    assert y(door.infer(request("wrong_output_shape", x=values))).tolist() == values.reshape(2, 4).tolist()


# V09

ROUNDS = 25


def _text(length: int, *, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 100, (1, length))


@pytest.mark.parametrize("model", ["encoder", "encoder_without_mask"])
def test_an_embedding_does_not_depend_on_whom_it_arrives_with(door: Door, model: str) -> None:
    texts = [_text(length, seed=length) for length in (3, 17, 128)]

    def sent(ids: np.ndarray) -> pb.ModelInferRequest:
        mask = {"mask": np.ones_like(ids)} if model == "encoder" else {}
        return request(model, ids=ids, **mask)

    alone = [y(door.infer(sent(ids))) for ids in texts]
    order = random.Random(7)
    for _ in range(ROUNDS):
        picked = [order.randrange(3) for _ in range(6)]
        for at, answer in zip(picked, door.together(sent(texts[at]) for at in picked), strict=True):
            assert y(answer).shape == (1, texts[at].shape[1], ENCODER_WIDTH)
            np.testing.assert_allclose(y(answer), alone[at], rtol=1e-4, atol=1e-5)


# V10


def test_each_caller_gets_the_outputs_that_it_asked_for_in_its_order(door: Door) -> None:
    asked: list[list[str]] = [["probs"], ["label"], [], ["nope"], ["label", "probs"]]
    for _ in range(10):
        answers = door.together(
            request("two_outputs", outputs=names, x=np.eye(1, 4, dtype=np.float32)) for names in asked
        )
        for names, answer in zip(asked, answers, strict=True):
            if names == ["nope"]:
                assert isinstance(answer, Refusal)
                assert (answer.code, answer.reason) == ("INVALID_ARGUMENT", "UNKNOWN_TENSOR")
                assert answer.fields == ("outputs[nope]",)
                continue
            assert isinstance(answer, pb.ModelInferResponse), answer
            assert [one.name for one in answer.outputs] == (names or ["probs", "label"])
            sizes = {"probs": 16, "label": 8}
            assert [len(one) for one in answer.raw_output_contents] == [sizes[one.name] for one in answer.outputs]


# V11


@pytest.mark.parametrize("most_rows", [1, 4])
def test_every_caller_gets_its_own_rows_under_load(door: Door, most_rows: int) -> None:
    sizes = random.Random(most_rows)
    count, at_once = 2_000, 64
    waiting: list[tuple[int, np.ndarray, grpc.Future]] = []

    def check(number: int, values: np.ndarray, call: grpc.Future) -> None:
        answer = call.result()
        assert answer.id == str(number)
        np.testing.assert_array_equal(y(answer), values)

    for number in range(count):
        values = np.array([[number * 8 + row] for row in range(sizes.randint(1, most_rows))], np.float32)
        waiting.append((number, values, door.send(request("same_one", named=str(number), x=values))))
        if len(waiting) == at_once:
            check(*waiting.pop(0))
    for one in waiting:
        check(*one)


def test_rows_stay_with_their_callers_while_others_cancel(worker_door: Door) -> None:
    luck = random.Random(5)
    kept: list[tuple[int, grpc.Future]] = []
    for number in range(600):
        call = worker_door.send(request("same_one", x=np.array([[number]], np.float32)))
        if luck.random() < 0.4:
            call.cancel()
        else:
            kept.append((number, call))
    for number, call in kept:
        assert y(call.result()).item() == number


def test_state_whose_rows_are_its_second_axis_stays_with_its_caller(door: Door) -> None:
    def sent(number: int) -> pb.ModelInferRequest:
        state = np.full((2, 1, 3), number, np.float32)
        return request("axis_one", x=np.full((1, 3), number * 10, np.float32), state=state)

    for number, answer in enumerate(door.together(sent(number) for number in range(48))):
        assert isinstance(answer, pb.ModelInferResponse), answer
        told = tensors.outputs_from_response(answer)
        assert told["y"].tolist() == [[number * 12.0] * 3]
        assert told["next"].tolist() == [[[number + 1.0] * 3]] * 2


# V12


def test_the_limit_of_a_batch_counts_rows(door: Door, worker_door: Door) -> None:
    before = batch_rows(door, "slow")
    with Busy(worker_door, milliseconds=300):
        answers = door.together(request("slow", x=rows(0.1, 0.2, 0.3 + number)) for number in range(6))
    # A request of three rows is never split: two fit into eight rows, three don't.
    assert set(since(before, batch_rows(door, "slow"))) <= {1, 3, 6}
    np.testing.assert_allclose([y(one)[2, 0] for one in answers], [0.3 + number for number in range(6)], rtol=1e-6)


def test_a_request_beyond_the_limit_of_a_batch_is_told_the_limit(door: Door) -> None:
    refused = door.refusal(request("slow", x=rows(*[0.0] * 9)))
    assert refused.code == "INVALID_ARGUMENT"
    assert "8" in refused.message
    assert "9" in refused.message


def test_what_waits_for_one_instance_runs_together(door: Door, worker_door: Door) -> None:
    before = batch_rows(door, "slow")
    with Busy(worker_door, milliseconds=400):
        answers = door.together(request("slow", x=rows(0.01 * number)) for number in range(8))
    np.testing.assert_allclose([y(one)[0, 0] for one in answers], [0.01 * number for number in range(8)], rtol=1e-6)
    assert max(since(before, batch_rows(door, "slow"))) >= 4


# V14


def test_a_bad_row_fails_alone(door: Door) -> None:
    for turn in range(50):
        ids = [turn % 10, 99, (turn + 3) % 10, (turn + 5) % 10]
        answers = door.together(request("gather", ids=np.array([[one]])) for one in ids)
        for one, answer in zip(ids, answers, strict=True):
            if one == 99:
                assert isinstance(answer, Refusal)
                assert answer.code in {"INVALID_ARGUMENT", "INTERNAL"}
                assert "/" not in answer.message.replace("'/", ""), "no file paths"
            else:
                assert y(answer).tolist() == [[[3 * one, 3 * one + 1, 3 * one + 2]]]


def test_a_bad_row_costs_at_most_one_more_run_for_each_row(door: Door) -> None:
    before = door.statistics("gather").execution_count
    door.together(request("gather", ids=np.array([[one]])) for one in (1, 2, 99, 3))
    assert door.statistics("gather").execution_count - before <= 2 * 4


def test_a_model_that_raises_says_no_more_than_that(door: Door) -> None:
    refused = door.refusal(request("raises", x=rows(7.0)))
    assert (refused.code, refused.reason) == ("INTERNAL", "INFERENCE_FAILED")
    for secret in ("Traceback", ".py", ".onnx", "/home", "/tmp", "Reshape"):
        assert secret not in refused.message
    assert y(door.infer(request("raises", x=rows(4.0)))).tolist() == rows(4.0).tolist()
