"""Graph of journal files that wait for others: the rule of State.reclaimable, followed back to its roots. Pure."""

from __future__ import annotations

import heapq

from tandemmq.store.records.headers import EpochHistory
from tandemmq.store.tools.why.facts import Facts


class Graph:
    """``waits_for``: the files that must go before this one; ``fences``: those of them for which it waits only because
    it fenced off an epoch; ``roots``: the files whose live contents keep this one, itself included."""

    def __init__(self, facts: Facts, epoch_history: EpochHistory) -> None:
        self._facts = facts
        self._own = facts.held_by_own()
        self.fences: dict[int, list[int]] = {}
        self.waits_for: dict[int, set[int]] = {}
        self._waited_by: dict[int, set[int]] = {}
        self.roots: dict[int, set[int]] = {}
        kept: list[int] = []
        for file in sorted(facts.files):
            if file in facts.reclaimable or not facts.files[file].is_known:
                continue
            if epoch_history.first_of_epoch(file) and kept:
                self.fences[file] = list(kept)
            waits = {pin for pin in facts.files[file].pins if pin in facts.files and pin not in facts.reclaimable}
            waits |= set(self.fences.get(file, ()))
            self.waits_for[file] = waits
            roots = {file} if file in self._own else set()
            for before in waits:
                roots |= self.roots.get(before, {before})
                self._waited_by.setdefault(before, set()).add(file)
            self.roots[file] = roots
            kept.append(file)

    def pinned_by(self, file: int) -> list[int]:
        """Return the files that shadow dead records in ``file``: they stay as long as it does."""
        return sorted(other for other in self._waited_by.get(file, ()) if file in self._facts.files[other].pins)

    def freed_with(self, emptied: set[int]) -> set[int]:
        """Return the files that go when ``emptied`` have no contents any more, besides those that go anyway."""
        gone: set[int] = set()
        seen: set[int] = set()
        waiting = sorted(emptied)  # ascending: a file comes after those it waits for
        while waiting:
            file = heapq.heappop(waiting)
            if file in seen or file >= self._facts.tail or file not in self.waits_for:
                continue
            seen.add(file)
            if (file in self._own and file not in emptied) or not self.waits_for[file] <= gone:
                continue
            gone.add(file)
            for other in self._waited_by.get(file, ()):
                heapq.heappush(waiting, other)
        return gone
