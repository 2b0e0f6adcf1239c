"""How long to wait before a process that died is started again: pure, told the time."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass
class Backoff:
    """Doubles the wait with every early death; a process that has lived for `forgive` starts anew."""

    first: timedelta = timedelta(milliseconds=200)
    longest: timedelta = timedelta(seconds=5)
    forgive: timedelta = timedelta(seconds=10)
    _deaths: int = 0

    def after_death(self, *, lived: timedelta) -> timedelta:
        """The wait before the next start."""
        if lived >= self.forgive:
            self._deaths = 0
        # The exponent is bounded, or a process that dies for weeks would overflow it.
        wait = self.first * float(1 << min(self._deaths, 16))
        self._deaths += 1
        return min(wait, self.longest)
