"""SEND headers to a message, and a message to MESSAGE headers. Pure.

The mapping is ActiveMQ's (LegacyFrameTranslator, FrameTranslator.Helper), so that JMS and STOMP clients see each
other's messages as with ActiveMQ. Differences, all harmless to a client: content-length is always written, so that a
text may hold a NUL; a property cannot replace a header that the broker writes; a client may number its messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeGuard

from tandemmq.broker.core.commands import Undeliverable, refusal
from tandemmq.broker.core.numbers import property_text, whole_number
from tandemmq.broker.protocols.encoded import decoded, is_encoded
from tandemmq.broker.protocols.stomp import maps
from tandemmq.broker.protocols.stomp.advisories import TRANSFORMATION, is_sent_as_json, json_of
from tandemmq.broker.protocols.stomp.destinations import DestinationNames, write_destination
from tandemmq.broker.protocols.stomp.dialects import Dialect
from tandemmq.broker.protocols.stomp.frames import Headers
from tandemmq.store.records.errors import RecordDamaged, RecordTooLarge, Unencodable
from tandemmq.store.records.frames import QUICK_PROPERTIES_MAX, OpenedMessage
from tandemmq.store.records.message import BodyKind, Destination, Message, PropertyValue
from tandemmq.store.records.message_ids import SEQUENCE_MAX, client_message_id
from tandemmq.store.records.openwire import INFLATED_BYTES_MAX
from tandemmq.store.records.properties import decode_properties, encode_properties

PRIORITY_MAX: Final = 9
# Only in TandemMQ: the name and number with which a client repeats this message, if necessary (docs/duplicates.md). It
# is not in a MESSAGE: a bridge that copies all headers would send a message with the id of the received one.
SEND_ID: Final = "tandemmq-send-id"
_SEND_ID: Final = re.compile(r"([A-Za-z0-9._-]{1,128}):(0|[1-9][0-9]{0,18})")

# Headers of a SEND that the session reads itself.
_READ_BY_SESSION: Final = frozenset(("destination", "receipt", "transaction", "persistent"))
# Headers of a SEND that neither have a field nor come back on the MESSAGE.
_DROPPED: Final = frozenset(("message-id", "redelivered", "subscription", "JMSXUserID"))
# Names that a property may not have on a MESSAGE, because the broker writes them itself.
_RESERVED: Final = frozenset(
    (
        "ack",
        "content-length",
        "correlation-id",
        "destination",
        "expires",
        "message-id",
        "original-destination",
        "persistent",
        "priority",
        "redelivered",
        "reply-to",
        "subscription",
        "timestamp",
        "type",
        "JMSXUserID",
        SEND_ID,
    )
)


def apply_headers(
    message: Message, headers: Headers, names: DestinationNames, user: str | None
) -> Callable[[], None] | None:
    """Set the fields of ``message`` that the headers of a SEND by ``user`` define, except destination, persistent and
    body.

    Return a function that sets its body, if that takes longer than a millisecond or two. Raises a ClientError that is
    not fatal when a value does not fit its header: the SEND is refused.
    """
    properties: dict[str, PropertyValue] = {}
    for name, value in headers.items():
        if name in _READ_BY_SESSION or name in _DROPPED:
            continue
        field = _FIELDS.get(name)
        if field is not None:
            attribute, read = field
            setattr(message, attribute, read(name, value))
        elif name == SEND_ID:
            message.message_id = _sent_id(value, user)
        elif name == "reply-to":
            message.reply_to = names.read_reply_to(value)
            if message.reply_to is None:
                properties[name] = value
        elif name == "amq-msg-type":
            message.body_kind = _body_kind(value)
            properties[name] = value
        elif name != "content-length" or "amq-msg-type" in headers:
            properties[name] = value
    later = None
    if "transformation" in properties and "content-length" not in headers:
        later = _transform(message, properties)
    if properties:
        message.properties = properties
    return later


def _transform(message: Message, properties: dict[str, PropertyValue]) -> Callable[[], None] | None:
    """Make a map of a body that the header transformation declares to be one (JmsFrameTranslator.convertFrame), at once
    or by the function that is returned.

    A body that cannot be read stays text, with the reason in the property transformation-error, as in ActiveMQ. Objects
    are refused: making one could run code that another client chose.
    """
    name = str(properties["transformation"])
    if name.startswith("jms-object"):
        raise refusal(
            f"The transformation {name[:40]!r} is refused",
            "The broker creates no Java objects. Send a map (jms-map-json, jms-map-xml) or a text.",
        )
    read = _READ_AS_MAP.get(name)
    if read is not None and len(message.body) > QUICK_READ_BYTES_MAX:
        return lambda: _become_map(message, properties, read)
    if read is not None:
        _become_map(message, properties, read)
    elif name in _ONLY_WRITTEN:
        properties[TRANSFORMATION_ERROR] = f"Unknown transformation: {name}"
    return None


def _become_map(
    message: Message, properties: dict[str, PropertyValue], read: Callable[[bytes], dict[str, PropertyValue]]
) -> None:
    try:
        message.body = encode_properties(read(message.body))
        message.body_kind = BodyKind.MAP
    except (ValueError, Unencodable) as error:
        properties[TRANSFORMATION_ERROR] = str(error)
        message.properties = properties


#: A longer map is not read on the event loop: this takes a millisecond.
QUICK_READ_BYTES_MAX: Final = 8 * 1024


TRANSFORMATION_ERROR: Final = "transformation-error"
_READ_AS_MAP: Final = {"jms-map-xml": maps.read_xml, "jms-map-json": maps.read_json}
# Names that choose a form by the kind of the message: a text has no kind yet.
_ONLY_WRITTEN: Final = frozenset(("jms-xml", "jms-json"))


def _body_kind(value: str) -> BodyKind:
    match value.lower():
        case "text":
            return BodyKind.TEXT
        case "bytes":
            return BodyKind.BYTES
    raise refusal(f"Unsupported message type {value!r}", "amq-msg-type is text or bytes.")


def _number(name: str, value: str) -> int:
    try:
        number = whole_number(value)
    except ValueError:
        number = _LONG_END
    if not -_LONG_END <= number < _LONG_END:
        raise refusal(f"The header {name} has the value {value[:80]!r}", "A number is expected.")
    return number


_LONG_END: Final = 1 << 63


def _int(name: str, value: str) -> int:
    number = _number(name, value)
    if not -_INT_END <= number < _INT_END:
        raise refusal(f"The header {name} has the value {value!r}", "It must fit into 32 bits.")
    return number


_INT_END: Final = 1 << 31


def _sent_id(value: str, user: str | None) -> str:
    found = _SEND_ID.fullmatch(value)
    if found is None or int(found[2]) > SEQUENCE_MAX:
        raise refusal(
            f"The header {SEND_ID} has the value {value[:80]!r}",
            "<producer>:<sequence> is expected: a name of up to 128 letters, digits, dots, hyphens and underscores, and"
            f" a number from 0 to {SEQUENCE_MAX}.",
        )
    return client_message_id(found[1], int(found[2]), user)


def _text(name: str, value: str) -> str:
    return value


# By header: the field of a message, and the function that makes its value.
_FIELDS: Final[dict[str, tuple[str, Callable[[str, str], str | int]]]] = {
    "priority": ("priority", lambda name, value: min(max(_number(name, value), 0), PRIORITY_MAX)),  # as setPriority
    "expires": ("expiration", _number),
    "timestamp": ("timestamp", _number),
    "correlation-id": ("correlation_id", _text),
    "type": ("type", _text),
    "JMSXGroupID": ("group_id", _text),
    "JMSXGroupSeq": ("group_sequence", _int),
}


# Members of an enumeration are looked up slowly.
_TEXT, _BYTES = BodyKind.TEXT, BodyKind.BYTES


def encode(
    message: Message,
    dialect: Dialect,
    transformation: str | None = None,
    write: Callable[[Destination], str] = write_destination,
    *,
    inflated_bytes_max: int = INFLATED_BYTES_MAX,
    is_quick: bool = False,
) -> tuple[bytes, bytes]:
    """Return the part of a MESSAGE that is the same for every delivery: its own header lines with the blank one, and
    the body.

    ``transformation``: the form that the subscription requests. ``write`` returns the name of a destination. A
    compressed body that would have more than ``inflated_bytes_max`` bytes stays compressed, and headers state this.
    With ``is_quick`` TakesLong is raised if it would take more than a millisecond or two. Undeliverable: a body is
    damaged.
    """
    if is_quick and isinstance(message, OpenedMessage) and not _is_opened_quickly(message):
        raise TakesLong
    kind = message.body_kind
    if kind is _BYTES and is_encoded(message):
        as_jms = decoded(message, is_quick=is_quick)
        if as_jms is None:
            raise TakesLong
        message, kind = as_jms, as_jms.body_kind
    if kind is _TEXT or kind is _BYTES:
        changed = _NOTHING
        if transformation is not None and kind is _TEXT:
            changed = {"transformation": transformation}  # StompSubscription.onMessageDispatch
        if not isinstance(message, OpenedMessage):
            body = message._body
        elif message.is_compressed:
            body, as_sent = _inflated(message, inflated_bytes_max, is_quick=is_quick)
            if as_sent:
                changed = {**changed, **as_sent}
        else:
            body = _sound(message)
    elif is_sent_as_json(message, transformation):
        body, changed = json_of(message), _AS_ADVISORY
    else:
        body, changed = _transformed(message, transformation, inflated_bytes_max, is_quick=is_quick)
    return _encode_headers(message, len(body), dialect, changed, write, is_quick=is_quick), body


# The message that was encoded last, its dialect and transformation, and the result: for the next subscriber
# of the same message, which does not keep its headers twice.
_last: tuple[Message, Dialect, str | None, tuple[bytes, bytes]] | None = None
# A longer body is encoded again for each subscriber, because the result of the last encoding stays in memory.
KEPT_BYTES_MAX: Final = 64 * 1024


def encode_once(
    message: Message,
    dialect: Dialect,
    transformation: str | None,
    write: Callable[[Destination], str],
    *,
    inflated_bytes_max: int,
) -> tuple[bytes, bytes]:
    """Encode the message, as ``encode``, if that is quick. The last result is used again, if it is short and names
    destinations as all connections do."""
    global _last
    if write is not write_destination:
        return encode(message, dialect, transformation, write, inflated_bytes_max=inflated_bytes_max, is_quick=True)
    last = _last
    if last is not None and last[0] is message and last[1] is dialect and last[2] == transformation:
        return last[3]
    rest = encode(message, dialect, transformation, inflated_bytes_max=inflated_bytes_max, is_quick=True)
    head, body = rest
    if len(head) + len(body) <= KEPT_BYTES_MAX:
        _last = message, dialect, transformation, rest
    return rest


_NOTHING: Final[dict[str, PropertyValue]] = {}
_AS_ADVISORY: Final[dict[str, PropertyValue]] = {"transformation": TRANSFORMATION}


def is_inflated(message: Message) -> TypeGuard[OpenedMessage]:
    """Return whether the result of ``encode`` may be a thousand times as long as the message, and is not to be kept."""
    return isinstance(message, OpenedMessage) and message.is_compressed


class TakesLong(Exception):
    """Work that takes too long for the event loop."""


# Longest body that is inflated on the loop, and longest map that is written there.
QUICK_BYTES_MAX, QUICK_MAP_BYTES_MAX = 128 * 1024, 16 * 1024
# Maximum length of properties that are written as headers on the loop: a millisecond in plain Python, if all characters
# are escaped.
QUICK_HEAD_BYTES_MAX: Final = 64 * 1024
# A longer value is escaped in pieces, so that others have the interpreter meanwhile.
_PIECE_CHARS: Final = 64 * 1024


def _is_opened_quickly(message: OpenedMessage) -> bool:
    return message.is_quick and (
        message.size <= QUICK_HEAD_BYTES_MAX or message.properties_bytes <= QUICK_HEAD_BYTES_MAX
    )


def _inflated(message: OpenedMessage, bytes_max: int, *, is_quick: bool) -> tuple[bytes, dict[str, PropertyValue]]:
    """Return body and properties of a compressed message. If the body is too long to be inflated, it stays compressed,
    and a property shows this: the consumer can still read it."""
    try:
        return message.inflated(min(bytes_max, QUICK_BYTES_MAX) if is_quick else bytes_max), _NOTHING
    except RecordTooLarge as error:
        if is_quick:
            raise TakesLong from None
        return message.deflated, {CONTENT_ENCODING: "deflate", TRANSFORMATION_ERROR: str(error)}
    except RecordDamaged as error:
        raise Undeliverable(str(error)) from None


def _sound(message: OpenedMessage) -> bytes:
    """Return the body of a message that is not compressed. A text of a JMS client may be damaged: Undeliverable."""
    if message.body_kind is BodyKind.TEXT:
        try:
            return message.inflated(INFLATED_BYTES_MAX)
        except RecordDamaged as error:
            raise Undeliverable(str(error)) from None
    return message.body


# The body is a stream of zlib (RFC 1950; HTTP's name for it).
CONTENT_ENCODING: Final = "content-encoding"


def _transformed(
    message: Message, transformation: str | None, inflated_bytes_max: int, *, is_quick: bool
) -> tuple[bytes, dict[str, PropertyValue]]:
    """Return body and properties of a message that only JMS clients make: without a transformation it arrives empty
    (ActiveMQ)."""
    if transformation is None:
        return b"", _NOTHING
    changed: dict[str, PropertyValue] = {"transformation": transformation}
    match message.body_kind:
        case BodyKind.MAP:
            name = _MAP_FORMS.get(transformation, transformation)
            write = _WRITTEN_MAPS.get(name)
            if write is not None:
                if is_quick and (is_inflated(message) or message.size > QUICK_MAP_BYTES_MAX):
                    raise TakesLong
                changed["transformation"] = name
                try:
                    body = message.inflated(inflated_bytes_max) if is_inflated(message) else message.body
                    return write(decode_properties(body) if body else {}), changed
                except (RecordDamaged, ValueError) as error:
                    changed[TRANSFORMATION_ERROR] = str(error)
        case BodyKind.OBJECT:
            changed[TRANSFORMATION_ERROR] = "Java objects are not read here"
    return b"", changed


_MAP_FORMS: Final = {"jms-xml": "jms-map-xml", "jms-json": "jms-map-json"}
_WRITTEN_MAPS: Final = {"jms-map-xml": maps.write_xml, "jms-map-json": maps.write_json}


def _encode_headers(
    message: Message,
    body_length: int,
    dialect: Dialect,
    changed: dict[str, PropertyValue],
    write: Callable[[Destination], str],
    *,
    is_quick: bool,
) -> bytes:
    escape = dialect.escape
    destination = message.destination
    written = dialect.destination(destination) if write is write_destination else escape(write(destination))
    text = (
        f"message-id:{dialect.message_id(message.message_id)}\n"
        f"destination:{written}\n"
        f"expires:{message.expiration}\n"
        f"priority:{message.priority}\n"
        f"timestamp:{message.timestamp}\n"
        f"content-length:{body_length}\n"
    )
    if message.persistent:
        text += "persistent:true\n"
    if message.correlation_id is not None:
        text += f"correlation-id:{escape(message.correlation_id)}\n"
    if message.reply_to is not None:
        text += f"reply-to:{escape(write(message.reply_to))}\n"
    if message.type is not None:
        text += f"type:{escape(message.type)}\n"
    if message.user_id is not None:
        text += f"JMSXUserID:{escape(message.user_id)}\n"
    if message.original_destination is not None:
        text += f"original-destination:{escape(write(message.original_destination))}\n"
    properties = message._properties if type(message) is Message else message.properties
    if changed:
        properties = {**(properties or _NOTHING), **changed}
    if properties:
        if is_quick and len(properties) > QUICK_PROPERTIES_MAX:
            raise TakesLong
        for name, value in properties.items():
            # prove: long-heads-are-written-beside-the-loop "is_quick and len(text)" -> "False and len(text)"
            if is_quick and len(text) > QUICK_HEAD_BYTES_MAX:
                raise TakesLong
            # reply-to is a property when it names no destination (read_reply_to).
            if not dialect.may_name(name):
                continue
            if name not in _RESERVED or (name == "reply-to" and message.reply_to is None):
                written = property_text(value)
                if len(written) <= _PIECE_CHARS:
                    written = escape(written)
                else:
                    pieces = range(0, len(written), _PIECE_CHARS)
                    written = "".join([escape(written[at : at + _PIECE_CHARS]) for at in pieces])
                text += f"{escape(name)}:{written}\n"
    return (text + "\n").encode("utf-8", "replace")
