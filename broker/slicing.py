"""Makes the steps of long work (broker.core.slices) on the event loop, in slices: others have their turn in between."""

from __future__ import annotations

import asyncio
import time
from typing import TypeVar

from broker.core.slices import Work

T = TypeVar("T")

SLICE_SECONDS = 0.003


async def in_slices(work: Work[T]) -> T:
    """The outcome of ``work``. Steps are made for SLICE_SECONDS in each turn of the loop, and one more at most."""
    until = time.monotonic() + SLICE_SECONDS
    while True:
        try:
            next(work)
        except StopIteration as done:
            outcome: T = done.value
            return outcome
        if time.monotonic() >= until:
            await asyncio.sleep(0)
            until = time.monotonic() + SLICE_SECONDS
