"""Corrections of a hand-back: records that make ActiveMQ's view of a directory equal to TandemMQ's view.

Messages that were removed, but that ActiveMQ would deliver again, are removed again. Messages that ActiveMQ would not
find, or could not read, are copied. Subscriptions and prepared transactions that differ are written again. The order of
messages is corrected by store.migration.reordering.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandemmq.store.migration.contents import Contents, Stored, counterpart, current_add
from tandemmq.store.migration.handback_report import Report
from tandemmq.store.migration.offline_epoch import OfflineEpoch
from tandemmq.store.migration.rehearsal import Rehearsal
from tandemmq.store.records.commands import (
    Subscription,
    UpdateMessage,
    encode,
    encode_add,
    encode_prepare,
    encode_remove,
    encode_rollback,
)
from tandemmq.store.records.hints import with_copy_hint, with_operation_hint
from tandemmq.store.records.message import Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import transaction_of_key
from tandemmq.store.state.keys import Entry
from tandemmq.store.state.owners import OwnerState
from tandemmq.store.tools.inspect import read_headers


class Corrections:
    """Corrections of the differences in ActiveMQ's view. Records are written in ``epoch``; without an epoch the
    differences are only counted."""

    def __init__(self, contents: Contents, rehearsal: Rehearsal, report: Report, epoch: OfflineEpoch | None) -> None:
        self._contents = contents
        self._rehearsal = rehearsal
        self._report = report
        self._epoch = epoch
        self._headed = read_headers(contents.files).headers.keys()

    def make(self) -> None:
        for owner in self._rehearsal.contents.owners():
            self._remove_extra(owner)
        for owner in self._contents.owners():
            if owner.subscription_name is not None:
                self._repeat_subscription(owner)
        for owner in self._contents.owners():
            self._copy_missing(owner)
        self._transactions()

    def _write(self, payloads: Sequence[bytes]) -> None:
        if self._epoch is not None and payloads:
            self._epoch.write(payloads)

    def _settle(self) -> None:
        """Flush the written records, so that the state includes them."""
        if self._epoch is not None:
            self._epoch.flush()

    def _remove_extra(self, there: OwnerState) -> None:
        """Remove again the messages, or the whole subscription, that ActiveMQ would still deliver."""
        mine = counterpart(there, self._contents)
        if mine is None and there.subscription_name is not None:
            self._write([encode(Subscription(there.destination, there.key))])
            self._report.removed += there.count
            return
        for page in self._rehearsal.contents.pages(there.id):
            extra = [
                entry.message_id
                for _, entry in page
                if mine is None or not self._contents.holds(mine.id, entry.message_id)
            ]
            self._report.removed += len(extra)
            for message_id in extra:
                self._write([encode_remove(there.destination, message_id, None, there.subscription_key)])
        self._settle()

    def _repeat_subscription(self, owner: OwnerState) -> None:
        """Write a subscription again if it differs in ActiveMQ's view, or if its record has another OpenWire
        version."""
        command = self._contents.subscription(owner)
        there = self._rehearsal.owner(owner)
        is_known = there is not None and self._rehearsal.contents.subscription(there).info == command.info
        if is_known and self._contents.reader.read(owner.latest_record).startswith(encode(command)):
            return
        self._write([encode(command._replace(retroactive=False))])
        self._report.subscriptions += 1

    def _copy_missing(self, owner: OwnerState) -> None:
        """Copy the messages that ActiveMQ would not find, or could not read because they have another OpenWire
        version."""
        there = self._rehearsal.owner(owner)
        for page in self._contents.pages(owner.id):
            wanted = []
            foreign = []
            for order_key, entry in page:
                if there is None or not self._rehearsal.contents.holds(there.id, entry.message_id):
                    if not self._is_known_to_others(owner, entry):  # otherwise the whole topic is written again
                        wanted.append((order_key, entry))
                elif entry.location >> 32 not in self._headed:
                    foreign.append((order_key, entry))
            places = dict((*wanted, *foreign))
            for stored in self._contents.read(wanted):
                self._copy(stored, places[stored.order_key])
            for stored in self._contents.read(foreign):
                if not stored.is_current:
                    self._copy(stored, places[stored.order_key])
            self._settle()

    def _copy(self, stored: Stored, entry: Entry) -> None:
        add = current_add(stored.add, stored.message, stored.is_current)._replace(transaction=None)
        payloads = [with_copy_hint(encode(UpdateMessage(add)), stored.order_key, entry.location)]
        state = self._contents.state
        for other in state.topics.get(add.destination, ()):
            held = state.entry(other, stored.order_key)
            if held is None or held.message_id != add.message_id:
                payloads.append(encode_remove(add.destination, add.message_id, None, state.owners[other].key))
        self._write(payloads)
        self._report.copied += 1

    def _is_known_to_others(self, owner: OwnerState, entry: Entry) -> bool:
        """Return whether ActiveMQ has the message for another subscription of the topic. It would then ignore a
        copy."""
        contents = self._rehearsal.contents
        others = contents.state.topics.get(owner.destination, ()) if owner.subscription_name is not None else ()
        return any(contents.holds(other, entry.message_id) for other in others)

    def settle_topics(self) -> None:
        """Add one last message to each topic, which all its subscriptions have acknowledged.

        ActiveMQ derives the position of a subscription from its last acknowledgement, and delivers all later messages
        again. After this last acknowledgement, only the pending messages are delivered.
        """
        state = self._contents.state
        for number, (destination, owners) in enumerate(sorted(state.topics.items()), 1):
            if not any(state.owners[owner].count for owner in owners):
                continue
            epoch = 0 if self._epoch is None else self._epoch.epoch
            message = Message(destination, f"ID:tandemmq-handback-{epoch}:1:1:{number}", persistent=True)
            removes = [
                encode_remove(destination, message.message_id, None, state.owners[owner].key) for owner in owners
            ]
            self._write([encode_add(message, encode_message(message)), *removes])

    # ---- transactions

    def _transactions(self) -> None:
        """Write all prepared transactions again. Roll back the transactions that have ended, but that are still
        prepared in ActiveMQ's view."""
        mine = self._contents.state.transactions
        for key, transaction in self._rehearsal.contents.state.transactions.items():
            if transaction.is_prepared and key not in mine:
                self._write([encode_rollback(transaction_of_key(key))])
                self._report.transactions += 1
        self._write(prepared_again(self._contents))
        self._report.transactions += sum(transaction.is_prepared for transaction in mine.values())
        self._settle()


def prepared_again(contents: Contents) -> list[bytes]:
    """Return the records of all prepared transactions: copies of their operations, and a Prepare for each."""
    payloads: list[bytes] = []
    for key, transaction in contents.state.transactions.items():
        if transaction.is_prepared:
            payloads += [
                with_operation_hint(encode(contents.operation(operation)), operation.location)
                for operation in transaction.operations
            ]
            payloads.append(encode_prepare(transaction_of_key(key)))
    return payloads
