"""Exclusion of long-lived objects from garbage collection.

The collector stops the whole process while it scans long-lived objects: 0.9 s with 90,000 destinations. The broker
breaks reference cycles when it drops the objects of a client, so reference counts free them, and the collector would
find nothing. So whenever the memory of clients has grown, all objects become permanent (``gc.freeze``). Newer objects
are collected as usual. An unreachable cycle of permanent objects is freed only after ``end``, so objects become
permanent only as often as the growth requires.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

# Memory of about 2,700 destinations or 10,000 small messages, which the collector scans in 10 to 20 ms.
GROWTH_BYTES = 8 << 20
# Minimum time between two freezes if the memory shrank in between and has not reached its former maximum.
REFREEZE_SECONDS = 10.0


class LongLived:
    """Freezes long-lived objects, so that the collector skips them. Used on the loop; one object per term as master."""

    __slots__ = ("_again", "_clock", "_most", "_permanent")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._permanent = 0  # bytes held at the last freeze, or the minimum since
        self._most = 0
        self._again = 0.0

    def update(self, used: int) -> None:
        """Freeze all objects if ``used`` (``Memory.used``, in bytes) has grown enough. Call it about ten times a
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
        self._again = now + REFREEZE_SECONDS

    def end(self) -> None:
        """End the term: make all objects collectable again."""
        gc.unfreeze()
