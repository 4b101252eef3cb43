"""Rate limit of messages: each message has an earliest time. Pure; the caller passes the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

# A sender that is late, because sleeps are not exact, may catch up at most this much.
BEHIND_SECONDS_MAX: Final = 0.1


class Pace:
    """Limit of ``per_second`` messages per second; None: no limit.

    In a period of S seconds, at most ``per_second`` * (S + BEHIND_SECONDS_MAX) + 2 messages are sent.
    """

    def __init__(self, per_second: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds_each = 0.0 if per_second is None else 1 / per_second
        self._clock = clock
        self._next = clock()

    def take(self) -> float:
        """Return how many seconds the next message must wait. It is then counted as sent."""
        now = self._clock()
        at = max(self._next, now - BEHIND_SECONDS_MAX)
        self._next = at + self._seconds_each
        return max(at - now, 0.0)
