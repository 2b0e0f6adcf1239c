"""Loads and unloads models while others serve: beside first, then the switch; one operation a model at a time (V20).

A call returns when its effect holds. A load that fails leaves what served before (V18), and what a failed version was
is remembered by its files' fingerprint, so that a poll doesn't try the same again, and does when they change.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Container
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Final

from headrace_core.errors import InvalidParameter, ModelFailed, ModelLoading, ModelNotFound, ServingError
from headrace_worker import loading
from headrace_worker.loading import Configured, Defaults, Loaded
from headrace_worker.model_config import ConfigProblem
from headrace_worker.models import Front, Models, State, Version
from headrace_worker.repository import FoundModel, Repository, Settling, VersionFiles
from headrace_worker.session import LoadFailed

log: Final = logging.getLogger(__name__)

LOAD_THREAD: Final = "load"
"""How the names of the threads begin that load models."""

_LOADS_AT_ONCE: Final = 2
_SETTLE_LIMIT: Final = timedelta(seconds=5)


class Loader:
    """The only one who changes what is served."""

    def __init__(
        self,
        *,
        repository: Repository,
        models: Models,
        front: Front,
        defaults: Defaults,
        unload_limit: timedelta,
        hand_over: timedelta = timedelta(0),
    ) -> None:
        """`hand_over` is how long a replaced version goes on serving, so that gateways send to the new one by then."""
        self._repository = repository
        self._models = models
        self._front = front
        self._defaults = defaults
        self._unload_limit = unload_limit
        self._hand_over = hand_over
        self._locks: dict[str, asyncio.Lock] = {}
        self._operations: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(_LOADS_AT_ONCE, thread_name_prefix=LOAD_THREAD)
        self._settling = Settling()
        self._attempted: dict[str, str] = {}
        self._said: set[str] = set()
        self.unloaded: set[str] = set()
        """Models that a caller unloaded; a poll leaves them alone until they are loaded again."""

    async def load(self, name: str, *, override: str = "") -> None:
        """Loads what the model's folder has now, or does nothing if that already serves.

        Raises:
            ModelNotFound: no such model in the repository.
            ModelLoading: its files are still being copied.
            ModelFailed: it can't be loaded; the text says why. What served before still does.
        """
        known = self._models.get(name) is not None
        if not known and await asyncio.to_thread(self._repository.find, name) is None:
            raise ModelNotFound(f"the repository has no model {name!r}")
        await self._exclusively(name, lambda: self._load(name, override))

    async def unload(self, name: str) -> None:
        """Stops serving a model once what it has in hand is finished.

        Raises:
            ModelNotFound: neither served nor in the repository.
        """
        known = self._models.get(name) is not None
        if not known and await asyncio.to_thread(self._repository.find, name) is None:
            raise ModelNotFound(f"the repository has no model {name!r}")
        await self._exclusively(name, lambda: self._unload(name))

    async def load_all(self) -> None:
        """Loads every model that is there, several at a time. Failures are states, not exceptions."""
        found = await asyncio.to_thread(self._scan)
        await asyncio.gather(*(self._try(name) for name in found))

    async def follow(self) -> None:
        """One look at the folder: loads what is new or changed and complete, unloads what is gone."""
        found = await asyncio.to_thread(self._scan)
        for name, model in found.items():
            if name in self.unloaded or self._attempted.get(name) == _look(model):
                continue
            if self._settled(model):
                await self._try(name)
        for name in self._models.names():
            if name not in found:
                log.info("model's folder is gone; unloading it", extra={"model": name})
                await self._exclusively(name, lambda name=name: self._unload(name))  # type: ignore[misc]
                self._attempted.pop(name, None)

    def unfinished(self) -> list[str]:
        """Models with a version that couldn't be tried because its files were still being copied."""
        return [one.name for one in self._models if one.state is State.LOADING and not self._busy(one.name)]

    async def close(self) -> None:
        """Waits for nothing: loads in progress end with the process, which must see to that (`LOAD_THREAD`)."""
        for task in self._operations:
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _busy(self, name: str) -> bool:
        lock = self._locks.get(name)
        return lock is not None and lock.locked()

    async def _exclusively(self, name: str, operation: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            async with self._locks.setdefault(name, asyncio.Lock()):
                await operation()

        task = asyncio.create_task(run())
        self._operations.add(task)
        task.add_done_callback(self._operations.discard)
        # A caller that goes away must not leave a model half switched.
        await asyncio.shield(task)

    async def _try(self, name: str) -> None:
        try:
            await self.load(name)
        except ServingError as error:
            log.warning("model not loaded", extra={"model": name, "reason": error.message})

    async def _load(self, name: str, override: str) -> None:
        found = await asyncio.to_thread(self._repository.find, name)
        if found is None:
            await self._forget_unserved(name, keep=())
            raise ModelNotFound(f"the repository has no model {name!r}")
        self.unloaded.discard(name)
        # A copy that was waited for may have been taken away again.
        await self._forget_unserved(name, keep=found.versions)
        try:
            configured = await asyncio.to_thread(loading.configure, found, override=override)
            wanted = configured.config.versions.choose(list(found.versions))
        except ConfigProblem as error:
            if override:
                # The caller's mistake says nothing about the model.
                raise InvalidParameter(f"the parameter 'config' of this load: {error}") from error
            self._attempted[name] = _look(found)
            raise self._refused(name, max(found.versions, key=int, default="1"), str(error)) from error
        if not wanted:
            raise self._refused(name, None, _nothing_there(found))
        failures: list[str] = []
        for version in wanted:
            settled = await self._settle(name, version)
            reason = await self._load_version(settled, configured)
            if reason:
                failures.append(f"version {version}: {reason}")
        self._attempted[name] = _look(found)
        # What served before goes only when everything that replaces it is there.
        replaced = [
            old
            for old in self._models.versions(name)
            if old.version not in wanted and (not failures or old.state is State.FAILED)
        ]
        if any(old.loaded is not None for old in replaced):
            # A gateway names the version when it passes a request on: some are under way to the old one.
            await asyncio.sleep(self._hand_over.total_seconds())
        for old in replaced:
            await self._remove(old)
        if failures:
            raise ModelFailed(f"model {name!r}: " + "; ".join(failures))

    async def _load_version(self, files: VersionFiles, configured: Configured) -> str:
        """Makes one version serve. Returns why it doesn't, or nothing."""
        name, version = files.model, files.version
        before = self._models.get(name, version)
        serves = before is not None and before.loaded is not None
        if (
            before is not None
            and before.state is State.READY
            and before.loaded is not None
            and before.loaded.fingerprint == loading.fingerprint(files, configured)
        ):
            if before.reason:
                self._models.mark(before, state=State.READY)
            return ""
        if not serves:
            self._models.put(Version(name, version, State.LOADING))
        started = time.monotonic()
        try:
            loaded = await asyncio.get_running_loop().run_in_executor(
                self._threads, lambda: loading.load(files, configured, defaults=self._defaults)
            )
            await asyncio.to_thread(self._front.install, json.dumps(loaded.as_spec()), list(loaded.executors))
        except (LoadFailed, ConfigProblem) as error:
            detail = error.detail if isinstance(error, LoadFailed) else str(error)
            # The detail is whole; where in our code it surfaced tells nobody anything.
            log.error("model failed to load", extra={"model": name, "version": version, "detail": detail})  # noqa: TRY400
            return self._failed(before, name, version, str(error))
        except Exception:
            log.exception("model failed to load", extra={"model": name, "version": version})
            return self._failed(before, name, version, "internal error; the server's log has the detail")
        self._models.put(Version(name, version, State.READY, loaded=loaded))
        _tell_ready(loaded, time.monotonic() - started)
        return ""

    def _failed(self, before: Version | None, name: str, version: str, reason: str) -> str:
        if before is not None and before.loaded is not None:
            self._models.mark(
                before, state=State.READY, reason=f"serves its earlier files; the new ones failed: {reason}"
            )
        else:
            self._models.put(Version(name, version, State.FAILED, reason))
        return reason

    def _refused(self, name: str, version: str | None, reason: str) -> ModelFailed:
        log.error("model failed to load", extra={"model": name, "detail": reason})
        if version is not None:
            self._failed(self._models.get(name, version), name, version, reason)
        return ModelFailed(f"model {name!r}: {reason}")

    async def _settle(self, name: str, version: str) -> VersionFiles:
        """The version's files once no copy seems to be in progress."""
        limit = time.monotonic() + _SETTLE_LIMIT.total_seconds()
        while True:
            found = await asyncio.to_thread(self._repository.find, name)
            files = found.versions.get(version) if found is not None else None
            if files is None:
                await self._forget_unserved(name, keep=found.versions if found is not None else ())
                raise ModelNotFound(f"version {version} of model {name!r} went away")
            if self._settling.settled(files, wall=time.time(), now=time.monotonic()):
                return files
            if time.monotonic() > limit:
                if self._models.get(name, version) is None:
                    self._models.put(Version(name, version, State.LOADING, "its files are still being copied"))
                raise ModelLoading(f"version {version} of model {name!r} is still being copied")
            await asyncio.sleep(Settling.APART.total_seconds() * 1.05)

    async def _forget_unserved(self, name: str, *, keep: Container[str]) -> None:
        for version in self._models.versions(name):
            if version.loaded is None and version.version not in keep:
                await self._remove(version)

    async def _unload(self, name: str) -> None:
        for version in self._models.versions(name):
            await self._remove(version)
        self.unloaded.add(name)

    async def _remove(self, version: Version) -> None:
        if version.loaded is not None:
            self._models.mark(version, state=State.UNLOADING)
            limit = self._unload_limit.total_seconds()
            finished = await asyncio.to_thread(self._front.remove, version.name, version.version, limit)
            if not finished:
                log.warning(
                    "unloaded with work unfinished",
                    extra={"model": version.name, "version": version.version, "limit_s": limit},
                )
            log.info("model unloaded", extra={"model": version.name, "version": version.version})
        self._models.drop(version.name, version.version)

    def _settled(self, found: FoundModel) -> bool:
        now, wall = time.monotonic(), time.time()
        looks = [self._settling.settled(one, wall=wall, now=now) for one in found.versions.values()]
        return all(looks)

    def _scan(self) -> dict[str, FoundModel]:
        found = self._repository.scan()
        passed_over = dict(self._repository.ignored)
        for name, model in found.items():
            passed_over |= {f"{name}/{entry}": reason for entry, reason in model.ignored.items()}
        for entry, reason in passed_over.items():
            if entry not in self._said and len(self._said) < 10_000:
                self._said.add(entry)
                log.warning("ignored in the model folder", extra={"entry": entry, "reason": reason})
        return found


def _look(found: FoundModel) -> str:
    """What a poll compares: the files of every version and the configuration."""
    parts = [f"{version}:{files.fingerprint}" for version, files in sorted(found.versions.items())]
    return "|".join([found.config_fingerprint, *parts])


def _nothing_there(found: FoundModel) -> str:
    ignored = "; ".join(f"{entry}: {reason}" for entry, reason in found.ignored.items())
    return "no version to serve" + (f" ({ignored})" if ignored else "")


def _tell_ready(loaded: Loaded, seconds: float) -> None:
    log.info(
        "model ready",
        extra={
            "model": loaded.name,
            "version": loaded.version,
            "seconds": round(seconds, 2),
            "provider": loaded.provider.removesuffix("ExecutionProvider").lower(),
            "instances": loaded.instances,
            "batching": loaded.batching,
            "why": "; ".join(loaded.notes),
        },
    )
