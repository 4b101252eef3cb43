"""Lockstep decoder of the OpenWire frames of messages (layout: store.records.fields): one field of all frames at a
time.

A frame fits if it has the layout of version 3 or newer, no objects except destinations and producer ids, and only ASCII
in its strings. store.records decodes all other frames. For frames that fit, both decoders give the same values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from tandemmq.pipeline.vectors import BYTE, Bytes, Optional, Spans, only
from tandemmq.store.records import loose
from tandemmq.store.records.message import BodyKind, DestinationKind

VERSION_MIN: Final = 3
_TEXT_VIEW_SINCE: Final = 10  # versions from this one also have one more byte at the end


def _layout(fields: str) -> np.dtype:
    return np.dtype([tuple(field.split()) for field in fields.split(", ")])


_HEAD: Final = _layout("size >i4, type u1, command_id >i4, is_response_required u1")
# Layout of a producer id or a destination before its text.
_NAMED: Final = _layout("present u1, type u1, text_present u1, length >u2")
_TEXT: Final = _layout("present u1, length >u2")
_BLOB: Final = _layout("present u1, length >i4")
_MESSAGE_ID: Final = _layout("present u1, type u1")
_NUMBERS_OF_PRODUCER: Final = 16
_NUMBERS_OF_MESSAGE_ID: Final = 16
# Layout from the original transaction id to the type, if there is no object and no string.
_MIDDLE: Final = _layout(
    "original_transaction u1, group_id u1, group_sequence >i4, correlation_id u1, persistent u1, expiration >i8, "
    "priority i1, reply_to u1, timestamp >i8, type u1"
)
_DELIVERY: Final = _layout("persistent u1, expiration >i8, priority i1")
_I4: Final = np.dtype(">i4")
_I8: Final = np.dtype(">i8")
# Layouts from the data structure to the user id, without objects, and from there to the end.
_STORED: Final = _layout("structure u1, target u1, compressed u1, redeliveries >i4, path u1, arrival >i8")
_END: Final = _layout("by_bridge u1, droppable u1, cluster u1, broker_in >i8, broker_out >i8")


@dataclass(frozen=True, slots=True)
class Frames:
    """Fields of some frames. ``fits``: frames for which the other fields are valid. Times are milliseconds since 1970.
    ``stop``: end of each frame, without the extra field of a BLOB."""

    fits: np.ndarray
    kind: np.ndarray
    original_destination: Spans
    group_id: Optional
    group_sequence: np.ndarray
    correlation_id: Optional
    delivery: np.ndarray  # persistent, expiration, priority
    reply_to: Spans
    timestamp: np.ndarray
    type: Optional
    content: Optional
    properties: Optional
    stored: np.ndarray  # compressed, redeliveries
    user_id: Optional
    broker_in: np.ndarray
    stop: np.ndarray


def read_frames(data: Bytes, spans: Spans, version: int) -> Frames:
    """Decode the frames in ``spans``. ``version``: OpenWire version, at least VERSION_MIN."""
    starts, stops = spans
    head = data.at(_HEAD, starts)
    kind = head["type"]
    fits = (head["size"].astype(np.int64) + 4 == stops - starts) & (kind >= BodyKind.NONE) & (kind <= BodyKind.BLOB)
    walk = _Walk(data, starts + _HEAD.itemsize, fits)

    walk.producer_id()
    walk.destination(is_needed=True)
    walk.nothing()  # the transaction id
    original_destination = walk.destination()
    walk.message_id(has_text_view=version >= _TEXT_VIEW_SINCE)

    middle_at = walk.places
    middle = data.at(_MIDDLE, middle_at)
    fits &= middle["original_transaction"] == 0
    is_plain = (middle["group_id"] | middle["correlation_id"] | middle["reply_to"] | middle["type"]) == 0
    if is_plain.all():
        nowhere = np.zeros(len(starts), np.int64)
        reply_to = nowhere, nowhere
        group_id = correlation_id = jms_type = Optional(np.zeros(len(starts), np.bool_), reply_to)
        group_sequence, timestamp, delivery = middle["group_sequence"], middle["timestamp"], middle
        walk.places = middle_at + _MIDDLE.itemsize
    else:
        walk.places = middle_at + 1
        group_id = walk.text()
        group_sequence = walk.layout(_I4)
        correlation_id = walk.text()
        delivery = walk.layout(_DELIVERY)
        reply_to = walk.destination()
        timestamp = walk.layout(_I8)
        jms_type = walk.text()

    content, properties = walk.blob(), walk.blob()
    stored = walk.layout(_STORED)
    fits &= (stored["structure"] | stored["target"] | stored["path"]) == 0
    user_id = walk.text()
    end = walk.layout(_END)
    fits &= end["cluster"] == 0
    stop = walk.places + (version >= _TEXT_VIEW_SINCE)
    fits &= stop <= stops
    fits &= data.is_ascii(*(only(fits, text) for text in walk.texts))
    return Frames(
        fits,
        kind,
        original_destination,
        group_id,
        group_sequence,
        correlation_id,
        delivery,
        reply_to,
        timestamp,
        jms_type,
        content,
        properties,
        stored,
        user_id,
        end["broker_in"],
        stop,
    )


class _Walk:
    """Decoder with a position in each frame. ``texts``: the strings that were decoded."""

    __slots__ = ("_data", "_fits", "places", "texts")

    def __init__(self, data: Bytes, places: np.ndarray, fits: np.ndarray) -> None:
        self._data = data
        self._fits = fits  # array of the caller; rows that do not fit are set to False
        self.places = places
        self.texts: list[Spans] = []

    def layout(self, layout: np.dtype) -> np.ndarray:
        found = self._data.at(layout, self.places)
        self.places = self.places + layout.itemsize
        return found

    def nothing(self) -> None:
        """Read the presence byte of an object, which must be absent."""
        self._fits &= self.layout(BYTE) == 0

    def producer_id(self) -> None:
        found = self.layout(_NAMED)
        self._fits &= (found["present"] == 1) & (found["type"] == loose.PRODUCER_ID) & (found["text_present"] == 1)
        self._text_behind(found["length"])
        self.places = self.places + _NUMBERS_OF_PRODUCER

    def message_id(self, *, has_text_view: bool) -> None:
        found = self.layout(_MESSAGE_ID)
        self._fits &= (found["present"] == 1) & (found["type"] == loose.MESSAGE_ID)
        if has_text_view:
            self.nothing()
        self.producer_id()
        self.places = self.places + _NUMBERS_OF_MESSAGE_ID

    def destination(self, *, is_needed: bool = False) -> Spans:
        """Read a destination, and return its span including its name; empty if absent."""
        begin = self.places
        found = self._data.at(_NAMED, begin)
        is_there = found["present"] != 0
        kind = found["type"].astype(np.int16) - loose.DESTINATION_BASE
        is_sound = (kind >= DestinationKind.QUEUE) & (kind <= DestinationKind.TEMP_TOPIC) & (found["text_present"] == 1)
        if is_needed:
            self._fits &= is_there
        elif not is_there.any():
            self.places = begin + 1
            return begin, begin
        self._fits &= ~is_there | is_sound
        self.places = begin + _NAMED.itemsize
        self._text_behind(np.where(is_there, found["length"], 0))
        self.places = np.where(is_there, self.places, begin + 1)
        return begin, np.where(is_there, self.places, begin)

    def text(self) -> Optional:
        """Read an optional string."""
        begin = self.places
        found = self._data.at(_TEXT, begin)
        is_there = found["present"] != 0
        if not is_there.any():
            self.places = begin + 1
            return Optional(is_there, (begin, begin))
        self.places = begin + _TEXT.itemsize
        span = self._text_behind(np.where(is_there, found["length"], 0))
        self.places = np.where(is_there, self.places, begin + 1)
        return Optional(is_there, span)

    def blob(self) -> Optional:
        """Read an optional byte array."""
        begin = self.places
        found = self._data.at(_BLOB, begin)
        is_there = found["present"] != 0
        length = np.where(is_there, found["length"], 0).astype(np.int64)
        self._fits &= length >= 0
        start = begin + _BLOB.itemsize
        self.places = np.where(is_there, start + length, begin + 1)
        return Optional(is_there, (start, start + length))

    def _text_behind(self, length: np.ndarray) -> Spans:
        span = self.places, self.places + length
        self.places = span[1]
        self.texts.append(span)
        return span
