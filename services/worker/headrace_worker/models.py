"""What this worker knows of its models: every version, its state, why. Kept in step with the Rust front.

    LOADING ──▶ READY ──▶ UNLOADING ──▶ (gone)
       └──────▶ FAILED

For the event loop's thread only; each change is handed to the front and wakes whoever watches.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol

from headrace_core.lifecycle import Changes
from headrace_worker.loading import Loaded


class State(StrEnum):
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Version:
    """One version's state. `loaded` is what serves, while something does."""

    name: str
    version: str
    state: State
    reason: str = ""
    loaded: Loaded | None = None


class Front(Protocol):
    """What the Python half uses of `headrace_batcher.WorkerFront`."""

    def install(self, model: str, executors: Any, /) -> None: ...
    def remove(self, name: str, version: str, timeout_s: float, /) -> bool: ...
    def set_catalog(self, catalog: str, /) -> None: ...
    def statistics(self) -> str: ...


class Models:
    """The versions by model. Changes go through `put` and `drop`."""

    def __init__(self, *, front: Front, changes: Changes) -> None:
        self._front = front
        self.changes = changes
        self._models: dict[str, dict[str, Version]] = {}

    def __iter__(self) -> Iterator[Version]:
        for versions in self._models.values():
            yield from versions.values()

    def names(self) -> list[str]:
        return list(self._models)

    def versions(self, name: str) -> list[Version]:
        """The versions of a model, lowest first; none for an unknown one."""
        return sorted(self._models.get(name, {}).values(), key=lambda one: int(one.version))

    def get(self, name: str, version: str = "") -> Version | None:
        """A version, or the default one."""
        versions = self._models.get(name, {})
        return versions.get(version or self.default(name) or "")

    def default(self, name: str) -> str | None:
        """The version that answers requests without one: the highest that is ready, or else the highest."""
        versions = self.versions(name)
        ready = [one for one in versions if one.state is State.READY]
        best = (ready or versions)[-1:]
        return best[0].version if best else None

    def put(self, version: Version) -> None:
        """Adds or replaces a version."""
        self._models.setdefault(version.name, {})[version.version] = version
        self._publish()

    def drop(self, name: str, version: str) -> None:
        """Forgets a version, and the model with its last one."""
        versions = self._models.get(name, {})
        versions.pop(version, None)
        if not versions:
            self._models.pop(name, None)
        self._publish()

    def mark(self, version: Version, *, state: State, reason: str = "") -> None:
        """The same version in another state."""
        self.put(replace(version, state=state, reason=reason))

    def catalog(self) -> dict[str, Any]:
        """As the Rust front reads it."""
        return {
            "models": {
                name: {
                    "default": self.default(name),
                    "versions": {
                        one.version: {"state": one.state.value, "reason": one.reason} for one in versions.values()
                    },
                }
                for name, versions in self._models.items()
            }
        }

    def _publish(self) -> None:
        self._front.set_catalog(json.dumps(self.catalog()))
        self.changes.note()
