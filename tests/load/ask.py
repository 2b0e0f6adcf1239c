"""Requests to the models of `repository`, and answers as the tests look at them."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import grpc
import grpc.aio
import numpy as np

import headrace_batcher
from headrace_protos.control.v1 import control_pb2, control_pb2_grpc
from headrace_protos.inference import grpc_service_pb2 as pb
from headrace_protos.inference import grpc_service_pb2_grpc as rpc

if TYPE_CHECKING:
    from collections.abc import Sequence

METHOD = "/inference.GRPCInferenceService/ModelInfer"
NAP, EXIT, PACE = 31337.0, 31338.0, 31339.0
OPTIONS = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    # One connection a channel, also for channels to the same address.
    ("grpc.use_local_subchannel_pool", 1),
]


def request(model: str, values: Any) -> pb.ModelInferRequest:
    """One input `x`, raw contents."""
    rows = np.atleast_2d(np.asarray(values, np.float32))
    message = pb.ModelInferRequest(model_name=model, raw_input_contents=[rows.tobytes()])
    message.inputs.add(name="x", datatype="FP32", shape=rows.shape)
    return message


def nap(milliseconds: float, *, model: str = "nap", tag: float = 0.0) -> pb.ModelInferRequest:
    """A request whose batch takes so long; `tag` comes back as `tag` + 1 in the last column."""
    return request(model, [milliseconds, NAP, 0.0, tag])


def plain(tag: float = 0.0, *, model: str = "add") -> pb.ModelInferRequest:
    return request(model, [0.0, 0.0, 0.0, tag])


def answer(response: pb.ModelInferResponse) -> np.ndarray:
    return np.frombuffer(response.raw_output_contents[0], np.float32).reshape(response.outputs[0].shape)


def channel(address: str, **options: int) -> grpc.aio.Channel:
    extra = [(f"grpc.{name}", value) for name, value in options.items()]
    return grpc.aio.insecure_channel(address, options=[*OPTIONS, *extra])


def stub(channel: grpc.aio.Channel) -> rpc.GRPCInferenceServiceStub:
    return rpc.GRPCInferenceServiceStub(channel)


@dataclass
class Ended:
    """How one call ended."""

    code: str
    reason: str
    message: str
    seconds: float
    begun: float
    """Monotonic time at which it was made."""
    answer: np.ndarray | None = None

    @property
    def ok(self) -> bool:
        return self.code == "OK"


async def ask(
    channel: grpc.aio.Channel,
    message: pb.ModelInferRequest,
    *,
    timeout: float | None = 10.0,  # noqa: ASYNC109 - it becomes the call's deadline
) -> Ended:
    """One call, to its end, whichever that is."""
    begun = time.monotonic()
    try:
        response = await stub(channel).ModelInfer(message, timeout=timeout)
    except grpc.aio.AioRpcError as error:
        trailers = dict(error.trailing_metadata() or ())
        return Ended(
            error.code().name,
            str(trailers.get("headrace-reason", "")),
            error.details() or "",
            time.monotonic() - begun,
            begun,
        )
    return Ended("OK", "", "", time.monotonic() - begun, begun, answer(response))


async def canary(address: str, *, model: str = "add", within: float = 1.0) -> None:
    """The next well-formed request, on a connection of its own, is answered rightly in less than a second."""
    async with channel(address) as fresh:
        ended = await ask(fresh, plain(41.0, model=model), timeout=10.0)
    assert ended.ok, ended
    assert ended.answer is not None
    assert ended.answer[0, 3] == 42.0
    assert ended.seconds < within, ended


async def depth(channel: grpc.aio.Channel, model: str) -> tuple[int, int]:
    """Rows that wait and rows that run, by the worker's own word."""
    # Asking for statistics makes the worker read its counters afresh; states alone may be a quarter of a second old.
    await executed(channel, model)
    state = await control_pb2_grpc.WorkerServiceStub(channel).GetState(control_pb2.GetStateRequest(), timeout=5)
    for one in state.models:
        if one.name == model:
            return one.queue_rows, one.running_rows
    raise AssertionError(f"{model} is not served")


async def executed(channel: grpc.aio.Channel, model: str) -> int:
    """Rows of a model that were run."""
    statistics = await stub(channel).ModelStatistics(pb.ModelStatisticsRequest(name=model), timeout=5)
    return int(statistics.model_stats[0].inference_count)


@dataclass
class Traffic:
    """Steady requests in the background: `rate` a second, each a task of its own, until stopped."""

    address: str
    rate: float = 100.0
    model: str = "add"
    nap_ms: float = 0.0
    timeout: float = 10.0
    connections: int = 1
    ended: list[Ended] = field(default_factory=list)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        channels = [channel(self.address) for _ in range(self.connections)]
        calls: set[asyncio.Task[None]] = set()
        count, begin = 0, time.monotonic()
        while not self._stop.is_set():
            call = asyncio.create_task(self._one(channels[count % len(channels)], float(count % 1000)))
            calls.add(call)
            call.add_done_callback(calls.discard)
            count += 1
            await asyncio.sleep(max(0.0, begin + count / self.rate - time.monotonic()))
        await asyncio.gather(*calls)
        for one in channels:
            await one.close()

    async def _one(self, link: grpc.aio.Channel, tag: float) -> None:
        message = nap(self.nap_ms, model=self.model, tag=tag) if self.nap_ms else plain(tag, model=self.model)
        ended = await ask(link, message, timeout=self.timeout)
        if ended.answer is not None:
            assert ended.answer[0, 3] == tag + 1.0, "another caller's answer"
        self.ended.append(ended)

    @property
    def failed(self) -> list[Ended]:
        return [one for one in self.ended if not one.ok]

    def since(self, moment: float) -> list[Ended]:
        """Calls made after that moment."""
        return [one for one in self.ended if one.begun > moment]

    def codes(self) -> Counter[tuple[str, str]]:
        return Counter((one.code, one.reason) for one in self.ended)


async def load(address: str, message: pb.ModelInferRequest | Sequence[pb.ModelInferRequest], **settings: object) -> Any:
    """The load generator, on a thread of its own; its report."""
    messages = [message] if isinstance(message, pb.ModelInferRequest) else message
    payloads = [{"base64": base64.b64encode(one.SerializeToString()).decode()} for one in messages]
    config = json.dumps({"url": address, "payloads": payloads, **settings})
    return json.loads(await asyncio.to_thread(headrace_batcher.load_test, config))
