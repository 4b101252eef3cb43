"""Rate limit of messages: a time for each. Pure; the caller passes the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

# A late sender, since a sleep is never exact, may make up for this much and no more.
BEHIND_SECONDS_MAX: Final = 0.1


class Pace:
    """Limit of ``per_second`` messages a second; None: no limit.

    In any period, no more are sent than ``per_second`` times (its seconds + BEHIND_SECONDS_MAX), plus two.
    """

    def __init__(self, per_second: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds_each = 0.0 if per_second is None else 1 / per_second
        self._clock = clock
        self._next = clock()

    def take(self) -> float:
        """Return how many seconds the next message has to wait. It counts as sent then."""
        now = self._clock()
        at = max(self._next, now - BEHIND_SECONDS_MAX)
        self._next = at + self._seconds_each
        return max(at - now, 0.0)
