"""Condition for the first delivery of a queue."""

from __future__ import annotations

# Time that a queue waits for its consumers if only their number is set (ActiveMQ).
START_MS = 1_000


class Start:
    """Start of a queue's deliveries: when it has enough consumers, or when enough time passed since the first one came
    (consumersBeforeDispatchStarts, timeBeforeDispatchStarts). Without consumers it starts over."""

    __slots__ = ("_consumers", "_milliseconds", "_since", "has_begun")

    def __init__(self, consumers: int, milliseconds: int) -> None:
        self._consumers = consumers
        self._milliseconds = milliseconds or START_MS
        self._since: int | None = None
        self.has_begun = False

    def waits(self, consumers: int, now: int) -> int:
        """Return the milliseconds that ``consumers`` still have to wait; 0: they are served."""
        if not consumers:
            self._since = None
            self.has_begun = False
            return 0
        if self.has_begun:
            return 0
        if self._since is None:
            self._since = now
        left = self._since + self._milliseconds - now
        if left <= 0 or (self._consumers and consumers >= self._consumers):
            self.has_begun = True
            return 0
        return left
