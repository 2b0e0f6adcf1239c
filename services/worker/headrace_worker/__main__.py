"""The worker's composition root: `python -m headrace_worker`, or `headrace-worker`.

Everything is made here and nowhere else; the order of start and stop is the order of this file.
"""

import asyncio
import json
import logging
import os
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from grpc_health.v1 import health_pb2_grpc
from pydantic import ValidationError

from headrace_batcher import WorkerFront
from headrace_core import cpus, files, server
from headrace_core import logging as logs
from headrace_core.health import HealthServicer
from headrace_core.lifecycle import Changes, Lifecycle, Readiness, Supervisor, drain, raise_file_limit
from headrace_core.registry import Announcer, ReplicaRecord
from headrace_core.settings import explain, milliseconds, unknown_variables
from headrace_protos.control.v1 import control_pb2, control_pb2_grpc
from headrace_protos.inference import grpc_service_pb2, grpc_service_pb2_grpc
from headrace_worker import polling
from headrace_worker.loader import LOAD_THREAD, Loader
from headrace_worker.loading import Defaults
from headrace_worker.models import Models, State
from headrace_worker.progress import Progress
from headrace_worker.repository import Repository
from headrace_worker.servicers.control import WorkerServicer
from headrace_worker.servicers.inference import InferenceServicer, server_ready
from headrace_worker.settings import WorkerSettings

log: Final = logging.getLogger("headrace_worker")

