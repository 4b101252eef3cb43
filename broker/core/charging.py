"""The time of the event loop that a client causes, counted for that client (``Holder.busy``).

A selector counts for the client that has it, and not for the one whose message it is asked about: that one has its own
time less what was counted apart (``CLOCK.apart``).
"""

from __future__ import annotations

from typing import TypeVar

from tandemmq.broker.core.delivery import Selector
from tandemmq.broker.core.memory import Holder
from tandemmq.broker.core.slices import CLOCK, STEP_SECONDS, Work
from tandemmq.store.records.message import Message

T = TypeVar("T")

#: Of each PERIOD_SECONDS, that publishers together wait for expensive selectors of subscribers, and for one more.
ASKED_SECONDS = STEP_SECONDS / 2
PERIOD_SECONDS = 0.005


def charged(work: Work[T], holder: Holder) -> Work[T]:
    """``work``, whose steps count for ``holder``."""
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
    """What an expensive selector says of ``message``. That counts for ``holder``, whose selector it is, and for nobody
    else. None: its client is away."""
    began = CLOCK.now()
    found = selector.matches(message)
    took = CLOCK.now() - began
    CLOCK.apart += took
    if holder is not None:
        holder.busy += took
    return found


class Asking:
    """What is asked at once, of all that publishers have to wait for."""

    __slots__ = ("_began", "_spent")

    def __init__(self) -> None:
        self._began = self._spent = 0.0

    def takes(self, selector: Selector, message: Message, holder: Holder) -> bool | None:
        """As the function; None: ask later, for enough was asked lately."""
        now = CLOCK.now()
        if not 0.0 <= now - self._began < PERIOD_SECONDS:
            self._began = now
            self._spent = 0.0
        elif self._spent >= ASKED_SECONDS:
            return None
        apart = CLOCK.apart
        found = takes(selector, message, holder)
        self._spent += CLOCK.apart - apart
        return found


ASKING = Asking()
