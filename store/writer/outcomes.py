"""Outcome of a prepared transaction: messages become visible, are removed, or are returned. On the storage thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tandemmq.store.operations import EndTransaction, PagedMessage
from tandemmq.store.records.commands import ADD, encode_remove
from tandemmq.store.records.message_ids import is_made_by_broker
from tandemmq.store.state.open_transactions import PendingOperation
from tandemmq.store.state.state import State
from tandemmq.store.writer.pages import Pages


def outcome_payloads(state: State, end: EndTransaction) -> Sequence[bytes]:
    """Return the payloads of the records of an outcome.

    If a message was copied to a file after that of its prepared Remove, the outcome has another Remove: the file of the
    prepared Remove may be deleted before the file of the copy, and then the Commit would remove nothing.
    """
    payloads = [end.payload]
    for each in state.transactions[end.transaction.key].operations if end.is_commit else ():
        entry = state.entry(each.owner, each.order_key) if each.owner in state.owners else None
        if entry is not None and entry.location >> 32 > each.location >> 32:
            again = encode_remove(each.destination, each.message_id, None, each.subscription_key)
            payloads.append(again)  # prove: copied-message-is-removed-again
    return payloads


def end_transaction(state: State, pages: Pages, end: EndTransaction, location: int) -> None:
    """Apply an outcome that is durable at ``location``, and set its effects in ``end``."""
    transaction = state.end_transaction(end.transaction.key, location)
    assert transaction is not None, "the transaction was in doubt when the batch was formed"
    ending = _Ending(state, pages, end)
    for number, operation in enumerate(transaction.operations):
        if operation.kind == ADD:
            destination = operation.destination
            owners = state.holders(destination)
            assert owners or destination.is_topic or not end.is_commit, "Store.append has made the queue again"
            if not is_made_by_broker(operation.message_id):
                # prove: rolled-back-may-come-again "state.forget_id" -> "state.note_id"
                (state.note_id if end.is_commit else state.forget_id)(owners, operation.message_id)
            if end.is_commit and owners:
                ending.add(operation, owners, location << 32 | number)
        else:
            ending.remove(operation, location >> 32)


@dataclass(slots=True, eq=False)
class _Ending:
    """Applies the operations of an outcome one by one. ``added``: (owner, message id) -> order key of a message that
    became visible."""

    state: State
    pages: Pages
    end: EndTransaction
    added: dict[tuple[int, str], int] = field(default_factory=dict)

    def add(self, operation: PendingOperation, owners: Sequence[int], order_key: int) -> None:
        message = self.pages.message_at(operation.location, operation.size)
        for number, owner in enumerate(owners):
            self.state.add(
                owner,
                order_key,
                operation.location,
                operation.size,
                operation.message_id,
                message.priority,
                is_shared=number > 0,
                user=operation.sender,
            )
            self.added[owner, operation.message_id] = order_key
            self.end.added.append((owner, PagedMessage(order_key, operation.location, operation.size, message)))

    def remove(self, operation: PendingOperation, file: int) -> None:
        owner, order_key = operation.owner, operation.order_key
        entry = self.state.entry(owner, order_key) if owner in self.state.owners else None
        if entry is None:  # prove: passed-over-is-not-kept "entry is None" -> "not order_key"
            self._remove_added(operation, file)
        elif self.end.is_commit:
            self.state.remove(owner, order_key, entry.location, entry.size, entry.message_id, file)
            self.state.pin_for_removal(operation.location, entry.location)
            self.end.removed.append((owner, order_key))
        else:
            message = self.pages.message_at(entry.location, entry.size)
            self.end.returned.append((owner, PagedMessage(order_key, entry.location, entry.size, message)))

    def _remove_added(self, operation: PendingOperation, file: int) -> None:
        """Apply a removal of a message that the transaction itself added, for a durable subscription without a match.
        If there is no such message, do nothing: a replay from an old index may have found the message in a former
        subscription of that name."""
        owner = self.state.subscriptions.get((operation.destination, operation.subscription_key or ""))
        order_key = None if owner is None else self.added.pop((owner, operation.message_id), None)
        if owner is None or order_key is None:
            return
        self.end.added = [
            (holder, each) for holder, each in self.end.added if (holder, each.order_key) != (owner, order_key)
        ]
        entry = self.state.entry(owner, order_key)
        assert entry is not None, "``add`` has just added it"
        self.state.remove(owner, order_key, entry.location, entry.size, entry.message_id, file)
        self.state.pin_for_removal(operation.location, entry.location)
