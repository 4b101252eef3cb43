"""The difference between the state from the journal alone and ActiveMQ's view, and the records that remove it.

Both are states over an index. Equal parts are compared entry by entry, without a copy in memory. If the order of a
destination differs, or if the journal lacks a message, all messages of the destination are in memory at once. The plan
has only differences.

If messages need another order than the journal's, as many of them as possible keep their order key: those of a longest
increasing subsequence. Each other message gets the next free key after the message before it. Usually keys are free:
the last 32 bits of a key differ only between operations of one commit. If too few keys are free, the next message gets
a new key, too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from tandemmq.journal.format import Location
from tandemmq.store.records.message import Destination
from tandemmq.store.state.keys import Entry
from tandemmq.store.state.owners import OwnerState
from tandemmq.store.state.state import State
from tandemmq.store.takeover.activemq_view import ActiveMQView, Ranks, in_order_of_delivery

# Number of keys before the first message that keeps its key, for messages that come before it.
HEADROOM = 1 << 48


def ordered_keys(present: Sequence[int | None], taken: Set[int]) -> list[int]:
    """Return the key of each message, ascending.

    ``present``: present keys of the messages, in the wanted order; None: the message has no key yet. As many keys as
    possible stay. A new key is not in ``taken``, the keys that all messages of the destination have now; so the
    messages can be moved one by one, in this order.
    """
    keeps = _longest_increasing(present)
    first = next((key for key, stays in zip(present, keeps, strict=True) if stays), None)
    last = 0 if first is None else max(first - HEADROOM, 0)
    found: list[int] = []
    for key, stays in zip(present, keeps, strict=True):
        if stays and key is not None and key > last:
            last = key
        else:
            last += 1
            while last in taken:
                last += 1
        found.append(last)
    return found


def _longest_increasing(present: Sequence[int | None]) -> list[bool]:
    """Return, for each key, whether it belongs to a longest increasing subsequence."""
    tops: list[int] = []  # at index n: the lowest last key of all increasing subsequences of length n + 1
    holders: list[int] = []  # at index n: the number of the message with that key
    before = [-1] * len(present)
    for number, key in enumerate(present):
        if key is None:
            continue
        length = bisect_left(tops, key)
        if length:
            before[number] = holders[length - 1]
        if length == len(tops):
            tops.append(key)
            holders.append(number)
        else:
            tops[length] = key
            holders[length] = number
    keeps = [False] * len(present)
    at = holders[-1] if holders else -1
    while at >= 0:
        keeps[at] = True
        at = before[at]
    return keeps


class Removal(NamedTuple):
    """A message that ActiveMQ's view does not hold. With ``subscription_key``: only that subscription does not hold
    it there."""

    destination: Destination
    message_id: str
    subscription_key: str | None


class Copy(NamedTuple):
    """A message whose record must be written once more, with its order key.

    ``without``: keys of the durable subscriptions of its topic for which it is not pending. ``is_restored``: the state
    from the journal alone lacks it, for at least one of its owners; otherwise it only has another place in the order
    there.
    """

    location: Location
    size: int
    order_key: int
    without: tuple[str, ...]
    is_restored: bool


@dataclass(slots=True)
class Plan:
    """Differences, from which the records are made. The fields are in the order of the records."""

    rolled_back: list[str] = field(default_factory=list)  # keys of transactions
    unsubscribed: list[OwnerState] = field(default_factory=list)
    removed_destinations: list[Destination] = field(default_factory=list)
    subscribed: list[OwnerState] = field(default_factory=list)  # owners of ActiveMQ's view
    repeated: list[bytes] = field(
        default_factory=list
    )  # payloads that ActiveMQ would not read (store.takeover.records)
    removals: list[Removal] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not any(getattr(self, each.name) for each in fields(self))


@dataclass(slots=True, eq=False)
class _Message:
    """A message of a destination that is in memory: its order key, its entry and the keys of its owners
    (``_owners``)."""

    key: int
    entry: Entry
    owners: frozenset[str] = frozenset()


QUEUE = ""  # key of a queue as an owner; a durable subscription has its subscription key


def difference(journal: State, activemq_view: ActiveMQView) -> Plan:
    """Return the plan whose records make the state from the journal equal to ActiveMQ's view."""
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
    """Return the plan whose records put the messages of prioritized destinations into ActiveMQ's order of delivery. For
    a take-over without db.data."""
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
    """Return the owners of a destination: subscription key -> owner id, or QUEUE -> owner id."""
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
        # Versions of db.data before 5 lack the place of a subscription's record; then the place in the journal is used.
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
    """Compare two owners entry by entry; return the removals that make them equal. None: removals are not enough."""
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
    """Return all messages of a destination: id -> message, in the order of their keys. With ``ranks``: in the order of
    delivery."""
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
        # If two messages have the same id, the state from the journal alone may have the one that was removed.
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
    """Yield (file, number of live messages) of each file that the state needs and that is not in ``existing``."""
    there = set(existing)
    for file, held in sorted(state.files.items()):
        if held.live and file not in there:
            yield file, held.live
