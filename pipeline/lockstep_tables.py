"""Columns of the tables ``records`` and ``acks``, made for many records at once: the lockstep decoder decodes one field
of all records at a time.

    ADD      01 varint  [0A transaction]  12 destination  1A message id  22 frame   28 priority  30 prioritized
    REMOVE   02 varint  [0A transaction]  12 destination  1A message id  [22 ack]  [2A subscription]
    PREPARE, COMMIT, ROLLBACK   03, 04, 05 varint  0A transaction

Only records with exactly this layout fit: nearly all records of a journal. All others are decoded by
store.records.commands, which decides whether they are sound. For records that fit, both decoders give the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandemmq.journal.format import RECORD_HEADER_SIZE
from tandemmq.pipeline import columns
from tandemmq.pipeline.blocks import Block, array
from tandemmq.pipeline.lockstep_frames import VERSION_MIN, read_frames
from tandemmq.pipeline.record_rows import LAST_MS
from tandemmq.pipeline.rows import ack_kind
from tandemmq.pipeline.vectors import Bytes, Optional, Spans, booleans, is_ascii, numbers, only, strings, varints
from tandemmq.pipeline.walk import JournalFile
from tandemmq.store.records import commands
from tandemmq.store.records.commands import decode_destination
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.message import SCHEMES, Destination

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


_TIME: Final = pa.timestamp("us", tz="UTC")
# Names of commands by their numbers; only the commands 1 to 5 fit.
_NAMES: Final = pa.array(
    [None, columns.ADD_MESSAGE, columns.REMOVE_MESSAGE, columns.PREPARE, columns.COMMIT, columns.ROLLBACK]
)

Column = Callable[[], pa.Array]


@dataclass(frozen=True, slots=True)
class Found:
    """Columns by name; each is made when its function is called. Values are valid in rows where ``fits`` is True.
    ``sizes``: bytes of the long columns in each row."""

    fits: np.ndarray
    sizes: np.ndarray
    columns: Mapping[str, Column]


def records(block: Block, file: JournalFile, version: int | None) -> Found:
    """Return the columns of ``records`` for a block."""
    count = len(block)
    data = block.data
    found = commands_of(block)
    fits = found.fits
    is_add = fits & (found.kind == commands.ADD)
    adds = np.flatnonzero(is_add)
    body_bytes = np.zeros(count, np.int32)
    broker_in = np.zeros(count, np.int64)
    if version is None or version < VERSION_MIN:
        fits[adds] = False
    else:
        frames = read_frames(data, _rows(found.frame, adds), version)
        fits[adds] = frames.fits
        body_bytes[adds] = frames.content.spans[1] - frames.content.spans[0]
        broker_in[adds] = frames.broker_in
    shared, _ = shared_columns(block, file, found)
    made: dict[str, Column] = {
        **shared,
        "length": lambda: numbers(block.stops - block.starts, pa.int64()),
        "batch": lambda: numbers(block.batches, pa.int64()),
        "epoch": lambda: _constant(file.epoch, pa.int32(), count),
        "command": lambda: command_names(found),
        "priority": lambda: numbers(found.priority, pa.int32(), is_add),
        "body_bytes": lambda: numbers(body_bytes, pa.int32(), is_add),
        "broker_in": lambda: times(broker_in),
        "is_sound": lambda: booleans(np.ones(count, np.bool_)),
    }
    return Found(fits, np.zeros(count, np.int64), made)


def acks(block: Block, file: JournalFile, version: int | None) -> Found:
    """Return the columns of ``acks`` for a block of removes."""
    found = commands_of(block)
    shared, _ = shared_columns(block, file, found)

    def kinds() -> pa.Array:
        texts: list[str | None] = [None] * len(block)
        starts, stops = found.ack.spans
        for row in np.flatnonzero(found.fits & found.ack.is_there):
            texts[row] = ack_kind(block.buffer[starts[row] : stops[row]], version)
        return pa.array(texts, pa.string())

    return Found(found.fits, np.zeros(len(block), np.int64), {**shared, "ack_kind": kinds})


def command_names(found: Commands) -> pa.Array:
    return _NAMES.take(pa.array(np.where(found.fits, found.kind, 0)))


def commands_of(block: Block) -> Commands:
    return read_commands(block.data, block.starts + RECORD_HEADER_SIZE, block.stops)


def shared_columns(block: Block, file: JournalFile, found: Commands) -> tuple[dict[str, Column], pa.Array]:
    """Return the columns that several tables have, and the message ids as binaries. Sets ``found.fits`` to False for
    rows that do not fit."""
    count = len(block)
    data, fits = block.data, found.fits
    keys, key_rows = _transactions(data, found)
    destinations, places = _destinations(data, found)
    message_ids = data.slices(only(fits, found.message_id))
    subscriptions = data.slices(only(fits, found.subscription.spans))
    fits &= is_ascii(message_ids) & is_ascii(subscriptions)
    types = [None if each is None else SCHEMES[each.kind] for each in destinations]
    names = [None if each is None else each.name for each in destinations]

    def transactions() -> pa.Array:
        if not len(key_rows):
            return pa.nulls(count, pa.string())
        picked = np.zeros(count, np.int32)
        picked[key_rows] = np.arange(len(key_rows))
        return keys.take(pa.array(picked, mask=~found.transaction.is_there))

    made: dict[str, Column] = {
        "store": lambda: _constant(file.store, pa.string(), count),
        "file": lambda: _constant(file.file, pa.int32(), count),
        "offset": lambda: numbers(block.starts + block.base, pa.int64()),
        "destination_type": lambda: array(types, pa.string()).take(places),
        "destination": lambda: array(names, pa.string()).take(places),
        "message_id": lambda: strings(message_ids, found.has_message),
        "transaction": transactions,
        "subscription": lambda: strings(subscriptions, found.subscription.is_there),
    }
    return made, message_ids


def _transactions(data: Bytes, found: Commands) -> tuple[pa.Array, np.ndarray]:
    """Return the keys of local transactions, in the form of ``LocalTransactionId.key``, and the rows that have one."""
    rows = np.flatnonzero(found.fits & found.transaction.is_there)
    if not len(rows):
        return pa.nulls(0, pa.string()), rows
    local = read_local_transactions(data, _rows(found.transaction.spans, rows))
    connections = data.slices(only(local.fits, local.connection_id))
    found.fits[rows] = local.fits & is_ascii(connections)
    values = numbers(local.value, pa.int64()).cast(pa.string())
    return pc.binary_join_element_wise(pa.scalar("TX"), strings(connections), values, ":"), rows


def _destinations(data: Bytes, found: Commands) -> tuple[list[Destination | None], pa.Array]:
    """Return the distinct destinations, and the index of each row's destination."""
    encoded = data.slices(only(found.fits, found.destination)).dictionary_encode()
    destinations = [_destination(key) for key in encoded.dictionary.to_pylist()]
    known = np.array([each is not None for each in destinations], np.bool_)
    found.fits[:] &= ~found.has_message | known[encoded.indices.to_numpy()]
    return destinations, encoded.indices


def _destination(field: bytes) -> Destination | None:
    try:
        return decode_destination(field)
    except RecordDamaged:  # also if it is absent
        return None


def _rows(spans: Spans, rows: np.ndarray) -> Spans:
    return spans[0][rows], spans[1][rows]


def _constant(value: object, type: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, type), count)


def times(milliseconds: np.ndarray) -> pa.Array:
    is_time = (milliseconds > 0) & (milliseconds <= LAST_MS)
    return numbers(np.where(is_time, milliseconds, 0) * 1000, _TIME, is_time)
