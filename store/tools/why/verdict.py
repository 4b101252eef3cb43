"""Verdict on one file: whether it is kept, by which other files, and what a compaction would free. Pure."""

from __future__ import annotations

from tandemmq.store.maintenance.compaction import is_sparse
from tandemmq.store.records.headers import EpochHistory
from tandemmq.store.tools.why.facts import Facts
from tandemmq.store.tools.why.graph import Graph
from tandemmq.store.tools.why.report import GOING, HELD, RECLAIMABLE, TAIL, FileWhy, SubscriptionRecord


def verdict(facts: Facts, graph: Graph, epoch_history: EpochHistory, file: int) -> FileWhy:
    """Return the verdict without the details that must be read from the disk: ``holders``, ``transactions`` and
    ``action`` are empty."""
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
