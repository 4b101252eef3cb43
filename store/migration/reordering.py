"""Write records that give a queue or topic in ActiveMQ's view our messages in our order.

A compaction copies old messages after younger ones, and ActiveMQ does not read the hint that keeps their place. So
from the first message that it would deliver at another place, all are removed and added again, in our order, in one
local transaction: both ActiveMQ and our brokers apply it whole or not at all. ActiveMQ holds a transaction in memory
during its replay; so there are bounds, and larger queues need an export.

All messages of a topic are added again, for all its subscriptions at once: they share the messages. That also repairs
the effect of a moved subscription's record: ActiveMQ sees it begin after its pending messages, and ignores a copy of
a message that another subscription has.
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
    """Limits of what may be added again for one queue."""

    messages: int = MESSAGES_MAX
    bytes: int = BYTES_MAX


def out_of_order(
    contents: Contents, rehearsal: Rehearsal, owner: OwnerState, bounds: Bounds
) -> list[tuple[int, Entry]] | None:
    """Return the messages of ``owner`` from the first that ActiveMQ would deliver at another place; empty if none.

    Returns None if they are too many.
    """
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
    """Verdict on a topic."""

    AS_IT_IS = "ActiveMQ would deliver what we deliver"
    AGAIN = "all of it is to be added again"
    TOO_MUCH = "all of it should be added again, but it is too much"


def judge_topic(contents: Contents, rehearsal: Rehearsal, owners: Sequence[OwnerState], bounds: Bounds) -> Topic:
    """Judge all subscriptions of a topic together."""
    if all(rehearsal.owner(owner) and rehearsal.first_difference(contents, owner) is None for owner in owners):
        return Topic.AS_IT_IS
    is_within = (
        sum(owner.count for owner in owners) * len(owners) <= bounds.messages
        and sum(owner.bytes for owner in owners) <= bounds.bytes
    )
    return Topic.AGAIN if is_within else Topic.TOO_MUCH


def add_topic_again(
    contents: Contents,
    owners: Sequence[OwnerState],
    transaction: LocalTransactionId,
    prepared: Sequence[bytes],
    write: Callable[[Sequence[bytes]], None],
) -> None:
    """Write again all messages of a topic's subscriptions. Takes effect, and uses ``prepared``, as ``add_again``
    does."""
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
    """Write the messages of ``out_of_order``. In effect when the last batch, with the Commit, is durable and applied.

    ``prepared`` are the prepared transactions, written again in that batch: they withhold messages by their place.
    """
    for start in range(0, len(messages), PAGE_MESSAGES):
        for stored in contents.read(messages[start : start + PAGE_MESSAGES]):
            add = current_add(stored.add, stored.message, stored.is_current)
            remove = encode_remove(add.destination, add.message_id, transaction)
            write([remove, encode(add._replace(transaction=transaction))])
    write([encode_commit(transaction), *prepared])
