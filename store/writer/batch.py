"""Batch of one write: operations, their payloads, and their effect on the state after the write is durable.

The locations of records are known only after the write. So a batch is first formed from operations, then written, then
applied to the state with the locations. This module forms and applies each kind of operation, in the order of its
records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tandemmq.store.operations import (
    AddConnection,
    AddMessage,
    AddSubscription,
    Atomic,
    CountDeliveries,
    EndTransaction,
    Operation,
    Page,
    PrepareTransaction,
    RemoveMessage,
    RemoveOwner,
)
from tandemmq.store.records.altered import with_own_id
from tandemmq.store.records.commands import AddMessage as AddCommand
from tandemmq.store.records.commands import RemoveMessage as RemoveCommand
from tandemmq.store.records.commands import Subscription, decode, encode
from tandemmq.store.records.hints import user_in
from tandemmq.store.records.message import Destination
from tandemmq.store.records.stored import encode_stored
from tandemmq.store.state.copies import Copies
from tandemmq.store.state.open_transactions import operation_of
from tandemmq.store.state.state import State
from tandemmq.store.writer.outcomes import end_transaction, outcome_payloads
from tandemmq.store.writer.pages import Pages

RECORD_HEADER_BYTES: Final = 5


@dataclass(frozen=True, slots=True)
class NewQueue:
    """Owner id that the loop gave to a queue. The state must have it before the first message of the queue."""

    owner: int
    destination: Destination


Part = AddMessage | RemoveMessage


def is_plain(operation: Operation | NewQueue) -> bool:
    """Return whether ``operation`` adds or removes one message and needs no search in the state. Nearly all operations
    are plain."""
    kind = type(operation)
    return kind is RemoveMessage or (
        kind is AddMessage and not operation.is_audited and not operation.unmatched_acks  # type: ignore[union-attr]
    )


def place(operation: Part | Atomic, location: int) -> int:
    """Set the locations and order keys of the messages of ``operation``, whose records begin at ``location``. It needs
    no search in the state. Return the location after its records."""
    if isinstance(operation, Atomic):
        return _place_together(operation, location)
    size = len(operation.payload) + RECORD_HEADER_BYTES
    if type(operation) is AddMessage:
        operation.location = location
        operation.order_key = location << 32
        operation.size = size
    return location + size


def _place_together(atomic: Atomic, location: int) -> int:
    """Do ``place`` for an atomic operation. With a commit, the order keys are in the Commit record, in the order of the
    parts."""
    for part in atomic.operations:
        location = place(part, location)
    if atomic.commit is None or not atomic.operations:
        return location
    for number, part in enumerate(atomic.operations):
        if type(part) is AddMessage:
            part.order_key = location << 32 | number  # prove: submitted-has-its-place-in-the-commit
    return location + len(atomic.commit) + RECORD_HEADER_BYTES


def apply(state: State, operation: Part, file: int) -> None:
    """Apply the plain ``operation``, which is durable at its place in ``file``."""
    if type(operation) is AddMessage:
        _add(state, operation, operation.order_key, operation.location, operation.size)
        return
    assert type(operation) is RemoveMessage, "other operations are not plain"
    state.remove(operation.owner, operation.order_key, operation.location, operation.size, operation.message_id, file)


def _add(state: State, add: AddMessage, order_key: int, location: int, size: int) -> None:
    """Apply ``add``, whose record is durable at ``location``."""
    owners, message = add.owners, add.message
    user = message.sender
    state.add(owners[0], order_key, location, size, message.message_id, message.priority, False, user)
    if len(owners) > 1:
        for owner in owners[1:]:
            state.add(owner, order_key, location, size, message.message_id, message.priority, is_shared=True, user=user)
    if add.charged:
        _end_charge(state, add)


def _end_charge(state: State, add: AddMessage) -> None:
    """End the charge that the event loop made for ``add``: the state has charged what is stored."""
    if add.charged and add.message.sender is not None:
        state.users.taken(add.message.sender, add.charged)  # prove: handed-over-counts-once


class Batch:
    """Operations of one write, and their payloads. Only the storage thread uses it.

    ``must_sync``: the write must be synced with any sync strategy, as in KahaDB (kahadb.md 1.7), because it has a
    Prepare, an outcome or the deletion of an owner. ``own_ids``: ids that the broker makes, for messages whose id
    another message already has. ``duplicates``: number of messages that were not written because they are duplicates.
    """

    __slots__ = (
        "_ended",
        "_has_queues",
        "_own_ids",
        "_pages",
        "_prepared",
        "_state",
        "bytes",
        "duplicates",
        "must_sync",
        "operations",
        "payloads",
    )

    def __init__(self, state: State, pages: Pages, own_ids: Iterator[str]) -> None:
        self._state = state
        self._pages = pages
        self._own_ids = own_ids
        self._prepared: set[str] = set()
        self._ended: set[str] = set()
        self._has_queues = False
        self.operations: list[Operation | NewQueue] = []
        self.payloads: list[bytes] = []
        self.bytes = 0
        self.must_sync = False
        self.duplicates = 0

    def take_plain(self, operations: Sequence[Operation | NewQueue], start: int, limit: int) -> int:
        """Append single additions and removals from index ``start`` on, while all payloads have at most ``limit``
        bytes. Return the index of the first operation that was not appended."""
        if self._ended:  # which ids are known is certain only after the outcome is applied
            return start
        payloads = self.payloads
        size = self.bytes
        end = start
        for end in range(start, len(operations)):
            operation = operations[end]
            if type(operation) is AddMessage:
                if operation.unmatched_acks:
                    break
                payload = operation.payload
                taken = size + len(payload)
                if taken > limit and payloads:
                    break
                # prove: taken-plainly-is-asked "self._is_duplicate(operation)" -> "False"
                if operation.is_audited and self._is_duplicate(operation):
                    continue  # nothing is written
            elif type(operation) is RemoveMessage:
                payload = operation.payload
                taken = size + len(payload)
                if taken > limit and payloads:
                    break
            else:
                break
            size = taken
            payloads.append(payload)
        else:
            end = len(operations)
        self.operations += operations[start:end]
        self.bytes = size
        return end

    def must_come_first(self, operation: Operation | NewQueue) -> bool:
        """Return whether this batch must be applied before ``operation`` is formed, because ``operation`` depends on
        the state that the batch changes."""
        if isinstance(operation, EndTransaction):
            return operation.transaction.key in self._prepared
        if isinstance(operation, RemoveOwner):
            return bool(self._prepared)  # prove: named-before-its-queue-ends "bool(self._prepared)" -> "False"
        # After an outcome, other ids are known and other transactions are open.
        # prove: outcome-before-what-asks "bool(self._ended) or "
        return bool(self._ended) or isinstance(operation, Page | CountDeliveries)

    def payloads_of(self, operation: Operation | NewQueue) -> Sequence[bytes]:
        """Return the payloads of the records of ``operation``; none for a duplicate.

        Must be called once for each operation, in order: it notes the ids of added messages, so a later message with
        one of these ids is a duplicate.
        """
        if type(operation) is AddMessage:
            if operation.is_audited and self._is_duplicate(operation):
                return ()
            if operation.unmatched_acks:
                return (operation.payload, *operation.unmatched_acks)
            return (operation.payload,)
        if type(operation) is RemoveMessage:
            return (operation.payload,)
        if isinstance(operation, Atomic):
            more = self._payloads_together(operation.operations)
            if operation.commit is not None and more:
                more.append(operation.commit)
            return more
        if isinstance(operation, PrepareTransaction):
            self.must_sync = True  # prove: prepare-is-synced
            key = operation.transaction.key
            operation.is_refused = key in self._state.transactions or key in self._prepared
            if operation.is_refused:
                return ()
            self._prepared.add(key)
            return [*self._payloads_together(operation.operations), operation.prepare]
        if isinstance(operation, EndTransaction):
            self.must_sync = True
            key = operation.transaction.key
            known = self._state.transactions.get(key)
            operation.is_unknown = known is None or not known.is_prepared or key in self._ended
            self._ended.add(key)
            payloads = () if operation.is_unknown else outcome_payloads(self._state, operation)
            operation.records = len(payloads)
            return payloads
        if isinstance(operation, RemoveOwner):
            self.must_sync = True
            return (operation.payload,)
        if isinstance(operation, AddSubscription | AddConnection):
            return (operation.payload,)
        return ()

    def _payloads_together(self, parts: Sequence[Part]) -> list[bytes]:
        more: list[bytes] = []
        copies = Copies(self._is_known, self._is_held)
        # (owner, id) of the messages that the parts remove, and of messages that the broker adds
        named = {(part.owner, part.message_id) for part in parts if isinstance(part, RemoveMessage)}
        for part in parts:
            if not isinstance(part, AddMessage):
                more.append(part.payload)
            elif copies.is_duplicate(part):
                self.duplicates += 1
            elif part.is_audited or self._keeps_its_id(part, named):
                if part.is_audited:
                    self._note_new(part)  # prove: id-of-a-part-is-known
                more.append(part.payload)
                more += part.unmatched_acks
            else:
                more += self._with_own_id(part)
        return more

    def _keeps_its_id(self, add: AddMessage, named: set[tuple[int, str]]) -> bool:
        """Return whether no other message with the id of ``add`` is stored for its owners, or in the same operation.

        ``add`` is a message that the broker adds (a moved message, a dead letter). If there is another one, a replay
        would take ``add`` for its duplicate and skip it. Ids that brokers made are compared, too, unless the id was
        made for this message (``is_new``): in ActiveMQ's composite queues, copies of a message have the same id.
        """
        message_id = add.message.message_id
        for owner in add.owners:
            if (owner, message_id) in named:  # prove: moved-onto-itself-has-its-own-id
                return False
            named.add((owner, message_id))
        if add.is_new:
            return True
        if self._is_held(add):  # prove: what-meets-another-has-its-own-id
            return False
        self._note(add)  # prove: moved-id-is-known
        return True

    def _with_own_id(self, add: AddMessage) -> list[bytes]:
        """Return the records of ``add`` after its message got a new id; a property of the message has the former
        id."""
        command = decode(add.payload)
        assert isinstance(command, AddCommand), "the payload of an AddMessage is an Add"
        add.message = with_own_id(add.message, next(self._own_ids))
        payloads = [encode_stored(add.message, command.transaction)]
        for ack in add.unmatched_acks:
            removal = decode(ack)
            assert isinstance(removal, RemoveCommand), "an unmatched acknowledgement removes a message"
            payloads.append(encode(removal._replace(message_id=add.message.message_id)))
        return payloads

    def _is_duplicate(self, add: AddMessage) -> bool:
        add.is_duplicate = self._is_known(add)
        if add.is_duplicate:
            self.duplicates += 1
        else:
            self._note_new(add)
        return add.is_duplicate

    def _is_known(self, add: AddMessage) -> bool:
        """Return whether the audit has the id of ``add``, or a stored message has it."""
        state = self._state
        message_id = add.message.message_id
        return (state.audit is not None and state.audit.is_duplicate(message_id)) or self._is_held(add)

    def _is_held(self, add: AddMessage) -> bool:
        """Return whether an owner holds a message with the id of ``add``, or a prepared transaction adds or removes
        one."""
        message_id, named = add.message.message_id, self._state.open.named
        # prove: prepared-id-is-known "(add.message.destination, message_id) in named" -> "False"
        if named and (add.message.destination, message_id) in named:
            return True
        holders = self._holders(add)
        if len(holders) == 1:
            return self._state.has_id(holders[0], message_id)
        return any(self._state.has_id(owner, message_id) for owner in holders)

    def _holders(self, add: AddMessage) -> Sequence[int]:
        """Return the owners that may hold a message with the same id: a replay adds a message of a topic to all its
        durable subscriptions."""
        if not add.message.destination.is_topic:
            return add.owners
        # The state does not have the owners that this batch makes yet.
        holders = self._state.holders(add.message.destination)
        # prove: all-holders-are-asked "*holders" -> "*()"
        return holders if holders == add.owners else (*add.owners, *holders)

    def _note_new(self, add: AddMessage) -> None:
        """Note the id of a client's message that is no duplicate. If the loop requests it (``producer``), set
        ``is_newest``."""
        self._note(add)
        if add.producer is not None:
            message_id = add.message.message_id
            add.is_newest = all(self._state.is_newest(owner, message_id) for owner in self._holders(add))

    def _note(self, add: AddMessage) -> None:
        know_id, message_id = self._state.know_id, add.message.message_id
        for owner in add.owners:
            know_id(owner, message_id)

    def append(self, operation: Operation | NewQueue, payloads: Sequence[bytes], size: int) -> None:
        """Append ``operation`` with its payloads, which have ``size`` bytes in all."""
        self.operations.append(operation)
        self._has_queues = self._has_queues or type(operation) is NewQueue
        self.payloads += payloads
        self.bytes += size

    def reported(self) -> list[Operation]:
        """Return the operations that must be reported to the loop: all except NewQueue."""
        if not self._has_queues:
            return self.operations  # type: ignore[return-value]
        return [operation for operation in self.operations if type(operation) is not NewQueue]  # type: ignore[misc]

    def apply(self, locations: Sequence[int], file: int) -> None:
        """Apply the operations, whose records are durable at ``locations``, in ``file``."""
        state = self._state
        number = 0
        for operation in self.operations:
            if type(operation) is RemoveMessage:  # as in ``apply``
                state.remove(
                    operation.owner,
                    operation.order_key,
                    operation.location,
                    operation.size,
                    operation.message_id,
                    file,
                )
                number += 1
            elif type(operation) is AddMessage and not operation.is_duplicate:
                # The same as ``place`` and ``apply`` do.
                operation.location = location = locations[number]
                operation.order_key = order_key = location << 32
                operation.size = size = len(operation.payload) + RECORD_HEADER_BYTES
                number += 1
                if operation.unmatched_acks:
                    number += len(operation.unmatched_acks)
                _add(state, operation, order_key, location, size)
            else:
                number += self._apply_rare(operation, locations, number, file)

    def _apply_rare(self, operation: Operation | NewQueue, locations: Sequence[int], number: int, file: int) -> int:
        """Apply one operation of the less frequent kinds; return its number of records."""
        state = self._state
        if isinstance(operation, NewQueue):
            state.know_queue(operation.owner, operation.destination)
            return 0
        if isinstance(operation, Atomic):
            return self._apply_atomic(operation, locations, number, file)
        if isinstance(operation, PrepareTransaction):
            records = 0 if operation.is_refused else self._apply_prepare(operation, locations, number)
            for part in operation.operations:
                if isinstance(part, AddMessage):
                    _end_charge(state, part)
            return records
        if isinstance(operation, EndTransaction):
            if operation.records:
                end_transaction(state, self._pages, operation, locations[number])
            return operation.records
        if isinstance(operation, AddSubscription):
            command = decode(operation.payload)
            assert isinstance(command, Subscription)
            assert command.info is not None, "a new subscription has a description"
            user = user_in(operation.payload)
            state.subscribe(operation.owner, command.destination, command.info, locations[number], user)
            return 1
        if isinstance(operation, RemoveOwner):
            state.drop_owner(operation.owner, file)
            return 1
        if isinstance(operation, AddConnection):
            state.know_connections([operation.pair], locations[number])
            return 1
        if type(operation) is AddMessage:  # a duplicate
            _end_charge(state, operation)
        return 0

    def _apply_atomic(self, atomic: Atomic, locations: Sequence[int], start: int, file: int) -> int:
        state = self._state
        at = start  # index of a record in ``payloads`` and ``locations``
        for part in atomic.operations:
            at += _records(part)
        records = at - start
        commit = None
        if atomic.commit is not None and records:
            commit = locations[at]
            records += 1
        at = start
        # Number of the record in the transaction. A replay also counts the Removes for subscriptions without a match.
        place = 0
        for part in atomic.operations:
            if isinstance(part, AddMessage):
                if part.is_duplicate:
                    _end_charge(state, part)
                    continue
                part.location = locations[at]
                part.order_key = part.location << 32 if commit is None else commit << 32 | place
                part.size = len(self.payloads[at]) + RECORD_HEADER_BYTES
            apply(state, part, file)
            at += _records(part)
            place += _records(part)  # prove: place-counts-every-record "_records(part)" -> "1"
        return records

    def _apply_prepare(self, prepare: PrepareTransaction, locations: Sequence[int], start: int) -> int:
        state = self._state
        key = prepare.transaction.key
        places: list[tuple[int, int] | None] = []
        at = start
        for part in prepare.operations:
            if isinstance(part, AddMessage):
                if part.is_duplicate:
                    continue
                part.location = locations[at]
                part.size = len(self.payloads[at]) + RECORD_HEADER_BYTES
                places += [None] * _records(part)
            else:
                places.append((part.owner, part.order_key))
            for _ in range(_records(part)):
                self._enlist(key, locations[at], self.payloads[at])
                at += 1
        state.prepare(key, locations[at], places)
        return at + 1 - start

    def _enlist(self, key: str, location: int, payload: bytes) -> None:
        command = decode(payload)
        assert isinstance(command, AddCommand | RemoveCommand), "a transaction adds and removes messages"
        self._state.enlist(key, operation_of(location, payload, command))


def _records(part: Part) -> int:
    """Return the number of records of a part of an atomic operation."""
    if isinstance(part, AddMessage):
        return 0 if part.is_duplicate else 1 + len(part.unmatched_acks)
    return 1