_SERVICES: Final = ("inference.GRPCInferenceService", "headrace.control.v1.WorkerService")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the worker until it is told to stop. Returns the exit status."""
    try:
        settings = WorkerSettings.from_arguments(sys.argv[1:] if arguments is None else arguments)
    except ValidationError as error:
        for sentence in explain(error, settings=WorkerSettings):
            print(f"headrace-worker: {sentence}", file=sys.stderr)
        return 2
    logs.configure(level=settings.log_level, style=settings.log_format)
    for sentence in unknown_variables(WorkerSettings, environ=os.environ):
        log.warning(sentence)
    raise_file_limit()
    # A thread that holds the interpreter gives it up after this long when another waits: batches run in several.
    sys.setswitchinterval(0.0005)
    try:
        status = asyncio.run(serve(settings))
    except OSError as error:
        log.error("can't start", extra={"detail": str(error)})  # noqa: TRY400 - one line says it all
        return 1
    if any(one.name.startswith(LOAD_THREAD) for one in threading.enumerate()):
        # The interpreter would wait for a load that nobody waits for any more, and that may take minutes.
        log.info("leaving with a model half loaded")
        logging.shutdown()
        os._exit(status)
    return status


async def serve(settings: WorkerSettings) -> int:
    """Starts, serves and drains.

    Raises:
        OSError: the port, the socket or the model folder can't be had.
    """
    if not settings.models.is_dir():
        raise NotADirectoryError(f"the model folder {settings.models} isn't there; name one with --models")
    lifecycle = Lifecycle()
    lifecycle.catch_signals()
    socket = server.PrivateSocket(parent=settings.run_dir)
    try:
        front = _bind(settings, socket.target)
        return await _serve_on(front, settings, lifecycle, socket)
    finally:
        socket.close()


def _bind(settings: WorkerSettings, fallback: str) -> WorkerFront:
    try:
        return WorkerFront(json.dumps(_front_config(settings, fallback)))
    except ValueError as error:
        raise OSError(f"--listen {settings.listen}: {error}") from error
    except OSError as error:
        raise OSError(f"can't listen on {settings.listen}: {error}") from error


async def _serve_on(
    front: WorkerFront, settings: WorkerSettings, lifecycle: Lifecycle, socket: server.PrivateSocket
) -> int:
    changes = Changes()
    readiness = Readiness(changes=changes)
    repository = Repository(settings.models, allowed_roots=settings.allowed_roots)
    models = Models(front=front, changes=changes)
    progress = Progress(front=front, models=models, stuck_after=settings.stuck_after)
    loader = Loader(
        repository=repository,
        models=models,
        front=front,
        defaults=Defaults(device=settings.device, instances=settings.instances, processors=cpus.available()),
        unload_limit=settings.unload_timeout,
        hand_over=settings.drain_beat,
    )
    address = settings.advertise or front.address

    slow_half = server.make_server(max_message_bytes=settings.max_message_bytes)
    grpc_service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(
        InferenceServicer(
            models=models,
            loader=loader,
            repository=repository,
            progress=progress,
            readiness=readiness,
            controllable=settings.model_control == "explicit",
        ),
        slow_half,
    )
    control_pb2_grpc.add_WorkerServiceServicer_to_server(
        WorkerServicer(identity=settings.id, address=address, models=models, progress=progress, readiness=readiness),
        slow_half,
    )
    health_pb2_grpc.add_HealthServicer_to_server(
        HealthServicer(
            serving=lambda name: _serving(name, readiness, models, progress),
            changes=changes,
            draining=lambda: readiness.draining,
        ),
        slow_half,
    )
    server.enable_reflection(slow_half, services=_SERVICES, files=[grpc_service_pb2.DESCRIPTOR, control_pb2.DESCRIPTOR])
    slow_half.add_insecure_port(socket.target)

    supervisor = Supervisor()
    announcer = Announcer(
        urls=[one.strip() for one in settings.nats_url.split(",") if one.strip()],
        record=lambda: ReplicaRecord(
            id=settings.id,
            address=address,
            models=tuple(sorted({one.name for one in models if one.state is State.READY})),
        ),
    )
    await slow_half.start()
    front.start()
    log.info("listening", extra={"address": front.address, "models": str(settings.models)})
    supervisor.start("start-up", lambda: _start_up(loader, readiness, settings, front.address, supervisor))
    if settings.nats_url:
        supervisor.start("registry", announcer.run)

    await lifecycle.stop_requested.wait()

    async def stop_accepting(limit: timedelta) -> bool:
        await announcer.withdraw()
        return await asyncio.to_thread(front.drain, limit.total_seconds())

    async def finish() -> None:
        await supervisor.close()
        await loader.close()
        await slow_half.stop(grace=1)
        await asyncio.to_thread(front.stop)

    await drain(
        readiness,
        beat=settings.drain_beat,
        stop_accepting=stop_accepting,
        finish=finish,
        limit=settings.drain_timeout,
    )
    return 0


async def _start_up(
    loader: Loader, readiness: Readiness, settings: WorkerSettings, address: str, supervisor: Supervisor
) -> None:
    await loader.load_all()
    readiness.start()
    if settings.ready_file is not None:
        files.write_ready_file(settings.ready_file, address=address)
    log.info("ready", extra={"address": address})
    if settings.model_control == "poll":
        supervisor.start("polling", lambda: polling.follow(loader, every=settings.poll_interval))
    else:
        supervisor.start("late copies", lambda: polling.take_up(loader, every=settings.poll_interval))


def _serving(name: str, readiness: Readiness, models: Models, progress: Progress) -> bool | None:
    if not name or name in _SERVICES:
        return server_ready(readiness, models, progress)
    if not models.versions(name):
        return None
    return not readiness.draining and progress.ready(name)


def _front_config(settings: WorkerSettings, fallback: str) -> dict[str, object]:
    return {
        "listen": settings.listen,
        "fallback": fallback,
        "threads": settings.threads,
        "max_message_bytes": settings.max_message_bytes,
        "max_connections": settings.max_connections,
        "max_timeout_ms": milliseconds(settings.max_timeout),
        "handshake_timeout_ms": milliseconds(settings.handshake_timeout),
        "body_timeout_ms": milliseconds(settings.body_timeout),
    }


if __name__ == "__main__":
    sys.exit(main())
