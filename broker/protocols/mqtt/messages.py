"""Conversion of a PUBLISH to a message of the broker, and back. Pure.

The mapping is that of ActiveMQ's MQTTProtocolConverter, so JMS and STOMP clients see the same messages as with
ActiveMQ. The additional fields of MQTT 5.0 are mapped to the corresponding fields and properties of JMS and STOMP
(docs/mqtt.md). One defect of ActiveMQ is corrected: a persistent message of a JMS client gets QoS 1, a non-persistent
one QoS 0. A payload that takes long to convert is converted on another thread.
"""

from __future__ import annotations

from typing import Final

from tandemmq.broker.core.commands import Undeliverable
from tandemmq.broker.core.names import MQTT_RETAINED
from tandemmq.broker.core.numbers import property_text
from tandemmq.broker.protocols.encoded import decoded, is_encoded
from tandemmq.broker.protocols.mqtt.packets import Publish, Will
from tandemmq.broker.protocols.mqtt.properties import (
    NONE,
    OF_UNSUBSCRIBE,
    Properties,
    Reader,
    is_text,
    read_properties,
    write_properties,
)
from tandemmq.broker.protocols.mqtt.reason_codes import MqttError
from tandemmq.broker.protocols.mqtt.topics import destination_of, topic_if_any
from tandemmq.broker.protocols.stomp.maps import write_json
from tandemmq.store.records.errors import RecordDamaged, RecordTooLarge
from tandemmq.store.records.frames import OpenedMessage
from tandemmq.store.records.loose import has_room_for
from tandemmq.store.records.message import BodyKind, Destination, Message, PropertyValue
from tandemmq.store.records.properties import decode_properties

QOS: Final = "ActiveMQ.MQTT.QoS"
#: Name of the bridge that received the message. It is not sent to MQTT clients.
BRIDGE: Final = "MQTT.Bridge"
RETAIN: Final = "ActiveMQ.Retain"
#: Property of a message of kind OWN (session_records): the record of its delivery. It is not sent to clients.
DELIVERY: Final = "MQTT.Delivery"
#: Property with the same name as the STOMP header.
CONTENT_TYPE: Final = "content-type"
CORRELATION_DATA: Final = "MQTT.CorrelationData"
#: Property with all User Properties in their encoded form. It is used if a name occurs twice or is too long for Java.
USER_PROPERTIES: Final = "MQTT.UserProperties"
#: A message with more properties, which only a JMS client can send, is sent without User Properties. MQTT clients
#: accept about a thousand.
_USER_SENT_MAX: Final = 2_000
#: Memory of a will without its texts, and memory of each of its user properties without its texts.
_WILL_BYTES: Final = 1_000
_USER_PROPERTY_BYTES: Final = 200
_OURS: Final = frozenset(
    (QOS, BRIDGE, RETAIN, DELIVERY, "ActiveMQ.Retained", CONTENT_TYPE, CORRELATION_DATA, USER_PROPERTIES)
)
#: Limit of a body that is decompressed on the loop.
QUICK_BYTES_MAX: Final = 128 * 1024
#: Limit of a map that is converted on the loop.
QUICK_MAP_BYTES_MAX: Final = 16 * 1024


def message_of(publish: Publish | Will, destination: Destination, message_id: str, now: int) -> Message:
    """Return ``publish`` as a message to ``destination``, the destination of its topic. ``now``: milliseconds since
    1970."""
    qos = publish.qos
    carried = publish.properties
    properties: dict[str, PropertyValue] = {QOS: qos}
    if publish.retain:
        properties[RETAIN] = True
    message = Message(
        destination,
        message_id,
        publish.payload,
        BodyKind.BYTES,
        persistent=qos > 0,
        timestamp=now,
        properties=properties,
    )
    if carried is not NONE:
        _apply(message, carried, properties, now)
    return message


def bytes_of(will: Will) -> int:
    """Return the memory of the will, in bytes."""
    user = sum(len(name) + len(value) + _USER_PROPERTY_BYTES for name, value in will.properties.user)
    properties = will.properties
    texts = (will.topic, properties.content_type, properties.response_topic, properties.correlation_data, will.payload)
    return _WILL_BYTES + user + sum(len(each) for each in texts if each is not None)


