"""Encoder of the broker's messages for AMQP clients (docs/formats/amqp.md). Pure.

A message from an AMQP client is stored encoded, and keeps the bytes of all its sections. The header is replaced only if
its values have changed. Delivery annotations are for one hop.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any, Final

from tandemmq.broker.core.commands import Undeliverable
from tandemmq.broker.protocols.amqp import bodies, hot, incoming, sections, types
from tandemmq.broker.protocols.amqp.codec import read_section, write_composite
from tandemmq.broker.protocols.amqp.errors import AmqpError
from tandemmq.broker.protocols.amqp.schema import UINT_MAX, Header, Properties
from tandemmq.broker.protocols.amqp.termini import address_of
from tandemmq.broker.protocols.amqp.types import Symbol, ULong, Uuid
from tandemmq.broker.protocols.encoded import NATIVE, is_encoded
from tandemmq.store.records.altered import EXPIRATION_PROPERTY
from tandemmq.store.records.errors import RecordDamaged, RecordTooLarge
from tandemmq.store.records.frames import OpenedMessage
from tandemmq.store.records.message import BodyKind, DestinationKind, Message, PropertyValue
from tandemmq.store.records.properties import Byte, decode_properties, decode_stream

# Longest body that is decoded or inflated on the event loop.
QUICK_BYTES_MAX: Final = 16 * 1024
# Longest text that is checked on the event loop.
QUICK_TEXT_BYTES_MAX: Final = 1 << 20
_JMS_TYPE: Final = "x-opt-jms-msg-type"
_JMS_DESTINATION: Final = "x-opt-jms-dest"
_JMS_REPLY_TO: Final = "x-opt-jms-reply-to"
_JMS_TYPES: Final = {
    BodyKind.NONE: 0,
    BodyKind.OBJECT: 1,
    BodyKind.MAP: 2,
    BodyKind.BYTES: 3,
    BodyKind.STREAM: 4,
    BodyKind.TEXT: 5,
}
_JMS_KINDS: Final = {
    DestinationKind.QUEUE: 0,
    DestinationKind.TOPIC: 1,
    DestinationKind.TEMP_QUEUE: 2,
    DestinationKind.TEMP_TOPIC: 3,
}
UBYTE_MAX: Final = 0xFF
_DATA: Final = b"\0\x53\x75\xb0"
_VALUE: Final = b"\0\x53\x77"
_SIZE: Final = struct.Struct(">I")
_BYTES: Final = BodyKind.BYTES


class TakesLong(Exception):
    """The message takes too long for the event loop."""


def as_sent(message: Message, redeliveries: int) -> bytes | None:
    """Return the message of an AMQP client if it goes out as it came; None: call ``encode``."""
    if type(message) is not Message or redeliveries or message.expiration or message.body_kind is not _BYTES:
        return None
    properties = message.properties
    if (
        properties is None
        or properties.get(NATIVE) is not True
        or incoming.MESSAGE_FORMAT in properties
        or EXPIRATION_PROPERTY in properties  # a dead letter that had an expiration
    ):
        return None
    encoded = message.body
    return encoded if hot.has_header(encoded, message.persistent, message.priority) else None


def encode(message: Message, redeliveries: int, now: int, bytes_max: int, *, is_quick: bool) -> tuple[list[bytes], int]:
    """Return the encoded message, in pieces, and its format. ``redeliveries``: number of failed deliveries.

    Raises TakesLong for a message that takes long if ``is_quick``. Raises Undeliverable for a message that is damaged,
    or that would have more than ``bytes_max`` bytes after inflation.
    """
    try:
        properties = (message.quick_properties if is_quick else message.properties) or {}
    except RecordTooLarge:
        raise TakesLong from None
    body = _body_of(message, bytes_max, is_quick=is_quick)
    format = properties.get(incoming.MESSAGE_FORMAT)
    message_format = int(format) & UINT_MAX if isinstance(format, int) else 0
    if is_encoded(message):
        is_dead = EXPIRATION_PROPERTY in properties
        return _encoded(message, body, redeliveries, now, is_dead=is_dead), message_format
    try:
        header = _header(message, properties, redeliveries, now)
        pieces = [] if header is None else [write_composite(header)]
        pieces.append(_section(sections.MESSAGE_ANNOTATIONS, _annotations(message, properties)))
        pieces.append(write_composite(_properties(message, properties)))
        others = {
            name: value for name, value in properties.items() if not name.startswith(("JMS_AMQP_", "AMQ_SCHEDULED_"))
        }
        if others:
            pieces.append(_section(sections.APPLICATION_PROPERTIES, others))
        pieces += _body(message, properties, body)
        footer = _prefixed(properties, incoming.FOOTER)
        if footer:
            pieces.append(_section(sections.FOOTER, footer))
    except (ValueError, RecordDamaged, IndexError, struct.error) as error:
        raise Undeliverable(str(error)) from None
    return pieces, message_format


def _body_of(message: Message, bytes_max: int, *, is_quick: bool) -> bytes:
    if is_quick and message.body_kind is BodyKind.TEXT and message.size > QUICK_TEXT_BYTES_MAX:
        raise TakesLong
    is_long = message.size > QUICK_BYTES_MAX
    if is_quick and is_long and message.body_kind in (BodyKind.MAP, BodyKind.STREAM):
        raise TakesLong
    if not isinstance(message, OpenedMessage):
        return message.body
    if is_quick and (not message.is_quick or (is_long and message.is_compressed)):
        raise TakesLong
    limit = min(bytes_max, QUICK_TEXT_BYTES_MAX) if is_quick and message.is_compressed else bytes_max
    try:
        return message.inflated(limit)
    except RecordTooLarge as error:
        if limit < bytes_max:
            raise TakesLong from None
        raise Undeliverable(str(error)) from None
    except (RecordDamaged, ValueError) as error:
        raise Undeliverable(str(error)) from None


def _header(message: Message, properties: dict[str, PropertyValue], redeliveries: int, now: int) -> Header | None:
    found = Header()
    if message.persistent:
        found.durable = True
    if message.priority != incoming.DEFAULT_PRIORITY:
        found.priority = min(max(message.priority, 0), UBYTE_MAX)
    if message.expiration:
        found.ttl = _ttl(message, now)
    if redeliveries:
        found.delivery_count = redeliveries
    first = properties.get(incoming.FIRST_ACQUIRER)
    if isinstance(first, bool):
        found.first_acquirer = first
    has_header = properties.get(incoming.HAS_HEADER) is True or found != Header()
    return found if has_header else None


def _encoded(message: Message, encoded: bytes, redeliveries: int, now: int, *, is_dead: bool) -> list[bytes]:
    """Return a message that is stored encoded. ``is_dead``: it is a dead letter that had an expiration."""
    is_as_sent = not redeliveries and not message.expiration and not is_dead
    if is_as_sent and hot.has_header(encoded, message.persistent, message.priority):
        return [encoded]
    try:
        start = 0
        old: Header | None = None
        has_delivery_annotations = False
        found_sections = sections.scan(encoded)
        for section in found_sections:
            if section.code == sections.HEADER:
                found = read_section(section.code, encoded, section.value, section.stop)
                old = found if isinstance(found, Header) else None
            elif section.code == sections.DELIVERY_ANNOTATIONS:
                has_delivery_annotations = True
            else:
                start = section.start
                break
            start = section.stop
        new = _updated(old or Header(), message, redeliveries, now)
        is_expiration_removed = not message.expiration and (is_dead or bool(old and old.ttl))
        if new == (old or Header()) and not has_delivery_annotations and not is_expiration_removed:
            return [encoded]
        head = [write_composite(new)] if old is not None or new != Header() else []
        if is_expiration_removed:
            return head + _without_expiration(encoded, found_sections, start)
        return [*head, encoded[start:]]
    except (AmqpError, ValueError) as error:
        raise Undeliverable(str(error)) from None


def _without_expiration(encoded: bytes, found: list[sections.Section], start: int) -> list[bytes]:
    """Return the message from ``start`` on, without absolute-expiry-time: Qpid JMS drops a message that has expired."""
    for each in found:
        if each.code == sections.PROPERTIES:
            given = read_section(each.code, encoded, each.value, each.stop)
            if isinstance(given, Properties) and given.absolute_expiry_time is not None:
                kept = replace(given, absolute_expiry_time=None)
                return [encoded[start : each.start], write_composite(kept), encoded[each.stop :]]
    return [encoded[start:]]


def _updated(old: Header, message: Message, redeliveries: int, now: int) -> Header:
    """Return the header with the present values. Fields whose values have not changed keep their form: absent, or a
    default."""
    return Header(
        durable=old.durable if (old.durable is True) is message.persistent else message.persistent,
        priority=old.priority,
        ttl=_ttl(message, now) if message.expiration else None if old.ttl else old.ttl,
        first_acquirer=old.first_acquirer,
        delivery_count=redeliveries or (None if old.delivery_count else old.delivery_count),
    )


def _ttl(message: Message, now: int) -> int:
    return min(max(message.expiration - now, 1), UINT_MAX)


def _section(code: int, value: Any) -> bytes:
    return b"\0" + types.encode(ULong(code)) + types.encode(value)


def _prefixed(properties: dict[str, PropertyValue], prefix: str) -> dict[Symbol, Any]:
    return {
        Symbol(name.removeprefix(prefix)): value
        for name, value in properties.items()
        if name.startswith(prefix) and name.isascii()
    }


def _annotations(message: Message, properties: dict[str, PropertyValue]) -> dict[Symbol, Any]:
    found = _prefixed(properties, incoming.ANNOTATION)
    kind = _JMS_TYPES.get(message.body_kind)
    if kind is not None:
        found.setdefault(Symbol(_JMS_TYPE), Byte(kind))
    found[Symbol(_JMS_DESTINATION)] = Byte(_JMS_KINDS[message.destination.kind])
    if message.reply_to is not None:
        found[Symbol(_JMS_REPLY_TO)] = Byte(_JMS_KINDS[message.reply_to.kind])
    return found


def _properties(message: Message, properties: dict[str, PropertyValue]) -> Properties:
    text = message.text_view
    found = Properties(
        message_id=_id_of_broker(message.message_id) if text is None else _id_of(text),
        to=address_of(message.destination),
        subject=message.type,
        reply_to=None if message.reply_to is None else address_of(message.reply_to),
        correlation_id=None if message.correlation_id is None else _id_of(message.correlation_id),
        absolute_expiry_time=message.expiration or None,
        creation_time=message.timestamp or None,
        group_id=message.group_id,
    )
    if message.group_sequence:
        found.group_sequence = message.group_sequence & UINT_MAX
    if message.user_id is not None:
        found.user_id = message.user_id.encode("utf-8", "replace")
    found.content_type = _text(properties, incoming.CONTENT_TYPE)
    found.content_encoding = _text(properties, incoming.CONTENT_ENCODING)
    found.reply_to_group_id = _text(properties, incoming.REPLY_TO_GROUP_ID)
    if message.body_kind is BodyKind.OBJECT and found.content_type is None:
        found.content_type = bodies.JAVA_OBJECT
    return found


def _text(properties: dict[str, PropertyValue], name: str) -> str | None:
    value = properties.get(name)
    return value if isinstance(value, str) else None


def _id_of_broker(id: str) -> str:
    return id if id.startswith("ID:") else f"ID:{id}"


def _id_of(text: str) -> Any:
    """Return the id that ``id_text`` maps to this text; any other text is a string."""
    try:
        if text.startswith(incoming.STRING_PREFIX):
            return text.removeprefix(incoming.STRING_PREFIX)
        if text.startswith(incoming.ULONG_PREFIX):
            number = int(text.removeprefix(incoming.ULONG_PREFIX))
            return ULong(number) if 0 <= number < 1 << 64 else text
        if text.startswith(incoming.BINARY_PREFIX):
            return bytes.fromhex(text.removeprefix(incoming.BINARY_PREFIX))
        if text.startswith(incoming.UUID_PREFIX):
            found = bytes.fromhex(text.removeprefix(incoming.UUID_PREFIX).replace("-", ""))
            return Uuid(found) if len(found) == 16 else text
    except ValueError:
        pass
    return text


def _body(message: Message, properties: dict[str, PropertyValue], body: bytes) -> list[bytes]:
    given = properties.get(bodies.ORIGINAL_ENCODING)
    encoding = int(given) if isinstance(given, int) else 0
    kind = message.body_kind
    if kind is BodyKind.NONE or (encoding == bodies.NO_BODY and not body):
        return []
    if kind is BodyKind.MAP:
        return [_VALUE + types.encode(decode_properties(body) if body else {})]
    if kind is BodyKind.STREAM:
        items = decode_stream(body)
        code = sections.SEQUENCE if encoding == bodies.SEQUENCE else sections.VALUE
        return [_section(code, items)]
    if kind is BodyKind.TEXT:
        if encoding == bodies.VALUE_NULL and not body:
            return [_VALUE + b"\x40"]
        if encoding == bodies.DATA:
            return [_DATA + _SIZE.pack(len(body)), body]
        text = _valid(body)
        return [_VALUE + b"\xb1" + _SIZE.pack(len(text)), text]
    if encoding == bodies.VALUE_BINARY:
        return [_VALUE + b"\xb0" + _SIZE.pack(len(body)), body]
    return [_DATA + _SIZE.pack(len(body)), body]


def _valid(text: bytes) -> bytes:
    """Return the text as valid UTF-8. A lone surrogate of Java, which would make a client close its connection, becomes
    a question mark."""
    if text.isascii():
        return text
    return text.decode("utf-8", "surrogatepass").encode("utf-8", "replace")
