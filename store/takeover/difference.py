"""The difference between the state that the journal alone gives and ActiveMQ's view, and the records that remove it.

Both are states over an index. Where they agree, they are walked side by side, and nothing is kept. All messages of a
destination are in memory once if its order differs, or if it lacks a message. The plan itself holds only differences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from tandemmq.journal.format import Location
from tandemmq.store.records.message import Destination
from tandemmq.store.state.keys import Entry
from tandemmq.store.state.owners import OwnerState
from tandemmq.store.state.state import State
from tandemmq.store.takeover.activemq_view import ActiveMQView, Ranks, in_order_of_delivery
from tandemmq.store.takeover.order import ordered_keys


class Removal(NamedTuple):
    """A message that ActiveMQ's view does not hold. With ``subscription_key``: that subscription alone does not hold
    it."""

    destination: Destination
    message_id: str
    subscription_key: str | None


class Copy(NamedTuple):
    """A message whose record must be written once more, with its place in the order.

    ``without`` are the durable subscriptions of its topic that do not have it pending. ``is_restored``: the journal
    alone lost it, for one of its owners at least; else the message only has another place there.
    """

    location: Location
    size: int
    order_key: int
    without: tuple[str, ...]
    is_restored: bool


@dataclass(slots=True)
class Plan:
    """Records to write. The lists are in the order of their records."""

    rolled_back: list[str] = field(default_factory=list)  # keys of transactions
    unsubscribed: list[OwnerState] = field(default_factory=list)
    removed_destinations: list[Destination] = field(default_factory=list)
    subscribed: list[OwnerState] = field(default_factory=list)  # as in ActiveMQ's view
    repeated: list[bytes] = field(default_factory=list)  # payloads that ActiveMQ would not read (store.takeover.strays)
    removals: list[Removal] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not any(getattr(self, each.name) for each in fields(self))


@dataclass(slots=True, eq=False)
class _Message:
    """A message of a destination that is compared as a whole: its key in the journal, its entry and its holders."""

    key: int
    entry: Entry
    owners: frozenset[str] = frozenset()


QUEUE = ""  # the holder of a queue's messages, where a topic's have the key of their subscription


def difference(journal: State, activemq_view: ActiveMQView) -> Plan:
    """Return the records that make the state from the journal equal to ActiveMQ's view."""
    plan = Plan()
    for key, transaction in journal.transactions.items():
        known = activemq_view.state.transactions.get(key)
        if transaction.is_prepared and (known is None or not known.is_prepared):
            plan.rolled_back.append(key)
    for destination in _destinations(journal):
        there = activemq_view.state.topics if destination.is_topic else activemq_view.state.queues
        if not there.get(destination):
            if destination.is_topic:
                plan.unsubscribed += [journal.owners[owner] for owner in journal.topics[destination]]
            else:
                plan.removed_destinations.append(destination)
    for destination in _destinations(activemq_view.state):
        if destination.is_topic:
            _compare_subscriptions(plan, journal, activemq_view.state, destination)
        _compare_messages(plan, journal, activemq_view, destination)
    return plan


def reordered(journal: State, ranks: Ranks) -> Plan:
    """Return the records that put the messages of prioritized destinations into ActiveMQ's order of delivery, where the
    journal alone is the source."""
    plan = Plan()
    for destination in _destinations(journal):
        if ranks.has_classes(destination):
            present = _held(journal, destination, None)
            wanted = _held(journal, destination, ranks)
            _plan_order(plan, journal, destination, present, wanted)
    return plan


def _destinations(state: State) -> list[Destination]:
    return sorted([*state.queues, *(topic for topic, owners in state.topics.items() if owners)])


def _owners(state: State, destination: Destination) -> dict[str, int]:
    """Return the holders of messages of ``destination``: subscription key -> owner, or QUEUE -> owner."""
    if destination.is_topic:
        return {state.owners[owner].key: owner for owner in state.topics.get(destination, ())}
    owner = state.queues.get(destination)
    return {} if owner is None else {QUEUE: owner}


