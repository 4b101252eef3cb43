"""A clock for lockers that a test controls (`locker.contract.Clock`)."""

from __future__ import annotations

from typing import Final

from tandemmq.locker.contract import Event

_SLICE_SECONDS: Final = 0.005


class ManualClock:
    """A clock that a test advances; a wait ends when it has advanced enough."""

    def __init__(self, now_seconds: float = 1_000.0) -> None:
        self._now = now_seconds

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def wait(self, stop: Event, seconds: float) -> bool:
        until = self._now + seconds
        while self._now < until:
            if stop.wait(_SLICE_SECONDS):
                return True
        return stop.is_set()
