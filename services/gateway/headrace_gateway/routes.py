"""The current picture and the table made from it: handed to the Rust front whenever it has changed, and only then."""

import logging
from collections.abc import Callable, Iterable
from typing import Final

from headrace_core.lifecycle import Changes
from headrace_gateway.fleet import Fleet, Picture

log: Final = logging.getLogger(__name__)


class Routes:
    """Call `refresh` when the fleet may have changed. The generation grows with each table that differs."""

    def __init__(self, fleet: Fleet, *, changes: Changes, hand_over: Callable[[str], None]) -> None:
        self._fleet = fleet
        self._changes = changes
        self._hand_over = hand_over
        self._picture: Picture | None = None
        self._generation = 0
        self.follow: Callable[[Iterable[str]], None] = lambda _: None
        """Told whom to watch, each time."""

    def picture(self) -> Picture:
        """The fleet as the front routes by it."""
        return self._picture or Picture()

    def listed(self, addresses: frozenset[str]) -> None:
        """The registry's list, as a whole."""
        if self._fleet.list(addresses):
            log.info("workers listed", extra={"addresses": sorted(addresses)})
            self.refresh()

    def refresh(self) -> None:
        """Takes a new picture; the front gets its table before anybody who waits for the change goes on."""
        self.follow(self._fleet.addresses())
        picture = self._fleet.picture()
        if picture == self._picture:
            return
        self._generation += 1
        self._hand_over(picture.routes(generation=self._generation))
        self._picture = picture
        self._changes.note()
