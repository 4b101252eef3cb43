"""From journal records to state: the one `apply` that recovery and a following standby share. Pure but for look-ups.

It decides as KahaDB does on replay (MessageDatabase, reference kahadb.md 3.2 to 3.6), where the rules there lose
nothing; a record may be met twice. Records of transactions wait for their Commit, and take effect at its place.
"""

from __future__ import annotations

from collections.abc import Callable

from store.keys import Entry, producer_key
from store.marks import decode_gone
from store.open_transactions import PendingOperation, Transaction
from store.records.commands import (
    AddMessage,
    Command,
    Commit,
    Prepare,
    RemoveDestination,
    RemoveMessage,
    Rollback,
    Subscription,
    TransactionId,
    UpdateMessage,
    decode,
)
from store.records.message import Destination
from store.state import State

ADD = 1
REMOVE = 2


class Replay:
    """Applies records, in the order of the journal, to a state.

    It remembers the ids in the tails so that a Remove finds its message; ``forget_ids`` when a checkpoint has
    taken them into the index. ``duplicates``, ``unknown`` and ``records`` count what was met.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._places: dict[tuple[int, str], int] = {}
        self._indexed_producers: dict[bytes, bool] = {}
        self.records = 0
        self.duplicates = 0
        self.unknown = 0
        self._appliers: dict[type, Callable[[int, int, Command], None]] = {
            AddMessage: self._add,
            RemoveMessage: self._remove,
            Commit: self._commit,
            Rollback: self._rollback,
            Prepare: self._prepare,
            Subscription: self._subscription,
            RemoveDestination: self._remove_destination,
            UpdateMessage: self._update,
        }

    def apply(self, location: int, payload: bytes) -> None:
        """One record's payload, found at ``location``. Raises RecordDamaged for what cannot be read."""
        self.records += 1
        if payload[0] == 0:
            for file in decode_gone(payload):
                self._state.lose_file(file)
            return
        command = decode(payload)
        applier = self._appliers.get(type(command))
        if applier is not None:  # audits, ack maps, schedules and rewrite marks change nothing of ours
            applier(location, len(payload) + 5, command)

    def forget_ids(self) -> None:
        """A checkpoint is durable: the index knows all ids by now."""
        self._places.clear()
        self._indexed_producers.clear()

    # ---- messages

    def _owners(self, destination: Destination) -> tuple[int, ...]:
        if destination.is_topic:
            return self._state.topics.get(destination, ())
        return (self._state.queue(destination),)

    def _add(self, location: int, size: int, command: Command) -> None:
        assert isinstance(command, AddMessage)
        if command.transaction is not None:
            self._enlist(
                command.transaction,
                PendingOperation(location, size, ADD, command.destination, command.message_id, None),
            )
            return
        self._add_to(self._owners(command.destination), location << 32, location, size, command.message_id)

    def _add_to(self, owners: tuple[int, ...], order_key: int, location: int, size: int, message_id: str) -> None:
        for owner in owners:
            if self._place(owner, message_id) is not None:
                self.duplicates += 1  # the first one counts (kahadb.md 3.2)
                continue
            self._state.add(owner, order_key, location, size, message_id)
            self._places[owner, message_id] = order_key

    def _remove(self, location: int, size: int, command: Command) -> None:
        assert isinstance(command, RemoveMessage)
        key = command.subscription_key
        if command.transaction is not None:
            self._enlist(
                command.transaction,
                PendingOperation(location, size, REMOVE, command.destination, command.message_id, key),
            )
            return
        self._remove_from(command.destination, key, command.message_id, location >> 32)

    def _remove_from(self, destination: Destination, key: str | None, message_id: str, file: int) -> None:
        state = self._state
        owner = state.queues.get(destination) if key is None else state.subscriptions.get(key)
        order_key = None if owner is None else self._place(owner, message_id)
        entry = None if owner is None or order_key is None else state.entry(owner, order_key)
        if owner is None or order_key is None or entry is None:
            self.unknown += 1
            return
        state.remove(owner, order_key, entry.location, entry.size, entry.message_id, file)
        self._places.pop((owner, message_id), None)

    def _update(self, location: int, size: int, command: Command) -> None:
        assert isinstance(command, UpdateMessage)
        add = command.add
        for owner in self._owners(add.destination):
            order_key = self._place(owner, add.message_id)
            entry: Entry | None = None if order_key is None else self._state.entry(owner, order_key)
            if order_key is None or entry is None:
                self._add_to((owner,), location << 32, location, size, add.message_id)
            elif entry.location != location:
                self._state.move(owner, order_key, entry, location, size)

    def _place(self, owner: int, message_id: str) -> int | None:
        """The order key of a message that ``owner`` holds, None if it holds none of that id."""
        found = self._places.get((owner, message_id))
        if found is not None:
            return found
        # Most ids come from producers that the index has never seen: ask once for the producer, not for each id.
        prefix, sequence = producer_key(owner, message_id)
        if sequence is not None:
            is_indexed = self._indexed_producers.get(prefix)
            if is_indexed is None:
                first = next(iter(self._state.index.scan(prefix, prefix[:-1] + b"\1")), None)
                is_indexed = self._indexed_producers[prefix] = first is not None
            if not is_indexed:
                return None
        indexed = self._state.place_of(owner, message_id)
        if indexed is None or self._state.entry(owner, indexed) is None:
            return None
        return indexed

    # ---- transactions

    def _enlist(self, transaction: TransactionId, operation: PendingOperation) -> None:
        state = self._state
        state.transactions.setdefault(transaction.key, Transaction()).operations.append(operation)
        state.transactions_touched = True
        state.tail.operations += 1

    def _commit(self, location: int, size: int, command: Command) -> None:
        assert isinstance(command, Commit)
        state = self._state
        transaction = state.transactions.pop(command.transaction.key, None)
        if transaction is None:
            return
        state.transactions_touched = True
        file = location >> 32
        for number, operation in enumerate(transaction.operations):
            if operation.kind == ADD:
                self._add_to(
                    self._owners(operation.destination),
                    location << 32 | number,
                    operation.location,
                    operation.size,
                    operation.message_id,
                )
            else:
                self._remove_from(operation.destination, operation.subscription_key, operation.message_id, file)
            # Without this Commit the operation would be forgotten, and what it removed would come back.
            state.pin(file, operation.location >> 32)

    def _rollback(self, location: int, size: int, command: Command) -> None:
        assert isinstance(command, Rollback)
        state = self._state
        transaction = state.transactions.pop(command.transaction.key, None)
        if transaction is None:
            return
        state.transactions_touched = True
        for operation in transaction.operations:
            state.pin(location >> 32, operation.location >> 32)

    def _prepare(self, location: int, size: int, command: Command) -> None:
        assert isinstance(command, Prepare)
        transaction = self._state.transactions.setdefault(command.transaction.key, Transaction())
        transaction.is_prepared = True
        self._state.transactions_touched = True

    # ---- owners

    def _subscription(self, location: int, size: int, command: Command) -> None:
        assert isinstance(command, Subscription)
        state = self._state
        owner = state.subscriptions.get(command.subscription_key)
        if command.info is None:
            if owner is not None:
                state.drop_owner(owner, location >> 32)
                self._forget_owner(owner)
            return
        if owner is not None and state.owners[owner].destination != command.destination:
            state.drop_owner(owner, location >> 32)
            self._forget_owner(owner)
            owner = None
        if owner is None:
            owner = state.new_owner()
        client_id, name = command.info.client_id, command.info.name
        state.subscribe(owner, command.destination, client_id, name, location)

    def _remove_destination(self, location: int, size: int, command: Command) -> None:
        assert isinstance(command, RemoveDestination)
        state = self._state
        destination = command.destination
        owners = list(state.topics.get(destination, ()))
        if not destination.is_topic and destination in state.queues:
            owners.append(state.queues[destination])
        for owner in owners:
            state.drop_owner(owner, location >> 32)
            self._forget_owner(owner)

    def _forget_owner(self, owner: int) -> None:
        for place in [place for place in self._places if place[0] == owner]:
            del self._places[place]
