"""When a queue begins to give out what it has."""

from __future__ import annotations

# So long a queue waits for its consumers, where only their number is said (ActiveMQ).
START_MS = 1_000


class Start:
    """When a queue gives out its first message: as soon as it has so many consumers, or so long after the first one
    came (consumersBeforeDispatchStarts, timeBeforeDispatchStarts). Without consumers it starts over."""

    __slots__ = ("_consumers", "_milliseconds", "_since", "has_begun")

    def __init__(self, consumers: int, milliseconds: int) -> None:
        self._consumers = consumers
        self._milliseconds = milliseconds or START_MS
        self._since: int | None = None
        self.has_begun = False

    def waits(self, consumers: int, now: int) -> int:
        """How long ``consumers`` are still to wait; 0: they are served."""
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
