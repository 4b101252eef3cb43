"""Lockstep decoder of KahaDB's commands: it decodes one field of all records at a time.

    ADD      01 varint  [0A transaction]  12 destination  1A message id  22 frame   28 priority  30 prioritized
    REMOVE   02 varint  [0A transaction]  12 destination  1A message id  [22 ack]  [2A subscription]
    PREPARE, COMMIT, ROLLBACK   03, 04, 05 varint  0A transaction

Only records with exactly this layout fit: nearly all records of a journal. All others are decoded by
store.records.commands, which decides whether they are sound. For records that fit, both decoders give the same values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from tandemmq.pipeline.vectors import Bytes, Optional, Spans, only, varints
from tandemmq.store.records import commands

_LENGTH_LIMIT: Final = 0x80  # limit of lengths that have one byte
_TRANSACTION, _DESTINATION, _MESSAGE_ID, _FRAME = 0x0A, 0x12, 0x1A, 0x22
_PRIORITY, _SUBSCRIPTION, _PRIORITIZED = 0x28, 0x2A, 0x30
_CONNECTION_ID, _TRANSACTION_VALUE = 0x0A, 0x08


@dataclass(frozen=True, slots=True)
class Commands:
    """Fields of some records. ``fits``: records for which the other fields are valid. Spans are places in the
    buffer."""

    fits: np.ndarray
    kind: np.ndarray
    transaction: Optional
    has_message: np.ndarray  # destination and message id
    destination: Spans
    message_id: Spans
    frame: Spans
    priority: np.ndarray
    ack: Optional
    subscription: Optional


def read_commands(data: Bytes, starts: np.ndarray, stops: np.ndarray) -> Commands:
    """Decode the commands in the payloads between ``starts`` and ``stops``."""
    word = data.words(starts)
    kind = word & 0xFF
    is_add, is_remove = kind == commands.ADD, kind == commands.REMOVE
    has_message = is_add | is_remove
    is_outcome = (kind == commands.PREPARE) | (kind == commands.COMMIT) | (kind == commands.ROLLBACK)
    length, size, fits = varints(word >> 8)
    at = starts + 1 + size
    fits &= (has_message | is_outcome) & (starts < stops) & (stops < data.limit) & (at + length == stops)

    tag, length = _field(word >> 8 * (1 + size))
    has_transaction = tag == _TRANSACTION
    transaction = nowhere = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.int64)
    if has_transaction.any():
        fits &= ~has_transaction | (length < _LENGTH_LIMIT)
        transaction = only(has_transaction, (at + 2, at + 2 + length))
        at = np.where(has_transaction, transaction[1], at)
        following, following_length = _field(data.words(at))
        tag = np.where(has_transaction, following, tag)
        length = np.where(has_transaction, following_length, length)
    fits &= ~is_outcome | (has_transaction & (at == stops))

    is_sound = (tag == _DESTINATION) & (length < _LENGTH_LIMIT)
    destination = at + 2, at + 2 + length
    tag, length = _field(data.words(destination[1]))
    is_sound &= (tag == _MESSAGE_ID) & (length < _LENGTH_LIMIT)
    message_id = destination[1] + 2, destination[1] + 2 + length
    fits &= is_outcome | is_sound

    at = message_id[1]
    word = data.words(at)
    has_blob = ((word & 0xFF) == _FRAME) & (at < stops) & has_message
    length, size, is_short = varints(word >> 8)
    fits &= ~has_blob | is_short
    blob = at + 1 + size, at + 1 + size + length
    at = np.where(has_blob, blob[1], at)

    # An add must end with a priority and its flag, both below 128.
    word = data.words(at)
    fits &= ~is_add | (has_blob & (at + 4 == stops) & ((word & 0x80FF80FF) == _PRIORITIZED << 16 | _PRIORITY))
    tag, length = _field(word)
    has_subscription = is_remove & (at < stops) & (tag == _SUBSCRIPTION)
    subscription = nowhere
    if has_subscription.any():
        fits &= ~has_subscription | (length < _LENGTH_LIMIT)
        subscription = only(has_subscription, (at + 2, at + 2 + length))
        at = np.where(has_subscription, subscription[1], at)
    fits &= ~is_remove | (at == stops)
    return Commands(
        fits,
        kind,
        Optional(has_transaction, transaction),
        has_message,
        only(has_message, destination),
        only(has_message, message_id),
        only(is_add & has_blob, blob),
        word >> 8 & 0xFF,
        Optional(is_remove & has_blob, only(is_remove & has_blob, blob)),
        Optional(has_subscription, subscription),
    )


def _field(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the tag in each word, and the length of its field, which is valid if it is below 128."""
    return words & 0xFF, words >> 8 & 0xFF


@dataclass(frozen=True, slots=True)
class LocalTransactions:
    """Local transactions in KahaTransactionInfo. ``fits``: rows in which the other fields are valid."""

    fits: np.ndarray
    connection_id: Spans
    value: np.ndarray


def read_local_transactions(data: Bytes, spans: Spans) -> LocalTransactions:
    """Decode ``0A length (0A connection id, 08 varint)`` in each span."""
    starts, stops = spans
    word = data.words(starts)
    tag, length = _field(word)
    fits = (tag == _TRANSACTION) & (length < _LENGTH_LIMIT) & (starts + 2 + length == stops)
    tag, length = _field(word >> 16)
    fits &= (tag == _CONNECTION_ID) & (length < _LENGTH_LIMIT)
    connection_id = starts + 4, starts + 4 + length
    word = data.words(connection_id[1])
    value, size, is_short = varints(word >> 8)
    fits &= is_short & ((word & 0xFF) == _TRANSACTION_VALUE) & (connection_id[1] + 1 + size == stops)
    return LocalTransactions(fits, connection_id, value)
