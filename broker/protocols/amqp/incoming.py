"""Message of an AMQP client to the broker's message, as ActiveMQ's transformer ``jms`` maps it (docs/formats/amqp.md).
Pure.

What ``jms`` would lose is kept: then the body is the whole encoded message (``JMS_AMQP_NATIVE``), and the fields and
properties are mapped as far as they can be.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from tandemmq.broker.core.scheduling.schedule import CRON, DELAY, PERIOD, REPEAT
from tandemmq.broker.protocols.amqp import sections
from tandemmq.broker.protocols.amqp.addresses import destination_of, reply_to_of
from tandemmq.broker.protocols.amqp.codec import composed
from tandemmq.broker.protocols.amqp.errors import PRECONDITION_FAILED, RESOURCE_LIMIT, AmqpError, DecodeError, Scope
from tandemmq.broker.protocols.amqp.schema import Header, Properties
from tandemmq.broker.protocols.amqp.sections import Section, scan
from tandemmq.broker.protocols.amqp.types import Described, Reader, Symbol, Timestamp, UByte, UInt, ULong, UShort, Uuid
from tandemmq.store.records.errors import Unencodable
from tandemmq.store.records.loose import has_room_for
from tandemmq.store.records.message import TIME_MAX, BodyKind, Destination, DestinationKind, Message, PropertyValue
from tandemmq.store.records.properties import Byte, Char, Float, Long, Short, encode_properties
from tandemmq.store.records.utf import is_utf8

NATIVE: Final = "JMS_AMQP_NATIVE"
ORIGINAL_ENCODING: Final = "JMS_AMQP_ORIGINAL_ENCODING"
MESSAGE_FORMAT: Final = "JMS_AMQP_MESSAGE_FORMAT"
HAS_HEADER: Final = "JMS_AMQP_HEADER"
HAS_PROPERTIES: Final = "JMS_AMQP_PROPERTIES"
FIRST_ACQUIRER: Final = "JMS_AMQP_FirstAcquirer"
CONTENT_TYPE: Final = "JMS_AMQP_ContentType"
CONTENT_ENCODING: Final = "JMS_AMQP_ContentEncoding"
REPLY_TO_GROUP_ID: Final = "JMS_AMQP_ReplyToGroupID"
# Ours: ActiveMQ has the message-id of the client inside the id of the stored message.
MESSAGE_ID: Final = "JMS_AMQP_MESSAGE_ID"
ANNOTATION: Final = "JMS_AMQP_MA_"
FOOTER: Final = "JMS_AMQP_FT_"
JAVA_OBJECT: Final = "application/x-java-serialized-object"
UNKNOWN_BYTES: Final = "application/octet-stream"

# Values of JMS_AMQP_ORIGINAL_ENCODING.
NO_BODY, DATA, SEQUENCE, VALUE_NULL, VALUE_STRING, VALUE_BINARY, VALUE_MAP, VALUE_LIST = range(1, 9)

# Limits of a message beside its body: bytes of the other sections, and properties.
ENVELOPE_BYTES_MAX: Final = 1 << 20
PROPERTIES_MAX: Final = 1_000
# Longest map that is stored as a map; a longer one stays encoded.
MAP_BYTES_MAX: Final = 64 * 1024
# Longest binary value that becomes a text; a message with a longer one stays encoded.
BINARY_BYTES_MAX: Final = 4_096
_PRINTABLE: Final = {each: f"\\x{each:02X}" for each in range(256) if not 0x20 <= each < 0x7F or each == 0x5C}
# Longest body that is copied, and checked for UTF-8, on the event loop.
QUICK_BYTES_MAX: Final = 1 << 20
PRIORITY_MAX: Final = 9
DEFAULT_PRIORITY: Final = 4
_DELIVERY_DELAY: Final = "x-opt-delivery-delay"
_DELIVERY_TIME: Final = "x-opt-delivery-time"
_DELIVERY_REPEAT: Final = "x-opt-delivery-repeat"
_DELIVERY_PERIOD: Final = "x-opt-delivery-period"
_DELIVERY_CRON: Final = "x-opt-delivery-cron"
# Application properties that ActiveMQ takes for fields of the message; here they stay with the encoded message.
_FIELDS: Final = frozenset(
    [
        "JMSXDeliveryCount",
        "JMSXGroupID",
        "JMSXGroupSeq",
        "JMSCorrelationID",
        "JMSDeliveryMode",
        "JMSExpiration",
        "JMSPriority",
        "JMSRedelivered",
        "JMSReplyTo",
        "JMSTimestamp",
        "JMSType",
    ]
)
_TEXTUAL: Final = frozenset(f"application/{each}" for each in ("json", "xml", "javascript", "ecmascript", "xml-dtd"))
_UNTYPED: Final = (None, UNKNOWN_BYTES)


_NOWHERE: Final = Destination(DestinationKind.QUEUE, "")


class _Lossy(Exception):
    """The body has no exact form in JMS."""


class Incoming:
    """The parts of one message while it is mapped. ``is_exact``: nothing was lost so far."""

    def __init__(self, encoded: bytes, now: int) -> None:
        self._encoded = encoded
        self._now = now
        self.translate: Callable[[], None] | None = None  # sets a long body, on any thread
        self._to: Any = None
        self._has_time = False  # of delivery
        self.is_exact = True
        self.properties: dict[str, PropertyValue] = {}
        self.sections = scan(encoded)
        self._by_code = {each.code: each for each in self.sections}
        body = sum([each.stop - each.start for each in self.sections if each.code in sections.BODY])
        if len(encoded) - body > ENVELOPE_BYTES_MAX:
            raise _too_much(f"{len(encoded) - body} bytes beside its body, and {ENVELOPE_BYTES_MAX} are allowed")

    def message(self, destination: Destination | None, message_id: str, message_format: int) -> Message:
        """Return the message; without ``destination``, it names its own. Raises AmqpError for one that is damaged."""
        message = Message(destination or _NOWHERE, message_id, b"", BodyKind.BYTES, properties=self.properties)
        self._apply_header(message)
        self._apply_annotations(sections.MESSAGE_ANNOTATIONS, ANNOTATION)
        content_type = self._apply_properties(message)
        if destination is None:
            if self._to is None:
                raise AmqpError(PRECONDITION_FAILED, "the message has no address in its property to", Scope.LINK)
            message.destination = destination_of(self._to)
        self._apply_application_properties()
        self._apply_annotations(sections.FOOTER, FOOTER)
        if message_format:
            self.properties[MESSAGE_FORMAT] = Long(message_format)
        if len(self.properties) > PROPERTIES_MAX:
            raise _too_much(f"more than {PROPERTIES_MAX} properties")
        try:
            if not self.is_exact:
                raise _Lossy
            self._apply_body(message, content_type)
        except _Lossy:
            self.properties.pop(ORIGINAL_ENCODING, None)
            self.properties[NATIVE] = True
            message.body, message.body_kind = self._encoded, BodyKind.BYTES
        return message

    def _value(self, code: int) -> Any:
        """Return the decoded value of a section; None: there is no such section."""
        section = self._by_code.get(code)
        if section is None:
            return None
        return Reader(self._encoded[section.value : section.stop]).value()

    def _composite(self, code: int) -> Any:
        section = self._by_code.get(code)
        if section is None:
            return None
        return composed(Described(ULong(code), self._value(code)))

    def _apply_header(self, message: Message) -> None:
        header = self._composite(sections.HEADER)
        if not isinstance(header, Header):
            return
        self.properties[HAS_HEADER] = True
        message.persistent = header.durable is True
        if header.priority is not None:
            message.priority = min(header.priority, PRIORITY_MAX)
        if header.ttl:
            message.expiration = self._now + header.ttl
        if header.first_acquirer is not None:
            self.properties[FIRST_ACQUIRER] = header.first_acquirer
        message.redelivery_counter = min(header.delivery_count or 0, 0x7FFFFFFF)

    def _map(self, code: int) -> dict[Any, Any]:
        found = self._value(code)
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise DecodeError(f"the section 0x{code:x} is not a map")
        return found

    def _apply_annotations(self, code: int, prefix: str) -> None:
        for key, value in self._map(code).items():
            if not isinstance(key, str):
                self.is_exact = False
                continue
            self._put(prefix + key, value)
            if code != sections.MESSAGE_ANNOTATIONS:
                continue
            if key.startswith("x-opt-delivery-"):
                self._schedule(str(key), value)

    def _schedule(self, key: str, value: Any) -> None:
        """Delay or repeat the message; the engine refuses a schedule that is impossible."""
        if key == _DELIVERY_CRON:
            if not isinstance(value, str):
                raise DecodeError(f"the annotation {key} is not a string")
            self.properties[CRON] = _fitting(str(value))
        elif key in (_DELIVERY_REPEAT, _DELIVERY_PERIOD, _DELIVERY_DELAY, _DELIVERY_TIME):
            if isinstance(value, bool) or not isinstance(value, int) or abs(value) > TIME_MAX:
                raise DecodeError(f"the annotation {key} is not a number")
            if key == _DELIVERY_REPEAT:
                # ActiveMQ stores an int; more than that is more than any limit of the engine.
                self.properties[REPEAT] = max(min(int(value), 0x7FFFFFFF), -1)
            elif key == _DELIVERY_PERIOD:
                self.properties[PERIOD] = Long(value)
            else:
                self._delay(key, value)

    def _delay(self, key: str, value: int) -> None:
        """Delay the message. Its delivery time counts if it has a delay, too (Artemis)."""
        if key == _DELIVERY_TIME:
            value = int(value) - self._now
            self._has_time = True
        elif self._has_time:
            return
        self.properties.pop(DELAY, None)
        if value > 0:
            self.properties[DELAY] = Long(value)

    def _apply_properties(self, message: Message) -> str | None:
        """Apply the section properties, and return the content type."""
        found = self._composite(sections.PROPERTIES)
        if not isinstance(found, Properties):
            return None
        self.properties[HAS_PROPERTIES] = True
        self._to = found.to
        if found.message_id is not None:
            self.properties[MESSAGE_ID] = id_text(found.message_id)
        if found.user_id is not None:
            self.is_exact = False  # JMSXUserID is the user that the broker knows
        message.type = _field(found.subject)
        if found.reply_to is not None:
            if not isinstance(found.reply_to, str) or not found.reply_to:
                raise DecodeError("reply-to is not an address")
            message.reply_to = reply_to_of(str(found.reply_to))
        if found.correlation_id is not None:
            message.correlation_id = id_text(found.correlation_id)
        if found.absolute_expiry_time:
            message.expiration = _time(found.absolute_expiry_time)
        if found.creation_time:
            message.timestamp = _time(found.creation_time)
        message.group_id = _field(found.group_id)
        message.group_sequence = _signed_int(found.group_sequence or 0)
        for name, value in (
            (CONTENT_TYPE, found.content_type),
            (CONTENT_ENCODING, found.content_encoding),
            (REPLY_TO_GROUP_ID, found.reply_to_group_id),
        ):
            if value is not None:
                self.properties[name] = str(value)
        return None if found.content_type is None else str(found.content_type)

    def _apply_application_properties(self) -> None:
        for key, value in self._map(sections.APPLICATION_PROPERTIES).items():
            if not isinstance(key, str):
                raise DecodeError("the name of an application property is not a string")
            if key in _FIELDS or key.startswith("JMS_AMQP_"):
                self.is_exact = False
            else:
                self._put(str(key), value)

    def _put(self, name: str, value: Any) -> None:
        if not has_room_for(name):
            self.is_exact = False
            return
        try:
            self.properties[name] = self._mapped(value)
        except _Lossy:
            self.is_exact = False

    def _mapped(self, value: Any) -> PropertyValue:
        """Return the value with a type of Java. Raises _Lossy if it has no form at all."""
        if isinstance(value, (Timestamp, Uuid)):
            self.is_exact = False
        return mapped(value)

    # ---- the body

    def _apply_body(self, message: Message, content_type: str | None) -> None:
        bodies = [each for each in self.sections if each.code in sections.BODY]
        if not bodies:
            message.body_kind = _kind_of_nothing(content_type)
            encoding = NO_BODY
        elif len(bodies) > 1 or bodies[0].code == sections.SEQUENCE:
            raise _Lossy
        elif bodies[0].code == sections.DATA:
            if self._encoded[bodies[0].value] not in (0xA0, 0xB0):
                raise DecodeError("a data section is not binary")
            self._apply_data(message, bodies[0], content_type)
            encoding = DATA
        else:
            encoding = self._apply_value(message, bodies[0], content_type)
        self.properties[ORIGINAL_ENCODING] = Short(encoding)

    def _apply_value(self, message: Message, section: Section, content_type: str | None) -> int:
        code = self._encoded[section.value]
        if code == 0x40:
            message.body_kind = BodyKind.TEXT
            return VALUE_NULL
        if code in (0xA1, 0xB1):
            message.body_kind = BodyKind.TEXT
            if not self._put_off(message, section):
                message.body = self._content(section)
                if not _is_text(message.body):
                    raise DecodeError("the string of the body is not UTF-8")
            return VALUE_STRING
        if code in (0xA0, 0xB0):
            message.body_kind = BodyKind.OBJECT if content_type == JAVA_OBJECT else BodyKind.BYTES
            if not self._put_off(message, section):
                message.body = self._content(section)
            return VALUE_BINARY
        if code in (0xC1, 0xD1) and section.stop - section.value <= MAP_BYTES_MAX:
            message.body, message.body_kind = _map_body(self._encoded[section.value : section.stop]), BodyKind.MAP
            return VALUE_MAP
        raise _Lossy

    def _apply_data(self, message: Message, section: Section, content_type: str | None) -> None:
        is_text = content_type not in _UNTYPED and is_textual(content_type)
        message.body_kind = BodyKind.TEXT if is_text else BodyKind.BYTES
        if content_type == JAVA_OBJECT:
            message.body_kind = BodyKind.OBJECT
        if not self._put_off(message, section):
            message.body = self._content(section)
            if is_text and not _is_text(message.body):
                message.body_kind = BodyKind.BYTES

    def _put_off(self, message: Message, section: Section) -> bool:
        """Return whether the body is long: then a thread copies it, and checks a text."""
        if section.stop - section.value <= QUICK_BYTES_MAX:
            return False
        message.body = self._encoded
        self.translate = partial(_cut, message, section)
        return True

    def _content(self, section: Section) -> bytes:
        return _content(self._encoded, section)


def _content(encoded: bytes, section: Section) -> bytes:
    """Return the bytes of a string or binary."""
    head = 2 if encoded[section.value] < 0xB0 else 5
    return encoded[section.value + head : section.stop]


def _cut(message: Message, section: Section) -> None:
    """Set the body of a message that has the whole encoded message as its body."""
    message.body = _content(message.body, section)
    if message.body_kind is BodyKind.TEXT and not is_utf8(message.body):
        message.body_kind = BodyKind.BYTES


def _map_body(encoded: bytes) -> bytes:
    """Return the body of a map message. Raises _Lossy for a map that Java's has no room for."""
    try:
        found = Reader(encoded).value()
    except DecodeError:
        raise _Lossy from None  # keys that Python takes for equal, or values without end: the bytes stay as they are
    if not all(type(key) is str and has_room_for(key) for key in found):
        raise _Lossy
    changed: dict[str, PropertyValue] = {}
    for key, value in found.items():
        if not isinstance(value, (type(None), bool, int, float, str, bytes)) or isinstance(value, (Timestamp, Uuid)):
            raise _Lossy
        changed[key] = value if type(value) is bytes else mapped(value)
    try:
        return encode_properties(changed)
    except Unencodable:
        raise _Lossy from None


