"""Encoder of the record that stores a message: an OpenWire frame in an Add command."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from tandemmq.store.records import loose
from tandemmq.store.records.commands import (
    PRIORITIES,
    destination_field,
    destination_fields,
    encode_add,
    transaction_field,
    with_sender,
)
from tandemmq.store.records.errors import Unencodable
from tandemmq.store.records.message import BodyKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.properties import encode_properties
from tandemmq.store.records.protobuf import SHORT, SHORT_SIZE, varint
from tandemmq.store.records.transactions import TransactionId

try:
    from tandemmq.store.records import native
except ImportError:  # not compiled
    native = None  # type: ignore[assignment]

_TEXT: Final = int(BodyKind.TEXT)
_BYTES: Final = int(BodyKind.BYTES)
# Fixed parts of a frame (fields.py); x: the field is absent, or 0.
_HEAD: Final = struct.Struct(">iBxxxxx")  # size, type; command id, response required
_BETWEEN_PRODUCERS: Final = b"\0\0\1\x6e"  # transaction, original destination; message id
# sequence, broker sequence; original transaction, group, its sequence, correlation; persistent, expiration, priority;
# reply to; timestamp; type
_MIDDLE: Final = struct.Struct(">qqxxxxxxx?qbxqx")
_TEXT_CONTENT: Final = struct.Struct(">Bii")
_CONTENT: Final = struct.Struct(">Bi")
# Data structure, target, compressed, redelivery counter, path, arrival, user, by bridge, droppable, cluster; broker in;
# broker out, first for consumer.
_END: Final = struct.Struct(">20xq9x")
_FIXED: Final = _HEAD.size - 4 + len(_BETWEEN_PRODUCERS) + _MIDDLE.size + _END.size


def encode_stored(message: Message, transaction: TransactionId | None = None) -> bytes:
    """Return the payload that stores ``message``. With a transaction, the message is stored when the transaction
    commits. Raises Unencodable."""
    # Fields of a plain Message are read directly; those of an OpenedMessage are properties.
    payload = _encode_plain(message, transaction) if type(message) is Message else None
    if payload is None:
        payload = encode_add(message, encode_message(message), transaction)
    return payload if message.sender is None else with_sender(payload, message.sender)


def _encode_plain(message: Message, transaction: TransactionId | None) -> bytes | None:
    """Return the payload of a text or bytes message with only the usual header fields, or None for other messages."""
    kind = message.body_kind
    if (
        (kind != _TEXT and kind != _BYTES)
        or message._raw is not None
        or message.correlation_id is not None
        or message.reply_to is not None
        or message.type is not None
        or message.group_id is not None
        or message.group_sequence
        or message.user_id is not None
        or message.original_destination is not None
        or message.redelivery_counter
    ):
        return None
    destination = loose.destinations.get(message.destination)
    if destination is None:
        return None  # the other encoder caches it for the next message
    field = destination_fields.get(message.destination) or destination_field(message.destination)
    if transaction is not None:
        field = transaction_field(transaction) + field
    try:
        marshalled = message.marshalled
        if marshalled is None:
            properties = message._properties
            marshalled = encode_properties(properties) if properties else b""
        return plain_add(
            message.message_id,
            loose.producers,
            kind,
            destination,
            message.broker_sequence,
            message.persistent,
            message.expiration,
            message.priority,
            message.timestamp,
            message._body,
            marshalled,
            field,
            loose.NULL if message.text_view is None else loose.string(message.text_view),
            PRIORITIES[message.priority],
        )
    except (OverflowError, IndexError, struct.error) as error:
        raise Unencodable(f"a number of message {message.message_id} is out of range: {error}") from None


def _plain_add(
    message_id: str,
    producers: dict[str, bytes],
    kind: int,
    destination: bytes,
    broker_sequence: int,
    persistent: bool,
    expiration: int,
    priority: int,
    timestamp: int,
    body: bytes,
    properties: bytes,
    field: bytes,
    text: bytes,
    tail: bytes,
) -> bytes | None:
    """Do the same as ``native.plain_add`` (see native.pyi) in Python. Raises struct.error for a number that is out of
    range."""
    prefix, _, last = message_id.rpartition(":")
    producer = producers.get(prefix)
    if producer is None or not loose.is_plain_sequence(last):
        return None
    sequence = int(last)
    key = message_id.encode()
    length = len(body)
    if kind == _TEXT:
        if not body.isascii() or b"\0" in body:
            return None
        content = _TEXT_CONTENT.pack(1, length + 4, length)
    else:
        content = _CONTENT.pack(1, length) if length else loose.NULL
    marshalled = loose.blob(properties) if properties else loose.NULL
    size = _FIXED + 2 * len(producer) + len(destination) + len(text) + len(content) + length + len(marshalled)
    frame_size = size + 4
    frame_length = SHORT[frame_size] if frame_size < SHORT_SIZE else varint(frame_size)
    key_size = len(key)
    key_length = SHORT[key_size] if key_size < SHORT_SIZE else varint(key_size)
    command_size = len(field) + len(key_length) + key_size + len(frame_length) + size + len(tail) + 6
    return b"".join(
        (
            b"\1",
            SHORT[command_size] if command_size < SHORT_SIZE else varint(command_size),
            field,
            b"\x1a",
            key_length,
            key,
            b"\x22",
            frame_length,
            _HEAD.pack(size, kind),
            producer,
            destination,
            _BETWEEN_PRODUCERS,
            text,
            producer,
            _MIDDLE.pack(sequence, broker_sequence or sequence, persistent, expiration, priority, timestamp),
            content,
            body,
            marshalled,
            _END.pack(timestamp),
            tail,
        )
    )


plain_add: Final[Callable[..., bytes | None]] = _plain_add if native is None else native.plain_add
