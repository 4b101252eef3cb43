"""Columns of the table ``messages``, made for many records at once."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from tandemmq.broker.protocols.encoded import NATIVE
from tandemmq.pipeline import columns
from tandemmq.pipeline.blocks import Block, array
from tandemmq.pipeline.lockstep_frames import VERSION_MIN, Frames, read_frames
from tandemmq.pipeline.lockstep_tables import Column, Found, command_names, commands_of, shared_columns, times
from tandemmq.pipeline.message_rows import properties_of
from tandemmq.pipeline.vectors import Bytes, Optional, Spans, booleans, filled, is_ascii, numbers, only, strings
from tandemmq.pipeline.walk import JournalFile
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.loose import read_destination
from tandemmq.store.records.message import BodyKind
from tandemmq.store.records.properties import decode_properties

_LENGTH: Final = np.dtype(">i4")  # at the beginning of a text
_BODY_KINDS: Final = pa.array([BodyKind(kind).name.lower() for kind in range(BodyKind.NONE, BodyKind.BLOB + 1)])
_COLON, _ZERO = ord(":"), ord("0")
_DIGITS_MAX: Final = 18  # a sequence number with at most this many digits is below 2**63
_MAP: Final = pa.map_(pa.string(), pa.string())

Properties = dict[int, list[tuple[str, str | None]]]  # properties by row


def messages(block: Block, file: JournalFile, version: int | None, *, payload: bool) -> Found:
    """Return the columns of ``messages`` for a block of adds and updates. Only adds with uncompressed bodies fit.

    ``payload``: includes the column ``raw``.
    """
    count = len(block)
    data = block.data
    found = commands_of(block)
    fits = found.fits
    if version is None or version < VERSION_MIN:
        fits[:] = False
        schema = columns.arrow_schema(columns.MESSAGES)
        return Found(
            fits, np.zeros(count, np.int64), {field.name: partial(pa.nulls, count, field.type) for field in schema}
        )
    frames = read_frames(data, only(fits, found.frame), version)
    fits &= (
        frames.fits
        & (frames.stop == found.frame[1])
        & (frames.stored["compressed"] == 0)
        & (frames.kind != BodyKind.BLOB)
    )
    is_text = frames.kind == BodyKind.TEXT
    bodies = _bodies(data, frames, is_text, fits)
    properties = _properties(block, frames, fits)
    shared, message_ids = shared_columns(block, file, found)
    producers, sequences = _producers(message_ids, fits)

    def text(field: Optional) -> Column:
        return lambda: strings(data.slices(only(fits & field.is_there, field.spans)), field.is_there)

    def destination(spans: Spans) -> Column:
        return lambda: _destinations(data.slices(only(fits, spans)))

    content, others = frames.content.spans, frames.properties.spans
    sizes = (content[1] - content[0]) * (1 + is_text) + others[1] - others[0]
    if payload:
        sizes = sizes + found.frame[1] - found.frame[0]
    made: dict[str, Column] = {
        **shared,
        "command": lambda: command_names(found),
        "producer_id": lambda: strings(producers),
        "producer_sequence": lambda: numbers(sequences, pa.int64()),
        "original_destination": destination(frames.original_destination),
        "correlation_id": text(frames.correlation_id),
        "reply_to": destination(frames.reply_to),
        "priority": lambda: numbers(frames.delivery["priority"], pa.int32()),
        "persistent": lambda: booleans(frames.delivery["persistent"] != 0),
        "sent": lambda: times(frames.timestamp),
        "broker_in": lambda: times(frames.broker_in),
        "expires": lambda: times(frames.delivery["expiration"]),
        "redeliveries": lambda: numbers(frames.stored["redeliveries"], pa.int32()),
        "type": text(frames.type),
        "group_id": text(frames.group_id),
        "group_sequence": lambda: numbers(frames.group_sequence, pa.int32()),
        "user_id": text(frames.user_id),
        "properties": lambda: _maps(properties, count),
        "body_kind": lambda: _BODY_KINDS.take(pa.array(np.where(fits, frames.kind - int(BodyKind.NONE), 0))),
        "body": lambda: filled(bodies),
        # shares the memory of ``body`` if all are texts
        "text": lambda: strings(
            bodies if is_text[fits].all() else _only_texts(bodies, is_text), is_text & frames.content.is_there
        ),
        "raw": lambda: data.slices(only(fits, found.frame)) if payload else pa.nulls(count, pa.binary()),
    }
    return Found(fits, sizes, made)


def _bodies(data: Bytes, frames: Frames, is_text: np.ndarray, fits: np.ndarray) -> pa.Array:
    """Return the bodies; those of texts without their lengths. Damaged texts, and texts that are not plain UTF-8, do
    not fit."""
    start, stop = frames.content.spans
    is_long = is_text & frames.content.is_there
    fits &= ~is_long | (
        (stop - start >= _LENGTH.itemsize) & (data.at(_LENGTH, start) == stop - start - _LENGTH.itemsize)
    )
    bodies = data.slices(only(fits, (np.where(is_long, start + _LENGTH.itemsize, start), stop)))
    for row in np.flatnonzero(is_text & ~is_ascii(bodies)):
        fits[row] = _is_plain(bodies[row].as_py())
    return bodies


def _is_plain(text: bytes) -> bool:
    """Return whether the modified UTF-8 of a text is also its UTF-8. (The special sequences of modified UTF-8 are not
    valid UTF-8.)"""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _only_texts(bodies: pa.Array, is_text: np.ndarray) -> pa.Array:
    _, offsets, content = bodies.buffers()
    edges = np.frombuffer(offsets, np.int32, len(bodies) + 1)
    data = Bytes(b"" if content is None else content.to_pybytes())
    return data.slices(only(is_text, (edges[:-1], edges[1:])))


def _properties(block: Block, frames: Frames, fits: np.ndarray) -> Properties:
    """Return the properties of the rows that have some. Rows with damaged properties, and encoded messages of AMQP, do
    not fit."""
    found: Properties = {}
    starts, stops = frames.properties.spans
    for row in np.flatnonzero(fits & frames.properties.is_there).tolist():
        try:
            decoded = decode_properties(block.buffer[starts[row] : stops[row]])
            fits[row] = frames.kind[row] != BodyKind.BYTES or decoded.get(NATIVE) is not True
            found[row] = properties_of(decoded)
        except RecordDamaged:
            fits[row] = False
    return found


def _maps(properties: Properties, count: int) -> pa.Array:
    if properties:
        return array([properties.get(row, []) for row in range(count)], _MAP)
    none = pa.nulls(0, pa.string())
    return pa.MapArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), none, none)


def _destinations(encoded: pa.Array) -> pa.Array:
    """Return ``queue://name`` for each encoded destination; null if it is absent."""
    picked = encoded.dictionary_encode()
    names = [str(read_destination(key, 0)[0]) if key else None for key in picked.dictionary.to_pylist()]
    return array(names, pa.string()).take(picked.indices)


def _producers(message_ids: pa.Array, fits: np.ndarray) -> tuple[pa.Array, np.ndarray]:
    """Return the part of each message id before its last colon, and the number after it. Ids of another form do not
    fit."""
    _, offsets, content = message_ids.buffers()
    edges = np.frombuffer(offsets, np.int32, len(message_ids) + 1).astype(np.int64)
    data = Bytes(b"" if content is None else content.to_pybytes())
    ids = data.bytes
    colons = np.concatenate(([-1], np.flatnonzero(ids == _COLON)))
    last = colons[np.searchsorted(colons, edges[1:], "left") - 1]
    widths = edges[1:] - last - 1
    fits &= (last >= edges[:-1]) & (widths > 0) & (widths <= _DIGITS_MAX)
    widths = np.where(fits, widths, 0)
    values = np.zeros(len(message_ids), np.int64)
    for place in range(int(widths.max(initial=0))):
        is_digit = widths > place
        digits = np.where(is_digit, ids[np.maximum(edges[1:] - 1 - place, 0)].astype(np.int64) - _ZERO, 0)
        fits &= (digits >= 0) & (digits <= 9)
        values += digits * 10**place
    return data.slices(only(fits, (edges[:-1], last))), values
