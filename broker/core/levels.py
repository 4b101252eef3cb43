"""What a queue that goes by priority knows of each priority: how far it was read, and where a message has its place.

Each priority is a queue of its own, by the rules that ``queue`` states: with a cursor, with or without something behind
it that only the store holds. The window is one for all.

    level 0 (priority 9)   1 4 | 7 8          cursor = 4, behind: 7 and 8 are only in the store
    level 5 (priority 4)   2 3 5              not behind
    level 9 (priority 0)   6                  not behind

Positions are ordered by level first, so whatever goes by position goes by priority. What is in memory may be given out
up to the highest level that is behind (``limit``): 2, 3, 5 and 6 wait until 7 and 8 were read. For messages that come
before others that wait in the store there is a second window, so that they mostly need not be read back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from broker.core.subscription import Entry
from store.keys import PRIORITY_MAX, RANKS

# More than any number of messages in a level, and than any order key.
POSITION_BITS = 56
KEY_BITS = 96
_FIRST = 1 << POSITION_BITS - 1  # there is as much room before it, for what is taken back
NO_LIMIT = RANKS << POSITION_BITS
BOUNDS = tuple(level << POSITION_BITS for level in range(RANKS))


class Level:
    """``cursor``, ``is_behind``, ``waiting`` and ``unplaced`` as in ``Queue``."""

    __slots__ = ("_first", "_position", "_taken_back", "cursor", "is_behind", "unplaced", "waiting")

    def __init__(self, number: int, *, is_behind: bool) -> None:
        self.cursor = 0
        self.is_behind = is_behind
        self.waiting: deque[tuple[int, Entry]] = deque()
        self.unplaced: list[Entry] = []
        self._first = self._position = (number << POSITION_BITS) + _FIRST
        self._taken_back = 0

    def next_position(self) -> int:
        """Behind all that are in this level."""
        self._position += 1
        return self._position

    def position_before(self) -> int:
        """Before all that are in this level."""
        self._taken_back += 1
        return self._first - self._taken_back

    def precede(self, order_key: int) -> None:
        """A stored message is behind all that came before it, also behind what is not stored."""
        if self.unplaced:
            self.waiting.extend((order_key, entry) for entry in self.unplaced)
            self.unplaced.clear()


class Levels:
    """See the module. ``asked`` is the level of the Page that is under way, unless that reads something again.

    ``is_held``: at the last round somebody had room for a message that has to wait for what the store holds.
    """

    __slots__ = ("_behind", "_levels", "asked", "is_held")

    def __init__(self, *, is_behind: bool) -> None:
        self._levels = tuple(Level(number, is_behind=is_behind) for number in range(RANKS))
        self._behind = (1 << RANKS) - 1 if is_behind else 0  # a bit for each that is
        self.asked = 0
        self.is_held = False

    def __getitem__(self, level: int) -> Level:
        return self._levels[level]

    def __iter__(self) -> Iterator[Level]:
        return iter(self._levels)

    @property
    def is_behind(self) -> bool:
        """Whether any is."""
        return self._behind > 0

    @property
    def first_behind(self) -> int:
        """The highest level that is behind; RANKS: none is."""
        behind = self._behind
        return (behind & -behind).bit_length() - 1 if behind else RANKS

    @property
    def limit(self) -> int:
        """Messages before this position may be given out."""
        return (self.first_behind + 1) << POSITION_BITS if self._behind else NO_LIMIT

    def precedes_unread(self, level: int) -> bool:
        """Whether a lower level is behind."""
        return self._behind >> level + 1 > 0

    def fall_behind(self, level: int) -> None:
        self._levels[level].is_behind = True
        self._behind |= 1 << level

    def catch_up(self, level: int) -> None:
        self._levels[level].is_behind = False
        self._behind &= ~(1 << level)

    @property
    def held(self) -> int:
        """Messages that are not stored, and wait for stored ones."""
        return sum(len(level.waiting) + len(level.unplaced) for level in self._levels)

    def take_all(self) -> list[Entry]:
        """What ``held`` counts leaves; nothing is behind any more."""
        entries = []
        for number, level in enumerate(self._levels):
            entries += [entry for _, entry in level.waiting] + level.unplaced
            level.waiting.clear()
            level.unplaced.clear()
            self.catch_up(number)
        return entries


def level_at(position: int) -> int:
    """The level of what has that position."""
    return position >> POSITION_BITS


def priority_of(level: int) -> int:
    return PRIORITY_MAX - level
