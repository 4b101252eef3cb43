"""Decoder of messages from AMQP clients: maps them to the broker's messages, as ActiveMQ's transformer ``native`` does
(docs/formats/amqp.md). Pure.

The body of the broker's message is the complete encoded message, so other AMQP clients get it byte for byte. Values
that the broker and selectors need are copied to fields and properties. ``protocols.encoded`` decodes the body for
clients of other protocols.
"""

from __future__ import annotations

from typing import Any, Final

from tandemmq.broker.protocols.amqp import sections
from tandemmq.broker.protocols.amqp.bodies import Unmapped, mapped, uuid_text
from tandemmq.broker.protocols.amqp.codec import read_section
from tandemmq.broker.protocols.amqp.errors import PRECONDITION_FAILED, RESOURCE_LIMIT, AmqpError, DecodeError, Scope
from tandemmq.broker.protocols.amqp.schema import Header, Properties
from tandemmq.broker.protocols.amqp.sections import scan
from tandemmq.broker.protocols.amqp.termini import destination_of, reply_to_of
from tandemmq.broker.protocols.amqp.types import EMPTY_LIST, VALUES_MAX, Reader, Symbol, ULong, Uuid
from tandemmq.broker.protocols.encoded import NATIVE
from tandemmq.store.records.errors import Unencodable
from tandemmq.store.records.loose import has_room_for
from tandemmq.store.records.message import TIME_MAX, BodyKind, Destination, DestinationKind, Message, PropertyValue
from tandemmq.store.records.properties import Long, encode_properties
from tandemmq.store.records.remembered import remember

MESSAGE_FORMAT: Final = "JMS_AMQP_MESSAGE_FORMAT"
HAS_HEADER: Final = "JMS_AMQP_HEADER"
HAS_PROPERTIES: Final = "JMS_AMQP_PROPERTIES"
FIRST_ACQUIRER: Final = "JMS_AMQP_FirstAcquirer"
CONTENT_TYPE: Final = "JMS_AMQP_ContentType"
CONTENT_ENCODING: Final = "JMS_AMQP_ContentEncoding"
REPLY_TO_GROUP_ID: Final = "JMS_AMQP_ReplyToGroupID"
ANNOTATION: Final = "JMS_AMQP_MA_"
FOOTER: Final = "JMS_AMQP_FT_"
_RESERVED: Final = "JMS_AMQP_"

