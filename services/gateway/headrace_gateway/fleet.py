"""What the gateway knows of its workers, and the route table that follows from it. Pure: told events and the time.

    fleet = Fleet(static=["10.0.0.1:9000"])
    fleet.list(addresses)                    # what NATS lists, as a whole; kept while NATS is away
    fleet.heard(address, state)              # a worker spoke
    fleet.lost(address, now=monotonic())     # it fell silent or could not be reached
    fleet.picture().routes(generation=7)     # the table for the Rust front

NATS only says where to look. Who is alive, and what it can run, each worker says itself; so a worker that speaks is
never dropped because its record in NATS has gone.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from headrace_core.errors import ModelFailed, ModelLoading, ModelNotFound, NoReplica, VersionNotFound

State = Literal["LOADING", "READY", "UNLOADING", "FAILED"]
_BEST_FIRST: Sequence[State] = ("READY", "LOADING", "UNLOADING", "FAILED")


@dataclass(frozen=True, slots=True)
class ModelState:
    """One version of one model on one worker."""

    name: str
    version: str
    state: State
    reason: str = ""
    default: bool = False
    """Whether a request without a version gets this one there."""


@dataclass(frozen=True, slots=True)
class WorkerState:
    """What a worker last said of itself. Equal states mean equal routes."""

    id: str
    address: str
    """Where it says that it is reached; the address that was dialled counts."""
    models: tuple[ModelState, ...] = ()
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Version:
    """One version of one model, over all workers."""

    state: State
    reason: str = ""
    replicas: tuple[str, ...] = ()
    """Names of the live workers on which it is ready."""
    holders: tuple[str, ...] = ()
    """Names of all live workers that know it, in whatever state."""
    defaults: int = 0
    """On how many of them it is the default."""


@dataclass(frozen=True, slots=True)
class Picture:
    """The fleet at one moment."""

    replicas: Mapping[str, str] = field(default_factory=dict)
    """Live workers that take requests: name to address."""
    models: Mapping[str, Mapping[str, Version]] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """At least one model is ready on a live worker; or there is a live worker, and no model that should be ready."""
        if not self.replicas:
            return False
        versions = [version for model in self.models.values() for version in model.values()]
        return not versions or any(version.replicas for version in versions)

    def default(self, name: str) -> str | None:
        """The version that a request without one gets: the default of most workers, a ready one if any is."""
        versions = self.models.get(name)
        if not versions:
            return None
        return max(
            versions,
            key=lambda version: (
                bool(versions[version].replicas) and versions[version].defaults > 0,
                versions[version].defaults,
                bool(versions[version].replicas),
                _order(version),
            ),
        )

    def resolve(self, name: str, *, version: str = "") -> tuple[str, tuple[str, ...]]:
        """The version meant, and the workers on which it is ready: at least one.

        Raises:
            ModelNotFound, VersionNotFound, ModelLoading, ModelFailed, NoReplica: as they are named.
        """
        versions = self.models.get(name)
        meant = version or self.default(name)
        if not versions or meant is None:
            raise ModelNotFound(f"no model named {name!r}")
        found = versions.get(meant)
        if found is None:
            raise VersionNotFound(
                f"model {name!r} has no version {version!r}; there are {', '.join(sorted(versions, key=_order))}"
            )
        if found.replicas:
            return meant, found.replicas
        match found.state:
            case "LOADING":
                raise ModelLoading(f"model {name!r} version {meant} is being loaded")
            case "FAILED":
                raise ModelFailed(f"model {name!r} version {meant} could not be loaded: {found.reason}")
            case "READY" | "UNLOADING":
                raise NoReplica(f"no worker can run model {name!r} version {meant} now")

    def is_ready(self, name: str, *, version: str = "") -> bool:
        """Whether a request for this model would find a worker. An unknown model is not ready."""
        versions = self.models.get(name, {})
        found = versions.get(version or self.default(name) or "")
        return found is not None and bool(found.replicas)

    def routes(self, *, generation: int) -> str:
        """The route table as the Rust front reads it."""
        return json.dumps(
            {
                "generation": generation,
                "replicas": {name: {"address": address} for name, address in self.replicas.items()},
                "models": {
                    name: {
                        "default": {self.default(name): 100},
                        "versions": {
                            number: {
                                "replicas": list(version.replicas),
                                "state": version.state,
                                "reason": version.reason,
                            }
                            for number, version in versions.items()
                        },
                        "sticky": None,
                    }
                    for name, versions in self.models.items()
                },
                "aliases": {},
            },
            separators=(",", ":"),
        )


@dataclass(slots=True)
class _Known:
    """A worker by the address at which it is looked for."""

    state: WorkerState | None = None
    alive: bool = False
    lost_at: float | None = None


class Fleet:
    """Collects what is said and tells the resulting picture."""

    def __init__(self, *, static: Iterable[str] = (), remember: timedelta = timedelta(minutes=10)) -> None:
        self._static = frozenset(static)
        self._listed: frozenset[str] = frozenset()
        self._remember = remember.total_seconds()
        self._known: dict[str, _Known] = {}

    def list(self, addresses: Iterable[str]) -> bool:
        """What the registry lists now, as a whole. True if whom to watch may have changed."""
        before, self._listed = self._listed, frozenset(addresses)
        return before != self._listed

    def heard(self, address: str, state: WorkerState) -> bool:
        """A worker spoke. True if the picture may have changed."""
        known = self._known.setdefault(address, _Known())
        changed = not known.alive or known.state != state
        known.state, known.alive, known.lost_at = state, True, None
        return changed

    def lost(self, address: str, *, now: float) -> bool:
        """A worker fell silent, or cannot be reached. True if the picture has changed."""
        known = self._known.get(address)
        if known is None or not known.alive:
            return False
        known.alive, known.lost_at = False, now
        return True

    def forget(self, *, now: float) -> bool:
        """Drops what has been lost for too long; static workers are always remembered. True if something was dropped."""
        old = [
            address
            for address, known in self._known.items()
            if address not in self._static and known.lost_at is not None and now - known.lost_at >= self._remember
        ]
        for address in old:
            del self._known[address]
        return bool(old)

    def addresses(self) -> frozenset[str]:
        """Whom to watch: the static ones, the listed ones, and whoever is alive."""
        return self._static | self._listed | {address for address, known in self._known.items() if known.alive}

    def picture(self) -> Picture:
        """The fleet now."""
        alive = self._named()
        replicas = {name: address for name, (address, state) in alive.items() if not state.draining}
        gathered: dict[str, dict[str, list[tuple[str, ModelState]]]] = defaultdict(lambda: defaultdict(list))
        for name, (_, state) in alive.items():
            for model in state.models:
                gathered[model.name][model.version].append((name, model))
        models: dict[str, dict[str, Version]] = {
            name: {number: _merge(said, taking=replicas) for number, said in versions.items()}
            for name, versions in gathered.items()
        }
        # What only lost workers had is still known: its callers hear that there is no replica, not that there is no such model.
        for known in self._known.values():
            if known.alive or known.state is None:
                continue
            for model in known.state.models:
                if model.state != "FAILED":
                    models.setdefault(model.name, {}).setdefault(
                        model.version, Version("READY", defaults=int(model.default))
                    )
        return Picture(replicas=replicas, models=models)

    def _named(self) -> dict[str, tuple[str, WorkerState]]:
        """Live workers by name. One that is reached in two ways counts once; two that share an id are told apart."""
        named: dict[str, tuple[str, WorkerState]] = {}
        for address, known in sorted(self._known.items()):
            if not known.alive or known.state is None:
                continue
            state = known.state
            other = named.get(state.id)
            if other is None:
                named[state.id] = (address, state)
            elif other[1].address == state.address:
                # The same worker; its own word for the address is preferred.
                if address == state.address:
                    named[state.id] = (address, state)
            else:
                named[f"{state.id}@{address}"] = (address, state)
        return named


def _merge(said: Sequence[tuple[str, ModelState]], *, taking: Mapping[str, str]) -> Version:
    best = min((model for _, model in said), key=lambda model: _BEST_FIRST.index(model.state))
    return Version(
        state=best.state,
        reason=best.reason,
        replicas=tuple(name for name, model in said if model.state == "READY" and name in taking),
        holders=tuple(name for name, _ in said),
        defaults=sum(model.default for _, model in said),
    )


def _order(version: str) -> tuple[int, int, str]:
    """Numbers by size, and before them whatever is none."""
    return (1, int(version), "") if version.isdecimal() else (0, 0, version)
