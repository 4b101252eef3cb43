"""What changed since a checkpoint, and what of it a checkpoint writes. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from store import keys


class Position(NamedTuple):
    """A place between two batches of the journal, up to which the state is true.

    ``batch`` and ``checksum`` are offset and checksum of the batch that ends at ``offset``: a checkpoint whose
    batch is not there any more, or reads differently, is not believed. ``offset`` 0: nothing of ``file`` was read.
    """

    file: int
    offset: int
    batch: int = 0
    checksum: int = 0


class Tail:
    """What changed since a checkpoint. ``added`` holds new and moved messages, ``order`` their order keys sorted
    (and those of messages that went again), ``removed`` those that the checkpoint (or the frozen tail) still has,
    ``displaced`` which messages stand in another file than that of their order key (False: not any more).

    ``ranks`` holds the ranks of those in ``added`` that have one (and of messages that went again), ``rank_order`` the
    order keys of new ones by owner and rank, sorted; ``unranked`` (owner, rank, order key) of those that went."""

    __slots__ = (
        "added",
        "displaced",
        "operations",
        "order",
        "rank_order",
        "ranks",
        "reclaimed",
        "removed",
        "touched_ended",
        "touched_files",
        "touched_owners",
        "touched_records",
        "unranked",
    )

    def __init__(self) -> None:
        self.added: defaultdict[int, dict[int, tuple[int, int, str]]] = defaultdict(dict)
        self.order: defaultdict[int, list[int]] = defaultdict(list)
        self.removed: defaultdict[int, dict[int, str]] = defaultdict(dict)
        self.displaced: dict[tuple[int, int, int], bool] = {}  # (file, owner, order key)
        self.ranks: defaultdict[int, dict[int, int]] = defaultdict(dict)
        self.rank_order: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        self.unranked: list[tuple[int, int, int]] = []
        self.touched_owners: set[int] = set()
        self.touched_records: set[int] = set()  # subscriptions whose later records changed
        self.touched_files: set[int] = set()
        self.touched_ended: set[int] = set()  # owners that ended, or of which something was reclaimed
        self.operations = 0
        self.reclaimed = 0  # entries of owners that had ended; no operations, for no replay repeats them

    @property
    def has_changes(self) -> bool:
        """Whether there is anything for a checkpoint to write."""
        return self.operations > 0 or self.reclaimed > 0


class Frozen(NamedTuple):
    """What one checkpoint writes: a tail that nobody changes any more, and the small tables as they were then."""

    tail: Tail
    small: list[tuple[bytes, bytes | None]]
    meta: bytes
    position: Position
    reclaimable: tuple[int, ...]


def keys_after(tail: Tail, owner: int, after: int) -> Iterator[int]:
    """The order keys behind ``after`` that ``owner`` got in this tail, in order; some may be gone again."""
    order = tail.order.get(owner)
    return iter(()) if not order else _behind(order, after)


def ranked_after(tail: Tail, owner: int, rank: int, after: int) -> Iterator[int]:
    """The order keys behind ``after`` of what ``owner`` got in this tail with that rank, in order."""
    order = tail.rank_order.get((owner, rank))
    if not order:
        return iter(())
    return filter(tail.added[owner].__contains__, _behind(order, after))


def unranked_after(tail: Tail, owner: int, after: int) -> Iterator[int]:
    """The order keys behind ``after`` of what ``owner`` got in this tail without a rank, in order."""
    added = tail.added[owner]
    ranks = tail.ranks.get(owner, {})
    return (order_key for order_key in keys_after(tail, owner, after) if order_key in added and order_key not in ranks)


def _behind(order: Sequence[int], after: int) -> Iterator[int]:
    for number in range(bisect_right(order, after), len(order)):
        yield order[number]


def changes(frozen: Frozen) -> Iterator[tuple[bytes, bytes | None]]:
    """Everything a checkpoint writes, in key order: A, E, F, H, I, L, M, O, P, R, S, X."""
    tail = frozen.tail
    small = frozen.small
    files = [change for change in small if change[0] < keys.ID]
    owner_records = [change for change in small if keys.ID <= change[0] < keys.RANK]
    rest = [change for change in small if change[0] > keys.RANK]
    yield from files
    owners = sorted(tail.added.keys() | tail.removed.keys())
    for owner in owners:
        added = tail.added.get(owner, {})
        ids: dict[bytes, bytes | None] = dict.fromkeys(keys.id_keys(owner, tail.removed.get(owner, {}).values()))
        places = (order_key.to_bytes(12, "big") for order_key in added)
        ids.update(zip(keys.id_keys(owner, (entry[2] for entry in added.values())), places, strict=True))
        for key in sorted(ids):
            yield key, ids[key]
    for place in sorted(tail.displaced):
        yield keys.displaced_key(*place), b"\1" if tail.displaced[place] else None
    for owner in owners:
        added = tail.added.get(owner, {})
        removed = tail.removed.get(owner, {})
        prefix = keys.owner_prefix(keys.MESSAGE, owner)
        ranks = tail.ranks.get(owner, {})
        for order_key in sorted(added.keys() | removed.keys()):
            entry = added.get(order_key)
            value = None if entry is None else keys.message_value(order_key, entry, ranks.get(order_key))
            yield prefix + order_key.to_bytes(12, "big"), value
    yield from owner_records
    yield from _rank_changes(tail)
    yield from rest


def _rank_changes(tail: Tail) -> Iterator[tuple[bytes, bytes | None]]:
    found: dict[bytes, bytes | None] = {keys.rank_key(*place): None for place in tail.unranked}
    for owner, ranks in tail.ranks.items():
        added = tail.added.get(owner, {})
        found.update(
            (keys.rank_key(owner, rank, order_key), b"\1") for order_key, rank in ranks.items() if order_key in added
        )
    for key in sorted(found):
        yield key, found[key]
