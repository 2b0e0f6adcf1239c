"""Puts a gateway together and runs it: `python -m headrace_gateway`, or `headrace-gateway`.

One port: the Rust front routes inference and relays the rest to a grpc.aio server on a private unix socket.
"""

import asyncio
import json
import logging
import os
import sys
from time import monotonic
from typing import Final

import pydantic
from grpc_health.v1 import health_pb2_grpc

from headrace_batcher import GatewayFront
from headrace_core import logging as core_logging
from headrace_core.files import write_ready_file
from headrace_core.health import HealthServicer
from headrace_core.lifecycle import Changes, Lifecycle, Readiness, Supervisor, drain, raise_file_limit
from headrace_core.server import PrivateSocket, enable_reflection, make_server
from headrace_core.settings import explain, milliseconds, unknown_variables
from headrace_gateway.discovery import Discovery
from headrace_gateway.fleet import Fleet
from headrace_gateway.routes import Routes
from headrace_gateway.servicers.inference import InferenceServicer
from headrace_gateway.settings import GatewaySettings
from headrace_gateway.truth import Truth
from headrace_gateway.upstream import Workers
from headrace_gateway.watch import Watches
from headrace_protos.inference import grpc_service_pb2, grpc_service_pb2_grpc

log: Final = logging.getLogger("headrace_gateway")


def main() -> None:
    """Reads the settings and serves until told to stop."""
    try:
        settings = GatewaySettings.from_arguments(sys.argv[1:])
    except pydantic.ValidationError as error:
        for sentence in explain(error, settings=GatewaySettings):
            print(f"headrace-gateway: {sentence}", file=sys.stderr)
        sys.exit(2)
    core_logging.configure(level=settings.log_level, style=settings.log_format)
    for sentence in unknown_variables(GatewaySettings, environ=os.environ):
        log.warning(sentence)
    raise_file_limit()
    sys.exit(asyncio.run(serve(settings)))


async def serve(settings: GatewaySettings) -> int:
    """Serves until SIGTERM or SIGINT, drains, returns the exit code."""
    lifecycle = Lifecycle()
    lifecycle.catch_signals()
    socket = PrivateSocket()
    try:
        try:
            front = GatewayFront(_front_config(settings, fallback=socket.target))
        except (OSError, ValueError) as error:
            log.error(  # noqa: TRY400 - the address is what matters
                "cannot listen", extra={"address": settings.listen, "detail": str(error)}
            )
            return 1
        return await _serve_on(front, settings, lifecycle, socket)
    finally:
        socket.close()


async def _serve_on(front: GatewayFront, settings: GatewaySettings, lifecycle: Lifecycle, socket: PrivateSocket) -> int:
    changes = Changes()
    readiness = Readiness(changes=changes)
    fleet = Fleet(static=settings.replicas, remember=settings.remember)
    routes = Routes(fleet, changes=changes, hand_over=front.set_routes)
    watches = Watches(
        fleet,
        changed=routes.refresh,
        report_queue=front.report_queue,
        silence=settings.silence,
        max_message_bytes=settings.max_message_bytes,
    )
    routes.follow = watches.follow
    discovery = Discovery(urls=settings.nats_url, listed=routes.listed) if settings.nats_url else None
    workers = Workers(picture=routes.picture, channels=watches)
    truth = Truth(
        picture=routes.picture,
        readiness=readiness,
        registry_fresh=lambda: discovery.connected if discovery is not None else None,
    )

    server = make_server(max_message_bytes=settings.max_message_bytes)
    grpc_service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(
        InferenceServicer(picture=routes.picture, workers=workers, truth=truth, changes=changes), server
    )
    health_pb2_grpc.add_HealthServicer_to_server(
        HealthServicer(serving=truth.health, changes=changes, draining=lambda: readiness.draining), server
    )
    service = grpc_service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    enable_reflection(server, services=[service.full_name], files=[grpc_service_pb2.DESCRIPTOR])
    server.add_insecure_port(socket.target)
    await server.start()

    routes.refresh()
    front.start()
    tasks = Supervisor()
    tasks.start("forget", lambda: _forget(fleet, routes))
    if discovery is not None:
        tasks.start("discovery", discovery.run)
    readiness.start()
    log.info("serving", extra={"address": front.address, "static": len(settings.replicas), "nats": bool(discovery)})
    status = 0
    if settings.ready_file is not None:
        try:
            write_ready_file(settings.ready_file, address=front.address)
        except OSError as error:
            # Whoever asked for it would wait for ever.
            log.error("cannot write the ready file; stopping", extra={"detail": str(error)})  # noqa: TRY400
            lifecycle.stop_requested.set()
            status = 1

    async def finish() -> None:
        await tasks.close()
        await watches.close()
        await server.stop(1.0)
        await asyncio.to_thread(front.stop)
        if settings.ready_file is not None:
            settings.ready_file.unlink(missing_ok=True)

    await lifecycle.stop_requested.wait()
    await drain(
        readiness,
        beat=settings.drain_beat,
        # The front waits in Rust; the relayed half must go on answering meanwhile.
        stop_accepting=lambda limit: asyncio.to_thread(front.drain, limit.total_seconds()),
        finish=finish,
        limit=settings.drain_timeout,
    )
    return status


async def _forget(fleet: Fleet, routes: Routes) -> None:
    while True:
        await asyncio.sleep(30)
        if fleet.forget(now=monotonic()):
            routes.refresh()


def _front_config(settings: GatewaySettings, *, fallback: str) -> str:
    return json.dumps(
        {
            "listen": settings.listen,
            "fallback": fallback,
            "threads": settings.threads,
            "max_message_bytes": settings.max_message_bytes,
            "max_connections": settings.max_connections,
            "max_timeout_ms": milliseconds(settings.max_timeout),
            "handshake_timeout_ms": milliseconds(settings.handshake_timeout),
            "body_timeout_ms": milliseconds(settings.body_timeout),
            "keepalive_interval_ms": 30_000,
            "keepalive_timeout_ms": 10_000,
        }
    )


if __name__ == "__main__":
    main()