def _compare_subscriptions(plan: Plan, journal: State, activemq_view: State, destination: Destination) -> None:
    for owner in journal.topics.get(destination, ()):
        if journal.owners[owner].key not in _owners(activemq_view, destination):
            plan.unsubscribed.append(journal.owners[owner])
    for key, owner in _owners(activemq_view, destination).items():
        found = journal.subscriptions.get((destination, key))
        known = None if found is None else journal.owners[found]
        # Index versions before 5 lack the place of a record: the one in the journal is used then.
        if known is None or activemq_view.owners[owner].latest_record not in (0, known.latest_record):
            plan.subscribed.append(activemq_view.owners[owner])


def _compare_messages(plan: Plan, journal: State, activemq_view: ActiveMQView, destination: Destination) -> None:
    mine, theirs = _owners(journal, destination), _owners(activemq_view.state, destination)
    removals: list[Removal] = []
    for key, owner in theirs.items():
        held = iter(()) if key not in mine else journal.entries(mine[key], 0)
        found = _removals(held, activemq_view, owner, destination, key or None)
        if found is None:
            break
        removals += found
    else:
        plan.removals += removals
        return
    present = _held(journal, destination, None)
    wanted = _held(activemq_view.state, destination, activemq_view.ranks)
    for message_id, message in present.items():
        kept = wanted.get(message_id)
        for key in sorted(message.owners & theirs.keys()):
            if kept is None or key not in kept.owners:
                plan.removals.append(Removal(destination, message_id, key or None))
    _plan_order(plan, activemq_view.state, destination, present, wanted)


def _removals(
    held: Iterator[tuple[int, Entry]], view: ActiveMQView, owner: int, destination: Destination, key: str | None
) -> list[Removal] | None:
    """Walk two owners side by side; return the removals that make them equal. None: removals are not enough."""
    found: list[Removal] = []
    for _, wanted in in_order_of_delivery(view.state, view.ranks, destination, owner):
        for _, entry in held:
            if entry.message_id == wanted.message_id:
                if entry.location != wanted.location:
                    return None
                break
            if view.place_of(owner, entry.message_id) is not None:
                return None
            found.append(Removal(destination, entry.message_id, key))
        else:
            return None
    return [*found, *(Removal(destination, entry.message_id, key) for _, entry in held)]


def _held(state: State, destination: Destination, ranks: Ranks | None) -> dict[str, _Message]:
    """Return all messages of a destination by id: in the order of their keys, or with ``ranks`` in that of delivery."""
    found: dict[str, _Message] = {}
    sets: dict[frozenset[str], frozenset[str]] = {}  # most messages have the same owners
    for key, owner in _owners(state, destination).items():
        for order_key, entry in state.entries(owner, 0):
            message = found.get(entry.message_id)
            if message is None:
                message = found[entry.message_id] = _Message(order_key, entry)
            owners = message.owners | {key}
            message.owners = sets.setdefault(owners, owners)

    def place(item: tuple[str, _Message]) -> tuple[int, int]:
        message_id, message = item
        if ranks is None:
            return 0, message.key
        return ranks.rank(destination, message_id), ranks.origin(destination, message_id, message.key)

    return dict(sorted(found.items(), key=place))


def _plan_order(
    plan: Plan,
    activemq_view: State,
    destination: Destination,
    present: dict[str, _Message],
    wanted: dict[str, _Message],
) -> None:
    keys: list[int | None] = []
    for message_id, message in wanted.items():
        known = present.get(message_id)
        # If two messages have one id, the journal alone may have the dead one.
        is_there = known is not None and known.entry.location == message.entry.location
        keys.append(known.key if known is not None and is_there else None)
    subscriptions = sorted(_owners(activemq_view, destination).keys() - {QUEUE})
    taken = {message.key for message in present.values()}
    for (message_id, message), key, order_key in zip(wanted.items(), keys, ordered_keys(keys, taken), strict=True):
        is_restored = key is None or not message.owners <= present[message_id].owners
        if is_restored or key != order_key:
            without = tuple(subscription for subscription in subscriptions if subscription not in message.owners)
            plan.copies.append(Copy(message.entry.location, message.entry.size, order_key, without, is_restored))


def missing_files(state: State, existing: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield (file, live messages) of the files that the state needs and that are not there."""
    there = set(existing)
    for file, held in sorted(state.files.items()):
        if held.live and file not in there:
            yield file, held.live
