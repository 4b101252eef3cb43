"""Gives a queue in ActiveMQ's view the order that it has in ours, by records.

A compaction copies old messages behind younger ones, and ActiveMQ does not read the hint that keeps their place. So
from the first message on that it would deliver at another place, all are removed and added again, in our order, in
one local transaction: it happens whole or not at all, to us, who lose nothing by it, as to ActiveMQ. While ActiveMQ
replays, it holds a transaction in memory; so there are bounds, and what is beyond them is left to an export.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest

from store.contents import PAGE_MESSAGES, Contents, current_add
from store.keys import Entry
from store.owners import OwnerState
from store.records.commands import LocalTransactionId, encode, encode_commit, encode_remove
from store.rehearsal import Rehearsal

MESSAGES_MAX = 20_000
BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class Bounds:
    """What may be added again for one queue."""

    messages: int = MESSAGES_MAX
    bytes: int = BYTES_MAX


def out_of_order(
    truth: Contents, rehearsal: Rehearsal, owner: OwnerState, bounds: Bounds
) -> list[tuple[int, Entry]] | None:
    """The messages of ``owner`` from the first on that ActiveMQ would deliver at another place; empty if there is none.

    None if they cannot be added again: beyond the bounds, of a topic (others hold the same messages), or withheld by
    a prepared transaction, which names them by their place.
    """
    there = rehearsal.owner(owner)
    if there is None:
        return []
    ours = (entry.message_id for _, entry in truth.state.entries(owner.id, 0))
    pairs = enumerate(zip_longest(ours, rehearsal.delivered(there)))
    place = next((number for number, (mine, other) in pairs if mine != other), None)
    if place is None:
        return []
    if owner.subscription_name is not None or truth.state.withheld.get(owner.id):
        return None
    found: list[tuple[int, Entry]] = []
    size = 0
    for order_key, entry in islice(truth.state.entries(owner.id, 0), place, None):
        size += entry.size
        if len(found) >= bounds.messages or size > bounds.bytes:
            return None
        found.append((order_key, entry))
    return found


def add_again(
    truth: Contents,
    messages: Sequence[tuple[int, Entry]],
    transaction: LocalTransactionId,
    write: Callable[[Sequence[bytes]], None],
) -> None:
    """Write what ``out_of_order`` gave. In effect when the last record, the Commit, is durable and applied."""
    for start in range(0, len(messages), PAGE_MESSAGES):
        for stored in truth.read(messages[start : start + PAGE_MESSAGES]):
            add = current_add(stored.add, stored.message, stored.is_current)
            remove = encode_remove(add.destination, add.message_id, transaction)
            write([remove, encode(add._replace(transaction=transaction))])
    write([encode_commit(transaction)])
