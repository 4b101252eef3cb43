"""A message to the record that stores it: its frame (openwire), and what is around that (commands)."""

from __future__ import annotations

import struct

from tandemmq.store.records import loose
from tandemmq.store.records.commands import PRIORITIES, destination_field, encode_add, with_sender
from tandemmq.store.records.errors import Unencodable
from tandemmq.store.records.message import BodyKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.properties import encode_properties
from tandemmq.store.records.transactions import TransactionId

try:
    from tandemmq.store.records import native
except ImportError:  # not compiled
    native = None  # type: ignore[assignment]

_TEXT = int(BodyKind.TEXT)
_BYTES = int(BodyKind.BYTES)


def encode_stored(message: Message, transaction: TransactionId | None = None) -> bytes:
    """The payload that stores ``message``; with a transaction it waits for the Commit. Raises Unencodable."""
    payload = None if native is None or transaction is not None else _encode_plain(message)
    if payload is None:
        payload = encode_add(message, encode_message(message), transaction)
    return payload if message.sender is None else with_sender(payload, message.sender)


def _encode_plain(message: Message) -> bytes | None:
    """The same of a message with nothing but what nearly all have, and properties; None: of any other."""
    kind = message.body_kind
    if (
        (kind != _TEXT and kind != _BYTES)
        or message.raw is not None
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
    properties = message.properties
    message_id = message.message_id
    prefix, _, last = message_id.rpartition(":")
    producer = loose.producers.get(prefix)
    destination = loose.destinations.get(message.destination)
    if producer is None or destination is None or not loose.is_plain_sequence(last):
        return None  # they are known by the next
    sequence = int(last)
    assert native is not None, "it was asked for"
    try:
        return native.plain_add(
            kind,
            producer,
            destination,
            sequence,
            message.broker_sequence or sequence,
            message.persistent,
            message.expiration,
            message.priority,
            message.timestamp,
            message.body,
            encode_properties(properties) if properties else b"",
            destination_field(message.destination),
            message_id.encode(),
            PRIORITIES[message.priority],
        )
    except (OverflowError, IndexError, struct.error) as error:
        raise Unencodable(f"a number of message {message_id} is out of range: {error}") from None
