"""The synchronous client: `Client("127.0.0.1:8001").infer("minilm", {"input_ids": array})`.

What to send, check, cache and repeat is decided in `headrace.calls`; this module makes the calls and does the waiting.
"""

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import grpc

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


class Client:
    """Calls an inference server; numpy in, numpy out.

    One client holds one HTTP/2 connection that any number of threads may share. Close it, or use it in a `with`
    block. It must not cross a fork: make a client in each process (and prefer the start methods `spawn` or
    `forkserver` for workers that use one). Used in a forked child it raises `RuntimeError` instead of hanging.

    Every method takes a `timeout` in seconds (or a `timedelta`; None: none), retries included, and raises the
    exceptions of `headrace.errors`.
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
        """Connects with the first call, not here.

        Args:
            url: `host:port` or `unix:/path`; None: the environment's `HEADRACE_URL`, else `127.0.0.1:8001`.
            timeout: for each call that names none.
            retries: what to do about refusals that are safe to repeat; `NO_RETRIES` to see each one.
            max_message_bytes: largest message either way; raise it on the server too.
            check: whether inputs are compared with the model's (cached) metadata before they are sent.
            metadata: gRPC metadata sent with every call, such as a tenant's key.

        Raises:
            ValueError: the URL is no address.
        """
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
        self._channel = grpc.insecure_channel(self.url, options=channel_options(max_message_bytes, address=self.url))
        self._stub = rpc.GRPCInferenceServiceStub(self._channel)
        self._closed = threading.Event()
        self._pid = os.getpid()

    # -- inference

    def infer(
        self,
        model: str,
        inputs: Inputs,
        *,
        version: str = "",
        outputs: Sequence[str] = (),
        parameters: Mapping[str, Parameter] | None = None,
        priority: int = 0,
        id: str = "",  # noqa: A002 — the protocol's word
        timeout: Timeout | Unset = UNSET,
    ) -> InferResult:
        """Run the model once.

        Args:
            model: its name, or an alias.
            inputs: values by input name: arrays of exactly the model's datatype, or (nested lists of) Python numbers,
                `str` and `bytes`. For a model with one input, just the value.
            version: empty: the server's choice.
            outputs: which ones to send back; empty: all.
            parameters: the protocol's request parameters.
            priority: 1 is the most urgent; 0: the model's default.
            id: sent back in the result and found in the server's traces.
            timeout: for the whole call. The server knows it too and drops what can't be done in time.

        Raises:
            InvalidTensor, UnknownTensor: the inputs don't fit the model; nothing was sent.
            ServingError: any other refusal or failure, by its type.
        """
        request = InferRequest(inputs=inputs, id=id, outputs=outputs, parameters=parameters, priority=priority)
        return self._run(self._calls.infer(model, request, version=version, timeout=timeout))

    def encode(
        self, model: str, inputs: InferRequest | Inputs, *, version: str = "", timeout: Timeout | Unset = UNSET
    ) -> pb.ModelInferRequest:
        """The message that `infer` would send, checked like it: for tools that send it themselves."""
        deadline = self._calls.deadline(timeout)
        return self._run(self._calls.stream_request(model, inputs, version=version, deadline=deadline))

    def infer_many(
        self,
        model: str,
        inputs: Iterable[Inputs],
        *,
        version: str = "",
        outputs: Sequence[str] = (),
        concurrency: int = 16,
        timeout: Timeout | Unset = UNSET,
    ) -> Iterator[InferResult]:
        """Run the model for each of many inputs, up to `concurrency` at once, results in the order of the inputs.

        The server batches what arrives together. `inputs` is read only `concurrency` ahead, so it may be endless.
        The first error ends the iteration; `timeout` is for each request.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {concurrency}")
        with ThreadPoolExecutor(max_workers=concurrency, thread_name_prefix="headrace-infer") as threads:
            pending: deque[Future[InferResult]] = deque()
            try:
                for one in inputs:
                    if len(pending) == concurrency:
                        yield pending.popleft().result()
                    pending.append(
                        threads.submit(self.infer, model, one, version=version, outputs=outputs, timeout=timeout)
                    )
                while pending:
                    yield pending.popleft().result()
            finally:
                for future in pending:
                    future.cancel()

    def stream(
        self,
        model: str,
        requests: Iterable[InferRequest | Inputs],
        *,
        version: str = "",
        timeout: Timeout = None,
    ) -> Iterator[InferResult]:
        """Send requests over one stream (`ModelStreamInfer`, Triton's form) and yield results as they come.

        Results come in the order of the requests; a model that generates may give several for one. Closing the
        iterator cancels what is left. Nothing in a stream is ever sent again.

        Args:
            model: its name, or an alias.
            requests: inputs as for `infer`, or `InferRequest` where there is more to say. Read as the server takes them.
            version: empty: the server's choice.
            timeout: for the whole stream; None: as long as it takes.

        Raises:
            ServingError: a request failed; the stream ends there. An exception of `requests` itself comes through.
        """
        self._check_usable()
        deadline = self._calls.deadline(timeout)
        failure: list[Exception] = []

        def messages() -> Iterator[pb.ModelInferRequest]:
            # gRPC reads this in a thread of its own, which would swallow the error.
            try:
                for item in requests:
                    yield self._run(self._calls.stream_request(model, item, version=version, deadline=deadline))
            except Exception as error:
                failure.append(error)
                raise

        call = self._stub.ModelStreamInfer(
            messages(), timeout=self._calls.time_left(deadline), metadata=self._metadata + STREAM_METADATA
        )
        return self._replies(call, failure)

    def _replies(
        self, call: "grpc.CallIterator[pb.ModelStreamInferResponse]", failure: Sequence[Exception]
    ) -> Iterator[InferResult]:
        try:
            for reply in call:
                yield read_reply(reply)
        except grpc.RpcError as error:
            if failure:
                raise failure[0] from None
            raise errors.from_rpc_error(error, url=self.url) from error
        finally:
            # Without effect on a stream that has ended.
            cast("grpc.Future[None]", call).cancel()

    # -- what the server says

    def server_live(self, *, timeout: Timeout | Unset = UNSET) -> bool:
        """Whether the server answers; False where nobody does."""
        return self._run(self._calls.server_live(timeout=timeout))

    def server_ready(self, *, timeout: Timeout | Unset = UNSET) -> bool:
        """Whether the server takes requests; False where nobody answers."""
        return self._run(self._calls.server_ready(timeout=timeout))

    def model_ready(self, model: str, *, version: str = "", timeout: Timeout | Unset = UNSET) -> bool:
        """Whether the model takes requests; False where it is unknown or nobody answers."""
        return self._run(self._calls.model_ready(model, version=version, timeout=timeout))

    def wait_ready(self, model: str | None = None, *, version: str = "", timeout: Timeout = 60.0) -> None:
        """Return once the server (or the model) takes requests.

        Raises:
            DeadlineExceeded: it doesn't in time; the message says what the server says about it.
        """
        self._run(self._calls.wait_ready(model, version=version, timeout=timeout))

    def server_metadata(self, *, timeout: Timeout | Unset = UNSET) -> ServerMetadata:
        """The server's name, version and protocol extensions."""
        return self._run(self._calls.server_metadata(timeout=timeout))

    def models(self, *, ready: bool = False, timeout: Timeout | Unset = UNSET) -> list[ModelStatus]:
        """Every model in the repository with its state and, where it isn't ready, why. `ready`: only those that are."""
        return self._run(self._calls.models(ready=ready, timeout=timeout))

    def metadata(self, model: str, *, version: str = "", timeout: Timeout | Unset = UNSET) -> ModelMetadata:
        """The model's versions, inputs, outputs and card, asked anew."""
        return self._run(self._calls.metadata(model, version=version, timeout=timeout))

    def config(self, model: str, *, version: str = "", timeout: Timeout | Unset = UNSET) -> dict[str, Any]:
        """The model's settings in the form of Triton's `config.pbtxt`, as plain values."""
        return self._run(self._calls.config(model, version=version, timeout=timeout))

    def statistics(
        self, model: str = "", *, version: str = "", timeout: Timeout | Unset = UNSET
    ) -> list[dict[str, Any]]:
        """What was counted and timed (nanoseconds) since each model was loaded. Empty name: all models."""
        return self._run(self._calls.statistics(model, version=version, timeout=timeout))

    # -- load control

    def load(
        self, model: str, *, config: Mapping[str, Any] | None = None, timeout: Timeout | Unset = timedelta(minutes=5)
    ) -> None:
        """Load a model, or load it anew; what served before serves until the new one is ready.

        `config` overrides the model's settings, in Triton's form.
        """
        self._run(self._calls.load(model, config=config, timeout=timeout))

    def unload(self, model: str, *, timeout: Timeout | Unset = timedelta(minutes=5)) -> None:
        """Unload a model once its work in flight is finished."""
        self._run(self._calls.unload(model, timeout=timeout))

    # -- life-cycle

    def close(self) -> None:
        """Cancel what is in flight and close the connection. Idempotent."""
        self._closed.set()
        if os.getpid() == self._pid:
            self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError("this Client was made before a fork; make a new one in this process")
        if self._closed.is_set():
            raise RuntimeError("this Client is closed")

    def _run(self, flow: Flow[_T]) -> _T:
        """Drive a flow: make its calls, sleep its waits, give back its result."""
        self._check_usable()
        try:
            step = next(flow)
            while True:
                if isinstance(step, Wait):
                    self._closed.wait(step.seconds)
                    self._check_usable()
                    step = flow.send(None)
                    continue
                send = getattr(self._stub, step.method)
                try:
                    reply = send(step.request, timeout=step.timeout, metadata=self._metadata)
                except grpc.RpcError as error:
                    failed = errors.from_rpc_error(error, url=self.url)
                    failed.__cause__ = error
                    step = flow.throw(failed)
                except ValueError:
                    # What gRPC raises where another thread has closed the channel meanwhile.
                    self._check_usable()
                    raise
                else:
                    step = flow.send(reply)
        except StopIteration as done:
            return cast("_T", done.value)
