"""Open transactions of the journal, the messages that they withhold, and their encoding for the index. Pure."""

# proofs: pins

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tandemmq.journal.format import RECORD_HEADER_SIZE
from tandemmq.store.records.commands import ADD, DEFAULT_PRIORITY, REMOVE, AddMessage, RemoveMessage
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.message_ids import numbered


class PendingOperation(NamedTuple):
    """Operation of an open transaction.

    ``owner`` and ``order_key`` identify the message that a prepared removal withholds; 0: it withholds none, or is not
    prepared.
    """

    location: int
    size: int
    kind: int  # number of the command: ADD or REMOVE
    destination: Destination
    message_id: str
    subscription_key: str | None
    owner: int = 0
    order_key: int = 0
    priority: int = DEFAULT_PRIORITY  # of an added message
    sender: str | None = None  # user that is charged for an added message


def operation_of(location: int, payload: bytes, command: AddMessage | RemoveMessage) -> PendingOperation:
    """Return the operation for a record of an open transaction: its location, payload, and decoded command."""
    return PendingOperation(
        location,
        len(payload) + RECORD_HEADER_SIZE,
        ADD if isinstance(command, AddMessage) else REMOVE,
        command.destination,
        command.message_id,
        None if isinstance(command, AddMessage) else command.subscription_key,
        priority=command.priority if isinstance(command, AddMessage) else DEFAULT_PRIORITY,
        sender=command.sender if isinstance(command, AddMessage) else None,
    )


@dataclass(slots=True, eq=False)
class Transaction:
    """Open transaction: Adds and Removes that wait for their Commit, in the order of the journal.

    ``is_prepared``: it is an XA transaction, whose Prepare is at ``prepared_at``. ``counted``: user -> bytes that are
    charged for its messages while it is prepared.
    """

    operations: list[PendingOperation] = field(default_factory=list)
    is_prepared: bool = False
    prepared_at: int = 0
    counted: dict[str, int] = field(default_factory=dict)

    def senders(self) -> dict[str, int]:
        """Return user -> bytes of the messages that the transaction adds."""
        found: dict[str, int] = {}
        for operation in self.operations:
            if operation.sender is not None:
                found[operation.sender] = found.get(operation.sender, 0) + operation.size
        return found


# (destination, subscription key, message id): identifies the message of a Remove
Named = tuple[Destination, str | None, str]


def _name(operation: PendingOperation) -> Named:
    return operation.destination, operation.subscription_key, operation.message_id