def to_retain(publish: Publish | Will, topic: Destination, message_id: str, now: int, number: int) -> Message:
    """Return the message for the queue of retained messages: it replaces the retained message of ``topic`` or, with an
    empty payload, removes it. ``number``: the result of ``Hooks.may_retain``."""
    kept = message_of(publish, MQTT_RETAINED, message_id, now)
    kept.persistent = True
    kept.broker_sequence = number
    kept.original_destination = topic
    return kept


def to_own(
    publish: Publish, expiration: int, delivery: bytes, queue: Destination, message_id: str, now: int
) -> Message:
    """Return the message of kind OWN for a session's ``queue``: a copy of ``publish``, of QoS 2, that is sent only to
    this client. It contains ``delivery`` (see ``delivery_of``), and can be published again like the original."""
    kept = message_of(publish, queue, message_id, now)
    kept.original_destination = destination_of(publish.topic)
    kept.expiration = expiration
    kept.properties = {**(kept.properties or {}), DELIVERY: delivery}
    return kept


def delivery_of(message: Message) -> bytes:
    """Return the ``delivery`` of ``to_own``; b"": the message was not made by ``to_own``."""
    found = None if message.properties is None else message.properties.get(DELIVERY)
    return found if isinstance(found, bytes) else b""


def _apply(message: Message, carried: Properties, properties: dict[str, PropertyValue], now: int) -> None:
    """Set the fields and properties of the message from ``carried``. Strings that are too long for Java are stored as
    bytes, and only MQTT clients receive them. A response topic that is too long is omitted, because no message can be
    sent to it."""
    if carried.user:
        names = {name for name, _ in carried.user}
        own = {name for name in names if name and name not in _OURS and has_room_for(name)}
        if len(own) != len(carried.user):
            properties[USER_PROPERTIES] = write_properties(Properties(user=carried.user))
        for name, value in carried.user:
            if name in own:
                properties.setdefault(name, value)
    if carried.content_type is not None:
        properties[CONTENT_TYPE] = carried.content_type
    if carried.payload_format:
        message.body_kind = BodyKind.TEXT
    if carried.message_expiry is not None:
        message.expiration = now + carried.message_expiry * 1000
    if carried.response_topic is not None:
        reply_to = destination_of(carried.response_topic)
        message.reply_to = reply_to if has_room_for(reply_to.name) else None
    if carried.correlation_data is not None:
        try:
            text = carried.correlation_data.decode()
            message.correlation_id = text if has_room_for(text) else None
        except UnicodeDecodeError:
            pass
        if message.correlation_id is None:
            properties[CORRELATION_DATA] = carried.correlation_data


def qos_of(message: Message) -> int:
    """Return the QoS with which the message was published. A message of another protocol has QoS 1 if it is persistent,
    otherwise 0."""
    properties = _quick(message)
    qos = None if properties is None else properties.get(QOS)
    if isinstance(qos, int) and 0 <= qos <= 2:
        return int(qos)
    return 1 if message.persistent else 0


def is_retain(message: Message) -> bool:
    """Return whether the message was published with RETAIN."""
    properties = _quick(message)
    return properties is not None and properties.get(RETAIN) is True


def _quick(message: Message) -> dict[str, PropertyValue] | None:
    """Return the properties; None: there are none, or they take too long to decode on the loop. No MQTT client can send
    such long ones."""
    try:
        return message.quick_properties  # prove: mqtt-decodes-no-long-properties "quick_properties" -> "properties"
    except RecordTooLarge:
        return None


