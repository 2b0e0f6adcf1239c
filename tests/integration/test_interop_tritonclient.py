"""Triton's Python client, unmodified: infer, async, streams, asyncio, and every metadata and repository call."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.support.models import MODELS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.support.calls import Door

pytestmark = pytest.mark.usefixtures("unharmed")


def inputs(kind: Any = triton, **arrays: np.ndarray) -> list[Any]:
    made = []
    for name, array in arrays.items():
        one = kind.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        one.set_data_from_numpy(array)
        made.append(one)
    return made


@pytest.fixture
def client(door: Door) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(door.address) as made:
        yield made


X = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_infer_with_named_outputs_and_an_id(client: triton.InferenceServerClient) -> None:
    asked = [triton.InferRequestedOutput("label"), triton.InferRequestedOutput("probs")]
    result = client.infer("two_outputs", inputs(x=X), outputs=asked, request_id="7", model_version="1")
    assert result.as_numpy("label").tolist() == [3, 3]
    np.testing.assert_allclose(result.as_numpy("probs").sum(axis=1), 1, rtol=1e-5)
    assert (result.get_response().id, result.get_response().model_version) == ("7", "1")


@pytest.mark.parametrize(
    "values",
    [
        np.array([[True, False, True, True]]),
        *[
            np.array([[0, 1, 2, 100]], kind)
            for kind in ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")
        ],
    ],
    ids=lambda values: str(values.dtype),
)
def test_every_datatype_comes_back(client: triton.InferenceServerClient, values: np.ndarray) -> None:
    model = f"same_{np_to_triton_dtype(values.dtype).lower()}"
    got = client.infer(model, inputs(x=values)).as_numpy("y")
    assert got.dtype == values.dtype
    np.testing.assert_array_equal(got, values)


def test_text_comes_back(client: triton.InferenceServerClient) -> None:
    words = np.array([b"duck", "🦆".encode(), b""], np.object_)
    assert client.infer("same_bytes", inputs(x=words)).as_numpy("y").tolist() == words.tolist()


def test_bfloat16_comes_back(client: triton.InferenceServerClient) -> None:
    values = np.array([[1, -2, 0.5, 256]], ml_dtypes.bfloat16)
    one = triton.InferInput("x", [1, 4], "BF16")
    one.set_data_from_numpy(values)
    assert client.infer("same_bf16", [one]).as_numpy("y").astype(np.float32).tolist() == [[1, -2, 0.5, 256]]


def test_compressed_requests_are_understood(client: triton.InferenceServerClient) -> None:
    got = client.infer("add", inputs(x=X), compression_algorithm="gzip").as_numpy("y")
    np.testing.assert_array_equal(got, X + 1)


def test_an_error_says_what_is_wrong(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException) as refused:
        client.infer("add", inputs(x=X[:, :3]))
    assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert "x" in refused.value.message()
    with pytest.raises(InferenceServerException) as refused:
        client.infer("nobody", inputs(x=X))
    assert refused.value.status() == "StatusCode.NOT_FOUND"


def test_priority_timeout_and_own_parameters(client: triton.InferenceServerClient) -> None:
    result = client.infer("add", inputs(x=X), priority=1, timeout=5_000_000, parameters={"mine": 3}, client_timeout=30)
    np.testing.assert_array_equal(result.as_numpy("y"), X + 1)


def test_async_infer_calls_back(client: triton.InferenceServerClient) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    for number in range(32):
        client.async_infer(
            "add", inputs(x=X + number), callback=lambda result, error: answers.put((result, error)),
            request_id=str(number),
        )  # fmt: skip
    for _ in range(32):
        result, error = answers.get(timeout=30)
        assert error is None
        np.testing.assert_array_equal(result.as_numpy("y"), X + int(result.get_response().id) + 1)


def test_a_stream_keeps_order_and_tells_errors(client: triton.InferenceServerClient) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(callback=lambda result, error: answers.put((result, error)))
    for number in range(20):
        wrong = number == 10
        client.async_stream_infer(
            "add", inputs(x=X[:, :3] if wrong else X + number), request_id=str(number),
            enable_empty_final_response=number % 2 == 0,
        )  # fmt: skip
    for number in range(20):
        result, error = answers.get(timeout=30)
        if number == 10:
            assert isinstance(error, InferenceServerException)
            assert "x" in error.message()
        else:
            assert error is None
            np.testing.assert_array_equal(result.as_numpy("y"), X + number + 1)
            if number % 2 == 0:
                assert result.get_response().parameters["triton_final_response"].bool_param
    client.stop_stream()


def test_every_metadata_call(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("add")
    assert client.is_model_ready("add", "1")
    assert not client.is_model_ready("nobody")
    assert client.get_server_metadata(as_json=True)["name"] == "headrace"
    metadata = client.get_model_metadata("add", as_json=True)
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "4"]}]
    config = client.get_model_config("add", as_json=True)["config"]
    assert (config["name"], config["max_batch_size"]) == ("add", 8)
    statistics = client.get_inference_statistics("add", as_json=True)["model_stats"]
    assert int(statistics[0]["inference_count"]) > 0
    assert len(client.get_inference_statistics().model_stats) == len(MODELS)
    assert client.get_trace_settings(as_json=True)["settings"]["trace_level"]["value"] == ["OFF"]
    assert client.get_trace_settings("add").settings
    assert client.get_log_settings(as_json=True)["settings"]["log_error"]["bool_param"]
    assert client.update_log_settings({"log_verbose_level": 0}).settings


def test_every_repository_call(client: triton.InferenceServerClient) -> None:
    index = {one.name: one.state for one in client.get_model_repository_index().models}
    assert set(index) == set(MODELS)
    assert set(index.values()) == {"READY"}
    client.unload_model("total")
    try:
        assert not client.is_model_ready("total")
    finally:
        client.load_model("total")
    assert client.is_model_ready("total")
    with pytest.raises(InferenceServerException) as refused:
        client.load_model("nobody")
    assert refused.value.status() == "StatusCode.NOT_FOUND"


def test_shared_memory_calls_are_refused(client: triton.InferenceServerClient) -> None:
    for call in (
        client.get_system_shared_memory_status,
        client.get_cuda_shared_memory_status,
        client.unregister_system_shared_memory,
        lambda: client.register_system_shared_memory("r", "/k", 16),
    ):
        with pytest.raises(InferenceServerException) as refused:
            call()
        assert refused.value.status() == "StatusCode.UNIMPLEMENTED"


async def test_asyncio_infer_and_stream(door: Door) -> None:
    async with triton_aio.InferenceServerClient(door.address) as client:
        assert await client.is_server_ready()
        result = await client.infer("add", inputs(triton_aio, x=X))
        np.testing.assert_array_equal(result.as_numpy("y"), X + 1)

        async def requests() -> AsyncIterator[dict[str, Any]]:
            for number in range(10):
                yield {"model_name": "add", "inputs": inputs(triton_aio, x=X + number), "request_id": str(number)}

        number = 0
        async for result, error in client.stream_infer(requests()):
            assert error is None
            np.testing.assert_array_equal(result.as_numpy("y"), X + number + 1)
            number += 1
        assert number == 10


async def test_an_asyncio_call_can_be_cancelled(door: Door) -> None:
    async with triton_aio.InferenceServerClient(door.address) as client:
        with pytest.raises(InferenceServerException) as refused:
            await client.infer("slow", inputs(triton_aio, x=np.full((1, 4), 500, np.float32)), client_timeout=0.1)
        assert refused.value.status() == "StatusCode.DEADLINE_EXCEEDED"
