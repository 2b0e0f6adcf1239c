"""`RepositoryIndex`, `RepositoryModelLoad`, `RepositoryModelUnload`: the repository of every worker, as one.

Load goes to all live workers: one whose repository does not hold the model is none that should have it, unless that
is true of all. Unload goes to those that have it. A call that succeeds returns when the routes follow it, so that
the next request finds the model there, or gone.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from time import monotonic
from typing import Final

from headrace_core.errors import ModelNotFound, NoReplica, ServingError, StateConflict
from headrace_gateway.fleet import Picture
from headrace_gateway.merge import merge_indexes
from headrace_gateway.servicers.base import FleetServicer
from headrace_gateway.upstream import LONG, QUICK, Context, Failure, time_left
from headrace_protos.inference import grpc_service_pb2 as pb

_ROUTES_FOLLOW: Final = timedelta(seconds=3)


class RepositoryRpcs(FleetServicer):
    """The RPCs about what is loaded."""

    async def RepositoryIndex(self, request: pb.RepositoryIndexRequest, context: Context) -> pb.RepositoryIndexResponse:
        everything = pb.RepositoryIndexRequest(repository_name=request.repository_name)
        answers, failures = await self._workers.every(
            self._picture().replicas,
            lambda stub, seconds: stub.RepositoryIndex(everything, timeout=seconds),
            seconds=time_left(context, at_most=QUICK),
        )
        if failures and not answers:
            raise failures[0].error
        merged = merge_indexes(answers, only_ready=request.ready)
        if not request.ready:
            listed = {(one.name, one.version) for one in merged.models}
            for name, versions in sorted(self._picture().models.items()):
                for version, one in sorted(versions.items()):
                    if not one.holders and (name, version) not in listed:
                        merged.models.add(
                            name=name, version=version, state="UNAVAILABLE", reason="its workers are gone"
                        )
        return merged

    async def RepositoryModelLoad(
        self, request: pb.RepositoryModelLoadRequest, context: Context
    ) -> pb.RepositoryModelLoadResponse:
        names = tuple(self._picture().replicas)
        if not names:
            raise NoReplica("there is no worker to load a model")
        done, failures = await self._workers.every(
            names,
            lambda stub, seconds: stub.RepositoryModelLoad(request, timeout=seconds),
            seconds=time_left(context, at_most=LONG),
        )
        if done:
            failures = [one for one in failures if not isinstance(one.error, ModelNotFound)]
        _raise_for(failures, done=tuple(done), what=f"model {request.model_name!r} was not loaded")
        await self._until(lambda picture: set(done) <= _having(picture, request.model_name))
        return pb.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(
        self, request: pb.RepositoryModelUnloadRequest, context: Context
    ) -> pb.RepositoryModelUnloadResponse:
        picture = self._picture()
        if request.model_name not in picture.models:
            raise ModelNotFound(f"no model named {request.model_name!r}")
        holders = {name for one in picture.models[request.model_name].values() for name in one.holders}
        names = tuple(name for name in picture.replicas if name in holders)
        if not names:
            raise NoReplica(f"no worker has model {request.model_name!r} now")
        done, failures = await self._workers.every(
            names,
            lambda stub, seconds: stub.RepositoryModelUnload(request, timeout=seconds),
            seconds=time_left(context, at_most=LONG),
        )
        _raise_for(failures, done=tuple(done), what=f"model {request.model_name!r} was not unloaded")
        await self._until(lambda picture: not set(done) & _having(picture, request.model_name))
        return pb.RepositoryModelUnloadResponse()

    async def _until(self, true: Callable[[Picture], bool]) -> None:
        """Waits until the picture says so; workers report each change at once, so this is short."""
        deadline = monotonic() + _ROUTES_FOLLOW.total_seconds()
        while not true(self._picture()):
            left = deadline - monotonic()
            if left <= 0:
                return
            await self._changes.beyond(self._changes.generation, at_most=timedelta(seconds=left))
        # The table is handed to the front in the same turn of the loop in which its waiters wake: let that pass.
        await asyncio.sleep(0)


def _having(picture: Picture, name: str) -> set[str]:
    """The workers on which a version of this model is ready."""
    return {replica for version in picture.models.get(name, {}).values() for replica in version.replicas}


def _raise_for(failures: Sequence[Failure], *, done: Sequence[str], what: str) -> None:
    """One error that names each worker that refused, and those that did not. It has their code if they agree on one."""
    if not failures:
        return
    kinds = {type(one.error) for one in failures}
    if len(failures) == 1 and not done:
        raise failures[0].error
    told = "; ".join(f"{one.replica}: {one.error.message}" for one in failures)
    message = f"{what} on {len(failures)} of {len(failures) + len(done)} workers ({told})"
    if done:
        message += f"; done on {', '.join(done)}"
    violations = [violation for one in failures for violation in one.error.violations]
    kind: type[ServingError] = kinds.pop() if len(kinds) == 1 else StateConflict
    if not kind.reason:
        kind = StateConflict
    raise kind(message, violations=violations)
