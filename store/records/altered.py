"""Copies of messages with a changed header: for dead letters, composite destinations, an expiration that the broker
sets, and delayed messages.

The body of an opened message is copied unchanged, even if it is compressed, a Java object, or damaged.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from typing import Final

from tandemmq.store.records import loose
from tandemmq.store.records.errors import Unencodable
from tandemmq.store.records.fields import PRODUCER_AT, read_fields
from tandemmq.store.records.frames import OpenedMessage, open_message
from tandemmq.store.records.loose import OPENWIRE_VERSION
from tandemmq.store.records.message import HEADER, Destination, Message, PropertyValue, SharedBody, unread
from tandemmq.store.records.properties import encode_properties, without

# Property of a copy with its own id: the id of the original message.
ORIGINAL_ID_PROPERTY = "originalMessageId"
# Property of a dead letter: the expiration of the original message.
EXPIRATION_PROPERTY: Final = "originalExpiration"

_DELIVERY = struct.Struct(">?qb")
_HEAD = struct.Struct(">iB5x")
_BLOB_HEAD_BYTES = 5


def altered(
    message: Message,
    *,
    destination: Destination | None = None,
    original_destination: Destination | None = None,
    message_id: str | None = None,
    broker_sequence: int | None = None,
    persistent: bool | None = None,
    expiration: int | None = None,
    timestamp: int | None = None,
    type: str | None = None,
    redelivery_counter: int | None = None,
    properties_added: Mapping[str, PropertyValue] | None = None,
    properties_removed: Collection[str] = (),
    is_original: bool = False,
) -> Message:
    """Return a copy of ``message`` with these fields changed; None leaves a field unchanged.

    Added properties replace properties of the same name. Unchanged fields keep their bytes, so a field that was read
    from a frame always fits into the copy. If properties are added, unreadable properties are omitted, so that the
    added ones can be read. ``is_original``: the copy gets no original destination. Raises Unencodable if a change does
    not fit into a frame.
    """
    if is_original:
        assert original_destination is None, "an original has no original destination"
    else:
        original_destination = original_destination or message.original_destination
    copy = Message(
        message.destination if destination is None else destination,
        message.message_id if message_id is None else message_id,
        b"",
        message.body_kind,
        persistent=message.persistent if persistent is None else persistent,
        priority=message.priority,
        expiration=message.expiration if expiration is None else expiration,
        timestamp=message.timestamp if timestamp is None else timestamp,
        correlation_id=message.correlation_id,
        reply_to=message.reply_to,
        type=message.type if type is None else type,
        group_id=message.group_id,
        group_sequence=message.group_sequence,
        user_id=message.user_id,
        redelivery_counter=message.redelivery_counter if redelivery_counter is None else redelivery_counter,
        original_destination=original_destination,
    )
    copy.broker_sequence = message.broker_sequence if broker_sequence is None else broker_sequence
    copy.text_view = message.text_view if copy.message_id == message.message_id else None
    copy.sender = message.sender  # prove: copies-count-for-the-sender
    if isinstance(message, OpenedMessage):
        is_copy = not (message_id or broker_sequence or type or properties_added or properties_removed or is_original)
        if destination is not None and is_copy and message.size >= SHARED_BYTES_MIN:
            return PartMessage(message.whole if isinstance(message, PartMessage) else message, copy)
        try:
            opened = open_message(_frame(message, copy, properties_added, properties_removed))
        except struct.error as error:
            raise Unencodable(f"a number of message {copy.message_id} is out of range: {error}") from None
        opened.sender = message.sender
        return opened
    copy.body = message.body
    copy.shared_body = _shared(message, len(copy.body))
    copy.properties = message.properties
    if properties_added or properties_removed:
        kept = {name: value for name, value in (message.properties or {}).items() if name not in properties_removed}
        copy.properties = {**kept, **(properties_added or {})} or None
    return copy


def with_own_id(message: Message, message_id: str, *, destination: Destination | None = None) -> Message:
    """Return a copy with this id; the id of the original is a property of the copy. Raises Unencodable."""
    added: dict[str, PropertyValue] = {ORIGINAL_ID_PROPERTY: message.message_id}
    return altered(message, destination=destination, message_id=message_id, properties_added=added)


# A frame of at least this size is in memory once for all its copies.
SHARED_BYTES_MIN = 4 * 1024


class PartMessage(OpenedMessage):
    """Copy of an opened message for another destination, without its own frame: each access to ``raw`` makes a frame
    from that of ``whole``."""

    __slots__ = ("_size", "whole")

    def __init__(self, whole: OpenedMessage, header: Message) -> None:
        for name in HEADER:
            setattr(self, name, getattr(header, name))
        self.whole = whole
        self._is_compressed = whole.is_compressed
        self._has_properties = whole.may_have_properties
        self.shared_body = _shared(whole, whole.size)
        self.holders = self.held_bytes = 0
        self.sender = header.sender
        names = (self.destination, self.original_destination)
        self._size = whole.size + sum(len(each.name) for each in names if each is not None)

    @property
    def raw(self) -> bytes:
        return _frame(self.whole, self, None, ())

    @property  # type: ignore[misc]  # a message is not changed
    def body(self) -> bytes:
        return self.whole.body

    def inflated(self, bytes_max: int) -> bytes:
        return self.whole.inflated(bytes_max)

    def beginning(self, bytes_max: int) -> tuple[bytes, bool]:
        return self.whole.beginning(bytes_max)

    @property
    def properties_bytes(self) -> int:
        return self.whole.properties_bytes

    @property
    def marshalled_properties(self) -> bytes:
        return self.whole.marshalled_properties

    def has_property(self, entry: bytes) -> bool:
        return self.whole.has_property(entry)

    @property
    def deflated(self) -> bytes:
        return self.whole.deflated

    @property  # type: ignore[misc]  # as above
    def properties(self) -> dict[str, PropertyValue] | None:
        return self.whole.properties

    @property
    def quick_properties(self) -> dict[str, PropertyValue] | None:
        return self.whole.quick_properties

    @property
    def is_quick(self) -> bool:
        return self.whole.is_quick

    @property
    def size(self) -> int:
        return self._size


def _shared(message: Message, size: int) -> SharedBody | None:
    """Return the SharedBody of ``message`` and its copies; ``size`` is for a new one. None: the message is already
    counted in memory without a shared body."""
    if message.shared_body is None and not message.holders:
        message.shared_body = SharedBody(size)
    return message.shared_body


def with_redeliveries(frame: bytes, count: int) -> bytes:
    """Return ``frame``, which has OPENWIRE_VERSION, with ``count`` as its redelivery counter."""
    marks, _, _ = read_fields(unread(), frame, OPENWIRE_VERSION)
    counter_at = marks[10]
    return b"".join((frame[:counter_at], loose.I32.pack(count), frame[counter_at + loose.I32.size :]))


def of_user(message: Message, user_id: str | None) -> Message:
    """Return ``message`` with this user (JMSXUserID; None: no user). An opened message is copied; any other message is
    changed, because it is not shared yet."""
    if not isinstance(message, OpenedMessage):
        message.user_id = user_id
        return message
    raw = message.raw
    marks, _, _ = read_fields(unread(), raw, OPENWIRE_VERSION)
    user_at = marks[11] + loose.I64.size  # after the arrival time
    _, rest_at = loose.read_string(raw, user_at)
    fields = raw[_HEAD.size : user_at] + loose.string(user_id) + raw[rest_at:]
    copy = open_message(_HEAD.pack(len(fields) + _HEAD.size - 4, raw[4]) + fields)
    copy.broker_sequence = message.broker_sequence
    copy.sender = message.sender
    return copy


def _frame(
    message: OpenedMessage,
    copy: Message,
    properties_added: Mapping[str, PropertyValue] | None,
    properties_removed: Collection[str],
) -> bytes:
    """Return the frame of ``message`` with the header fields of ``copy`` that ``altered`` can change."""
    raw = message.raw
    marks, _, _ = read_fields(unread(), raw, OPENWIRE_VERSION)
    destination_at, transaction_at, original_at, message_id_at, sequence_at, _, delivery_at, content_at = marks[:8]
    properties_at, structure_at, counter_at = marks[8:11]
    reply_to_at = delivery_at + _DELIVERY.size
    _, timestamp_at = loose.read_destination(raw, reply_to_at)
    producer = raw[PRODUCER_AT:destination_at]
    message_id = raw[message_id_at:sequence_at]
    if copy.message_id != message.message_id:
        producer, _, _ = loose.split_key(copy.message_id)
        message_id = loose.message_id(copy.message_id)[: -loose.I64.size]
    # A destination keeps its bytes even if it moves from one field to the other.
    known = {
        message.original_destination: raw[original_at:message_id_at],
        message.destination: raw[destination_at:transaction_at],
    }
    fields = b"".join(
        (
            producer,
            known.get(copy.destination) or loose.destination(copy.destination),
            raw[transaction_at:original_at],
            known.get(copy.original_destination) or loose.destination(copy.original_destination),
            message_id,
            loose.I64.pack(copy.broker_sequence),
            raw[sequence_at + loose.I64.size : delivery_at],
            _DELIVERY.pack(copy.persistent, copy.expiration, copy.priority),
            raw[reply_to_at:timestamp_at],
            loose.I64.pack(copy.timestamp),
            raw[timestamp_at + loose.I64.size : content_at] if copy.type == message.type else loose.string(copy.type),
            raw[content_at:properties_at],
            _with(message, raw[properties_at:structure_at], properties_added, properties_removed),
            raw[structure_at:counter_at],
            loose.I32.pack(copy.redelivery_counter),
            raw[counter_at + loose.I32.size :],
        )
    )
    return _HEAD.pack(len(fields) + _HEAD.size - 4, raw[4]) + fields


def _with(
    message: Message, marshalled: bytes, added: Mapping[str, PropertyValue] | None, removed: Collection[str]
) -> bytes:
    """Return the marshalled properties of a message, as an OpenWire object, after adding and removing properties."""
    if not added and not removed:
        return marshalled
    known = message.properties
    if not known:  # no properties, or unreadable ones
        return loose.blob(encode_properties(dict(added))) if added else marshalled
    names = {*(added or ()), *removed}
    kept = marshalled[_BLOB_HEAD_BYTES:]
    if not names.isdisjoint(known):
        kept = without(kept, names)
    (count,) = loose.I32.unpack_from(kept)
    more = encode_properties(dict(added or {}))[loose.I32.size :]
    count += len(added or ())
    return loose.blob(loose.I32.pack(count) + kept[loose.I32.size :] + more) if count else loose.NULL
