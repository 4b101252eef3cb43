"""Entries to be put into lanes, in the queue's order: sorted runs, merged when entries are taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from operator import attrgetter
from typing import NamedTuple

from tandemmq.broker.core.delivery import Entry
from tandemmq.broker.core.queue.ordering import take_out
from tandemmq.broker.core.slices import pieces

_position = attrgetter("position")
# Entries of a run that are appended to another run, one by one.
JOINED_MAX = 256


class Known(NamedTuple):
    """Facts about the entries of a run: of the choices below ``below``, exactly those of ``key`` want them.
    ``is_grouped``: entries with a group count as waiting in ``Groups``."""

    key: tuple[int, ...]
    below: int
    is_grouped: bool


NOTHING_KNOWN = Known((), 0, is_grouped=False)

_Run = tuple[int, int, deque[Entry], Known]  # the position of its first entry, a unique number


class Backlog:
    """Entries that wait for a place in a lane, in the order of the queue."""

    __slots__ = ("_number", "_runs", "_tail", "count")

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        # The last run of which nothing is known: new entries join it. A separate run takes 800 bytes.
        self._tail: deque[Entry] = deque()
        self._number = 0
        self.count = 0

    def add(self, entries: deque[Entry], known: Known) -> None:
        """Add sorted ``entries``. The caller no longer uses them."""
        if not entries:
            return
        self.count += len(entries)
        tail = self._tail
        if known is NOTHING_KNOWN:
            # An empty tail is not a run any more.
            if tail and len(entries) <= JOINED_MAX and tail[-1].position < entries[0].position:
                tail.extend(entries)
                return
            self._tail = entries
        self._number += 1
        heappush(self._runs, (entries[0].position, self._number, entries, known))

    @property
    def first(self) -> int:
        """Position of the first entry; there must be one."""
        return self._runs[0][0]

    def take(self) -> tuple[Entry, Known]:
        """Remove and return the first entry; there must be one."""
        self.count -= 1
        _, number, entries, known = self._runs[0]
        entry = entries.popleft()
        if entries:
            heapreplace(self._runs, (entries[0].position, number, entries, known))
        else:
            heappop(self._runs)
        return entry, known

    def take_out(self, is_chosen: Callable[[Entry], bool]) -> Iterator[tuple[int, list[Entry]]]:
        """Take entries out as ``Lane.take_out`` does."""
        for run, _ in self.runs():
            for looked_at, found in take_out(run, is_chosen) if self._has(run) else ():
                if found:
                    self.count -= len(found)
                    left = [each for each in self._runs if each[2]]
                    self._runs = [(each[0].position, number, each, known) for _, number, each, known in left]
                    heapify(self._runs)
                yield looked_at, found
                if not self._has(run):  # its entries wait elsewhere now
                    break

    def _has(self, run: deque[Entry]) -> bool:
        return any(run is each[2] for each in self._runs)

    def runs(self) -> list[tuple[deque[Entry], Known]]:
        """Return all runs."""
        return [(entries, known) for _, _, entries, known in self._runs]

    def clear(self) -> None:
        self._runs.clear()
        self._tail = deque()
        self.count = 0


def in_runs(entries: Iterable[Entry]) -> list[deque[Entry]]:
    """Return ``entries``, in any order, as runs: sorted piece by piece."""
    return [deque(sorted(piece, key=_position)) for piece in pieces(entries)]
