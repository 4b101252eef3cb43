"""How fast messages may go: a moment for each. Pure; the clock is the caller's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

# Who comes late, for a sleep is never exact, may make up for so much, and for no more.
BEHIND_SECONDS_MAX: Final = 0.1


class Pace:
    """At most ``per_second`` messages a second; None: as fast as they go.

    In any stretch of time no more go than ``per_second`` times (its seconds + BEHIND_SECONDS_MAX), and two.
    """

    def __init__(self, per_second: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds_each = 0.0 if per_second is None else 1 / per_second
        self._clock = clock
        self._next = clock()

    def take(self) -> float:
        """How many seconds the next message has to wait. It counts as sent then."""
        now = self._clock()
        at = max(self._next, now - BEHIND_SECONDS_MAX)
        self._next = at + self._seconds_each
        return max(at - now, 0.0)
