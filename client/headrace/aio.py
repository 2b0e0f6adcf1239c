"""The asyncio client: `await aio.Client("127.0.0.1:8001").infer("minilm", {"input_ids": array})`.

What to send, check, cache and repeat is decided in `headrace.calls`; this module makes the calls and does the waiting.
"""

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, TypeVar, cast

import grpc
import grpc.aio

from headrace import errors
from headrace.calls import UNSET, Calls, ClientSettings, Flow, InferRequest, Inputs, Timeout, Unset, Wait
from headrace.channel import DEFAULT_MAX_MESSAGE_BYTES, channel_options, target
from headrace.metadata import ModelMetadata, ModelStatus, ServerMetadata
from headrace.result import InferResult, Parameter
from headrace.retry import RetryPolicy
from headrace.stream import STREAM_METADATA, read_reply
from headrace_protos.inference import grpc_service_pb2 as pb
from headrace_protos.inference import grpc_service_pb2_grpc as rpc

_T = TypeVar("_T")
_Call: TypeAlias = "grpc.aio.StreamStreamCall[pb.ModelInferRequest, pb.ModelStreamInferResponse]"


class Client:
    """Calls an inference server from asyncio; numpy in, numpy out.

    One client holds one HTTP/2 connection that any number of tasks of one event loop may share: `asyncio.gather` over
    `infer` is how to keep a batching server busy. Make it inside the loop; close it, or use it in `async with`.
    It must not cross a fork. Cancelling a task cancels its call, on the server too.

    Methods, arguments and errors are those of `headrace.Client`, which describes them.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        timeout: Timeout = 60.0,
        retries: RetryPolicy | None = None,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        check: bool = True,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """As `headrace.Client`; connects with the first call, not here."""
        self.url = target(url)
        self._calls = Calls(
            ClientSettings(
                timeout=timeout,
                retries=retries if retries is not None else RetryPolicy(),
                max_message_bytes=max_message_bytes,
                check=check,
            )
        )
        self._metadata = tuple((metadata or {}).items())
        self._channel = grpc.aio.insecure_channel(
            self.url, options=channel_options(max_message_bytes, address=self.url)
        )
        self._stub = rpc.GRPCInferenceServiceStub(self._channel)
        self._closed = False
        self._pid = os.getpid()

    # -- inference

    async def infer(
        self,
        model: str,
        inputs: Inputs,
        *,
        version: str = "",
        outputs: Sequence[str] = (),
        parameters: Mapping[str, Parameter] | None = None,
        priority: int = 0,
        id: str = "",  # noqa: A002 — the protocol's word
        timeout: Timeout | Unset = UNSET,  # noqa: ASYNC109 — the server must know it too
    ) -> InferResult:
        """Run the model once; see `headrace.Client.infer`."""
        request = InferRequest(inputs=inputs, id=id, outputs=outputs, parameters=parameters, priority=priority)
        return await self._run(self._calls.infer(model, request, version=version, timeout=timeout))

    async def stream(
        self,
        model: str,
        requests: AsyncIterable[InferRequest | Inputs] | Iterable[InferRequest | Inputs],
        *,
        version: str = "",
        timeout: Timeout = None,  # noqa: ASYNC109 — the server must know it too
    ) -> AsyncIterator[InferResult]:
        """Send requests over one stream and yield results as they come; see `headrace.Client.stream`.

        `requests` may be an async iterable. Leaving the loop early cancels the stream once the iterator is closed
        (`contextlib.aclosing` does it at once).
        """
        self._check_usable()
        deadline = self._calls.deadline(timeout)
        messages = _Messages()
        call: _Call = self._stub.ModelStreamInfer(
            aiter(messages), timeout=self._calls.time_left(deadline), metadata=self._metadata + STREAM_METADATA
        )

        ending = _Ending(call)

        async def feed() -> None:
            try:
                async for item in _each(requests):
                    flow = self._calls.stream_request(model, item, version=version, deadline=deadline)
                    await messages.put(await self._run(flow))
                messages.end()
            except Exception:
                call.cancel()
                raise

        feeding = asyncio.create_task(feed())
        try:
            async for reply in call:
                yield read_reply(reply)
        except grpc.RpcError as error:
            _raise_own_error(feeding)
            raise errors.from_rpc_error(await ending.error(error), url=self.url) from error
        except asyncio.CancelledError:
            # Ours, because the caller's requests failed and cancelled the call; or our caller's, which goes on as it is.
            _raise_own_error(feeding)
            raise
        finally:
            call.cancel()
            messages.end()
            feeding.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await feeding

    # -- what the server says

    async def server_live(self, *, timeout: Timeout | Unset = UNSET) -> bool:  # noqa: ASYNC109
        """Whether the server answers; False where nobody does."""
        return await self._run(self._calls.server_live(timeout=timeout))

    async def server_ready(self, *, timeout: Timeout | Unset = UNSET) -> bool:  # noqa: ASYNC109
        """Whether the server takes requests; False where nobody answers."""
        return await self._run(self._calls.server_ready(timeout=timeout))

    async def model_ready(
        self,
        model: str,
        *,
        version: str = "",
        timeout: Timeout | Unset = UNSET,  # noqa: ASYNC109
    ) -> bool:
        """Whether the model takes requests; False where it is unknown or nobody answers."""
        return await self._run(self._calls.model_ready(model, version=version, timeout=timeout))

    async def wait_ready(
        self,
        model: str | None = None,
        *,
        version: str = "",
        timeout: Timeout = 60.0,  # noqa: ASYNC109
    ) -> None:
        """Return once the server (or the model) takes requests; see `headrace.Client.wait_ready`."""
        await self._run(self._calls.wait_ready(model, version=version, timeout=timeout))

    async def server_metadata(self, *, timeout: Timeout | Unset = UNSET) -> ServerMetadata:  # noqa: ASYNC109
        """The server's name, version and protocol extensions."""
        return await self._run(self._calls.server_metadata(timeout=timeout))

    async def models(
        self,
        *,
        ready: bool = False,
        timeout: Timeout | Unset = UNSET,  # noqa: ASYNC109
    ) -> list[ModelStatus]:
        """Every model in the repository with its state and, where it isn't ready, why. `ready`: only those that are."""
        return await self._run(self._calls.models(ready=ready, timeout=timeout))

    async def metadata(
        self,
        model: str,
        *,
        version: str = "",
        timeout: Timeout | Unset = UNSET,  # noqa: ASYNC109
    ) -> ModelMetadata:
        """The model's versions, inputs, outputs and card, asked anew."""
        return await self._run(self._calls.metadata(model, version=version, timeout=timeout))

    async def config(
        self,
        model: str,
        *,
        version: str = "",
        timeout: Timeout | Unset = UNSET,  # noqa: ASYNC109
    ) -> dict[str, Any]:
        """The model's settings in the form of Triton's `config.pbtxt`, as plain values."""
        return await self._run(self._calls.config(model, version=version, timeout=timeout))

    async def statistics(
        self,
        model: str = "",
        *,
        version: str = "",
        timeout: Timeout | Unset = UNSET,  # noqa: ASYNC109
    ) -> list[dict[str, Any]]:
        """What was counted and timed (nanoseconds) since each model was loaded. Empty name: all models."""
        return await self._run(self._calls.statistics(model, version=version, timeout=timeout))

    # -- load control

    async def load(
        self,
        model: str,
        *,
        config: Mapping[str, Any] | None = None,
        timeout: Timeout | Unset = timedelta(minutes=5),  # noqa: ASYNC109
    ) -> None:
        """Load a model, or load it anew; see `headrace.Client.load`."""
        await self._run(self._calls.load(model, config=config, timeout=timeout))

    async def unload(
        self,
        model: str,
        *,
        timeout: Timeout | Unset = timedelta(minutes=5),  # noqa: ASYNC109
    ) -> None:
        """Unload a model once its work in flight is finished."""
        await self._run(self._calls.unload(model, timeout=timeout))

    # -- life-cycle

    async def close(self) -> None:
        """Cancel what is in flight and close the connection. Idempotent."""
        self._closed = True
        if os.getpid() == self._pid:
            await self._channel.close(grace=None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"aio.Client({self.url!r})"

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError("this Client was made before a fork; make a new one in this process")
        if self._closed:
            raise RuntimeError("this Client is closed")

    async def _run(self, flow: Flow[_T]) -> _T:
        """Drive a flow: make its calls, sleep its waits, give back its result."""
        self._check_usable()
        try:
            step = next(flow)
            while True:
                if isinstance(step, Wait):
                    await asyncio.sleep(step.seconds)
                    self._check_usable()
                    step = flow.send(None)
                    continue
                send = getattr(self._stub, step.method)
                try:
                    reply = await send(step.request, timeout=step.timeout, metadata=self._metadata)
                except grpc.RpcError as error:
                    failed = errors.from_rpc_error(error, url=self.url)
                    failed.__cause__ = error
                    step = flow.throw(failed)
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    if self._closed and task is not None and not task.cancelling():
                        # gRPC's word for a closed channel; to our caller it would mean that its task was cancelled.
                        raise errors.Cancelled("the client was closed") from None
                    raise
                else:
                    step = flow.send(reply)
        except StopIteration as done:
            return cast("_T", done.value)


class _Messages:
    """Requests on their way into a stream: one waits while gRPC sends another.

    gRPC reads them in a task of its own that nothing ends while a caller's iterator is silent, so it reads from here.
    """

    def __init__(self) -> None:
        self._queue: asyncio.Queue[pb.ModelInferRequest | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(1)

    async def put(self, message: pb.ModelInferRequest) -> None:
        """Hand over a message once the one before is taken."""
        await self._room.acquire()
        self._queue.put_nowait(message)

    def end(self) -> None:
        """Nothing more comes. Idempotent."""
        self._queue.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[pb.ModelInferRequest]:
        while (message := await self._queue.get()) is not None:
            self._room.release()
            yield message


def _raise_own_error(feeding: asyncio.Task[None]) -> None:
    if feeding.done() and not feeding.cancelled() and (failure := feeding.exception()) is not None:
        raise failure from None


_LOST_STATUS: Final = "Internal error from Core"


class _Ending:
    """The status with which a stream ended.

    A write that fails because the stream has ended makes grpc.aio replace that very status with INTERNAL, "Internal
    error from Core". The callback sees each status as it is set, so the server's own is kept from here.
    """

    def __init__(self, call: _Call) -> None:
        self._error: grpc.RpcError | None = None
        self._known = asyncio.Event()
        call.add_done_callback(self._note)

    async def error(self, seen: grpc.RpcError) -> grpc.RpcError:
        """The server's status, or the one that was seen where none comes within a moment."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._known.wait(), 1.0)
        return self._error or seen

    def _note(self, call: Any) -> None:
        # The status is set, so these coroutines return without waiting for anything.
        details = _at_once(call.details())
        if self._known.is_set() or details == _LOST_STATUS:
            return
        nothing = grpc.aio.Metadata()
        self._error = grpc.aio.AioRpcError(
            _at_once(call.code()),
            nothing,
            _at_once(call.trailing_metadata()) or nothing,
            details=details,
            debug_error_string=None,
        )
        self._known.set()


def _at_once(ready: Coroutine[Any, Any, Any]) -> Any:
    try:
        ready.send(None)
    except StopIteration as done:
        return done.value
    ready.close()
    raise RuntimeError("a call that is done doesn't know its status")


async def _each(
    requests: AsyncIterable[InferRequest | Inputs] | Iterable[InferRequest | Inputs],
) -> AsyncIterator[InferRequest | Inputs]:
    if isinstance(requests, AsyncIterable):
        async for item in requests:
            yield item
    else:
        for item in requests:
            yield item
