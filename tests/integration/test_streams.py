"""`ModelStreamInfer` in Triton's form: order, errors in-band or as a status, final responses, and callers that go away."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any, Self

import grpc
import numpy as np
import pytest

from headrace_core import tensors
from tests.integration.conftest import queued
from tests.support.calls import PATIENCE, Door, Refusal, request, rows
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace_protos.inference import grpc_service_pb2 as pb

pytestmark = pytest.mark.usefixtures("unharmed")


class Stream:
    """A stream whose requests are written one by one."""

    def __init__(self, door: Door, *, metadata: Sequence[tuple[str, str]] = (), timeout: float = PATIENCE) -> None:
        self._requests: queue.SimpleQueue[pb.ModelInferRequest | None] = queue.SimpleQueue()
        self.call: Any = door.stub.ModelStreamInfer(self._written(), metadata=metadata, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self.call.cancel()

    def _written(self) -> Iterator[pb.ModelInferRequest]:
        while (message := self._requests.get()) is not None:
            yield message

    def write(self, *messages: pb.ModelInferRequest) -> None:
        for message in messages:
            self._requests.put(message)

    def close(self) -> None:
        """Says that no more requests come."""
        self._requests.put(None)

    def read(self) -> pb.ModelStreamInferResponse:
        answer: pb.ModelStreamInferResponse = next(self.call)
        return answer

    def rest(self) -> list[pb.ModelStreamInferResponse]:
        self.close()
        return list(self.call)


def values(answer: pb.ModelStreamInferResponse) -> list[list[float]]:
    assert not answer.error_message, answer.error_message
    y: list[list[float]] = tensors.outputs_from_response(answer.infer_response)["y"].tolist()
    return y


def numbered(number: int, *, model: str = "add") -> pb.ModelInferRequest:
    return request(model, named=f"request {number}", x=rows(float(number)))


def test_answers_come_in_the_order_of_the_requests(door: Door) -> None:
    with Stream(door) as stream:
        # The second model is slower than the others, and the answers still keep their places.
        sent = [request("slow", named=f"request {n}", x=rows(20.0)) if n % 7 == 3 else numbered(n) for n in range(40)]
        stream.write(*sent)
        answers = stream.rest()
    assert [one.infer_response.id for one in answers] == [f"request {n}" for n in range(40)]
    assert [values(one)[0][0] for one in answers] == [20.0 if n % 7 == 3 else n + 1 for n in range(40)]


def test_an_answer_comes_before_the_next_request_is_sent(door: Door) -> None:
    with Stream(door) as stream:
        for number in range(3):
            stream.write(numbered(number))
            assert values(stream.read()) == rows(number + 1.0).tolist()
        assert stream.rest() == []
        assert stream.call.code() is grpc.StatusCode.OK


def test_one_stream_serves_several_models(door: Door) -> None:
    with Stream(door) as stream:
        stream.write(numbered(1), numbered(2, model="same_fp32"), request("gather", ids=np.array([[4]])))
        answers = stream.rest()
    assert [one.infer_response.model_name for one in answers] == ["add", "same_fp32", "gather"]


def test_errors_are_in_band_and_the_stream_goes_on(door: Door) -> None:
    with Stream(door) as stream:
        stream.write(
            numbered(1),
            request("add", named="bad shape", x=np.zeros((1, 5), np.float32)),
            request("nobody", named="no model", x=rows(1.0)),
            request("gather", named="bad index", ids=np.array([[99]])),
            numbered(2),
        )
        answers = stream.rest()
        assert stream.call.code() is grpc.StatusCode.OK
    assert [bool(one.error_message) for one in answers] == [False, True, True, True, False]
    assert "x" in answers[1].error_message
    assert "nobody" in answers[2].error_message
    # Triton's clients find the request that failed by the id of the otherwise empty response.
    assert [one.infer_response.id for one in answers[1:4]] == ["bad shape", "no model", "bad index"]
    assert all(not one.infer_response.outputs for one in answers[1:4])


def test_a_caller_may_ask_for_a_status_in_place_of_errors_in_band(door: Door) -> None:
    with Stream(door, metadata=[("triton_grpc_error", "true")]) as stream:
        stream.write(numbered(1), request("add", x=np.zeros((1, 5), np.float32)), numbered(2))
        stream.close()
        assert values(stream.read()) == rows(2.0).tolist()
        with pytest.raises(grpc.RpcError) as ended:
            stream.read()
    refused = Refusal.of(ended.value)
    assert (refused.code, refused.reason) == ("INVALID_ARGUMENT", "INVALID_TENSOR")
    assert refused.fields == ("inputs[x].shape",)


@pytest.mark.parametrize("asked", [True, False, None])
def test_a_final_response_is_marked_when_asked_for(door: Door, asked: bool | None) -> None:
    message = numbered(1)
    if asked is not None:
        message.parameters["triton_enable_empty_final_response"].bool_param = asked
    with Stream(door) as stream:
        stream.write(message, numbered(2))
        answers = stream.rest()
    # A model that answers once gives its only answer, which is the final one, and no empty one after it.
    assert [one.infer_response.id for one in answers] == ["request 1", "request 2"]
    final = answers[0].infer_response.parameters
    if asked:
        assert final["triton_final_response"].bool_param
    assert values(answers[0]) == rows(2.0).tolist()


def test_an_empty_stream_ends_well(door: Door) -> None:
    with Stream(door) as stream:
        assert stream.rest() == []
        assert stream.call.code() is grpc.StatusCode.OK


def test_a_large_message_fits_a_stream(door: Door) -> None:
    big = np.arange(2_000_000, dtype=np.float32)[None]
    with Stream(door) as stream:
        stream.write(*[request("any_width", x=big)] * 4)
        for answer in stream.rest():
            assert answer.infer_response.raw_output_contents[0] == big.tobytes()


def test_a_deadline_of_an_idle_stream_ends_it(door: Door) -> None:
    with Stream(door, timeout=0.3) as stream, pytest.raises(grpc.RpcError) as ended:
        stream.read()
    assert Refusal.of(ended.value).code == "DEADLINE_EXCEEDED"


def test_a_deadline_of_a_stream_ends_what_it_waits_for(door: Door, worker_door: Door) -> None:
    for _ in range(30):
        # Short runs first, so that nothing is refused as hopeless.
        door.infer(request("slow", x=rows(0.0)))
    with Stream(door, timeout=0.3) as stream:
        stream.write(request("slow", x=rows(600.0)))
        with pytest.raises(grpc.RpcError) as ended:
            stream.read()
    assert Refusal.of(ended.value).code == "DEADLINE_EXCEEDED"
    wait_until(lambda: "slow" not in queued(worker_door), "its place is free")


def test_a_caller_that_goes_takes_what_is_queued_with_it(door: Door, worker_door: Door) -> None:
    with Stream(door) as stream:
        stream.write(request("slow", x=rows(300.0)), *[request("slow", x=rows(2_000.0))] * 50)
        wait_until(lambda: "slow" in queued(worker_door), "it runs")
    # A hundred seconds of work would follow if it were not dropped.
    wait_until(lambda: "slow" not in queued(worker_door), "nothing of it is left", seconds=30)
    assert door.arrays(request("slow", x=rows(0.0)))["y"].tolist() == rows(0.0).tolist()


def test_many_streams_at_once_keep_their_own_answers(door: Door) -> None:
    streams = [Stream(door) for _ in range(24)]
    try:
        for turn in range(4):
            for number, stream in enumerate(streams):
                stream.write(request("same_one", x=np.array([[number * 100 + turn]], np.float32)))
        for number, stream in enumerate(streams):
            assert [values(one)[0][0] for one in stream.rest()] == [number * 100 + turn for turn in range(4)]
    finally:
        for stream in streams:
            stream.__exit__()
