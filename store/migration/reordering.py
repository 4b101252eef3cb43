"""Reordering: records that give a queue or topic in ActiveMQ's view the order of TandemMQ.

A compaction copies old messages after younger ones, and ActiveMQ ignores the hint with their order. So all messages
from the first wrong place on are removed and added again, in the right order, in one local transaction. ActiveMQ and
TandemMQ apply the transaction completely or not at all. ActiveMQ keeps a transaction in memory during its replay, so
there are bounds; larger queues need an export.

All messages of a topic are added again, for all its subscriptions at once, because subscriptions share messages. This
also corrects a subscription whose record was copied: for ActiveMQ it begins after its pending messages, and ActiveMQ
ignores copies of messages that another subscription has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice

from tandemmq.store.migration.contents import PAGE_MESSAGES, Contents, current_add
from tandemmq.store.migration.rehearsal import Rehearsal
from tandemmq.store.records.commands import encode, encode_commit, encode_remove
from tandemmq.store.records.transactions import LocalTransactionId
from tandemmq.store.state.keys import Entry
from tandemmq.store.state.owners import OwnerState

MESSAGES_MAX = 20_000
BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of the messages that are added again for one queue or topic."""

    messages: int = MESSAGES_MAX
    bytes: int = BYTES_MAX


def out_of_order(
    contents: Contents, rehearsal: Rehearsal, owner: OwnerState, bounds: Bounds
) -> list[tuple[int, Entry]] | None:
    """Return the messages of ``owner`` from the first one that ActiveMQ would deliver at another place, as (order key,
    entry). Empty: the order is right. None: they exceed ``bounds``."""
    place = rehearsal.first_difference(contents, owner)
    if place is None:
        return []
    found: list[tuple[int, Entry]] = []
    size = 0
    for order_key, entry in islice(contents.state.entries(owner.id, 0), place, None):
        size += entry.size
        if len(found) >= bounds.messages or size > bounds.bytes:
            return None
        found.append((order_key, entry))
    return found


class Topic(Enum):
    """Verdict on a topic; the text is for the operator."""

    UNCHANGED = "ActiveMQ would deliver the same messages"
    ADD_AGAIN = "all its messages must be added again"
    TOO_LARGE = "all its messages must be added again, but they exceed the bounds"


def judge_topic(contents: Contents, rehearsal: Rehearsal, owners: Sequence[OwnerState], bounds: Bounds) -> Topic:
    """Return the verdict on a topic with these subscriptions."""
    if all(rehearsal.owner(owner) and rehearsal.first_difference(contents, owner) is None for owner in owners):
        return Topic.UNCHANGED
    is_within = (
        sum(owner.count for owner in owners) * len(owners) <= bounds.messages
        and sum(owner.bytes for owner in owners) <= bounds.bytes
    )
    return Topic.ADD_AGAIN if is_within else Topic.TOO_LARGE


def add_topic_again(
    contents: Contents,
    owners: Sequence[OwnerState],
    transaction: LocalTransactionId,
    prepared: Sequence[bytes],
    write: Callable[[Sequence[bytes]], None],
) -> None:
    """Write all messages of a topic's subscriptions again. For ``prepared``, and when this takes effect, see
    ``add_again``."""
    messages = list(contents.together([owner.id for owner in owners]))
    for stored, holders in messages:
        add = current_add(stored.add, stored.message, stored.is_current)
        removes = {owner.id: encode_remove(add.destination, add.message_id, transaction, owner.key) for owner in owners}
        others = [remove for owner, remove in removes.items() if owner not in holders]
        write([*removes.values(), encode(add._replace(transaction=transaction)), *others])
    write([encode_commit(transaction), *prepared])


def add_again(
    contents: Contents,
    messages: Sequence[tuple[int, Entry]],
    transaction: LocalTransactionId,
    prepared: Sequence[bytes],
    write: Callable[[Sequence[bytes]], None],
) -> None:
    """Write the messages of ``out_of_order`` again. This takes effect when the last batch, with the Commit, is durable
    and applied.

    ``prepared`` are the records of ``prepared_again``. They are written in the last batch, because a prepared
    transaction withholds messages by their order keys, which change here.
    """
    for start in range(0, len(messages), PAGE_MESSAGES):
        for stored in contents.read(messages[start : start + PAGE_MESSAGES]):
            add = current_add(stored.add, stored.message, stored.is_current)
            remove = encode_remove(add.destination, add.message_id, transaction)
            write([remove, encode(add._replace(transaction=transaction))])
    write([encode_commit(transaction), *prepared])
