"""JMS form of encoded messages, as ActiveMQ's transformer ``jms`` makes it (JMSMappingInboundTransformer), for clients
of other protocols (``protocols.encoded``). Pure.

In addition to ActiveMQ's mapping, all sections of a body are mapped; unsigned numbers, timestamps, uuids and symbols in
maps and lists are mapped; binary values are complete.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tandemmq.broker.protocols.amqp import sections
from tandemmq.broker.protocols.amqp.codec import read_section
from tandemmq.broker.protocols.amqp.errors import AmqpError, DecodeError
from tandemmq.broker.protocols.amqp.schema import Properties
from tandemmq.broker.protocols.amqp.sections import Section
from tandemmq.broker.protocols.amqp.types import Reader, Symbol, Timestamp, UByte, UInt, ULong, UShort, Uuid
from tandemmq.broker.protocols.encoded import NATIVE
from tandemmq.store.records.errors import Unencodable
from tandemmq.store.records.frames import OpenedMessage
from tandemmq.store.records.loose import has_room_for
from tandemmq.store.records.message import BodyKind, Message, PropertyValue
from tandemmq.store.records.properties import Byte, Char, Float, Long, Short, encode_properties, encode_stream
from tandemmq.store.records.utf import is_utf8

ORIGINAL_ENCODING: Final = "JMS_AMQP_ORIGINAL_ENCODING"
# Its values.
NO_BODY, DATA, SEQUENCE, VALUE_NULL, VALUE_STRING, VALUE_BINARY, VALUE_MAP, VALUE_LIST = range(1, 9)

# Longest message, and longest map or list, that is decoded on the event loop.
QUICK_BYTES_MAX: Final = 1 << 20
QUICK_VALUES_BYTES_MAX: Final = 16 * 1024
# Longest message, encoded or decoded, that stays in memory for its next subscriber.
KEPT_BYTES_MAX: Final = 64 * 1024
JAVA_OBJECT: Final = "application/x-java-serialized-object"
_UNTYPED: Final = (None, "application/octet-stream")
_TEXTUAL: Final = frozenset(f"application/{each}" for each in ("json", "xml", "javascript", "ecmascript", "xml-dtd"))
# Longest binary value that becomes a text.
BINARY_BYTES_MAX: Final = 4_096
_PRINTABLE: Final = {each: f"\\x{each:02x}" for each in range(256) if not 0x20 <= each < 0x7F or each == 0x5C}
_NULL: Final = 0x40
_BINARY: Final = (0xA0, 0xB0)
_STRING: Final = (0xA1, 0xB1)
_LIST: Final = (0x45, 0xC0, 0xD0)
_MAP: Final = (0xC1, 0xD1)
# The last decoded message and its result.
_last: tuple[Message, Message] | None = None


def decode(message: Message, *, is_quick: bool) -> Message | None:
    """Return the JMS form of an encoded message, or ``message`` if it has none. None: ``is_quick``, and it takes too
    long."""
    global _last
    last = _last
    if last is not None and last[0] is message:
        return last[1]
    if isinstance(message, OpenedMessage):
        if message.is_compressed:  # prove: amqp-bombs-are-not-decoded "message.is_compressed" -> "False"
            return message  # A compressed message comes from a JMS client; ActiveMQ's AMQP connector stores none.
        if is_quick and not message.is_quick:
            return None
    if is_quick and message.size > QUICK_BYTES_MAX:
        return None
    encoded = message.body
    try:
        found = sections.scan(encoded)
        if is_quick and not is_quickly_mapped(encoded, found, QUICK_VALUES_BYTES_MAX):
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


def _content_type(encoded: bytes, found: list[Section]) -> str | None:
    """Return the content type of the encoded message: ActiveMQ's transformer ``raw`` does not set it as a property."""
    for each in found:
        if each.code == sections.PROPERTIES:
            properties = read_section(each.code, encoded, each.value, each.stop)
            if isinstance(properties, Properties) and properties.content_type is not None:
                return str(properties.content_type)
    return None


class Unmapped(Exception):
    """A value has no JMS form."""


class JmsBody(NamedTuple):
    """Kind and content of a body, as in ``Message``, and its JMS_AMQP_ORIGINAL_ENCODING."""

    kind: BodyKind
    content: bytes
    encoding: int


def is_quickly_mapped(encoded: bytes, found: list[Section], bytes_max: int) -> bool:
    """Return whether ``jms_body`` decodes at most ``bytes_max`` bytes of lists and maps."""
    decoded = 0
    for each in found:
        is_decoded = each.code in (sections.SEQUENCE, sections.VALUE)
        if is_decoded and encoded[each.value] not in (*_BINARY, *_STRING):
            decoded += each.stop - each.value
    return decoded <= bytes_max


