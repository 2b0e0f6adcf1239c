"""Whether models make progress: an instance is alive and no batch runs for ever. Readiness is tied to this (V17).

The numbers are the Rust front's; they are read at most every quarter of a second, however many ask.
"""

import json
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from headrace_worker.models import Front, Models, State

_FRESH: Final = 0.25


@dataclass(frozen=True, slots=True)
class Load:
    """How much a version has to do now."""

    queue_rows: int = 0
    running_rows: int = 0


class Progress:
    """Reads the front's statistics and judges them."""

    def __init__(self, *, front: Front, models: Models, stuck_after: timedelta) -> None:
        self._front = front
        self._models = models
        self._stuck_ms = stuck_after.total_seconds() * 1e3
        self._read: dict[tuple[str, str], dict[str, Any]] = {}
        self._read_at = float("-inf")

    def ready(self, name: str, version: str = "") -> bool:
        """Whether requests for it are answered now."""
        found = self._models.get(name, version)
        return found is not None and found.state is State.READY and self.moves(found.name, found.version)

    def moves(self, name: str, version: str) -> bool:
        """Whether some instance of a served version is alive and not stuck."""
        instances = self.statistics().get((name, version), {}).get("instances", [])
        return not instances or any(one["alive"] and one["busy_ms"] <= self._stuck_ms for one in instances)

    def load(self, name: str, version: str) -> Load:
        depth = self.statistics().get((name, version), {}).get("queue_depth", {})
        return Load(queue_rows=int(depth.get("rows", 0)), running_rows=int(depth.get("running_rows", 0)))

    def statistics(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The front's statistics by name and version, at most a quarter of a second old."""
        now = time.monotonic()
        if now - self._read_at > _FRESH:
            document = json.loads(self._front.statistics())
            self._read = {(one["name"], one["version"]): one for one in document["models"]}
            self._read_at = now
        return self._read

    def forget(self) -> None:
        """The next question reads afresh."""
        self._read_at = float("-inf")