@dataclass(slots=True, eq=False)
class OpenTransactions:
    """All open transactions. ``pin(file, pinned)`` notes that ``file`` is needed as long as ``pinned``. ``change(user,
    size)`` charges ``size`` bytes to ``user``; it may be negative.

    by_key      key -> transaction
    withheld    owner -> order keys of messages whose removal is prepared; no consumer gets them
    unresolved  prepared removals whose message the replay has not read yet, because a copy may follow the Prepare
    named       (destination, message id) -> keys of the prepared transactions that add or remove this message. It
                remains after the end of the queue, because in a replay the outcome would apply to any message with this
                id at this destination
    producers   producer -> number of its ids in ``named``
    is_touched  there are changes that are not in the index
    """

    _pin: Callable[[int, int], None]
    _change: Callable[[str, int], None]
    by_key: dict[str, Transaction] = field(default_factory=dict)
    withheld: dict[int, set[int]] = field(default_factory=dict)
    unresolved: dict[Named, str] = field(default_factory=dict)
    named: dict[tuple[Destination, str], set[str]] = field(default_factory=dict)
    producers: Counter[str] = field(default_factory=Counter)
    is_touched: bool = False

    def load(self, blob: bytes) -> None:
        self.by_key = decode_transactions(blob)
        for key, transaction in self.by_key.items():
            if transaction.is_prepared:
                transaction.counted = transaction.senders()
                self._withhold(key, transaction)

    def enlist(self, key: str, operation: PendingOperation, replaces: int = 0) -> None:
        """Add an operation to an open transaction. ``replaces``: its location before a compaction copied it.

        The transaction may have the operation at a still older location, if the copies between were reclaimed before
        they were read with an old index.
        """
        transaction = self.by_key.setdefault(key, Transaction())
        self.is_touched = True
        if replaces:
            for number, known in enumerate(transaction.operations):
                if known.location == replaces or (
                    known.location < replaces and known.kind == operation.kind and _name(known) == _name(operation)
                ):
                    self._pin(operation.location >> 32, known.location >> 32)  # prove: copied-operation-pins-the-old
                    transaction.operations[number] = operation._replace(owner=known.owner, order_key=known.order_key)
                    self._count_more(transaction, operation, 0 if known.sender is None else known.size)
                    return
        transaction.operations.append(operation)
        self._count_more(transaction, operation, 0)

    def _count_more(self, transaction: Transaction, operation: PendingOperation, replaced: int) -> None:
        """Charge ``operation``, which replaces one of ``replaced`` charged bytes. It is charged now, because a
        checkpoint may come before the Prepare that follows."""
        user = operation.sender
        if transaction.is_prepared and user is not None:
            self._change(user, operation.size - replaced)
            transaction.counted[user] = transaction.counted.get(user, 0) + operation.size - replaced

    def prepare(self, key: str, location: int, places: Iterable[tuple[int, int] | None]) -> None:
        """Mark a transaction as prepared. ``location``: of its Prepare. ``places``: for each operation, (owner, order
        key) of the message that it removes, or None."""
        transaction = self.by_key.setdefault(key, Transaction())
        if transaction.prepared_at and transaction.prepared_at != location:
            self._pin(location >> 32, transaction.prepared_at >> 32)  # prove: new-prepare-pins-the-old
        transaction.is_prepared = True
        transaction.prepared_at = location
        transaction.operations = [
            operation if place is None else operation._replace(owner=place[0], order_key=place[1])
            for operation, place in zip(transaction.operations, places, strict=True)
        ]
        self.is_touched = True
        self._count(transaction, transaction.senders())  # prove: prepared-messages-count
        self._withhold(key, transaction)

    def _count(self, transaction: Transaction, counted: dict[str, int]) -> None:
        """Charge ``counted`` for a transaction instead of its former charges."""
        for user, size in counted.items():
            self._change(user, size)
        for user, size in transaction.counted.items():
            self._change(user, -size)
        transaction.counted = counted

    def _withhold(self, key: str, transaction: Transaction) -> None:
        for operation in transaction.operations:
            self._name_for(key, operation)
            if operation.order_key:
                self.withheld.setdefault(operation.owner, set()).add(operation.order_key)
            elif operation.kind == REMOVE:
                self.unresolved[_name(operation)] = key

    def _name_for(self, key: str, operation: PendingOperation) -> None:
        place = operation.destination, operation.message_id
        keys = self.named.get(place)
        if keys is None:
            self.named[place] = {key}
            self.producers[numbered(operation.message_id)[0]] += 1
        else:
            keys.add(key)

    def _unname_for(self, key: str, operation: PendingOperation) -> None:
        """Remove the key from ``named``. Other transactions may name the same message: each subscription of a topic may
        have its own prepared removal."""
        place = operation.destination, operation.message_id
        keys = self.named.get(place)
        if keys is None or key not in keys:
            return  # not prepared, or removed already
        keys.remove(key)
        if keys:  # prove: named-by-another "keys" -> "False"
            return
        del self.named[place]
        producer = numbered(operation.message_id)[0]
        self.producers[producer] -= 1
        if not self.producers[producer]:
            del self.producers[producer]

    def resolve(self, name: Named, owner: int, order_key: int) -> None:
        """Handle a message that a replay has read. If a prepared transaction removes the message, withhold it."""
        key = self.unresolved.pop(name, None)
        if key is None:
            return
        transaction = self.by_key[key]
        transaction.operations = [
            operation._replace(owner=owner, order_key=order_key)
            if operation.kind == REMOVE and _name(operation) == name
            else operation
            for operation in transaction.operations
        ]
        self.withheld.setdefault(owner, set()).add(order_key)
        self.is_touched = True

    def rekey(self, owner: int, old_key: int, order_key: int) -> None:
        """Note the new order key of a message."""
        held_back = self.withheld.get(owner)
        if held_back is None or old_key not in held_back:
            return
        held_back.remove(old_key)
        held_back.add(order_key)
        for transaction in self.by_key.values():
            transaction.operations = [
                operation._replace(order_key=order_key)
                if (operation.owner, operation.order_key) == (owner, old_key)
                else operation
                for operation in transaction.operations
            ]
        self.is_touched = True

    def end(self, key: str, location: int) -> Transaction | None:
        """End a transaction whose outcome is at ``location``, and release the messages that it withheld. Return it, or
        None if it was not open."""
        transaction = self.by_key.pop(key, None)
        if transaction is None:
            return None
        self.is_touched = True
        self._count(transaction, {})
        file = location >> 32
        for operation in transaction.operations:
            # If the outcome were missing in a replay, the transaction would be open again.
            self._pin(file, operation.location >> 32)  # prove: outcome-pins-its-operations
            self._unname_for(key, operation)  # prove: ended-is-not-prepared
            if operation.order_key:
                self.withheld.get(operation.owner, set()).discard(operation.order_key)
            elif operation.kind == REMOVE:
                self.unresolved.pop(_name(operation), None)
        if transaction.prepared_at:
            self._pin(file, transaction.prepared_at >> 32)  # prove: outcome-pins-its-prepare
        return transaction

    def forget(self, key: str, location: int) -> None:
        """End a transaction whose outcome was reclaimed. Another transaction may withhold the same messages by now."""
        self.end(key, location)
        for other, transaction in self.by_key.items():
            if transaction.is_prepared:
                self._withhold(other, transaction)  # prove: withheld-by-another

    def files(self, transaction: Transaction) -> set[int]:
        """Return the files with records of the transaction."""
        found = {operation.location >> 32 for operation in transaction.operations}
        if transaction.prepared_at:
            found.add(transaction.prepared_at >> 32)  # prove: prepare-holds-its-file
        return found

    def encode(self) -> bytes:
        """Return the bytes for ``load``; b"" if no transaction is open."""
        return encode_transactions(self.by_key) if self.by_key else b""


def encode_transactions(transactions: dict[str, Transaction]) -> bytes:
    return json.dumps(
        [
            [
                name,
                transaction.is_prepared,
                transaction.prepared_at,
                [[*o[:3], int(o.destination.kind), o.destination.name, *_rest(o)] for o in transaction.operations],
            ]
            for name, transaction in transactions.items()
        ],
        separators=(",", ":"),
    ).encode()


def _rest(operation: PendingOperation) -> tuple[object, ...]:
    # Without a sender or another priority, earlier versions can read the result.
    if operation.sender is not None:
        return operation[4:]
    return operation[4:-1] if operation.priority != DEFAULT_PRIORITY else operation[4:-2]


def decode_transactions(blob: bytes) -> dict[str, Transaction]:
    found: dict[str, Transaction] = {}
    for name, is_prepared, prepared_at, operations in json.loads(blob):
        transaction = found[name] = Transaction([], is_prepared, prepared_at)
        for location, size, kind, destination_kind, destination_name, *rest in operations:
            destination = Destination(DestinationKind(destination_kind), destination_name)
            transaction.operations.append(PendingOperation(location, size, kind, destination, *rest))
    return found