def jms_body(encoded: bytes, found: list[Section], content_type: str | None) -> JmsBody:
    """Return the JMS body of a message with these sections. Raises Unmapped, or DecodeError for a damaged body."""
    bodies = [each for each in found if each.code in sections.BODY]
    if not bodies:
        return JmsBody(_kind_of_no_body(content_type), b"", NO_BODY)
    code = bodies[0].code
    if code == sections.DATA:
        content = b"".join([_content(encoded, each) for each in bodies])
        return JmsBody(_kind_of_data(content, content_type), content, DATA)
    if code == sections.SEQUENCE:
        return JmsBody(
            BodyKind.STREAM, _stream([each for body in bodies for each in _decoded(encoded, body)]), SEQUENCE
        )
    return _of_value(encoded, bodies[0], content_type)


def _of_value(encoded: bytes, section: Section, content_type: str | None) -> JmsBody:
    code = encoded[section.value]
    if code == _NULL:
        return JmsBody(BodyKind.TEXT, b"", VALUE_NULL)
    if code in _STRING:
        text = _content(encoded, section)
        if not is_utf8(text):
            raise DecodeError("the string of the body is not UTF-8")
        return JmsBody(BodyKind.TEXT, text, VALUE_STRING)
    if code in _BINARY:
        kind = BodyKind.OBJECT if content_type == JAVA_OBJECT else BodyKind.BYTES
        return JmsBody(kind, _content(encoded, section), VALUE_BINARY)
    if code in _LIST:
        return JmsBody(BodyKind.STREAM, _stream(_decoded(encoded, section)), VALUE_LIST)
    if code in _MAP:
        return JmsBody(BodyKind.MAP, _map(_decoded(encoded, section)), VALUE_MAP)
    raise Unmapped


def _content(encoded: bytes, section: Section) -> bytes:
    """Return the bytes of a string or binary."""
    head = 2 if encoded[section.value] < 0xB0 else 5
    return encoded[section.value + head : section.stop]


def _decoded(encoded: bytes, section: Section) -> Any:
    return Reader(encoded[section.value : section.stop]).value()


def _stream(values: list[Any]) -> bytes:
    if any(isinstance(each, (list, dict)) for each in values):
        raise Unmapped  # a JMS stream has no lists or maps
    try:
        return encode_stream([each if type(each) is bytes else mapped(each) for each in values])
    except Unencodable:
        raise Unmapped from None


def _map(values: dict[Any, Any]) -> bytes:
    if not all(type(key) is str and has_room_for(key) for key in values):
        raise Unmapped
    try:
        return encode_properties(
            {key: value if type(value) is bytes else mapped(value) for key, value in values.items()}
        )
    except Unencodable:
        raise Unmapped from None


def mapped(value: Any) -> PropertyValue:
    """Return a value with a Java type: an unsigned number as the next larger signed type, a timestamp as long, a uuid
    or symbol as string, binary as text. Raises Unmapped for other types."""
    kind = type(value)
    found: PropertyValue
    if value is None or kind in (bool, int, float, str, Byte, Short, Long, Float, Char):
        found = value
    elif kind is Symbol:
        found = str(value)
    elif kind is UByte:
        found = Byte(value) if value <= 0x7F else Short(value)
    elif kind is UShort:
        found = Short(value) if value <= 0x7FFF else int(value)
    elif kind is UInt:
        found = int(value) if value <= 0x7FFFFFFF else Long(value)
    elif kind is ULong:
        found = Long(value - (1 << 64) if value >= 1 << 63 else value)
    elif kind is Timestamp:
        found = Long(value)
    elif kind is Uuid:
        found = uuid_text(value)
    elif kind is bytes and len(value) <= BINARY_BYTES_MAX:
        found = value.decode("latin-1").translate(_PRINTABLE)
    elif kind is list:
        found = [mapped(each) for each in value]
    elif kind is dict and all(isinstance(key, str) and has_room_for(key) for key in value):
        found = {str(key): mapped(each) for key, each in value.items()}
    else:
        raise Unmapped
    return found


def uuid_text(value: bytes) -> str:
    """Return the text of a UUID."""
    text = value.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _kind_of_no_body(content_type: str | None) -> BodyKind:
    if content_type == JAVA_OBJECT:
        return BodyKind.OBJECT
    if content_type in _UNTYPED:
        return BodyKind.BYTES
    return BodyKind.TEXT if is_textual(content_type) else BodyKind.NONE


def _kind_of_data(content: bytes, content_type: str | None) -> BodyKind:
    if content_type == JAVA_OBJECT:
        return BodyKind.OBJECT
    is_text = content_type not in _UNTYPED and is_textual(content_type) and is_utf8(content)
    return BodyKind.TEXT if is_text else BodyKind.BYTES


def is_textual(content_type: str | None) -> bool:
    """Return whether a content type denotes a text in UTF-8."""
    if content_type is None:
        return False
    parts = [each.strip().lower() for each in content_type.split(";")]
    for each in parts[1:]:
        name, _, value = each.partition("=")
        if name.strip() == "charset" and value.strip(' "') not in ("utf-8", "utf8"):
            return False
    kind = parts[0]
    return kind.startswith("text/") or kind in _TEXTUAL or kind.endswith(("+json", "+xml"))
