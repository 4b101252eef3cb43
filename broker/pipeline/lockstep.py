"""KahaDB's commands, many at once: all records advance together, one field at a time.

    ADD      01 varint  [0A transaction]  12 destination  1A message id  22 frame   28 priority  30 prioritized
    REMOVE   02 varint  [0A transaction]  12 destination  1A message id  [22 ack]  [2A subscription]
    PREPARE, COMMIT, ROLLBACK   03, 04, 05 varint  0A transaction

Only what is written exactly so fits, as nearly all of a journal is. Every other record is for store.records.commands,
which decides what it says and whether it is sound: what fits reads here as it reads there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from broker.pipeline.vectors import BYTE, Bytes, Spans, only
from store.records import commands

_FIELD: Final = np.dtype([("tag", "u1"), ("length", "u1")])  # with a length below 128
_LENGTH_LIMIT: Final = 0x80
_END: Final = np.dtype([("priority_tag", "u1"), ("priority", "u1"), ("prioritized_tag", "u1"), ("prioritized", "u1")])
_TRANSACTION, _DESTINATION, _MESSAGE_ID, _FRAME, _PRIORITY, _SUBSCRIPTION, _PRIORITIZED = (
    0x0A,
    0x12,
    0x1A,
    0x22,
    0x28,
    0x2A,
    0x30,
)
_CONNECTION_ID, _TRANSACTION_VALUE = 0x0A, 0x08


@dataclass(frozen=True, slots=True)
class Commands:
    """What some records say. ``fits``: for which of them the rest counts. Spans are places in the buffer; those of
    fields that a record does not have are empty; ``has_...`` tells those from empty ones."""

    fits: np.ndarray
    kind: np.ndarray
    has_transaction: np.ndarray
    transaction: Spans
    has_message: np.ndarray  # destination and message id
    destination: Spans
    message_id: Spans
    frame: Spans
    priority: np.ndarray
    ack: Spans
    has_ack: np.ndarray
    subscription: Spans
    has_subscription: np.ndarray


def read_commands(data: Bytes, starts: np.ndarray, stops: np.ndarray) -> Commands:
    """The commands in the payloads between ``starts`` and ``stops``."""
    kind = data.at(BYTE, starts)
    is_add, is_remove = kind == commands.ADD, kind == commands.REMOVE
    is_outcome = (kind == commands.PREPARE) | (kind == commands.COMMIT) | (kind == commands.ROLLBACK)
    about_message = is_add | is_remove
    length, at, fits = data.varints(starts + 1)
    fits &= (about_message | is_outcome) & (starts < stops) & (at + length == stops)

    field = data.at(_FIELD, at)
    has_transaction = field["tag"] == _TRANSACTION
    fits &= ~has_transaction | (field["length"] < _LENGTH_LIMIT)
    transaction = _span(has_transaction, at + 2, field["length"])
    at = np.where(has_transaction, transaction[1], at)
    fits &= ~is_outcome | (has_transaction & (at == stops))

    field = data.at(_FIELD, at)
    fits &= is_outcome | ((field["tag"] == _DESTINATION) & (field["length"] < _LENGTH_LIMIT))
    destination = _span(about_message, at + 2, field["length"])
    at = np.where(about_message, destination[1], at)

    field = data.at(_FIELD, at)
    fits &= is_outcome | ((field["tag"] == _MESSAGE_ID) & (field["length"] < _LENGTH_LIMIT))
    message_id = _span(about_message, at + 2, field["length"])
    at = np.where(about_message, message_id[1], at)

    has_blob = (data.at(BYTE, at) == _FRAME) & (at < stops) & about_message
    length, content_at, is_short = data.varints(at + 1)
    fits &= ~has_blob | is_short
    blob = _span(has_blob, content_at, length)
    at = np.where(has_blob, blob[1], at)

    end = data.at(_END, at)
    fits &= ~is_add | (
        has_blob
        & (at + _END.itemsize == stops)
        & (end["priority_tag"] == _PRIORITY)
        & (end["priority"] < _LENGTH_LIMIT)
        & (end["prioritized_tag"] == _PRIORITIZED)
        & (end["prioritized"] < _LENGTH_LIMIT)
    )
    has_subscription = is_remove & (at < stops) & (end["priority_tag"] == _SUBSCRIPTION)
    subscription = _span(has_subscription, at + 2, end["priority"])
    fits &= ~has_subscription | (end["priority"] < _LENGTH_LIMIT)
    fits &= ~is_remove | (np.where(has_subscription, subscription[1], at) == stops)
    return Commands(
        fits,
        kind,
        has_transaction,
        transaction,
        about_message,
        destination,
        message_id,
        only(is_add, blob),
        end["priority"],
        only(is_remove, blob),
        is_remove & has_blob,
        subscription,
        has_subscription,
    )


@dataclass(frozen=True, slots=True)
class LocalTransactions:
    """The transactions in KahaTransactionInfo, where ``fits`` says that they are local and written as KahaDB does."""

    fits: np.ndarray
    connection_id: Spans
    value: np.ndarray


def read_local_transactions(data: Bytes, spans: Spans) -> LocalTransactions:
    """``0A length (0A connection id, 08 varint)`` in each span."""
    starts, stops = spans
    field = data.at(_FIELD, starts)
    fits = (field["tag"] == _TRANSACTION) & (starts + 2 + field["length"] == stops) & (field["length"] < _LENGTH_LIMIT)
    field = data.at(_FIELD, starts + 2)
    fits &= (field["tag"] == _CONNECTION_ID) & (field["length"] < _LENGTH_LIMIT)
    connection_id = starts + 4, starts + 4 + field["length"]
    fits &= data.at(BYTE, connection_id[1]) == _TRANSACTION_VALUE
    value, at, is_short = data.varints(connection_id[1] + 1)
    fits &= is_short & (at == stops)
    return LocalTransactions(fits, connection_id, value)


def _span(is_there: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> Spans:
    return only(is_there, (starts, starts + lengths))
