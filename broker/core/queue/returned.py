"""Entries that came back to a queue, by position: single ones, and runs of very many, each of which costs no more than
a single one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain

from tandemmq.broker.core.delivery import Entry


class Returned:
    """``total``: number of entries. ``heap``: single entries and the first of each run, each with its position; it is
    empty if there are none, and begins with the first of all."""

    __slots__ = ("_rests", "heap", "total")

    def __init__(self) -> None:
        self.heap: list[tuple[int, Entry]] = []
        self._rests: dict[int, deque[Entry]] = {}  # of each run, by the position of its first
        self.total = 0

    def add(self, entry: Entry) -> None:
        self.total += 1
        heappush(self.heap, (entry.position, entry))

    def add_run(self, run: deque[Entry]) -> None:
        """Add a sorted ``run``, which the caller must not use any more."""
        if not run:
            return
        self.total += len(run)
        self._push(run.popleft(), run)

    def _push(self, first: Entry, rest: deque[Entry]) -> None:
        heappush(self.heap, (first.position, first))
        if rest:
            self._rests[first.position] = rest

    def take(self) -> Entry:
        """Remove and return the first entry; there must be one."""
        self.total -= 1
        position, entry = self.heap[0]
        rest = self._rests.pop(position, None)
        if rest is None:
            heappop(self.heap)
            return entry
        first = rest.popleft()
        heapreplace(self.heap, (first.position, first))
        if rest:
            self._rests[first.position] = rest
        return entry

    def take_run(self, count_max: int) -> deque[Entry]:
        """Remove and return as many entries as can be taken at once, in order, at most ``count_max``. There is at least
        one."""
        rest = self._rests.pop(self.heap[0][0], None)
        if rest is not None:
            first = heappop(self.heap)[1]
            run = deque([first])
            for _ in range(min(count_max - 1, len(rest))):
                run.append(rest.popleft())
            if rest:
                self._push(rest.popleft(), rest)
        else:
            run = deque()
            while self.heap and len(run) < count_max and self.heap[0][0] not in self._rests:
                run.append(heappop(self.heap)[1])
        self.total -= len(run)
        return run

    def entries(self) -> Iterator[Entry]:
        """Return all entries, in any order."""
        return chain((entry for _, entry in self.heap), *self._rests.values())

    def keep(self, entries: Iterable[Entry]) -> None:
        """Keep only ``entries``, a part of the present ones."""
        self.heap[:] = [(entry.position, entry) for entry in entries]
        heapify(self.heap)
        self._rests.clear()
        self.total = len(self.heap)
