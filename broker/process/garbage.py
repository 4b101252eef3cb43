"""Exclusion of long-lived objects from garbage collection.

The collector stops the whole process while it scans long-lived objects: 0.9 s with 90,000 destinations. Objects that a
broker holds for its clients have no cycles that outlive them, so reference counts free them, and the collector would
find nothing. So whenever the held memory has grown, all objects become permanent (``gc.freeze``). Short-lived objects,
the young generations, are collected as usual. A permanent cycle that is given up stays until ``end``, so objects become
permanent only as often as the growth requires.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

# Some 2,700 destinations, or 10,000 small messages: the collector takes 10 to 20 ms for them.
GROWTH_BYTES = 8 << 20
# Minimum time before memory that shrank and grows again becomes permanent again.
AGAIN_SECONDS = 10.0


class LongLived:
    """Freeze long-lived objects, so that the collector skips them. One for each term as master; for the loop's
    thread."""

    __slots__ = ("_again", "_clock", "_most", "_permanent")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._permanent = 0  # bytes held at the last freeze, or the minimum since
        self._most = 0
        self._again = 0.0

    def look(self, used: int) -> None:
        """Freeze all objects if ``used``, the bytes held now (``Memory.used``), has grown. Call it about ten times a
        second."""
        if used < self._permanent:
            self._permanent = used
        if used - self._permanent < GROWTH_BYTES:
            return
        now = self._clock()
        if used < self._most + GROWTH_BYTES and now < self._again:
            return
        gc.freeze()
        self._permanent = used
        self._most = max(self._most, used)
        self._again = now + AGAIN_SECONDS

    def end(self) -> None:
        """Allow the collection of all objects: the term is over."""
        gc.unfreeze()
