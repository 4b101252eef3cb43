"""Graph of the journal files that stay because other files stay, by the rule of State.reclaimable, and the verdict on
one file: whether it is kept, by which other files, and what a compaction would free. Pure.
"""

from __future__ import annotations

import heapq

from tandemmq.store.maintenance.compaction import is_sparse
from tandemmq.store.records.headers import EpochHistory
from tandemmq.store.tools.why.facts import Facts
from tandemmq.store.tools.why.report import GOING, HELD, RECLAIMABLE, TAIL, FileWhy, SubscriptionRecord


class Graph:
    """Graph of the files that stay. Each field maps a file to other files:

    waits_for  files that must be removed before this one
    fences     all earlier files that stay, if this one is the fence of an epoch
    roots      files whose live contents keep this one; this file can be one of them
    """

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
        """Return the files that stay as long as ``file`` does, because their acknowledgements and deletions refer to
        records in it."""
        return sorted(other for other in self._waited_by.get(file, ()) if file in self._facts.files[other].pins)

    def freed_with(self, emptied: set[int]) -> set[int]:
        """Return the files that can be removed when the files ``emptied`` have no live contents any more. Files that
        can be removed now are not included."""
        gone: set[int] = set()
        seen: set[int] = set()
        waiting = sorted(emptied)  # ascending: a file comes after the files for which it waits
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


def verdict(facts: Facts, graph: Graph, epoch_history: EpochHistory, file: int) -> FileWhy:
    """Return the verdict without the details that ``explain`` adds: ``holders``, ``transactions``, ``action`` and
    ``acknowledgements`` are empty."""
    known = facts.files[file]
    why = FileWhy(
        file,
        f"db-{file}.log",
        known.size,
        known.live_bytes,
        known.live,
        epoch_history.epoch_at(file),
        _state_of(facts, file),
        holders_total=len(known.holders),
        pins=sorted(pin for pin in known.pins if pin in facts.files and pin not in facts.reclaimable),
        pinned_by=graph.pinned_by(file),
        fences_before=graph.fences.get(file, []),
    )
    for owner in facts.owners.values():
        if file in owner.records and owner.client_id is not None and owner.subscription_name is not None:
            record = SubscriptionRecord(owner.destination, owner.client_id, owner.subscription_name)
            why.subscriptions.append(record)
    if why.state == HELD:
        why.roots = sorted(graph.roots[file])
        why.moves = sum(facts.files[root].live_bytes for root in why.roots)
        why.frees = sum(facts.files[gone].size for gone in graph.freed_with(set(why.roots)))
        why.may_compact = bool(why.roots) and all(
            root < facts.tail and is_sparse(facts.files[root].live_bytes, facts.files[root].size) for root in why.roots
        )
    elif why.state == RECLAIMABLE:
        why.frees = known.size
    return why


def _state_of(facts: Facts, file: int) -> str:
    if file >= facts.tail:
        return TAIL
    if file in facts.reclaimable:
        return RECLAIMABLE
    return HELD if facts.files[file].is_known else GOING