def mapped(value: Any) -> PropertyValue:
    """Return a value with a type of Java: unsigned numbers as the next larger signed ones, timestamps as long, uuids
    and symbols as strings, binary as text. Raises _Lossy for other types."""
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
        raise _Lossy
    return found


def uuid_text(value: bytes) -> str:
    text = value.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


UUID_PREFIX, ULONG_PREFIX = "AMQP_UUID:", "AMQP_ULONG:"
BINARY_PREFIX, STRING_PREFIX = "AMQP_BINARY:", "AMQP_STRING:"
PREFIXES: Final = (UUID_PREFIX, ULONG_PREFIX, BINARY_PREFIX, STRING_PREFIX)


def id_text(value: Any) -> str:
    """Return the text of a message-id or correlation-id. Raises DecodeError for a type that is no id, and AmqpError for
    one that is too long."""
    kind = type(value)
    if kind in (str, Symbol):
        found = STRING_PREFIX + value if value.startswith(PREFIXES) else str(value)
    elif kind is Uuid:
        found = UUID_PREFIX + uuid_text(value)
    elif kind is ULong:
        found = f"{ULONG_PREFIX}{int(value)}"
    elif kind is bytes:
        found = BINARY_PREFIX + value.hex().upper()
    else:
        raise DecodeError(f"an id cannot be a {kind.__name__}")
    return _fitting(found)


