"""The hot path of Headrace, in Rust: HTTP/2, queueing, batching, routing, replies.

Snapshots go in as JSON; one callable per model instance is called once a batch, on the instance's own thread.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, final

from typing_extensions import Buffer

BytesOutput: TypeAlias = tuple[Sequence[int], list[str] | list[bytes]]
Outputs: TypeAlias = list[Buffer | BytesOutput]
Executor: TypeAlias = Callable[[Batch], Outputs | Iterator[Outputs]]

class InvalidInputError(ValueError):
    """The model cannot work on these values. Its text reaches the caller, as INVALID_ARGUMENT."""

@final
class Input:
    """One input of a batch. Exports its elements by the buffer protocol, read-only; a view may outlive the call."""

    @property
    def name(self) -> str: ...
    @property
    def datatype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    def strings(self) -> list[str]:
        """The elements of a BYTES input, row-major. TypeError for any other datatype."""
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Batch:
    """One batch, for one call of an executor."""

    @property
    def rows(self) -> int: ...
    @property
    def inputs(self) -> list[Input]: ...
    @property
    def output_names(self) -> tuple[str, ...]: ...
    @property
    def parameters(self) -> dict[str, bool | int | float | str]: ...

@final
class WorkerFront:
    """A worker's port: `ModelInfer` and `ModelStreamInfer` are answered here, everything else is relayed."""

    def __new__(cls, config: str) -> WorkerFront:
        """Binds at once. ValueError for a bad config, OSError when the address cannot be had."""
    @property
    def address(self) -> str: ...
    def start(self) -> None: ...
    def install(self, model: str, executors: Sequence[Executor]) -> None:
        """Makes a version servable, one OS thread an executor; what stood in its place finishes its work first."""
    def remove(self, name: str, version: str, timeout_s: float) -> bool:
        """Takes a version away; true when all that it had was finished within the time."""
    def set_catalog(self, catalog: str) -> None: ...
    def statistics(self) -> str: ...
    def drain(self, timeout_s: float) -> bool:
        """Accepts nothing new and answers what is in flight; true when all of it was answered within the time."""
    def stop(self) -> None: ...

@final
class GatewayFront:
    """A gateway's port: the hot methods are routed and forwarded here, everything else is relayed."""

    def __new__(cls, config: str) -> GatewayFront:
        """Binds at once. ValueError for a bad config, OSError when the address cannot be had."""
    @property
    def address(self) -> str: ...
    def start(self) -> None: ...
    def set_routes(self, table: str) -> None:
        """Replaces the route table; ValueError says what is wrong with it, and the old one stays."""
    def report_queue(self, replica: str, rows: int) -> None:
        """A worker said how many rows it has queued; the choice between replicas minds it."""
    def statistics(self) -> str: ...
    def drain(self, timeout_s: float) -> bool: ...
    def stop(self) -> None: ...

def load_test(config: str) -> str:
    """Runs the load generator to its end; JSON in, JSON out. KeyboardInterrupt ends it early."""

def status_table() -> dict[str, int]:
    """Every reason of the error table and the number of its gRPC code."""

def version() -> str:
    """The version of this extension."""
