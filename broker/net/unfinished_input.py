"""Limit of unfinished frames: the frames of all connections of a server together have at most the free part of the
broker's memory (broker.core.memory).

At the limit, only the connection whose frame began first is read, for a limited time. The others wait until its frame
is complete or its connection is closed. So the frames take at most the limit plus one frame of full length, and each
frame gets its turn.

A connection with less than LONG_BYTES_MIN of a frame is still read, until all frames together exceed the limit by 1 /
LITTLE_PART of the memory. Most frames are short, and a peer that stops within a long frame must not delay them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from tandemmq.broker.core.memory import Holder, Kind, Memory

#: Minimum size of a part of a frame that is counted.
COUNTED_BYTES_MIN = 4 * 1024
#: Minimum size of a part of a frame that is long. One read of a socket can return a smaller part.
LONG_BYTES_MIN = 64 * 1024
LITTLE_PART = 8
#: Limit of the time for which other connections wait for one frame.
FRAME_SECONDS_MAX = 10.0


class Reader(Protocol):
    """Connection that may hold an unfinished frame."""

    @property
    def holder(self) -> Holder: ...

    def hold_input(self, is_held: bool) -> None:
        """Stop reading if ``is_held``, otherwise resume. May be called repeatedly with the same value."""

    def end_input(self) -> None:
        """Close the connection, because other connections waited too long for its frame. This must call
        ``UnfinishedInput.forget``."""


@dataclass(slots=True, eq=False, repr=False)
class UnfinishedInput:
    """Limits the bytes of all unfinished frames together. Runs on the loop."""

    _loop: asyncio.AbstractEventLoop
    _memory: Memory
    _held: dict[Reader, int] = field(default_factory=dict, init=False)  # the frame that began first is first
    _first: Reader | None = field(default=None, init=False)  # at the limit: the only connection that is read
    _held_from: int = field(default=LONG_BYTES_MIN, init=False)  # at the limit: a connection with this many bytes waits
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)
    bytes: int = field(default=0, init=False)

    def note(self, reader: Reader, count: int) -> None:
        """Note that ``reader`` has ``count`` bytes of an unfinished frame; 0: it has none."""
        if count < COUNTED_BYTES_MIN:
            self.forget(reader)
            return
        more = count - self._held.get(reader, 0)
        self.bytes += more
        self._held[reader] = count
        reader.holder.add(Kind.INPUT, more)
        self._settle(reader)

    def forget(self, reader: Reader) -> None:
        """Note that the connection ``reader`` has ended."""
        count = self._held.pop(reader, None)
        if count is not None:
            self.bytes -= count
            reader.holder.add(Kind.INPUT, -count)
            reader.hold_input(False)
            self._settle()

    def _settle(self, reader: Reader | None = None) -> None:
        """Decide which connections are read. ``reader``: the only connection whose number of bytes changed; None: a
        connection has ended."""
        excess = self.bytes - self._memory.free
        held_from = COUNTED_BYTES_MIN if excess > self._memory.limit // LITTLE_PART else LONG_BYTES_MIN
        first = None
        if excess > 0:
            first = next((each for each, count in self._held.items() if count >= held_from), None)
        if first is None and self._first is None:
            return
        is_new = first is not self._first or held_from != self._held_from
        if first is not self._first:
            self._first = first
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None if first is None else self._loop.call_later(FRAME_SECONDS_MAX, first.end_input)
        self._held_from = held_from
        for each in list(self._held) if is_new else () if reader is None else (reader,):
            is_held = first is not None and each is not first and self._held[each] >= held_from
            each.hold_input(is_held)
