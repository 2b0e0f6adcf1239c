import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc.aio
import numpy as np
import pytest

from headrace import InferRequest, aio, errors
from tests.unit.client.echo_server import EchoServer, EchoService, answer

ROW = np.arange(4, dtype=np.float32).reshape(1, 4)


@pytest.fixture
async def client(server: EchoServer) -> AsyncIterator[aio.Client]:
    async with aio.Client(server.url, timeout=10) as client:
        yield client


async def test_many_tasks_share_a_client_and_get_their_own_answers(client: aio.Client) -> None:
    results = await asyncio.gather(*(client.infer("echo", np.full((1, 4), n, np.float32)) for n in range(100)))
    assert [result["y"][0, 0] for result in results] == list(range(100))


async def test_cancelling_a_task_cancels_its_call_on_the_server(client: aio.Client, service: EchoService) -> None:
    # The server has a loop of its own: plain thread events cross over.
    import threading

    began, ended = threading.Event(), threading.Event()

    async def hang(context: grpc.aio.ServicerContext) -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    await client.infer("echo", ROW)
    service.script.append(hang)
    task = asyncio.create_task(client.infer("echo", ROW))
    assert await asyncio.to_thread(began.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(ended.wait, 5)


async def test_a_stream_takes_async_requests_and_gives_answers_in_order(client: aio.Client) -> None:
    async def items() -> AsyncIterator[InferRequest]:
        for n in range(5):
            await asyncio.sleep(0)
            yield InferRequest(inputs=np.full((1, 4), n, np.float32), parameters={"answers": n})

    answers = [result["y"][0, 0] async for result in client.stream("echo", items())]
    assert answers == [1, 2, 2, 3, 3, 3, 4, 4, 4, 4]


async def test_a_failed_stream_gives_what_came_before_and_then_the_typed_error(
    client: aio.Client, service: EchoService
) -> None:
    service.script += [answer, errors.QueueFull("full")]
    results = client.stream("echo", [ROW, ROW, ROW])
    np.testing.assert_array_equal((await anext(results))["y"], ROW)
    with pytest.raises(errors.QueueFull):
        await anext(results)


async def test_an_error_of_the_callers_own_iterator_comes_through(client: aio.Client) -> None:
    async def items() -> AsyncIterator[np.ndarray]:
        yield ROW
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        async for _ in client.stream("echo", items()):
            pass


async def test_a_bad_item_of_a_stream_is_refused_like_any_other(client: aio.Client) -> None:
    with pytest.raises(errors.InvalidTensor, match=r"expected \[-1,4\]"):
        async for _ in client.stream("echo", [np.zeros((1, 3), np.float32)]):
            pass


async def test_cancelling_the_reader_of_a_stream_is_a_cancellation(client: aio.Client) -> None:
    async def silent() -> AsyncIterator[np.ndarray]:
        yield ROW
        await asyncio.sleep(60)

    read = asyncio.Event()

    async def reader() -> None:
        async with aclosing(client.stream("echo", silent())) as results:
            async for _ in results:
                read.set()

    task = asyncio.create_task(reader())
    await asyncio.wait_for(read.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    np.testing.assert_array_equal((await client.infer("echo", ROW))["y"], ROW)


async def test_errors_are_those_of_the_blocking_client(client: aio.Client, service: EchoService, nobody: str) -> None:
    with pytest.raises(errors.InvalidTensor, match=r"array\.astype"):
        await client.infer("echo", ROW.astype(np.float64))
    with pytest.raises(errors.ModelNotFound):
        await client.infer("nope", ROW)
    service.script.append(errors.WorkerLost("died"))
    with pytest.raises(errors.WorkerLost):
        await client.infer("echo", ROW)
    async with aio.Client(nobody) as lost:
        with pytest.raises(errors.Unreachable):
            await lost.infer("echo", ROW)
        with pytest.raises(errors.DeadlineExceeded):
            await lost.wait_ready(timeout=0.3)


async def test_everything_else_answers_too(client: aio.Client) -> None:
    assert await client.server_live()
    assert await client.server_ready()
    assert await client.model_ready("echo")
    await client.wait_ready("echo", timeout=5)
    assert (await client.server_metadata()).name == "echo"
    assert (await client.metadata("echo")).inputs[0].datatype == "FP32"
    assert (await client.config("echo"))["name"] == "echo"
    assert (await client.statistics())[0]["name"] == "echo"
    await client.unload("pair")
    assert len(await client.models(ready=True)) == 2
    await client.load("pair")
    await client.close()
    with pytest.raises(RuntimeError, match="closed"):
        await client.server_live()


async def test_closing_fails_calls_in_flight_and_does_not_cancel_the_tasks_that_wait(server: EchoServer) -> None:
    # The server has a loop of its own: plain thread events cross over.
    import threading

    began = threading.Event()

    async def hang(context: grpc.aio.ServicerContext) -> None:
        began.set()
        await asyncio.sleep(60)

    server.service.script.append(hang)
    client = aio.Client(server.url, timeout=10)
    waiting = asyncio.create_task(client.infer("echo", ROW))
    await asyncio.to_thread(began.wait, 10)
    await client.close()
    with pytest.raises(errors.Cancelled, match="closed"):
        await waiting
