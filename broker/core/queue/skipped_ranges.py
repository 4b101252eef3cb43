"""Ranges of stored messages that the consumers of a queue skipped. The messages left memory, and are read again for
other consumers.

Millions of messages that match no consumer can be before a message that matches one. They cannot all stay in memory,
and the queue must not stop there (ActiveMQ's queue stops at maxPageSize). So the queue remembers only runs of them:

    queue    1 2 3 4 5 6 7 8 9       consumer A acknowledged 4 and holds 7; no other message matches
    runs     [1-3] [5-6] [8-9]       after A acknowledged 4 and 7: [1-9]

Every stored message between the first and the last key of a run was skipped, or has been removed. When the consumers
change, the runs become *due*: the store is read from the first one on, and the messages in a run return to memory.
Messages outside all runs are ignored: memory has them, or they are delivered and not acknowledged. If the selector of a
new consumer has already refused all of them (``refused_by``), nothing becomes due. So a client that opens the same
consumer again and again does not cause a reading each time.

The number of runs is bounded (``runs_max``). Two runs are merged when all messages between them have been removed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import attrgetter

from tandemmq.broker.core.delivery import Entry, Selector
from tandemmq.store.operations import PagedMessage


class Run:
    """A run. ``position`` is that of the first message; the other messages have the following positions, without
    gaps."""

    __slots__ = ("count", "end", "first_key", "last_key", "position")

    def __init__(self, first_key: int, position: int) -> None:
        self.first_key = self.last_key = first_key
        self.position = position
        self.end = position + 1  # no message of the run has this position or a later one
        self.count = 1


_first_key = attrgetter("first_key")


class SkippedRanges:
    """The skipped runs of one queue. ``count`` is the number of messages in all runs, ``due`` the list of runs to be
    read again, in order."""

    __slots__ = ("_retry_at", "_runs", "_runs_max", "count", "due", "refused_by")

    def __init__(self, runs_max: int) -> None:
        self.count = 0
        self.due: list[Run] = []
        self.refused_by: frozenset[Selector | None] = frozenset()  # none of these matches anything in a run
        self._runs: list[Run] = []
        self._runs_max = runs_max
        self._retry_at = 0

    @property
    def frontier(self) -> int:
        """Position before which no message is due. 0: nothing is due."""
        return self.due[0].position if self.due else 0

    @property
    def is_full(self) -> bool:
        """True if no more runs may begin; ``join`` may help."""
        return len(self._runs) >= self._runs_max

    def refuse(self, selectors: Iterable[Selector | None]) -> None:
        """Set the selectors that refused the messages added from now on."""
        self.refused_by = self.refused_by.intersection(selectors) if self._runs else frozenset(selectors)

    def add(self, entry: Entry, key: int) -> None:
        """Record the stored ``entry``, which leaves memory. ``key`` grows with the positions: the order key, combined
        with the level if there are levels."""
        self.count += 1
        runs = self._runs
        at = len(runs)
        if runs and runs[-1].first_key > key:
            at = bisect_left(runs, key, key=_first_key)
        if at:
            before = runs[at - 1]
            if before.end == entry.position:
                before.last_key = key
                before.end += 1
                before.count += 1
                return
        runs.insert(at, Run(key, entry.position))

    def may_join(self, now: int) -> bool:
        """Return whether ``join`` is worthwhile. ``now`` is the number of messages that left the queue: since the last
        True, one in twenty of the messages that may separate the runs must have left."""
        if now < self._retry_at:
            return False
        self._retry_at = now + 1 + self._runs_max // 20
        return True

    def join(self, alive: Collection[int], floor: int) -> None:
        """Merge neighbouring runs with none of the positions ``alive`` between them. Messages up to the position
        ``floor`` may exist or not."""
        places = sorted([*alive, *(run.position for run in self.due)])
        joined: list[Run] = []
        for run in self._runs:
            before = joined[-1] if joined else None
            if before is not None and before.end > floor:
                at = bisect_left(places, before.end)
                if at == len(places) or places[at] >= run.position:
                    before.last_key = run.last_key
                    before.end = run.end
                    before.count += run.count
                    continue
            joined.append(run)
        self._runs = joined

    def recall(self) -> None:
        """Make all runs due: new consumers may want the messages."""
        if self._runs:
            for run in self._runs:
                insort(self.due, run, key=_first_key)
            self._runs = []
            self._retry_at = 0

    def clear(self) -> None:
        self.count = self._retry_at = 0
        self.due.clear()
        self._runs.clear()

    def found(
        self, after: int, messages: Sequence[PagedMessage], is_end: bool, *, base: int = 0, stop: int | None = None
    ) -> Iterator[tuple[PagedMessage, int]]:
        """Yield the messages of a Page after ``after`` that were due, each with its position; they are not due any
        more.

        Runs before ``after`` became due while the Page was in progress: the next Page reads them. With levels the Page
        is of one level: ``base`` is added to its order keys, and ``stop`` is where the level ends.
        """
        due = self.due
        at = bisect_right(due, after, key=_first_key)
        left = due[:at]
        for paged in messages:
            key = base + paged.order_key
            while at < len(due) and due[at].last_key < key:
                self.count -= due[at].count  # none, unless other code removed them from the store
                at += 1
            if at == len(due):
                break
            run = due[at]
            if run.first_key <= key:
                position = run.position
                run.first_key = key + 1
                run.position += 1
                run.count -= 1
                self.count -= 1
                yield paged, position
        if is_end:
            end = len(due) if stop is None else bisect_left(due, stop, lo=at, key=_first_key)
            self.count -= sum(run.count for run in due[at:end])
            at = end
        elif at < len(due) and due[at].first_key > due[at].last_key:
            at += 1
        self.due = left + due[at:]
