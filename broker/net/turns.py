"""Fair use of the turns of the event loop by connections whose input does not fit into one turn.

In each turn a connection parses its input for at most ``SLICE_SECONDS`` and is read for at most ``READ_SECONDS``; all
connections together use at most ``TURN_SECONDS``. A connection that has more, or that finds the time used up, waits,
and is not read meanwhile. It waits in one of these lines, which are served in this order:

    FRESH      connections that found no time, so that a client that sends little hardly waits
    SPENT      connections that had a slice and have more input
    SENDERS    the same, if they sent messages. Otherwise senders that are faster than consumers would leave the
               consumers no time to acknowledge, and a message that waits costs twice as much as one that is consumed
               at once
    STRANGERS  connections without a login; in odd turns
    HANDSHAKES handshakes of TLS; in even turns

If one of the last two lines is empty, the other one is served. After FRESH, each connection has ``SPENT_SECONDS``, and
each line has at least this time in a turn, or one step if that is longer. The last two lines have no more than that
while connections wait in SPENT or SENDERS.

Between FRESH and the other lines, the loop submits the commands of FRESH to the store, which writes while the other
lines are served. Between the steps, the reports of the store are taken and the receipts written (``between``). Before
the next turn of connections that wait, the loop carries out everything that is ready. So a client that sends little
does not wait for the others at each step to its receipt.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
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
# After this time in which no connection has more input than its slice takes, the load is over.
LOAD_SECONDS: Final = 0.05
# A longer step is logged, at most once in TELL_SECONDS.
OVERLONG_SECONDS: Final = 0.05
TELL_SECONDS: Final = 5.0
# Lines, in the order of their turns.
FRESH: Final = 0
SPENT: Final = 1
SENDERS: Final = 2
STRANGERS: Final = 3
HANDSHAKES: Final = 4


class Waiting(Protocol):
    """Connection that waits for its turn."""

    def resume(self, until: float) -> None:
        """Carry out more, until the clock shows ``until``; ``wait`` again if something is left."""


@dataclass(slots=True, eq=False, repr=False)
class Turns:
    """Turns of the connections of one server. For the loop's thread. ``clock``: seconds; it also advances within a
    turn, and every ``until`` is a time of it. ``turn_seconds``: time of each turn for all connections together.
    ``between`` is called between the steps of connections, ``note_load`` with True if connections have more input than
    their slices take, and with False LOAD_SECONDS after the last such turn."""

    _loop: asyncio.AbstractEventLoop
    clock: Callable[[], float] = time.monotonic
    turn_seconds: float = TURN_SECONDS
    between: Callable[[], object] = lambda: None
    note_load: Callable[[bool], object] = lambda is_loaded: None
    ends: float = field(default=0.0, init=False)  # end of this turn's time; 0: it has not begun
    _is_called: bool = field(default=False, init=False)
    lines: Sequence[deque[Waiting]] = field(
        default_factory=lambda: [deque() for _ in range(HANDSHAKES + 1)], init=False
    )
    _logged_at: float = field(default=-TELL_SECONDS, init=False)
    number: int = field(default=0, init=False)  # of this turn
    began: float = field(default=0.0, init=False)  # by the loop's time
    _loaded_at: float = field(default=0.0, init=False)  # by the loop's time: connections had more than their slices
    _is_loaded: bool = field(default=False, init=False)
    waiting: int = field(default=0, init=False)  # number of connections that wait
    overlong: int = field(default=0, init=False)  # how many steps took longer than OVERLONG_SECONDS

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

    def wait(self, connection: Waiting, line: int) -> None:
        """Call ``resume`` of ``connection`` in a later turn; it does not wait already."""
        self.lines[line].append(connection)
        self.waiting += 1
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
        if not self.waiting:
            return
        self._is_called = True
        self.begin()
        fresh = self.lines[FRESH]
        if self.lines[SPENT] or self.lines[SENDERS]:
            self._note_load()
        try:
            for _ in range(len(fresh)):
                until = self.begin()
                if not until:
                    break
                self.waiting -= 1
                fresh.popleft().resume(until)
                self.between()  # prove: reports-between-first-steps
        finally:
            self._loop.call_soon(self._resume_spent)  # behind the hand-over to the store, which they requested

    def _note_load(self) -> None:
        self._loaded_at = self.began
        self.note_load(True)  # each time: the timer of a former server may have ended the load
        if not self._is_loaded:
            self._is_loaded = True
            self._loop.call_later(LOAD_SECONDS, self._check_load)

    def _check_load(self) -> None:
        left = self._loaded_at + LOAD_SECONDS - self._loop.time()
        if left > 0:
            self._loop.call_later(left, self._check_load)
        else:
            self._is_loaded = False
            self.note_load(False)

    def _resume_spent(self) -> None:
        """Continue the turn with the connections that had a slice, and with strangers."""
        spent, senders = self.lines[SPENT], self.lines[SENDERS]
        last, other = self.lines[STRANGERS], self.lines[HANDSHAKES]
        if not self.number & 1:
            last, other = other, last
        last = last or other
        try:
            for line in (spent, senders, last):
                line_ends = 0.0
                for number in range(len(line)):
                    self.between()  # prove: reports-between-steps
                    now = self.clock()
                    if not number:
                        line_ends = now + SPENT_SECONDS  # however many found no time: no line waits for ever
                    ends = line_ends if line is last and (spent or senders) else max(line_ends, self.ends)
                    if now >= ends:
                        break
                    self.waiting -= 1
                    line.popleft().resume(min(ends, now + SPENT_SECONDS))
        finally:
            self._loop.call_soon(self._give_way)

    def _give_way(self) -> None:
        """Schedule the next turn. At this moment the reports of the store have already scheduled the writing of their
        receipts, which therefore comes first."""
        self._loop.call_soon(self._next)