def properties_of(message: Message, now: int) -> Properties:
    """Return the properties of the PUBLISH to an MQTT 5.0 client."""
    if is_encoded(message):
        message = decoded(message, is_quick=True) or message
    properties = _quick(message) or {}
    correlation: bytes | None = None
    if message.correlation_id is not None:
        correlation = message.correlation_id.encode("utf-8", "replace")
    elif isinstance(binary := properties.get(CORRELATION_DATA), bytes):
        correlation = binary
    reply_to = message.reply_to
    content_type = properties.get(CONTENT_TYPE)
    as_sent = properties.get(USER_PROPERTIES)
    user: tuple[tuple[str, str], ...] = ()
    if isinstance(as_sent, bytes):
        user = _user_of(as_sent)
    elif len(properties) <= _USER_SENT_MAX:
        user = tuple(
            (name, text)
            for name, value in properties.items()
            if name not in _OURS and is_text(text := property_text(value)) and is_text(name)
        )
    is_utf8 = message.body_kind is BodyKind.TEXT
    if not (user or is_utf8 or message.expiration or correlation or reply_to or content_type):
        return NONE
    return Properties(
        payload_format=1 if is_utf8 else None,
        message_expiry=max(0, -(-(message.expiration - now) // 1000)) if message.expiration else None,
        content_type=None if content_type is None else property_text(content_type),
        # A client of another protocol may use a topic whose name MQTT cannot express.
        response_topic=topic_if_any(reply_to.name) or None if reply_to is not None and reply_to.is_topic else None,
        correlation_data=correlation,
        user=user,
    )


def _user_of(as_sent: bytes) -> tuple[tuple[str, str], ...]:
    try:
        return read_properties(Reader(as_sent, 0, len(as_sent)), OF_UNSUBSCRIBE).user
    except MqttError:
        return ()  # a client may have set the property to any bytes


class TakesLong(Exception):
    """A conversion would take too long on the event loop."""


class Payloads:
    """Converter of messages for one client to payloads, one message after the other.

    If ``of`` raises TakesLong, call ``prepare`` on another thread, then ``of`` again. Do not call ``of`` for another
    message before that.
    """

    __slots__ = ("_prepared",)

    def __init__(self) -> None:
        self._prepared: tuple[Message, bytes | Undeliverable] | None = None

    def of(self, message: Message, bytes_max: int) -> bytes:
        """Return the payload of the message. Raises TakesLong, and Undeliverable like ``payload_of``."""
        prepared = self._prepared
        if prepared is None or prepared[0] is not message:
            return payload_of(message, bytes_max, is_quick=True)
        self._prepared = None
        result = prepared[1]
        if isinstance(result, Undeliverable):
            raise result
        return result

    def drop(self) -> None:
        """Drop the prepared payload."""
        self._prepared = None

    def prepare(self, message: Message, bytes_max: int) -> None:
        """Prepare the payload of the message. Any thread."""
        try:
            self._prepared = message, payload_of(message, bytes_max, is_quick=False)
        except Undeliverable as reason:
            self._prepared = message, reason


def payload_of(message: Message, bytes_max: int, *, is_quick: bool) -> bytes:
    """Return the payload for a message: its body; for a map its JSON; for objects and streams of Java the encoded
    content.

    ``is_quick``: raises TakesLong if the body is compressed and long, or a long map. Raises Undeliverable if the body
    is damaged, or has more than ``bytes_max`` bytes after decompression.
    """
    if is_encoded(message):
        as_jms = decoded(message, is_quick=is_quick)
        if as_jms is None:
            raise TakesLong
        message = as_jms
    if not isinstance(message, OpenedMessage) or (message.body_kind is BodyKind.BYTES and not message.is_compressed):
        return message.body
    limit = min(bytes_max, QUICK_BYTES_MAX) if is_quick and message.is_compressed else bytes_max
    if is_quick and not (
        message.is_quick and (message.body_kind is not BodyKind.MAP or message.size <= QUICK_MAP_BYTES_MAX)
    ):
        raise TakesLong
    try:
        body = message.inflated(limit)
        if message.body_kind is BodyKind.MAP:
            return write_json(decode_properties(body) if body else {})
    except RecordTooLarge as error:
        if is_quick and limit < bytes_max:
            raise TakesLong from None
        raise Undeliverable(str(error)) from None
    except (RecordDamaged, ValueError) as error:
        raise Undeliverable(str(error)) from None
    return body
