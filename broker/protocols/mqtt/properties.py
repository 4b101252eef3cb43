"""Properties of MQTT 5.0 packets (2.2.2): one table describes each; the reader of a packet sets which ones it may have.

| length, variable byte integer | (identifier, variable byte integer | value) ... |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

from tandemmq.broker.protocols.mqtt import fields
from tandemmq.broker.protocols.mqtt.fields import Reader
from tandemmq.broker.protocols.mqtt.reasons import MqttError, Reason, malformed, protocol_error

#: Each takes more memory than bytes on the wire (as many as STOMP's headers).
USER_PROPERTIES_MAX: Final = 1000


@dataclass(slots=True)
class Properties:
    """Properties of one packet. None, and an empty tuple: it does not have it. Never changed once it was made."""

    payload_format: int | None = None
    message_expiry: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_ids: tuple[int, ...] = ()
    session_expiry: int | None = None
    assigned_client_id: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user: tuple[tuple[str, str], ...] = ()
    maximum_packet_size: int | None = None
    wildcard_subscription_available: int | None = None
    subscription_ids_available: int | None = None
    shared_subscription_available: int | None = None

    def __repr__(self) -> str:
        # Authentication data is never shown, in no traceback either.
        names = [each.name for each in _TABLE if getattr(self, each.name) not in (None, ())]
        shown = [f"{name}={getattr(self, name)!r}" for name in names if name != "authentication_data"]
        return f"Properties({', '.join(shown)})"


#: No properties: the one of all packets that have none. ``is NONE`` is a quick test, equality the right one.
NONE: Final = Properties()


class _Type(Enum):
    BYTE = 0
    FLAG = 1  # a byte that is 0 or 1
    TWO_BYTES = 2
    FOUR_BYTES = 3
    VARIABLE = 4
    TEXT = 5
    BINARY = 6
    PAIR = 7


class _Property(NamedTuple):
    identifier: int
    name: str
    type: _Type


# MQTT 5.0, Table 2-4
_TABLE: Final = (
    _Property(0x01, "payload_format", _Type.FLAG),
    _Property(0x02, "message_expiry", _Type.FOUR_BYTES),
    _Property(0x03, "content_type", _Type.TEXT),
    _Property(0x08, "response_topic", _Type.TEXT),
    _Property(0x09, "correlation_data", _Type.BINARY),
    _Property(0x0B, "subscription_ids", _Type.VARIABLE),
    _Property(0x11, "session_expiry", _Type.FOUR_BYTES),
    _Property(0x12, "assigned_client_id", _Type.TEXT),
    _Property(0x13, "server_keep_alive", _Type.TWO_BYTES),
    _Property(0x15, "authentication_method", _Type.TEXT),
    _Property(0x16, "authentication_data", _Type.BINARY),
    _Property(0x17, "request_problem_information", _Type.FLAG),
    _Property(0x18, "will_delay", _Type.FOUR_BYTES),
    _Property(0x19, "request_response_information", _Type.FLAG),
    _Property(0x1A, "response_information", _Type.TEXT),
    _Property(0x1C, "server_reference", _Type.TEXT),
    _Property(0x1F, "reason_string", _Type.TEXT),
    _Property(0x21, "receive_maximum", _Type.TWO_BYTES),
    _Property(0x22, "topic_alias_maximum", _Type.TWO_BYTES),
    _Property(0x23, "topic_alias", _Type.TWO_BYTES),
    _Property(0x24, "maximum_qos", _Type.FLAG),
    _Property(0x25, "retain_available", _Type.FLAG),
    _Property(0x26, "user", _Type.PAIR),
    _Property(0x27, "maximum_packet_size", _Type.FOUR_BYTES),
    _Property(0x28, "wildcard_subscription_available", _Type.FLAG),
    _Property(0x29, "subscription_ids_available", _Type.FLAG),
    _Property(0x2A, "shared_subscription_available", _Type.FLAG),
)
_BY_NAME: Final = {each.name: each for each in _TABLE}
_BY_IDENTIFIER: Final = {each.identifier: each for each in _TABLE}


def _set(*names: str) -> frozenset[str]:
    assert all(name in _BY_NAME for name in names), names
    return frozenset(names)


# Properties that a client may send, by packet (MQTT 5.0, Table 2-4 and the packets' own sections).
_MESSAGE: Final = _set("payload_format", "message_expiry", "content_type", "response_topic", "correlation_data", "user")
OF_CONNECT: Final = _set(
    "session_expiry",
    "authentication_method",
    "authentication_data",
    "request_problem_information",
    "request_response_information",
    "receive_maximum",
    "topic_alias_maximum",
    "user",
    "maximum_packet_size",
)
OF_WILL: Final = _MESSAGE | _set("will_delay")
OF_PUBLISH: Final = _MESSAGE | _set("topic_alias")
OF_ACKNOWLEDGEMENT: Final = _set("reason_string", "user")
OF_SUBSCRIBE: Final = _set("subscription_ids", "user")
OF_UNSUBSCRIBE: Final = _set("user")
OF_DISCONNECT: Final = _set("session_expiry", "reason_string", "user")
OF_AUTH: Final = _set("authentication_method", "authentication_data", "reason_string", "user")

_NEVER_ZERO: Final = {
    "receive_maximum": Reason.PROTOCOL_ERROR,  # 3.1.2.11.3
    "maximum_packet_size": Reason.PROTOCOL_ERROR,  # 3.1.2.11.4
    "subscription_ids": Reason.PROTOCOL_ERROR,  # 3.8.2.1.2
    "topic_alias": Reason.TOPIC_ALIAS_INVALID,  # 3.3.2.3.4
}


def decode(reader: Reader, allowed: frozenset[str]) -> Properties:
    """Return the properties that stand where ``reader`` is. MqttError where one is not ``allowed`` in this packet,
    stands twice (but for "user") or has a value that it must not have; rules of several packets are not checked."""
    length = reader.variable()
    if length == 0:
        return NONE
    end = reader.at + length
    if end > reader.end:
        raise malformed("the properties are longer than their packet")
    packet_end = reader.end
    reader.end = end
    values: dict[str, Any] = {}
    user: list[tuple[str, str]] = []
    while reader.at < end:
        identifier = reader.variable()
        found = _BY_IDENTIFIER.get(identifier)
        if found is None:
            raise malformed(f"there is no property 0x{identifier:02X}")
        _, name, kind = found
        if name not in allowed:
            # MQTT-3.3.4-6, beside which 2.2.2.2: "an Identifier which is not valid for its packet type" is malformed
            if name == "subscription_ids":
                raise protocol_error("only SUBSCRIBE may have a subscription identifier")
            raise malformed(f"the property {name} is not one of this packet")
        if kind is _Type.PAIR:
            if len(user) == USER_PROPERTIES_MAX:
                raise MqttError(Reason.QUOTA_EXCEEDED, f"more than {USER_PROPERTIES_MAX} user properties")
            user.append((reader.text(), reader.text()))
            continue
        if name in values:
            raise protocol_error(f"the property {name} stands there twice")
        values[name] = _value(reader, name, kind)
    reader.end = packet_end
    if user:
        values["user"] = tuple(user)
    return Properties(**values)


def _value(reader: Reader, name: str, kind: _Type) -> Any:
    if kind is _Type.TEXT:
        text = reader.text()
        # 3.3.2.3.5: it is a topic name
        if name == "response_topic" and (not text or "+" in text or "#" in text):
            raise protocol_error("the response topic is empty or has a wildcard")
        return text
    if kind is _Type.BINARY:
        return reader.binary()
    if kind is _Type.TWO_BYTES:
        value = reader.two_bytes()
    elif kind is _Type.FOUR_BYTES:
        value = reader.four_bytes()
    elif kind is _Type.VARIABLE:
        value = reader.variable()
    else:
        value = reader.byte()
        if value > 1 and kind is _Type.FLAG:
            raise protocol_error(f"the property {name} is {value}, which is neither 0 nor 1")
    if value == 0 and name in _NEVER_ZERO:
        raise MqttError(_NEVER_ZERO[name], f"the property {name} must not be 0")
    return (value,) if name == "subscription_ids" else value


def encode(properties: Properties) -> bytes:
    """Return the properties with their length, as they stand in a packet. Strings and binary data must have a place in
    one."""
    if properties is NONE:
        return b"\0"
    parts = list(_encoded(properties))
    return fields.variable(sum(map(len, parts))) + b"".join(parts)


def _encoded(properties: Properties) -> Iterable[bytes]:
    for identifier, name, kind in _TABLE:
        value = getattr(properties, name)
        if value is None or value == ():
            continue
        head = bytes((identifier,))
        if kind is _Type.PAIR:
            for key, text in value:
                yield head + fields.text(key) + fields.text(text)
        elif kind is _Type.VARIABLE:
            for number in value:
                yield head + fields.variable(number)
        elif kind is _Type.TEXT:
            yield head + fields.text(value)
        elif kind is _Type.BINARY:
            yield head + fields.binary(value)
        elif kind is _Type.FOUR_BYTES:
            yield head + fields.four_bytes(value)
        elif kind is _Type.TWO_BYTES:
            yield head + fields.two_bytes(value)
        else:
            yield bytes((identifier, value))
