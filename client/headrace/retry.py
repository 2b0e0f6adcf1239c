"""When a failed call may be sent again, and how long to wait first: pure, the clock and the dice are arguments.

Only what certainly never ran is repeated: the connection was never made, or the server refused the request before
its model saw it and said so with a reason. A call that was sent and then lost may have run, so its error goes to
the caller, who knows whether running it twice matters. Streams are never repeated.

Retries are also what turns an overload into a collapse, so a client has a budget: in the long run at most one
retry for ten calls that succeeded, whatever the policy says.
"""

import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

SAFE_REASONS: Final = frozenset({"DRAINING", "NO_REPLICA", "MODEL_LOADING"})
"""Refusals made before the model saw the request: sending it again can't run it twice."""

SAFE_WITH_RETRY_INFO: Final = frozenset({"QUEUE_FULL"})
"""As above, but only if the server says when: it knows how long its queue is, and we would only add to it."""


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often, and how patiently, a refused call is sent again. Always inside the call's own timeout."""

    attempts: int = 4
    """Sends in all, the first one included; 1 switches retries off."""
    first_wait: timedelta = timedelta(milliseconds=50)
    """Before the first retry; each later wait is twice as long…"""
    longest_wait: timedelta = timedelta(seconds=2)
    """…up to this. A server that names a longer wait is obeyed."""
    jitter: float = 0.5
    """Share of each wait that is random, so that clients refused together don't come back together. 0 to 1."""

    def __post_init__(self) -> None:
        """Refuse what would wait for ever or not at all."""
        if self.attempts < 1:
            msg = f"attempts must be at least 1, not {self.attempts}"
            raise ValueError(msg)
        if not 0.0 <= self.jitter <= 1.0:
            msg = f"jitter must be between 0 and 1, not {self.jitter}"
            raise ValueError(msg)


NO_RETRIES: Final = RetryPolicy(attempts=1)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """What the policy needs to know about a failed attempt."""

    reason: str
    retry_after: timedelta | None
    never_sent: bool
    """The transport says that the request never left: no connection was made."""

    @property
    def safe(self) -> bool:
        """Whether sending again can't run the request twice."""
        return (
            self.never_sent
            or self.reason in SAFE_REASONS
            or (self.reason in SAFE_WITH_RETRY_INFO and self.retry_after is not None)
        )


def wait_before_retry(
    policy: RetryPolicy, *, attempt: int, refusal: Refusal, time_left: float | None, dice: float
) -> float | None:
    """Seconds to wait before sending again, or None: give the caller the error.

    `attempt` counts sends made so far (1 after the first), `time_left` is what remains of the call's timeout in
    seconds (None: no timeout), `dice` is a random number in [0, 1).
    """
    if attempt >= policy.attempts or not refusal.safe:
        return None
    planned: float = min(policy.first_wait * 2 ** (attempt - 1), policy.longest_wait).total_seconds()
    wait = planned * (1.0 - policy.jitter * dice)
    if refusal.retry_after is not None:
        # The server's wait is a least one; jitter goes on top of it, or everyone returns at the same instant.
        wait = max(wait, refusal.retry_after.total_seconds() * (1.0 + policy.jitter * dice))
    if time_left is not None and wait >= time_left:
        return None
    return wait


class RetryBudget:
    """How many retries a client has in hand: each costs one, each success earns a tenth, up to ten. Thread-safe."""

    def __init__(self, *, most: float = 10.0, earned: float = 0.1) -> None:
        """Start full, so that a fresh client can outlast a rolling restart."""
        self._most = most
        self._earned = earned
        self._tokens = most
        self._lock = threading.Lock()

    def succeeded(self) -> None:
        """Count a call that was answered."""
        with self._lock:
            self._tokens = min(self._most, self._tokens + self._earned)

    def take(self) -> bool:
        """Whether one more retry may be made; if so, it is paid for."""
        with self._lock:
            if self._tokens < 1.0:
                return False
            self._tokens -= 1.0
            return True
