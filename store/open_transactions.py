"""Transactions of the journal that are still open, and how the index keeps them. Pure."""

from __future__ import annotations

import json
from typing import NamedTuple

from store.records.message import Destination, DestinationKind


class PendingOperation(NamedTuple):
    """One operation of an open transaction, in the order of the journal.

    ``owner`` and ``order_key`` name the message that a prepared removal takes; 0: it takes none, or is not prepared.
    """

    location: int
    size: int
    kind: int  # the command's KahaEntryType: 1 add, 2 remove
    destination: Destination
    message_id: str
    subscription_key: str | None
    owner: int = 0
    order_key: int = 0


class Transaction:
    """An open transaction of the journal: Adds and Removes that wait for their Commit.

    ``is_prepared``: XA, and its Prepare stands at ``prepared_at``.
    """

    __slots__ = ("is_prepared", "operations", "prepared_at")

    def __init__(self) -> None:
        self.operations: list[PendingOperation] = []
        self.is_prepared = False
        self.prepared_at = 0


def encode_transactions(transactions: dict[str, Transaction]) -> bytes:
    return json.dumps(
        [
            [
                name,
                transaction.is_prepared,
                transaction.prepared_at,
                [[*o[:3], int(o.destination.kind), o.destination.name, *o[4:]] for o in transaction.operations],
            ]
            for name, transaction in transactions.items()
        ],
        separators=(",", ":"),
    ).encode()


def decode_transactions(blob: bytes) -> dict[str, Transaction]:
    found: dict[str, Transaction] = {}
    for name, is_prepared, prepared_at, operations in json.loads(blob):
        transaction = found[name] = Transaction()
        transaction.is_prepared = is_prepared
        transaction.prepared_at = prepared_at
        for location, size, kind, destination_kind, destination_name, *rest in operations:
            destination = Destination(DestinationKind(destination_kind), destination_name)
            transaction.operations.append(PendingOperation(location, size, kind, destination, *rest))
    return found
