"""The end of a prepared transaction: what becomes visible by it, what goes, what comes back. On the storage thread."""

from __future__ import annotations

from collections.abc import Sequence

from store.open_transactions import PendingOperation
from store.operations import EndTransaction, PagedMessage
from store.pages import Pages
from store.records.commands import ADD
from store.records.message import Destination
from store.records.message_ids import is_made_by_broker
from store.state import State


def end_transaction(state: State, pages: Pages, end: EndTransaction, location: int) -> None:
    """The outcome stands durably at ``location``: apply it, and say in ``end`` what that did."""
    transaction = state.end_transaction(end.transaction.key, location)
    assert transaction is not None, "it was in doubt when the batch was formed"
    added: dict[tuple[int, str], int] = {}
    for number, operation in enumerate(transaction.operations):
        if operation.kind == ADD:
            destination = operation.destination
            owners = _owners(state, destination)
            assert owners or destination.is_topic or not end.is_commit, "the store began the queue anew (Store.append)"
            if not is_made_by_broker(operation.message_id):
                (state.note_id if end.is_commit else state.forget_id)(owners, operation.message_id)
            if end.is_commit:
                _add(state, pages, end, operation, owners, location << 32 | number, added)
        else:
            _remove(state, pages, end, operation, location >> 32, added)


def _owners(state: State, destination: Destination) -> Sequence[int]:
    if destination.is_topic:
        return state.topics.get(destination, ())
    queue = state.queues.get(destination)
    return () if queue is None else (queue,)


def _add(
    state: State,
    pages: Pages,
    end: EndTransaction,
    operation: PendingOperation,
    owners: Sequence[int],
    order_key: int,
    added: dict[tuple[int, str], int],
) -> None:
    message = pages.message_at(operation.location, operation.size)
    for number, owner in enumerate(owners):
        state.add(
            owner,
            order_key,
            operation.location,
            operation.size,
            operation.message_id,
            message.priority,
            is_shared=number > 0,
        )
        added[owner, operation.message_id] = order_key
        end.added.append((owner, PagedMessage(order_key, operation.location, operation.size, message)))


def _remove(
    state: State,
    pages: Pages,
    end: EndTransaction,
    operation: PendingOperation,
    file: int,
    added: dict[tuple[int, str], int],
) -> None:
    owner, order_key = operation.owner, operation.order_key
    if not order_key:
        # A durable subscription that was passed over; for the rest of those there was nothing to remove.
        found = state.subscriptions.get((operation.destination, operation.subscription_key or ""))
        place = None if found is None else added.pop((found, operation.message_id), None)
        if not end.is_commit or found is None or place is None:
            return
        owner, order_key = found, place
        end.added = [(held, each) for held, each in end.added if (held, each.order_key) != (owner, order_key)]
    entry = state.entry(owner, order_key) if owner in state.owners else None
    if entry is None:
        return
    if end.is_commit:
        state.remove(owner, order_key, entry.location, entry.size, entry.message_id, file)
        if operation.order_key:
            end.removed.append((owner, order_key))
    else:
        message = pages.message_at(entry.location, entry.size)
        end.returned.append((owner, PagedMessage(order_key, entry.location, entry.size, message)))
