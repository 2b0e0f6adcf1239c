"""Whether this gateway, a model, or the list of workers is in order: one place for readiness and health.

A gateway is ready when at least one model is ready on a live worker; with live workers and no model anywhere it is
ready too, since nothing is missing. Without a live worker, or draining, it is not.
"""

from collections.abc import Callable
from typing import Final

from headrace_core.lifecycle import Readiness
from headrace_gateway.fleet import Picture

ACCEPTING: Final = "inference.GRPCInferenceService"
"""The health service's name for "this gateway takes requests", whatever it can do with them. For balancers."""
REGISTRY: Final = "headrace.registry"
"""The health service's name for "the list of workers is fresh"; it is the last one seen while NATS is away."""


class Truth:
    """What serves now, from the picture of the fleet and this gateway's own life."""

    def __init__(
        self, *, picture: Callable[[], Picture], readiness: Readiness, registry_fresh: Callable[[], bool | None]
    ) -> None:
        self._picture = picture
        self._readiness = readiness
        self._registry_fresh = registry_fresh

    def server(self) -> bool:
        """Whether inference can be expected to work."""
        return self._readiness.ready and self._picture().ready

    def model(self, name: str, *, version: str = "") -> bool:
        """Whether a request for this model would find a worker."""
        return self._readiness.ready and self._picture().is_ready(name, version=version)

    def health(self, service: str) -> bool | None:
        """For the health service: the server (`""`), this gateway, the registry, or a model; None if it is none of them."""
        if service == "":
            return self.server()
        if service == ACCEPTING:
            return self._readiness.ready
        if service == REGISTRY:
            return self._registry_fresh()
        return self.model(service) if service in self._picture().models else None
