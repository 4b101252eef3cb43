"""The time of the event loop that a client causes, counted for that client (``Holder.busy``)."""

from __future__ import annotations

from typing import TypeVar

from tandemmq.broker.core.memory import Holder
from tandemmq.broker.core.slices import CLOCK, Work

T = TypeVar("T")


def charged(work: Work[T], holder: Holder) -> Work[T]:
    """``work``, whose steps count for ``holder``."""
    while True:
        began = CLOCK.now()
        try:
            next(work)
        except StopIteration as done:
            outcome: T = done.value
            return outcome
        finally:
            holder.busy += CLOCK.now() - began
        yield
