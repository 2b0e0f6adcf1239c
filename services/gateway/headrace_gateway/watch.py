"""Listens to every worker that the fleet knows of: one `WorkerService.Watch` stream each.

A stream that ends is opened again at once; if that fails too, or nothing is heard for `silence`, the worker is lost
and dialled with a growing pause (0.1 s to 2 s).
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from time import monotonic
from typing import Final

import grpc
import grpc.aio

from headrace_gateway.fleet import Fleet, ModelState, State, WorkerState
from headrace_protos.control.v1 import control_pb2, control_pb2_grpc

log: Final = logging.getLogger(__name__)

_SHORTEST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0
_STATES: Final[Mapping[int, State]] = {
    control_pb2.ModelState.STATE_LOADING: "LOADING",
    control_pb2.ModelState.STATE_READY: "READY",
    control_pb2.ModelState.STATE_UNLOADING: "UNLOADING",
    control_pb2.ModelState.STATE_FAILED: "FAILED",
}


def read_state(message: control_pb2.WorkerState) -> WorkerState:
    """The message as a value. Versions in a state of a later protocol are left out."""
    return WorkerState(
        id=message.id,
        address=message.address,
        draining=message.draining,
        models=tuple(
            ModelState(one.name, one.version, _STATES[one.state], one.reason, one.default)
            for one in message.models
            if one.state in _STATES
        ),
    )


class Watches:
    """The open streams, and the channels on which workers are asked for other things too."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        changed: Callable[[], None],
        report_queue: Callable[[str, int], None],
        silence: timedelta,
        max_message_bytes: int,
    ) -> None:
        self._fleet = fleet
        self._changed = changed
        self._report_queue = report_queue
        self._silence = silence.total_seconds()
        self._options = [
            # Channels to one address would share their dial pauses otherwise: a restarted worker is found at once.
            ("grpc.use_local_subchannel_pool", 1),
            # Requests go to workers straight, so this does too, whatever `http_proxy` says.
            ("grpc.enable_http_proxy", 0),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 1000),
            ("grpc.max_reconnect_backoff_ms", 1000),
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", max_message_bytes),
        ]
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def follow(self, addresses: Iterable[str]) -> None:
        """Watches exactly these from now on."""
        wanted = set(addresses)
        for address in wanted - self._tasks.keys():
            self._channels[address] = grpc.aio.insecure_channel(address, options=self._options)
            self._tasks[address] = asyncio.create_task(self._watch(address), name=f"watch {address}")
        for address in self._tasks.keys() - wanted:
            self._tasks.pop(address).cancel()
            channel = self._channels.pop(address)
            # Calls that are under way finish; the task is kept so that it isn't collected before it has run.
            closing = asyncio.create_task(channel.close(5.0), name=f"close {address}")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def channel(self, address: str) -> grpc.aio.Channel | None:
        """The connection to a worker that is watched."""
        return self._channels.get(address)

    async def close(self) -> None:
        """Ends all streams and connections."""
        tasks = [*self._tasks.values(), *self._closing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for channel in self._channels.values():
            await channel.close(None)
        self._tasks.clear()
        self._channels.clear()

    async def _watch(self, address: str) -> None:
        pause = _SHORTEST_PAUSE_S
        while True:
            heard, why = await self._listen(address)
            if heard:
                # A stream may end without trouble (the worker's front closes old connections): look again at once.
                pause = _SHORTEST_PAUSE_S
                heard, why = await self._listen(address)
                if heard:
                    continue
            if self._fleet.lost(address, now=monotonic()):
                log.warning("worker lost", extra={"address": address, "why": why})
                self._changed()
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    async def _listen(self, address: str) -> tuple[bool, str]:
        """One stream to its end: whether anything was heard, and why it ended. Silence counts as nothing heard."""
        call = control_pb2_grpc.WorkerServiceStub(self._channels[address]).Watch(control_pb2.WatchRequest())
        heard = False
        try:
            while True:
                async with asyncio.timeout(self._silence):
                    message = await call.read()
                if not isinstance(message, control_pb2.WorkerState):
                    # A worker that drains ends its streams, and would end the next one as soon.
                    await asyncio.sleep(_SHORTEST_PAUSE_S)
                    return heard, "the stream ended"
                heard = True
                state = read_state(message)
                # Other gateways send there too: what waits at the worker says more than what we have outstanding.
                self._report_queue(state.id, sum(model.queue_rows for model in message.models))
                if self._fleet.heard(address, state):
                    log.info(
                        "worker state",
                        extra={
                            "address": address,
                            "id": state.id,
                            "models": len(state.models),
                            "draining": state.draining,
                        },
                    )
                    self._changed()
        except TimeoutError:
            return False, f"silent for {self._silence:g} s"
        except grpc.aio.AioRpcError as error:
            return heard, f"{error.code().name}: {error.details()}"
        except Exception as error:
            # Whatever it is: a watch that ends would take its worker away for good.
            log.exception("watching a worker failed", extra={"address": address})
            return False, f"{type(error).__name__}: {error}"
        finally:
            call.cancel()
