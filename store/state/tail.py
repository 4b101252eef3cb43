"""Tail: the changes after a checkpoint, and their encoding for the next checkpoint. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import chain, islice, pairwise
from typing import Any, NamedTuple, TypeVar

from tandemmq.store.state import keys

T = TypeVar("T", int, bytes, tuple[int, int, int], tuple[bytes, bytes | None])

# Limit of the items of one sort. A sort blocks all other threads; with this number it takes one or two milliseconds.
SORTED_AT_ONCE = 5_000


class Position(NamedTuple):
    """Place between two batches of the journal, up to which the state includes it.

    ``batch`` and ``checksum``: offset and checksum of the batch that ends at ``offset``. If the journal does not have
    this batch any more, the index is not used. ``offset`` 0: nothing of ``file`` was read.
    """

    file: int
    offset: int
    batch: int = 0
    checksum: int = 0


@dataclass(slots=True, eq=False, repr=False)
class Tail:
    """Changes after a checkpoint.

    added       owner -> order key -> (location, size with marks, message id), for new and moved messages
    order       owner -> order keys of these messages, sorted; also those of messages that were removed again
    removed     owner -> order key -> message id, for removed messages that the checkpoint or the frozen tail has
    displaced   (file, owner, order key) -> whether the message's record is in this file, which is not that of its order
                key; False: not any more
    ranks       owner -> order key -> rank, for messages in ``added``; also for messages that were removed again
    rank_order  (owner, rank) -> order keys of new messages, sorted
    unranked    (owner, rank, order key) of removed messages
    operations  number of changes
    """

    added: defaultdict[int, dict[int, tuple[int, int, str]]] = field(default_factory=lambda: defaultdict(dict))
    order: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    removed: defaultdict[int, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    displaced: dict[tuple[int, int, int], bool] = field(default_factory=dict)
    ranks: defaultdict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    rank_order: defaultdict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    unranked: list[tuple[int, int, int]] = field(default_factory=list)
    touched_owners: set[int] = field(default_factory=set)
    touched_records: set[int] = field(default_factory=set)  # subscriptions whose ``later_records`` changed
    touched_files: set[int] = field(default_factory=set)
    touched_ended: set[int] = field(default_factory=set)  # owners that ended, or that lost entries to ``reclaim``
    operations: int = 0
    reclaimed: int = 0  # removed entries of ended owners; they are no operations, because a replay does not repeat them

    def free(self) -> None:
        """Free the memory of the tail entry by entry, so that other threads are not blocked for long."""
        tables: list[dict[Any, Any]] = [self.displaced]
        for by_owner in (self.added, self.removed, self.ranks):
            tables += by_owner.values()
        for table in tables:
            while table:
                table.popitem()

    @property
    def has_changes(self) -> bool:
        """True if a checkpoint would have changes to write."""
        return self.operations > 0 or self.reclaimed > 0


class Frozen(NamedTuple):
    """Content of one checkpoint.

    tail           the frozen tail, which does not change any more
    small          changes of small tables, (key, value), unsorted
    owners, ended  (owner, changed record); None: the record is deleted. The thread that writes the checkpoint encodes
                   them, because this takes too long for the storage thread
    meta           meta of the index
    position       position of the state
    reclaimable    files that can be removed when the checkpoint is durable
    """

    tail: Tail
    small: list[tuple[bytes, bytes | None]]
    owners: list[tuple[int, keys.OwnerRecord | None]]
    ended: list[tuple[int, keys.OwnerRecord | None]]
    meta: bytes
    position: Position
    reclaimable: tuple[int, ...]


def keys_after(tail: Tail, owner: int, after: int) -> Iterator[int]:
    """Yield the order keys after ``after`` that ``owner`` got in this tail, in order, also those of messages that were
    removed again."""
    order = tail.order.get(owner)
    return iter(()) if not order else _after(order, after)


def ranked_after(tail: Tail, owner: int, rank: int, after: int) -> Iterator[int]:
    """Yield the order keys after ``after`` of messages that ``owner`` got in this tail with this rank, in order."""
    order = tail.rank_order.get((owner, rank))
    if not order:
        return iter(())
    return filter(tail.added[owner].__contains__, _after(order, after))


def unranked_after(tail: Tail, owner: int, after: int) -> Iterator[int]:
    """Yield the order keys after ``after`` of messages that ``owner`` got in this tail without a rank, in order."""
    added = tail.added[owner]
    ranks = tail.ranks.get(owner, {})
    return (order_key for order_key in keys_after(tail, owner, after) if order_key in added and order_key not in ranks)


def _after(order: Sequence[int], after: int) -> Iterator[int]:
    for number in range(bisect_right(order, after), len(order)):
        yield order[number]


def changes(frozen: Frozen) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield all changes of a checkpoint, in key order: A, C, E, F, G, H, I, L, M, O, P, R, S, U, X."""
    tail = frozen.tail
    small = list(
        in_order(
            chain(
                frozen.small,
                ((keys.numbered(keys.OWNER, owner), _owner_value(record)) for owner, record in frozen.owners),
                ((keys.numbered(keys.ENDED, owner), _owner_value(record)) for owner, record in frozen.ended),
            )
        )
    )
    files = [change for change in small if change[0] < keys.ID]
    owner_records = [change for change in small if keys.ID <= change[0] < keys.RANK]
    rest = [change for change in small if change[0] > keys.RANK]
    yield from files
    owners = list(in_order(tail.added.keys() | tail.removed.keys()))
    for owner in owners:
        added = tail.added.get(owner, {})
        ids: dict[bytes, bytes | None] = dict.fromkeys(keys.id_keys(owner, tail.removed.get(owner, {}).values()))
        places = (order_key.to_bytes(12, "big") for order_key in added)
        ids.update(zip(keys.id_keys(owner, (entry[2] for entry in added.values())), places, strict=True))
        for key in in_order(ids):
            yield key, ids[key]
    for place in in_order(tail.displaced):
        yield keys.displaced_key(*place), b"\1" if tail.displaced[place] else None
    for owner in owners:
        added = tail.added.get(owner, {})
        removed = tail.removed.get(owner, {})
        prefix = keys.numbered(keys.MESSAGE, owner)
        ranks = tail.ranks.get(owner, {})
        for order_key in in_order(chain(added, (gone for gone in removed if gone not in added))):
            entry = added.get(order_key)
            value = None if entry is None else keys.message_value(order_key, entry, ranks.get(order_key))
            yield prefix + order_key.to_bytes(12, "big"), value
    yield from owner_records
    yield from _rank_changes(tail)
    yield from rest


def _owner_value(record: keys.OwnerRecord | None) -> bytes | None:
    return None if record is None else keys.owner_value(record)


def in_order(items: Iterable[T]) -> Iterator[T]:
    """Yield ``items`` in ascending order. They are sorted in pieces, because a long sort would block all other threads.
    Usually the pieces follow each other; otherwise they are merged."""
    rest = iter(items)
    runs: list[list[T]] = []
    while run := list(islice(rest, SORTED_AT_ONCE)):
        run.sort()
        runs.append(run)
    if all(before[-1] < after[0] for before, after in pairwise(runs)):
        return chain.from_iterable(runs)
    return merge(*runs)


def _rank_changes(tail: Tail) -> Iterator[tuple[bytes, bytes | None]]:
    found: dict[bytes, bytes | None] = {keys.rank_key(*place): None for place in tail.unranked}
    for owner, ranks in tail.ranks.items():
        added = tail.added.get(owner, {})
        found.update(
            (keys.rank_key(owner, rank, order_key), b"\1") for order_key, rank in ranks.items() if order_key in added
        )
    for key in in_order(found):
        yield key, found[key]
