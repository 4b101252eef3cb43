"""Corrections of a hand-back: records that make ActiveMQ's view of a directory equal to TandemMQ's view.

Messages that were removed, but that ActiveMQ would deliver again, are removed again. Messages that ActiveMQ would not
find, or could not read, are copied. Subscriptions and prepared transactions that differ are written again.

Reordering gives a queue or topic in ActiveMQ's view the order of TandemMQ. A compaction copies old messages after
younger ones, and ActiveMQ ignores the hint with their order. So all messages from the first wrong place on are removed
and added again, in the right order, in one local transaction. ActiveMQ and TandemMQ apply the transaction completely or
not at all. ActiveMQ keeps a transaction in memory during its replay, so there are bounds; larger queues need an export.

All messages of a topic are added again, for all its subscriptions at once, because subscriptions share messages. This
also corrects a subscription whose record was copied: for ActiveMQ it begins after its pending messages, and ActiveMQ
ignores copies of messages that another subscription has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from tandemmq.store.migration.contents import PAGE_MESSAGES, Contents, Stored, counterpart, current_add
from tandemmq.store.migration.offline_epoch import OfflineEpoch
from tandemmq.store.migration.rehearsal import Rehearsal
from tandemmq.store.records.commands import (
    Subscription,
    UpdateMessage,
    encode,
    encode_add,
    encode_commit,
    encode_prepare,
    encode_remove,
    encode_rollback,
)
from tandemmq.store.records.hints import with_copy_hint, with_operation_hint
from tandemmq.store.records.message import Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import LocalTransactionId, transaction_of_key
from tandemmq.store.state.keys import Entry
from tandemmq.store.state.owners import OwnerState
from tandemmq.store.tools.inspect import read_headers

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
    theirs = rehearsal.contents
    if all(counterpart(each, theirs) and rehearsal.first_difference(contents, each) is None for each in owners):
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


PROBLEMS_MAX = 100


@dataclass(slots=True)
class Report:
    """Corrections that were made or, for a dry run, would be made. All texts are for the operator.

    ended                                          files that were truncated at their ends
    removed, copied, subscriptions, transactions   numbers of corrections
    reordered                                      queues and topics whose order was restored
    order, problems                                reasons why the directory is not ready
    set_aside                                      new paths of renamed index files
    was_done                                       a former hand-back has done all of it
    """

    ended: list[str] = field(default_factory=list)
    removed: int = 0
    copied: int = 0
    subscriptions: int = 0
    transactions: int = 0
    reordered: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    set_aside: list[str] = field(default_factory=list)
    was_done: bool = False
    is_ready: bool = False

    def problem(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)


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
        there = counterpart(owner, self._rehearsal.contents)
        is_known = there is not None and self._rehearsal.contents.subscription(there).info == command.info
        if is_known and self._contents.reader.read(owner.latest_record).startswith(encode(command)):
            return
        self._write([encode(command._replace(retroactive=False))])
        self._report.subscriptions += 1

    def _copy_missing(self, owner: OwnerState) -> None:
        """Copy the messages that ActiveMQ would not find, or could not read because they have another OpenWire
        version."""
        there = counterpart(owner, self._rehearsal.contents)
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