def _field(text: str | None) -> str | None:
    return None if text is None else _fitting(str(text))


def _fitting(text: str) -> str:
    if not has_room_for(text):
        raise _too_much("a text in its properties of more than 65,535 bytes")
    return text


def _time(milliseconds: int) -> int:
    if milliseconds < 0:
        raise DecodeError("a time before 1970")
    return int(milliseconds)


def _signed_int(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else int(value)


def _kind_of_nothing(content_type: str | None) -> BodyKind:
    if content_type == JAVA_OBJECT:
        return BodyKind.OBJECT
    if content_type in _UNTYPED:
        return BodyKind.BYTES
    return BodyKind.TEXT if is_textual(content_type) else BodyKind.NONE


def _is_text(body: bytes) -> bool:
    """Return whether a body, which is not long, is UTF-8."""
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_textual(content_type: str | None) -> bool:
    """Return whether a content type is one of texts in UTF-8."""
    if content_type is None:
        return False
    parts = [each.strip().lower() for each in content_type.split(";")]
    for each in parts[1:]:
        name, _, value = each.partition("=")
        if name.strip() == "charset" and value.strip(' "') not in ("utf-8", "utf8"):
            return False
    kind = parts[0]
    return kind.startswith("text/") or kind in _TEXTUAL or kind.endswith(("+json", "+xml"))


def _too_much(what: str) -> AmqpError:
    return AmqpError(RESOURCE_LIMIT, f"a message has {what}", Scope.LINK)
