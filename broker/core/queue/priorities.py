"""State of each priority in a queue that serves by priority: how far it was read, and the place of each message.

Each priority is a separate queue with the rules of ``window``: it has a cursor, and may have messages after the cursor
that only the store holds. All priorities share one window.

    level 0 (priority 9)   1 4 | 7 8          cursor = 4, behind: 7 and 8 are only in the store
    level 5 (priority 4)   2 3 5              not behind
    level 9 (priority 0)   6                  not behind

Positions are ordered by level first, so an order by position is an order by priority. Messages in memory may be given
out up to the highest level that is behind (``limit``): 2, 3, 5 and 6 wait until 7 and 8 were read. Messages that
precede others in the store have a second window, so that they mostly need not be read back.
"""

from __future__ import annotations

from collections import deque

from tandemmq.broker.core.delivery import Entry
from tandemmq.store.state.keys import PRIORITY_MAX, RANKS

# Numbers of bits that are enough for the messages of a level, and for an order key.
POSITION_BITS = 56
KEY_BITS = 96
_FIRST = 1 << POSITION_BITS - 1  # there is as much room before it, for returned messages
NO_LIMIT = RANKS << POSITION_BITS
BOUNDS = tuple(level << POSITION_BITS for level in range(RANKS))


class Level:
    """State of one priority: ``cursor``, ``is_behind`` and the entries to be placed, as in ``window``.

    ``waiting``: non-persistent messages, each with the order key of the stored message that it precedes. ``unplaced``:
    non-persistent messages after all messages stored so far. ``position`` is that of the last message that was placed.
    """

    __slots__ = ("_first", "_taken_back", "cursor", "is_behind", "position", "unplaced", "waiting")

    def __init__(self, first: int, *, is_behind: bool) -> None:
        self.cursor = 0
        self.is_behind = is_behind
        self.waiting: deque[tuple[int, Entry]] = deque()
        self.unplaced: list[Entry] = []
        self._first = self.position = first
        self._taken_back = 0

    def next_position(self) -> int:
        """Return a position after all positions of this level."""
        self.position += 1
        return self.position

    def position_before(self) -> int:
        """Return a position before all positions of this level."""
        self._taken_back += 1
        return self._first - self._taken_back

    def precede(self, order_key: int) -> None:
        """Place the unplaced messages before the stored message of ``order_key``, which came after them."""
        if self.unplaced:
            self.waiting.extend((order_key, entry) for entry in self.unplaced)
            self.unplaced.clear()


class Levels:
    """The levels of one queue in ``all``, the highest priority first; a single one if it does not serve by priority.
    ``requested`` is the level of the Page in progress.

    ``is_held``: in the last round a consumer had room for a message that must wait for messages of the store.
    """

    __slots__ = ("_behind", "all", "is_held", "requested")

    def __init__(self, *, is_prioritized: bool, is_behind: bool) -> None:
        bounds = BOUNDS if is_prioritized else (-_FIRST,)
        self.all = [Level(bound + _FIRST, is_behind=is_behind) for bound in bounds]
        self._behind = (1 << len(self.all)) - 1 if is_behind else 0  # a bit for each level that is behind
        self.requested = 0
        self.is_held = False

    @property
    def is_behind(self) -> bool:
        """True if a level is behind."""
        return self._behind > 0

    @property
    def first_behind(self) -> int:
        """Highest level that is behind; RANKS: no level is behind."""
        behind = self._behind
        return (behind & -behind).bit_length() - 1 if behind else RANKS

    @property
    def limit(self) -> int:
        """Position before which messages may be given out."""
        return (self.first_behind + 1) << POSITION_BITS if self._behind else NO_LIMIT

    def precedes_unread(self, level: int) -> bool:
        """Return whether a lower level is behind."""
        return self._behind >> level + 1 > 0

    def fall_behind(self, level: int) -> None:
        self.all[level].is_behind = True
        self._behind |= 1 << level

    def catch_up(self, level: int) -> None:
        self.all[level].is_behind = False
        self._behind &= ~(1 << level)

    @property
    def held(self) -> int:
        """Number of messages that are not stored and wait for stored ones."""
        held = 0
        for level in self.all:
            held += len(level.waiting) + len(level.unplaced)
        return held

    def take_all(self) -> list[Entry]:
        """Remove and return the messages that ``held`` counts; no level is behind any more."""
        entries = []
        for number, level in enumerate(self.all):
            entries += [entry for _, entry in level.waiting] + level.unplaced
            level.waiting.clear()
            level.unplaced.clear()
            self.catch_up(number)
        return entries


def key_of(entry: Entry, *, is_prioritized: bool) -> int:
    """Return the order key of the stored message, combined with the level if there are levels: it grows with the
    position."""
    return (level_at(entry.position) << KEY_BITS) + entry.order_key if is_prioritized else entry.order_key


def level_at(position: int) -> int:
    """Return the level of a position."""
    return position >> POSITION_BITS


def priority_of(level: int) -> int:
    return PRIORITY_MAX - level
