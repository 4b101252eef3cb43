"""Fair use of the turns of the event loop by connections whose input does not fit into one turn.

In each turn a connection parses its input for at most ``SLICE_SECONDS`` and is read for at most ``READ_SECONDS``; all
connections together use at most ``TURN_SECONDS``. A connection that has more, or that finds the time used up, waits,
and is not read meanwhile. First in the line are the connections that found no time, so that a client that sends little
hardly waits. Then come the connections that had a slice, one after the other, for ``SPENT_SECONDS`` each. Of these, the
ones that sent messages come last: otherwise senders that are faster than consumers would leave the consumers no time to
acknowledge, and a message that waits costs twice as much as one that is consumed at once.

Between the two parts of the line, the loop hands the commands of the first to the store, which writes while the second
part has its time. Between the steps, the reports of the store are taken and the receipts written (``between``). Before
the next turn of connections that wait, the loop carries out everything that is ready. So a client that sends little
does not wait for the others at each step to its receipt.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from tandemmq import log_events

log = logging.getLogger(__name__)

SLICE_SECONDS: Final = 0.001
TURN_SECONDS: Final = 0.0025
SPENT_SECONDS: Final = 0.0005
# The loop reads a socket up to 32 times in a turn, as long as each read is full (libuv). A connection that has had this
# time in a turn is read again in the next one. After a read of less than LONG_READ_BYTES the loop continues by itself.
READ_SECONDS: Final = 0.0005
LONG_READ_BYTES: Final = 64 * 1024
# A connection that finds no time waits before the others if it was read for at most this much.
FRESH_BYTES_MAX: Final = 16 * 1024
# After this number of turns in which no connection has more input than its slice takes, the load is over.
TURNS_WITHOUT_LOAD: Final = 16
# A longer step is logged, at most once in TELL_SECONDS.
OVERLONG_SECONDS: Final = 0.05
TELL_SECONDS: Final = 5.0


class Waiting(Protocol):
    """Connection that waits for its turn."""

    def resume(self, until: float) -> None:
        """Carry out more, until the clock shows ``until``; ``wait`` again if something is left."""


@dataclass(slots=True, eq=False, repr=False)
class Turns:
    """Turns of the connections of one server. For the loop's thread. ``clock``: seconds; it also advances within a
    turn, and every ``until`` is a time of it. ``turn_seconds``: time of each turn for all connections together.
    ``between`` is called between the steps of connections, ``note_load`` with True if connections have more input than
    their slices take."""

    _loop: asyncio.AbstractEventLoop
    clock: Callable[[], float] = time.monotonic
    turn_seconds: float = TURN_SECONDS
    between: Callable[[], object] = lambda: None
    note_load: Callable[[bool], object] = lambda is_loaded: None
    ends: float = field(default=0.0, init=False)  # end of this turn's time; 0: it has not begun
    _is_called: bool = field(default=False, init=False)
    _fresh: deque[Waiting] = field(default_factory=deque, init=False)
    _spent: deque[Waiting] = field(default_factory=deque, init=False)
    _senders: deque[Waiting] = field(default_factory=deque, init=False)  # had a slice, too, and sent messages in it
    _logged_at: float = field(default=-TELL_SECONDS, init=False)
    number: int = field(default=0, init=False)  # of this turn
    began: float = field(default=0.0, init=False)  # by the loop's time
    _turns_without_load: int = field(default=0, init=False)
    overlong: int = field(default=0, init=False)  # how many steps took longer than OVERLONG_SECONDS

    @property
    def waiting(self) -> int:
        """Number of connections that wait."""
        return len(self._fresh) + len(self._spent) + len(self._senders)

    def begin(self) -> float:
        """Return the time of the clock until which the caller may work in this turn; 0: no time is left."""
        now = self.clock()
        if not self.ends:
            self.begin_turn(now)
        ends = now + SLICE_SECONDS
        if ends <= self.ends:
            return ends
        return self.ends if now < self.ends else 0.0

    def begin_turn(self, now: float) -> None:
        """Begin the time of this turn; ``now``: the time of the clock. Only while ``ends`` is 0."""
        self.ends = now + self.turn_seconds
        self.began = self._loop.time()
        self._call()

    def wait(self, connection: Waiting, *, has_spent: bool, is_sender: bool = False) -> None:
        """Call ``resume`` of ``connection``, which does not wait already, in a later turn. ``has_spent``: it had its
        slice; ``is_sender``: it sent messages at the end of the slice."""
        line = self._fresh if not has_spent else self._senders if is_sender else self._spent
        line.append(connection)
        self._call()

    def took(self, seconds: float, connection: object, commands: Iterable[object]) -> None:
        """Note a step that cannot be interrupted; a long one is logged, with its connection and its work."""
        if seconds < OVERLONG_SECONDS:
            return
        self.overlong += 1
        now = self.clock()
        if now - self._logged_at >= TELL_SECONDS:
            self._logged_at = now
            kinds = ", ".join(dict.fromkeys(type(each).__name__ for each in commands)) or "no complete command"
            log.warning(
                "the event loop was busy for %.0f ms with input from %s: %s",
                seconds * 1000,
                connection,
                kinds,
                extra=log_events.LOOP_BUSY,
            )

    def _call(self) -> None:
        if not self._is_called:
            self._is_called = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        """Begin the next turn, with the connections that found no time."""
        self._is_called = False
        self.ends = 0.0
        self.number += 1
        if self._spent or self._senders:
            self._turns_without_load = 0
            self.note_load(True)
        else:
            self._turns_without_load += 1
            if self._turns_without_load == TURNS_WITHOUT_LOAD:
                self.note_load(False)
            if not self._fresh:
                return
        self._is_called = True
        self.begin()
        try:
            for _ in range(len(self._fresh)):
                until = self.begin()
                if not until:
                    break
                self._fresh.popleft().resume(until)
                self.between()  # prove: reports-between-first-steps
        finally:
            self._loop.call_soon(self._resume_spent)  # behind the hand-over to the store, which they requested

    def _resume_spent(self) -> None:
        """Continue the turn with the connections that had a slice."""
        try:
            for line in (self._spent, self._senders):
                for number in range(len(line)):
                    self.between()  # prove: reports-between-steps
                    until = self.begin()
                    # One of each line has its turn, however many found no time: none waits for ever.
                    if number and not until:
                        break
                    slice_ends = self.clock() + SPENT_SECONDS
                    line.popleft().resume(min(until, slice_ends) if number else slice_ends)
        finally:
            self._loop.call_soon(self._give_way)

    def _give_way(self) -> None:
        """Schedule the next turn. At this moment the reports of the store have already scheduled the writing of their
        receipts, which therefore comes first."""
        self._loop.call_soon(self._next)