# Limits of a message: bytes of all sections except the body, and number of properties.
ENVELOPE_BYTES_MAX: Final = 1 << 20
PROPERTIES_MAX: Final = 1_000
PRIORITY_MAX: Final = 9
DEFAULT_PRIORITY: Final = 4
_INT_MAX: Final = 0x7FFFFFFF
_DELIVERY: Final = "x-opt-delivery-"  # of the annotations that schedule a message
_DELIVERY_TIME: Final = "x-opt-delivery-time"
_DELIVERY_DELAY: Final = "x-opt-delivery-delay"
_CRON: Final = "x-opt-delivery-cron"
_SCHEDULED_DELAY: Final = "AMQ_SCHEDULED_DELAY"
_SCHEDULED_CRON: Final = "AMQ_SCHEDULED_CRON"
# Annotations of repeated deliveries: name and largest value of the property.
_REPEATED: Final = {
    "x-opt-delivery-repeat": ("AMQ_SCHEDULED_REPEAT", _INT_MAX),
    "x-opt-delivery-period": ("AMQ_SCHEDULED_PERIOD", TIME_MAX),
}
# Application properties that ActiveMQ maps to fields of the message, and JMSXUserID, which the broker sets. Here they
# stay in the encoded message only.
_FIELDS: Final = frozenset(
    [
        "JMSXDeliveryCount",
        "JMSXGroupID",
        "JMSXGroupSeq",
        "JMSXUserID",
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
_NOWHERE: Final = Destination(DestinationKind.QUEUE, "")
# Cache: bytes of a section of message annotations -> its properties and its number of values. Only for sections with
# few names and without scheduling. Qpid JMS sends equal sections in all messages for one destination.
cached_annotations: dict[bytes, tuple[dict[str, PropertyValue], int]] = {}
_CACHED_ANNOTATIONS_MAX: Final = 4
# Limit of the bytes of an envelope that is cached (the bytes before the body), and of its encoded properties.
_CACHED_BYTES_MAX: Final = 256
_SMALL_ULONG: Final = 0x53
_BYTES: Final = BodyKind.BYTES


class CachedEnvelope:
    """Fields of all messages with one envelope. ``template``: a message with these fields, without id and body."""

    __slots__ = ("marshalled", "properties", "template")

    def __init__(self, template: Message, properties: dict[str, PropertyValue], marshalled: bytes) -> None:
        self.template = template
        self.properties = properties
        self.marshalled = marshalled

    def message(self, destination: Destination, message_id: str, encoded: bytes) -> Message:
        """Return what ``Incoming.message`` would return. The messages share their properties, which never change."""
        template = self.template
        made = Message(
            destination, message_id, encoded, _BYTES, template.persistent, template.priority, 0, 0, self.properties,
            None, template.reply_to, template.type, None, 0, None, template.redelivery_counter,
        )  # fmt: skip
        made.marshalled = self.marshalled
        return made


_envelopes: Final[dict[bytes, CachedEnvelope]] = {}


def cached_envelope(encoded: bytes, envelope_bytes: int) -> CachedEnvelope | None:
    """Return the cached fields if the first ``envelope_bytes`` bytes of the message (0: unknown) are a cached envelope
    and the rest is one simple body; otherwise None."""
    # prove: amqp-usual-ends-with-its-body "not _is_simple_body(encoded, envelope_bytes)" -> "False"
    if not envelope_bytes or not _is_simple_body(encoded, envelope_bytes):
        return None
    return _envelopes.get(encoded[:envelope_bytes])


def _is_simple_body(encoded: bytes, at: int) -> bool:
    """Return whether the message ends with the section at this offset: binary data, or a binary or string value."""
    length = len(encoded)
    if length < at + 5 or encoded[at] or encoded[at + 1] != _SMALL_ULONG:
        return False
    code = encoded[at + 2]
    kind = encoded[at + 3]
    form = kind & 0xEF
    if code == sections.DATA:
        if form != 0xA0:
            return False
    elif code != sections.VALUE or (form != 0xA0 and form != 0xA1):
        return False
    if not kind & 0x10:
        return at + 5 + encoded[at + 4] == length
    if length < at + 8:
        return False
    size = encoded[at + 4] << 24 | encoded[at + 5] << 16 | encoded[at + 6] << 8 | encoded[at + 7]
    return at + 8 + size == length


class Incoming:
    """Decoder of one message. ``now``: milliseconds since 1970. Raises AmqpError if the message is damaged, or has too
    many bytes outside its body."""

    def __init__(self, encoded: bytes, now: int) -> None:
        self._encoded = encoded
        self._now = now
        self._to: Any = None
        self._has_delivery_time = False
        self._values_left = VALUES_MAX  # limit of values in the maps that are still to be read
        self.properties: dict[str, PropertyValue] = {}
        found = scan(encoded)
        self._by_code = {each.code: each for each in found}
        body = 0
        for each in found:
            if each.code in sections.BODY:
                body += each.stop - each.start
        if len(encoded) - body > ENVELOPE_BYTES_MAX:
            raise _too_much(f"{len(encoded) - body} bytes outside its body; {ENVELOPE_BYTES_MAX} are allowed")
        self._body_bytes = body

    def message(self, destination: Destination | None, message_id: str, message_format: int) -> Message:
        """Return the message. If ``destination`` is None, the property ``to`` names it. Raises AmqpError if the message
        is damaged."""
        message = Message(
            destination or _NOWHERE, message_id, self._encoded, BodyKind.BYTES, properties=self.properties
        )
        self._apply_header(message)
        self._apply_message_annotations()
        self._apply_application_properties()
        self._apply_properties(message)
        if destination is None:
            if self._to is None:
                raise AmqpError(PRECONDITION_FAILED, "the message has no address in the property `to`", Scope.LINK)
            message.destination = destination_of(self._to)
        self._put_all(self._map(sections.FOOTER), FOOTER)
        if message_format:
            self.properties[MESSAGE_FORMAT] = Long(message_format)
        if len(self.properties) > PROPERTIES_MAX:
            raise _too_much(f"more than {PROPERTIES_MAX} properties")
        self.properties[NATIVE] = True
        return message

    def remember(self, message: Message, last: bytes) -> bytes:
        """Cache the fields of ``message`` for ``cached_envelope`` if its envelope equals ``last``, that of the message
        before: most envelopes come only once. ``message()`` returned ``message`` for a known destination and format 0.
        Return the envelope; b"" if it cannot be cached, for example because a field depends on the time."""
        if (
            message.text_view is not None
            or message.timestamp
            or message.expiration  # prove: amqp-usual-has-no-expiration "message.expiration" -> "False"
            or message.correlation_id is not None
            or message.group_id is not None
            or message.group_sequence
            or self._has_delivery_time
            or sections.APPLICATION_PROPERTIES in self._by_code
            or _SCHEDULED_DELAY in self.properties
        ):
            return b""
        body = self._by_code.get(sections.DATA) or self._by_code.get(sections.VALUE)
        if body is None or body.stop - body.start != self._body_bytes or not 0 < body.start <= _CACHED_BYTES_MAX:
            return b""
        if not _is_simple_body(self._encoded, body.start):
            return b""
        envelope = self._encoded[: body.start]
        if envelope != last or envelope in _envelopes:
            return envelope
        for value in self.properties.values():
            if isinstance(value, (list, dict)):
                return b""
        try:
            marshalled = encode_properties(self.properties)
        except Unencodable:
            return b""
        if len(marshalled) > _CACHED_BYTES_MAX:
            return b""
        template = Message(
            message.destination, "", b"", _BYTES, message.persistent, message.priority, 0, 0, None, None,
            message.reply_to, message.type, None, 0, None, message.redelivery_counter,
        )  # fmt: skip
        remember(_envelopes, envelope, CachedEnvelope(template, self.properties, marshalled), 2 * _CACHED_BYTES_MAX)
        return envelope

    def _value(self, code: int) -> Any:
        """Return the decoded value of a section; None if the message does not have it."""
        section = self._by_code.get(code)
        if section is None:
            return None
        reader = Reader(self._encoded[section.value : section.stop], 0, self._values_left)
        limit = reader.left
        found = reader.value()
        self._values_left -= limit - reader.left
        return found

    def _composite(self, code: int) -> Any:
        section = self._by_code.get(code)
        if section is None:
            return None
        return read_section(code, self._encoded, section.value, section.stop)

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
        message.redelivery_counter = min(header.delivery_count or 0, _INT_MAX)

    def _map(self, code: int) -> dict[Any, Any]:
        found = self._value(code)
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise DecodeError(f"the section 0x{code:x} is not a map")
        return found

    def _apply_message_annotations(self) -> None:
        section = self._by_code.get(sections.MESSAGE_ANNOTATIONS)
        if section is None:
            return
        content = self._encoded[section.value : section.stop]
        known = cached_annotations.get(content)
        if known is not None:
            usual, count = known
            self.properties.update(usual)
            self._values_left -= count
            return
        left = self._values_left
        found = self._map(sections.MESSAGE_ANNOTATIONS)
        self._put_all(found, ANNOTATION)
        names = [key for key in found if isinstance(key, str)]
        for key in names:
            if found[key] is not None:
                self._schedule(key, found[key])
        if len(names) <= _CACHED_ANNOTATIONS_MAX and not any(key.startswith(_DELIVERY) for key in names):
            usual = {name: value for name, value in self.properties.items() if name.startswith(ANNOTATION)}
            if not any(isinstance(value, (list, dict)) for value in usual.values()):
                remember(cached_annotations, content, (usual, left - self._values_left), 2 * len(content))

    def _put_all(self, found: dict[Any, Any], prefix: str) -> None:
        for key, value in found.items():
            if isinstance(key, str):
                self._put(prefix + key, value)

    def _schedule(self, key: str, value: Any) -> None:
        """Delay or repeat the delivery. A delivery time takes precedence over a delay, as in Artemis."""
        if key == _CRON:
            if not isinstance(value, str):
                raise DecodeError(f"the annotation {key} is not a string")
            self._put(_SCHEDULED_CRON, str(value))
        elif key in _REPEATED:
            name, limit = _REPEATED[key]
            count = _number(key, value)
            if not 0 < count <= limit:
                return
            if limit == _INT_MAX:
                self.properties[name] = count
            else:
                self.properties[name] = Long(count)
        elif key == _DELIVERY_TIME:
            self._has_delivery_time = True
            self._delay(_number(key, value) - self._now)
        elif key == _DELIVERY_DELAY:
            delay = _number(key, value)
            if not self._has_delivery_time:
                self._delay(delay)

    def _delay(self, milliseconds: int) -> None:
        self.properties.pop(_SCHEDULED_DELAY, None)
        if 0 < milliseconds <= TIME_MAX:
            self.properties[_SCHEDULED_DELAY] = Long(milliseconds)

    def _apply_properties(self, message: Message) -> None:
        section = self._by_code.get(sections.PROPERTIES)
        if section is not None and self._encoded[section.value] == EMPTY_LIST:
            self.properties[HAS_PROPERTIES] = True
            return
        found = self._composite(sections.PROPERTIES)
        if not isinstance(found, Properties):
            return
        self.properties[HAS_PROPERTIES] = True
        self._to = found.to
        if found.message_id is not None:
            # prove: amqp-ids-of-clients-are-no-keys "message.text_view" -> "message.message_id"
            message.text_view = id_text(found.message_id)
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

    def _apply_application_properties(self) -> None:
        for key, value in self._map(sections.APPLICATION_PROPERTIES).items():
            if not isinstance(key, str):
                raise DecodeError("the name of an application property is not a string")
            if key not in _FIELDS and not key.startswith(_RESERVED):
                self._put(str(key), value)

    def _put(self, name: str, value: Any) -> None:
        """Set a property if its name and value have a Java form; otherwise only AMQP clients get it."""
        try:
            if has_room_for(name):
                self.properties[name] = mapped(value)
        except Unmapped:
            pass


UUID_PREFIX, ULONG_PREFIX = "AMQP_UUID:", "AMQP_ULONG:"
BINARY_PREFIX, STRING_PREFIX = "AMQP_BINARY:", "AMQP_STRING:"
PREFIXES: Final = (UUID_PREFIX, ULONG_PREFIX, BINARY_PREFIX, STRING_PREFIX)


def id_text(value: Any) -> str:
    """Return the text of a message-id or correlation-id. Raises DecodeError if its type is not allowed for ids, and
    AmqpError for a text that is too long."""
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
        raise _too_much("a property with a text of more than 65,535 bytes")
    return text


def _number(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise DecodeError(f"the annotation {key} is not a number")
    return int(value)


def _time(milliseconds: int) -> int:
    if milliseconds < 0:
        raise DecodeError("a time before 1970")
    return int(milliseconds)


def _signed_int(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else int(value)


def _too_much(what: str) -> AmqpError:
    return AmqpError(RESOURCE_LIMIT, f"a message has {what}", Scope.LINK)
