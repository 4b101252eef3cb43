"""Reconciliation: records that a start writes if the settings accept damage, so that a later replay of the journal
agrees with the index.

An index contains the effects of the damaged bytes: messages that they acknowledged, transactions that they ended. A
replay skips these bytes, so acknowledged messages would return. Therefore the state of the index is compared with that
of a replay, and a record is written for each difference. The index is right, except for messages that were stored in
the damaged bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

from tandemmq.journal.errors import JournalError
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.reader import JournalReader
from tandemmq.store.records import commands
from tandemmq.store.records.commands import added, decode, encode
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.hints import with_copy_hint, with_user_hint
from tandemmq.store.records.marks import encode_settled
from tandemmq.store.records.message import Destination
from tandemmq.store.records.transactions import transaction_of_key
from tandemmq.store.state.keys import Entry, Terms
from tandemmq.store.state.owners import OwnerState
from tandemmq.store.state.state import State

# (destination, key of a durable subscription); the key is None for a queue
Name = tuple[Destination, str | None]


@dataclass(slots=True)
class Reconciliation:
    """Result of a comparison.

    payloads     records to be written, in this order
    pins         files whose records the payloads cancel: they must be pinned by the file of the payloads
    rescued      (name of the owner, message id): messages in the damaged bytes of which an older record is intact
    rolled_back  keys of prepared transactions of which a part is lost
    """

    payloads: list[bytes] = field(default_factory=list)
    pins: set[int] = field(default_factory=set)
    rescued: set[tuple[Name, str]] = field(default_factory=set)
    rolled_back: list[str] = field(default_factory=list)


def reconcile(
    files: JournalFiles, state: State, replayed: State, dropped: Iterable[tuple[Name, Entry]]
) -> Reconciliation:
    """Compare ``state``, the index with the journal's tail applied, with ``replayed``, a replay of the journal that
    skipped the damage. ``dropped``: the messages that ``state`` lost by the damage. Neither state is changed."""
    reconciliation = Reconciliation()
    with closing(JournalReader(files)) as reader:
        _Comparison(
            state, replayed, {(name, entry.message_id) for name, entry in dropped}, reader, reconciliation
        ).run()
    return reconciliation


def name_of(owner: OwnerState) -> Name:
    """Return the name of an owner. The name is the same in every index; the owner's number may differ."""
    return owner.destination, owner.subscription_key


@dataclass(eq=False, repr=False)
class _Comparison:
    _state: State
    _replayed: State
    _dropped: set[tuple[Name, str]]
    _reader: JournalReader
    _reconciliation: Reconciliation

    def __post_init__(self) -> None:
        self._index_owners = {name_of(owner): owner for owner in self._state.owners.values()}
        self._replayed_owners = {name_of(owner): owner for owner in self._replayed.owners.values()}

    def run(self) -> None:
        self._transactions()
        self._owners()
        destinations = dict.fromkeys(destination for destination, _ in (*self._index_owners, *self._replayed_owners))
        for destination in destinations:
            self._messages(destination)
        for destination, key in self._index_owners.keys() - self._replayed_owners.keys():
            if key is not None:  # all its pending messages were copied, so a replay needs no older records
                self._reconciliation.payloads.append(encode_settled(destination, key))

    def _transactions(self) -> None:
        mine, theirs = self._state.transactions, self._replayed.transactions
        for key, transaction in theirs.items():
            known = mine.get(key)
            is_whole = known is not None and len(known.operations) == len(transaction.operations)
            if not is_whole or (known is not None and known.is_prepared != transaction.is_prepared):
                self._reconciliation.payloads.append(commands.encode_rollback(transaction_of_key(key)))
                for operation in transaction.operations:
                    self._reconciliation.pins.add(operation.location >> 32)
                if known is not None and known.is_prepared:
                    self._reconciliation.rolled_back.append(key)
        for key, transaction in mine.items():
            if transaction.is_prepared and key not in theirs:
                self._reconciliation.payloads.append(commands.encode_rollback(transaction_of_key(key)))
                self._reconciliation.rolled_back.append(key)

    def _owners(self) -> None:
        for name in self._replayed_owners.keys() - self._index_owners.keys():
            owner = self._replayed_owners[name]
            if owner.subscription_name is None:
                if owner.count:
                    self._reconciliation.payloads.append(commands.encode_remove_destination(owner.destination))
            else:
                self._reconciliation.payloads.append(encode(commands.Subscription(owner.destination, owner.key)))
                self._reconciliation.pins.add(owner.record_location >> 32)
            for _, entry in self._replayed.entries(owner.id, 0):
                self._reconciliation.pins.add(entry.location >> 32)
        for name in self._index_owners.keys() - self._replayed_owners.keys():
            owner = self._index_owners[name]
            if owner.subscription_name is not None:
                assert owner.client_id is not None, "a subscription has a client"
                # A selector that was too long for the index is lost with the record. The subscription then has no
                # selector.
                selector, no_local, pattern, user = owner.terms or Terms(None, False)
                subscription = commands.encode_subscription(
                    owner.destination,
                    owner.client_id,
                    owner.subscription_name,
                    selector,
                    bool(no_local),
                    subscribed=owner.destination._replace(name=pattern or owner.destination.name),
                )
                self._reconciliation.payloads.append(with_user_hint(subscription, user))

    def _messages(self, destination: Destination) -> None:
        """Compare all owners of one destination together: a copy of a topic's message goes to all its subscriptions."""
        held: dict[Name, set[str]] = {}
        copies: dict[str, tuple[int, Entry]] = {}
        for name in [name for name in self._index_owners if name[0] == destination]:
            should = dict(self._entries(self._state, self._index_owners.get(name)))
            has = dict(self._entries(self._replayed, self._replayed_owners.get(name)))
            held[name] = set(should)
            for message_id, place in has.items():
                if message_id in should:
                    continue
                if (name, message_id) in self._dropped:
                    self._reconciliation.rescued.add((name, message_id))
                    held[name].add(message_id)
                    copies[message_id] = place
                else:
                    self._reconciliation.payloads.append(commands.encode_remove(destination, message_id, None, name[1]))
                    self._reconciliation.pins.add(place[1].location >> 32)
            copies.update((message_id, place) for message_id, place in should.items() if message_id not in has)
        for message_id, (order_key, entry) in sorted(copies.items(), key=lambda item: item[1][0]):
            copy = self._copy(order_key, entry)
            if copy is None:
                continue
            self._reconciliation.payloads.append(copy)
            for name, ids in held.items():
                if name[1] is not None and message_id not in ids:
                    self._reconciliation.payloads.append(commands.encode_remove(destination, message_id, None, name[1]))

    @staticmethod
    def _entries(state: State, owner: OwnerState | None) -> Iterator[tuple[str, tuple[int, Entry]]]:
        if owner is not None:
            for order_key, entry in state.entries(owner.id, 0):
                yield entry.message_id, (order_key, entry)

    def _copy(self, order_key: int, entry: Entry) -> bytes | None:
        try:
            add = added(decode(self._reader.read(entry.location, entry.size)))
        except (JournalError, RecordDamaged):
            return None  # the error is reported when a client reads the message
        if add is None:
            return None
        self._reconciliation.pins.add(entry.location >> 32)
        payload = encode(commands.UpdateMessage(add._replace(transaction=None)))
        return with_copy_hint(payload, order_key, entry.location)
