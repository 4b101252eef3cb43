"""Charge the event loop's time to the client that causes it (``Holder.busy``).

The time of a selector is charged to the client that owns the selector, not to the client whose message the selector
tests. The sender is charged its own time minus the time that was charged separately (``CLOCK.apart``).
"""

from __future__ import annotations

from typing import TypeVar

from tandemmq.broker.core.delivery import Selector
from tandemmq.broker.core.memory import Holder
from tandemmq.broker.core.slices import CLOCK, STEP_SECONDS, Work
from tandemmq.store.records.message import Message

T = TypeVar("T")

#: Time in each PERIOD_SECONDS that all publishers together wait for expensive selectors of subscribers. The last
#: selector may exceed it.
WAIT_SECONDS = STEP_SECONDS / 2
PERIOD_SECONDS = 0.005


def charged(work: Work[T], holder: Holder) -> Work[T]:
    """Return ``work`` with its steps charged to ``holder``."""
    while True:
        began = CLOCK.now() - CLOCK.apart
        try:
            next(work)
        except StopIteration as done:
            outcome: T = done.value
            return outcome
        finally:
            holder.busy += CLOCK.now() - CLOCK.apart - began
        yield


def takes(selector: Selector, message: Message, holder: Holder | None) -> bool:
    """Return whether an expensive selector takes ``message``. The time is charged only to ``holder``, the owner of the
    selector. None: the owner is not connected."""
    began = CLOCK.now()
    found = selector.matches(message)
    took = CLOCK.now() - began
    CLOCK.apart += took
    if holder is not None:
        holder.busy += took
    return found


class SelectorBudget:
    """Budget for the expensive selectors that publishers must wait for."""

    __slots__ = ("_began", "_spent")

    def __init__(self) -> None:
        self._began = self._spent = 0.0

    def takes(self, selector: Selector, message: Message, holder: Holder) -> bool | None:
        """Return the result of the function ``takes``; None: the budget of this period is spent, call again later."""
        now = CLOCK.now()
        if not 0.0 <= now - self._began < PERIOD_SECONDS:
            self._began = now
            self._spent = 0.0
        elif self._spent >= WAIT_SECONDS:
            return None
        apart = CLOCK.apart
        found = takes(selector, message, holder)
        self._spent += CLOCK.apart - apart
        return found


SELECTOR_BUDGET = SelectorBudget()
