"""Decoder of stored AMQP messages for clients of other protocols (``protocols.encoded``). Pure."""

from __future__ import annotations

from typing import Final

from tandemmq.broker.protocols.amqp import sections
from tandemmq.broker.protocols.amqp.bodies import Unmapped, jms_body
from tandemmq.broker.protocols.amqp.bodies import is_quick as is_quickly_decoded
from tandemmq.broker.protocols.amqp.codec import read_section
from tandemmq.broker.protocols.amqp.errors import AmqpError
from tandemmq.broker.protocols.amqp.schema import Properties
from tandemmq.broker.protocols.encoded import NATIVE
from tandemmq.store.records.frames import OpenedMessage
from tandemmq.store.records.message import Message
from tandemmq.store.records.properties import Short

ORIGINAL_ENCODING: Final = "JMS_AMQP_ORIGINAL_ENCODING"
# Longest message, and longest map or list, that is decoded on the event loop.
QUICK_BYTES_MAX: Final = 1 << 20
QUICK_VALUES_BYTES_MAX: Final = 16 * 1024
# Longest message, encoded or decoded, that stays in memory for its next subscriber.
KEPT_BYTES_MAX: Final = 64 * 1024
# The last decoded message and its result.
_last: tuple[Message, Message] | None = None


def decode(message: Message, *, is_quick: bool) -> Message | None:
    """See ``encoded.decoded``."""
    global _last
    last = _last
    if last is not None and last[0] is message:
        return last[1]
    if isinstance(message, OpenedMessage):
        if message.is_compressed:  # prove: amqp-bombs-are-not-decoded "message.is_compressed" -> "False"
            return message  # sent by a JMS client, not stored by an AMQP connector of ActiveMQ
        if is_quick and not message.is_quick:
            return None
    if is_quick and message.size > QUICK_BYTES_MAX:
        return None
    encoded = message.body
    try:
        found = sections.scan(encoded)
        if is_quick and not is_quickly_decoded(encoded, found, QUICK_VALUES_BYTES_MAX):
            return None
        kind, body, encoding = jms_body(encoded, found, _content_type(encoded, found))
    except (AmqpError, Unmapped):
        return message
    made = Message(
        message.destination,
        message.message_id,
        body,
        kind,
        persistent=message.persistent,
        priority=message.priority,
        expiration=message.expiration,
        timestamp=message.timestamp,
        properties={**(message.properties or {}), ORIGINAL_ENCODING: Short(encoding)},
        correlation_id=message.correlation_id,
        reply_to=message.reply_to,
        type=message.type,
        group_id=message.group_id,
        group_sequence=message.group_sequence,
        user_id=message.user_id,
        redelivery_counter=message.redelivery_counter,
        original_destination=message.original_destination,
    )
    assert made.properties is not None, "ORIGINAL_ENCODING is a property"
    made.properties.pop(NATIVE, None)
    made.broker_sequence = message.broker_sequence
    made.text_view = message.text_view
    if max(message.size, made.size) <= KEPT_BYTES_MAX:
        _last = message, made
    return made


def _content_type(encoded: bytes, found: list[sections.Section]) -> str | None:
    """Return the content type of the encoded message: ActiveMQ's transformer ``raw`` does not set it as a property."""
    for each in found:
        if each.code == sections.PROPERTIES:
            properties = read_section(each.code, encoded, each.value, each.stop)
            if isinstance(properties, Properties) and properties.content_type is not None:
                return str(properties.content_type)
    return None
