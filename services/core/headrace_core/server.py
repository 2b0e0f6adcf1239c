"""The grpc.aio half of a service: everything that isn't the hot path, on a unix socket behind the Rust front.

The one place where an exception becomes a status: `ErrorInterceptor`. Servicers raise `ServingError`s and hold no
try/except of their own.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc
import grpc.aio
from google.protobuf.descriptor_pool import DescriptorPool
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from headrace_core.errors import InternalError, ServingError, cut, to_trailers

log: Final = logging.getLogger(__name__)

_LONGEST_SOCKET_PATH: Final = 103
"""Bytes that fit `sockaddr_un` on every system we run on (macOS has the shortest)."""

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from google.protobuf.descriptor import FileDescriptor

    Context = grpc.aio.ServicerContext[Any, Any]


async def abort(context: Context, error: ServingError) -> NoReturn:
    """Ends the call with the error's code, message, reason and details."""
    await context.abort(error.code, cut(error.message), to_trailers(error))
    raise AssertionError("abort returned")


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # not generic at run time
    """Errors become statuses here and nowhere else.

    A `ServingError` keeps its code, reason and details. Anything else is a bug: logged whole, answered `INTERNAL`
    without its text. Cancellation passes.
    """

    async def intercept_service(  # type: ignore[override]  # None is what grpc itself returns for no such method
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler: grpc.RpcMethodHandler[Any, Any] | None = await continuation(handler_call_details)
        if handler is None:
            return None  # no such method: grpc itself answers UNIMPLEMENTED
        method = handler_call_details.method
        single, many = _guarded_single(handler, method), _guarded_stream(handler, method)
        make = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[handler.request_streaming, handler.response_streaming]
        return make(
            many if handler.response_streaming else single,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


async def _answer_failure(context: Context, error: Exception, method: str) -> NoReturn:
    if isinstance(error, ServingError):
        await abort(context, error)
    log.error("unexpected error in a call", exc_info=error, extra={"method": method})
    await abort(context, InternalError("internal error; the server's log has the detail"))


def _guarded_single(handler: Any, method: str) -> Callable[[Any, Context], Awaitable[Any]]:
    inner = handler.stream_unary if handler.request_streaming else handler.unary_unary

    async def call(request: Any, context: Context) -> Any:
        try:
            return await inner(request, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - the one place that answers for all of them
            await _answer_failure(context, error, method)

    return call


def _guarded_stream(handler: Any, method: str) -> Callable[[Any, Context], AsyncIterator[Any]]:
    inner = handler.stream_stream if handler.request_streaming else handler.unary_stream

    async def call(request: Any, context: Context) -> AsyncIterator[Any]:
        try:
            async for reply in inner(request, context):
                yield reply
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - the one place that answers for all of them
            await _answer_failure(context, error, method)

    return call


class PrivateSocket:
    """A unix socket path in a folder that only this user can enter. Removed by `close`."""

    def __init__(self, *, parent: Path | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="hr-", dir=_short_folder(parent)))
        self.target = f"unix:{self._folder / 's'}"

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _short_folder(parent: Path | None) -> Path:
    for folder in (parent, os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):  # noqa: S108 - private subfolder
        if folder is None:
            continue
        path = Path(folder).absolute()
        # The folder made in it has 11 characters and the socket one.
        room = len(os.fsencode(path)) + 14 <= _LONGEST_SOCKET_PATH
        if room and path.is_dir() and os.access(path, os.W_OK):
            return path
    raise OSError("no writable folder with a path short enough for a unix socket; set TMPDIR to one")


def make_server(
    *, max_message_bytes: int, interceptors: Sequence[grpc.aio.ServerInterceptor[Any, Any]] = ()
) -> grpc.aio.Server:
    """A server whose errors are translated and whose limits are the suite's one size limit. Add servicers and a port."""
    return grpc.aio.server(
        interceptors=[*interceptors, ErrorInterceptor()],
        options=[
            ("grpc.so_reuseport", 0),  # two servers on one port would share it silently (V23)
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", max_message_bytes),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.keepalive_permit_without_calls", 1),
        ],
    )


def enable_reflection(server: grpc.aio.Server, *, services: Sequence[str], files: Sequence[FileDescriptor]) -> None:
    """Lets grpcurl and others ask for these services' definitions, for health's, reflection's and the error details'.

    `files` are the descriptors that define them. They are copied into a pool of their own, because ours live in a
    private pool and health's in protobuf's global one.
    """
    pool = DescriptorPool()
    added: set[str] = set()
    for file in (*files, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR, error_details_pb2.DESCRIPTOR):
        _add_with_imports(pool, file, added)
    names = (*services, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server, pool=pool)


def _add_with_imports(pool: DescriptorPool, file: FileDescriptor, added: set[str]) -> None:
    if file.name in added:
        return
    added.add(file.name)
    for needed in file.dependencies:
        _add_with_imports(pool, needed, added)
    pool.AddSerializedFile(file.serialized_pb)
