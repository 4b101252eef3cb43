"""Replay: applies journal records to the state, for a promotion and for a standby. Pure except for reads of the index.

It follows the rules of KahaDB's replay (MessageDatabase, kahadb.md 3.2 to 3.6), except where these would lose a
message. A record may be applied twice. Operations of a transaction wait for their Commit, and take effect at its place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Set
from itertools import chain
from typing import Any

from tandemmq.store.kahadb.java_objects import decode_audit
from tandemmq.store.records import commands
from tandemmq.store.records.commands import ADD, REMOVE, decode, plain_add_or_remove
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.hints import CopyHint, OperationHint, hint_of, user_in
from tandemmq.store.records.marks import decode_connections, decode_gone, decode_settled
from tandemmq.store.records.message import Destination
from tandemmq.store.records.message_ids import is_made_by_broker
from tandemmq.store.state.keys import Entry, producer_key
from tandemmq.store.state.open_transactions import operation_of
from tandemmq.store.state.state import State

log = logging.getLogger(__name__)

# Limit of the producers that are kept from one checkpoint to the next.
PRODUCERS_MAX = 100_000
# Larger than any sequence. As the highest sequence of a producer it means that the index must be read for each id.
ALL = 1 << 65


class Replay:
    """Applies records to a state, in the order of the journal.

    The replay keeps the message ids that are only in the tails, so that a Remove finds its message. Call ``freeze_ids``
    when a checkpoint begins, and ``forget_ids`` when it is durable. ``records``: number of applied records, of which
    ``duplicates`` added a message again, and ``unknown`` removed no message. Without ``honours_hints`` the journal is
    read as ActiveMQ reads it.

    ``missing``: files that the state has, because the index is old, but that were reclaimed meanwhile. Messages of the
    state in them were removed, or have a copy that will be read later. The records of their removal may be reclaimed
    too.
    """

    def __init__(self, state: State, *, honours_hints: bool = True) -> None:
        self._state = state
        self._honours_hints = honours_hints
        self._places: dict[tuple[int, str], int] = {}
        self._frozen_places: dict[tuple[int, str], int] = {}
        # (owner, producer) -> highest sequence, if this replay has read its first message; ALL for older producers
        self._highest: dict[tuple[int, str], int] = {}
        self._is_audited: dict[str, bool] = {}  # by producer
        self.missing: Set[int] = frozenset()
        self.records = 0
        self.duplicates = 0
        self.unknown = 0
        self._appliers: dict[type, Callable[[int, bytes, Any], None]] = {
            commands.AddMessage: self._add,
            commands.RemoveMessage: self._remove,
            commands.Commit: self._commit,
            commands.Rollback: self._rollback,
            commands.Prepare: self._prepare,
            commands.Subscription: self._subscription,
            commands.RemoveDestination: self._remove_destination,
            commands.UpdateMessage: self._update,
            commands.ProducerAudit: self._audit,
        }

    def apply(self, location: int, payload: bytes) -> None:
        """Apply the payload of the record at ``location``. Raises RecordDamaged if it is invalid."""
        self.records += 1
        if payload[0] == 0:
            self._trace(location, payload)
            return
        plain = plain_add_or_remove(payload)
        if plain is not None:
            kind, destination, message_id, key, priority = plain
            if kind == ADD:
                self._add_plain(destination, location, len(payload) + 5, message_id, priority)
            else:
                self._remove_from(destination, key, message_id, location >> 32)
            return
        command = decode(payload)
        applier = self._appliers.get(type(command))
        if applier is not None:  # ack maps, schedules and marks of files of copies do not change the state
            applier(location, payload, command)

    def _trace(self, location: int, payload: bytes) -> None:
        for file in decode_gone(payload):
            self._state.lose_file(file)
        pairs = decode_connections(payload)
        if pairs:
            self._state.know_connections(pairs, location)
        settled = decode_settled(payload)
        if settled is None:
            return
        topic, key = settled
        for (destination, known), owner in list(self._state.subscriptions.items()):
            if known == key and topic in (None, destination.name):
                # The subscription may have ended and begun again, by records that were reclaimed.
                # prove: settled-holds-what-is-behind "in self.missing" -> "in ()"
                if self._state.owners[owner].record_location >> 32 in self.missing:
                    self._state.begin_at_newest_record(owner, location >> 32)
                else:
                    self._state.settle_record(owner)

    def list_known_ids(self) -> None:
        """Pass the ids that are not in the index to the state, which maintains them from now on, because this broker
        becomes master. Ids that brokers made are included: Batch compares them with messages that are moved."""
        for owner, message_id in chain(self._frozen_places, self._places):
            if owner in self._state.owners:
                self._state.know_id(owner, message_id)  # prove: ids-of-brokers-are-listed

    def freeze_ids(self) -> None:
        """Note that a checkpoint of all applied records begins."""
        assert not self._frozen_places, "a checkpoint begins only when the one before has ended"
        self._frozen_places, self._places = self._places, {}

    def forget_ids(self) -> None:
        """Note that the checkpoint is durable, so that the index has its ids."""
        self._frozen_places = {}
        if len(self._highest) > PRODUCERS_MAX:
            self._highest.clear()
            self._is_audited.clear()

    # ---- messages

    def _owners(self, destination: Destination) -> tuple[int, ...]:
        if destination.is_topic:
            return self._state.topics.get(destination, ())
        return (self._state.queue(destination),)

    def _add(self, location: int, payload: bytes, command: commands.AddMessage) -> None:
        if command.transaction is not None:
            # A queue begins with its first Add, also if that Add is not committed (AMQ-7308).
            self._owners(command.destination)
            self._enlist(command.transaction.key, location, payload, command)
            return
        self._note(command.message_id)
        owners = self._owners(command.destination)
        size = len(payload) + 5
        self._add_to(owners, location << 32, location, size, command.message_id, command.priority, command.sender)

    def _enlist(
        self, key: str, location: int, payload: bytes, command: commands.AddMessage | commands.RemoveMessage
    ) -> None:
        hint = hint_of(payload) if self._honours_hints else None
        old_location = hint.old_location if isinstance(hint, OperationHint) else 0
        self._state.enlist(key, operation_of(location, payload, command), old_location)

    def _add_plain(self, destination: Destination, location: int, size: int, message_id: str, priority: int) -> None:
        """Apply an Add outside of transactions. This is the most frequent record, and its sequence is usually the next
        one of its producer, which is the fast path."""
        state = self._state
        owner = state.queues.get(destination)
        producer, _, digits = message_id.rpartition(":")
        if owner is not None and digits.isdecimal() and not state.open.unresolved:
            sequence = int(digits)
            place = (owner, producer)
            if self._highest.get(place, ALL) < sequence:  # prove: number-again-is-looked-up " < " -> " <= "
                is_audited = self._is_audited.get(producer)
                if is_audited is None:
                    is_audited = state.audit is not None and not is_made_by_broker(message_id)
                    self._is_audited[producer] = is_audited
                if is_audited:
                    state.audit.note(message_id)  # type: ignore[union-attr]
                order_key = location << 32
                state.add(owner, order_key, location, size, message_id, priority)
                self._places[owner, message_id] = order_key
                self._highest[place] = sequence
                return
        self._note(message_id)
        self._add_to(self._owners(destination), location << 32, location, size, message_id, priority)

    def _note(self, message_id: str) -> None:
        """Note a message that takes effect in the producer audit."""
        audit = self._state.audit
        if audit is not None and not is_made_by_broker(message_id):
            audit.note(message_id)

    def _add_to(
        self,
        owners: tuple[int, ...],
        order_key: int,
        location: int,
        size: int,
        message_id: str,
        priority: int,
        user: str | None = None,
    ) -> None:
        is_shared = False
        for owner in owners:
            known = self._place(owner, message_id)
            if known is not None and self._is_duplicate(owner, known, message_id, location >> 32):
                self.duplicates += 1  # the first one counts (kahadb.md 3.2)
                continue
            self._state.add(owner, order_key, location, size, message_id, priority, is_shared=is_shared, user=user)
            is_shared = True
            self._know(owner, message_id, order_key)

    def _is_duplicate(self, owner: int, order_key: int, message_id: str, file: int) -> bool:
        """Return whether ``owner`` has the message with this id, which a record in ``file`` adds again.

        A message in a missing file does not count, and is removed: either it was removed by a reclaimed record, and
        this record adds it again; or a copy follows, which restores its order key. A message of a former subscription
        with the same name does not count either.
        """
        entry = self._state.entry(owner, order_key)
        if entry is None:
            return False
        # prove: added-again-counts "not in self.missing" -> "not in ()"
        if entry.location >> 32 not in self.missing and not self._is_of_former(owner, order_key, entry):
            return True
        self._state.remove(owner, order_key, entry.location, entry.size, message_id, file)
        return False

    def _is_of_former(self, owner: int, order_key: int, entry: Entry) -> bool:
        """Return whether the oldest record of a subscription is missing, and the message is before the next record.
        Then it may belong to a former subscription, and ``State.lose_file`` would remove it."""
        known = self._state.owners[owner]
        if known.record_location >> 32 not in self.missing:  # prove: former-subscription-holds-nothing
            return False
        record = known.later_records[0] if known.later_records else known.latest_record
        return order_key >> 32 < record and entry.location < record

    def _remove(self, location: int, payload: bytes, command: commands.RemoveMessage) -> None:
        if command.transaction is not None:
            self._enlist(command.transaction.key, location, payload, command)
        else:
            self._remove_from(command.destination, command.subscription_key, command.message_id, location >> 32)

    def _remove_from(
        self, destination: Destination, key: str | None, message_id: str, file: int, removal: int = 0
    ) -> None:
        """Remove a message, because of a record in ``file``. ``removal``: location of a Remove that waited for its
        Commit; 0: none."""
        state = self._state
        place = self._held(destination, key, message_id)
        if place is None:
            self.unknown += 1
            return
        owner, order_key, entry = place
        state.remove(owner, order_key, entry.location, entry.size, entry.message_id, file)
        if removal:
            state.pin_for_removal(removal, entry.location)
        self._places.pop((owner, message_id), None)
        if self._frozen_places:
            self._frozen_places.pop((owner, message_id), None)

    def _held(self, destination: Destination, key: str | None, message_id: str) -> tuple[int, int, Entry] | None:
        """Return (owner, order key, entry) of the message of a Remove, or None if it does not exist."""
        state = self._state
        owner = state.owner_named(destination, key)
        if owner is None:
            return None
        order_key = self._place(owner, message_id)
        entry = None if order_key is None else state.entry(owner, order_key)
        return None if order_key is None or entry is None else (owner, order_key, entry)

    def _update(self, location: int, payload: bytes, command: commands.UpdateMessage) -> None:
        add = command.add
        size = len(payload) + 5
        hint = hint_of(payload) if self._honours_hints else None
        at = hint.order_key if isinstance(hint, CopyHint) else location << 32
        is_shared = False
        owners = self._owners(add.destination)
        if hint is None:
            # An update by ActiveMQ applies only to owners that have the message; if no owner has it, it is an Add
            # (kahadb.md 3.5).
            owners = tuple(owner for owner in owners if self._place(owner, add.message_id) is not None) or owners
        for owner in owners:
            order_key = self._place(owner, add.message_id)
            entry: Entry | None = None if order_key is None else self._state.entry(owner, order_key)
            if order_key is None or entry is None:
                self._state.add(
                    owner, at, location, size, add.message_id, add.priority, is_shared=is_shared, user=add.sender
                )
                self._know(owner, add.message_id, at)
            elif entry.location != location:
                if isinstance(hint, CopyHint) and hint.order_key != order_key:
                    self._state.rekey(owner, order_key, hint.order_key)
                    self._places[owner, add.message_id] = order_key = hint.order_key
                self._state.move(owner, order_key, location, size, is_shared=is_shared)
            is_shared = True

    def _audit(self, location: int, payload: bytes, command: commands.ProducerAudit) -> None:
        state = self._state
        if state.audit is None:
            return
        try:
            state.audit.load(decode_audit(command.audit))
        except RecordDamaged as reason:  # the audit is then built from the messages in the journal
            log.warning("the producer audit at %d:%d is invalid: %s", location >> 32, location & 0xFFFFFFFF, reason)
            return
        state.audit_record = (location, state.audit.revision)

    def _place(self, owner: int, message_id: str) -> int | None:
        """Return the order key of the message of ``owner`` with this id, or None."""
        found = self._places.get((owner, message_id))
        if found is None and self._frozen_places:
            found = self._frozen_places.get((owner, message_id))
        if found is not None:
            return found
        # Most sequences are higher than all earlier ones of their producer. Then the index need not be read.
        producer, _, digits = message_id.rpartition(":")
        if digits.isdecimal():
            highest = self._highest.get((owner, producer))
            if highest is None:
                highest = self._highest[owner, producer] = ALL if self._is_indexed(owner, message_id) else -1
            if highest < int(digits):
                return None
        indexed = self._state.place_of(owner, message_id)
        if indexed is None or self._state.entry(owner, indexed) is None:
            return None
        return indexed

    def _know(self, owner: int, message_id: str, order_key: int) -> None:
        self._places[owner, message_id] = order_key
        if self._state.open.unresolved:
            self._state.resolve(owner, order_key, message_id)
        producer, _, digits = message_id.rpartition(":")
        if digits.isdecimal():
            sequence = int(digits)
            if self._highest.get((owner, producer), ALL) < sequence:
                self._highest[owner, producer] = sequence

    def _is_indexed(self, owner: int, message_id: str) -> bool:
        """Return whether the index may have ids of the same producer."""
        prefix, sequence = producer_key(owner, message_id)
        if sequence is None:
            return True
        return next(iter(self._state.index.scan(prefix, prefix[:-1] + b"\1")), None) is not None

    # ---- transactions

    def _commit(self, location: int, payload: bytes, command: commands.Commit) -> None:
        key = command.transaction.key
        self._forget_former(key, location)
        transaction = self._state.end_transaction(key, location)
        if transaction is None:
            return
        for number, operation in enumerate(transaction.operations):
            if operation.kind == ADD:
                self._note(operation.message_id)
                self._add_to(
                    self._owners(operation.destination),
                    location << 32 | number,
                    operation.location,
                    operation.size,
                    operation.message_id,
                    operation.priority,
                    operation.sender,
                )
            else:
                self._remove_from(
                    operation.destination,
                    operation.subscription_key,
                    operation.message_id,
                    location >> 32,
                    operation.location,
                )

    def _forget_former(self, key: str, location: int) -> None:
        """Remove the operations of a transaction that are in a missing file.

        They belong to a former transaction with the same id, whose outcome was reclaimed: the operations of an open
        transaction are not reclaimed, or have a copy. If the transaction has no other operations, its Adds are kept,
        because the file may be lost, not reclaimed: then the loss is reported, and the operator may restore the file.
        """
        transaction = self._state.transactions.get(key)
        if transaction is None:
            return
        # prove: id-used-again-is-another "not in self.missing" -> "not in ()"
        own = [operation for operation in transaction.operations if operation.location >> 32 not in self.missing]
        own = own or [operation for operation in transaction.operations if operation.kind == ADD]
        if len(own) < len(transaction.operations):
            self._state.open.forget(key, location)
            for operation in own:
                self._state.enlist(key, operation)

    def _rollback(self, location: int, payload: bytes, command: commands.Rollback) -> None:
        transaction = self._state.end_transaction(command.transaction.key, location)
        if transaction is None or not transaction.is_prepared or self._state.audit is None:
            return
        for operation in transaction.operations:
            if operation.kind == ADD:
                self._state.audit.forget(operation.message_id)

    def _prepare(self, location: int, payload: bytes, command: commands.Prepare) -> None:
        key = command.transaction.key
        self._forget_former(key, location)  # prove: id-prepared-again-is-another
        transaction = self._state.transactions.get(key)
        places: list[tuple[int, int] | None] = []
        for operation in () if transaction is None else transaction.operations:
            held = None
            if operation.kind == REMOVE:
                held = self._held(operation.destination, operation.subscription_key, operation.message_id)
            places.append(None if held is None else held[:2])
        self._state.prepare(key, location, places)

    # ---- owners

    def _subscription(self, location: int, payload: bytes, command: commands.Subscription) -> None:
        state = self._state
        owner = state.subscriptions.get((command.destination, command.subscription_key))
        if command.info is None:
            if owner is not None:
                state.drop_owner(owner, location >> 32)
            return
        if owner is None:
            owner = state.new_owner()
        user = user_in(payload) if self._honours_hints else None
        state.subscribe(owner, command.destination, command.info, location, user)

    def _remove_destination(self, location: int, payload: bytes, command: commands.RemoveDestination) -> None:
        for owner in list(self._state.holders(command.destination)):
            self._state.drop_owner(owner, location >> 32)
