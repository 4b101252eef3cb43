"""Keeps the garbage collector away from what lasts.

It stops the whole process while it scans what is long-lived: 0.9 s with 90,000 destinations. What a broker
holds for its clients makes no cycles that are not broken where they end, so reference counts free it, and there is
nothing to be found. So as what is held grows, all there is becomes permanent (``gc.freeze``). What comes and goes, the
young generations, is collected as ever. A cycle that is permanent and given up stays until ``end``: so it is not done
oftener than the growth asks for.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

# Some 2,700 destinations, or 10,000 small messages: the collector takes 10 to 20 ms for them.
GROWTH_BYTES = 8 << 20
# What fell and grows again becomes permanent so often at most.
AGAIN_SECONDS = 10.0


class LongLived:
    """Freezes what lasts, so that the collector skips it. One for each term as master; for the loop's thread."""

    __slots__ = ("_again", "_clock", "_most", "_permanent")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._permanent = 0  # what was held when all became permanent, or less was held since
        self._most = 0
        self._again = 0.0

    def look(self, used: int) -> None:
        """So many bytes are held now (``Memory.used``). To be called some ten times a second."""
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
        """The term is over, and with it all that it held: it may be collected."""
        gc.unfreeze()
