"""Fields and properties of packets (MQTT 5.0, 1.5 and 2.2.2; MQTT 3.1.1 has the same fields and no properties). Pure.

    byte | two byte integer | four byte integer      big-endian
    variable byte integer                            seven bits a byte, the lowest first; bit 7: another byte follows
    string, binary data                              | length u16 | bytes |
    properties                                       | length, variable | (identifier, variable | value) ... |

A Reader never reads after the end of its packet. One table describes all properties; the parser of a packet passes the
set of permitted ones.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tandemmq.broker.protocols.mqtt.reason_codes import MqttError, Reason, malformed, protocol_error

#: Limit of a string and of binary data.
BYTES_MAX: Final = 0xFFFF
VARIABLE_BYTES_MAX: Final = 4
VARIABLE_MAX: Final = (1 << 7 * VARIABLE_BYTES_MAX) - 1
#: Limit of a packet: the byte of its type, the bytes of its remaining length, and the content.
PACKET_BYTES_MAX: Final = 1 + VARIABLE_BYTES_MAX + VARIABLE_MAX
_TWO = struct.Struct(">H")
_FOUR = struct.Struct(">I")
#: Limit of the user properties of a packet, like that of STOMP headers. Each takes more memory than bytes on the wire.
USER_PROPERTIES_MAX: Final = 1000
#: Limit of all names and values of a packet's user properties. Reading them, or writing them for a client, takes less
#: than a millisecond.
USER_BYTES_MAX: Final = 256 * 1024
# Properties that a packet may have more than once; their values are tuples.
_REPEATED: Final = frozenset(("subscription_ids", "user"))
_NEVER_ZERO: Final = {
    "receive_maximum": Reason.PROTOCOL_ERROR,  # 3.1.2.11.3
    "maximum_packet_size": Reason.PROTOCOL_ERROR,  # 3.1.2.11.4
    "subscription_ids": Reason.PROTOCOL_ERROR,  # 3.8.2.1.2
    "topic_alias": Reason.TOPIC_ALIAS_INVALID,  # 3.3.2.3.4
}


def is_text(value: str) -> bool:
    """Return whether ``value`` can be sent as a string: it is not too long, and contains neither U+0000 nor a lone
    surrogate."""
    try:
        return len(value) <= BYTES_MAX and "\0" not in value and len(value.encode()) <= BYTES_MAX
    except UnicodeEncodeError:
        return False


def write_variable(value: int) -> bytes:
    """Return ``value`` as a variable byte integer of the minimum length (MQTT-1.5.5-1)."""
    if value < 0x80:
        return bytes((value,))
    assert value <= VARIABLE_MAX, f"{value} is too large for a variable byte integer"
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def write_text(value: str) -> bytes:
    """Return ``value`` encoded as a string. ``is_text`` must be true for it."""
    return write_binary(value.encode())


def write_binary(value: bytes) -> bytes:
    """Return ``value`` encoded as binary data. It must have at most BYTES_MAX bytes."""
    assert len(value) <= BYTES_MAX, f"{len(value)} bytes are too many for a string"
    return _TWO.pack(len(value)) + value


class Reader:
    """Reads fields of ``data`` from ``at`` to ``end``, the end of the packet or of a part of it. All methods raise
    MqttError (malformed packet) if a field is cut off or invalid."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self.data = data
        self.at = at
        self.end = end

    @property
    def left(self) -> int:
        """Number of bytes that were not read yet."""
        return self.end - self.at

    def byte(self) -> int:
        at = self._pass(1)
        return self.data[at]

    def two_bytes(self) -> int:
        at = self._pass(2)
        data = self.data
        return data[at] << 8 | data[at + 1]

    def four_bytes(self) -> int:
        at = self._pass(4)
        return int.from_bytes(self.data[at : at + 4], "big")

    def variable(self) -> int:
        """Return a variable byte integer of MQTT 5.0, which must have the minimum length."""
        value = 0
        for number in range(VARIABLE_BYTES_MAX):
            byte = self.data[self._pass(1)]
            value |= (byte & 0x7F) << 7 * number
            if byte < 0x80:
                if byte == 0 and number:
                    raise malformed("a variable byte integer has more bytes than it needs")
                return value
        raise malformed(f"a variable byte integer has more than {VARIABLE_BYTES_MAX} bytes")

    def binary(self) -> bytes:
        length = self.two_bytes()
        at = self._pass(length)
        return self.data[at : at + length]

    def text(self) -> str:
        return decoded(self.binary())

    def _pass(self, length: int) -> int:
        """Skip the next ``length`` bytes, and return where they begin."""
        at = self.at
        if at + length > self.end:
            raise malformed("the packet ends inside a field")
        self.at = at + length
        return at


def decoded(data: bytes) -> str:
    """Return the string in ``data``. Raises MqttError if ``data`` is not UTF-8 (Python's decoder refuses surrogates, as
    MQTT-1.5.4-1 requires) or contains U+0000 (MQTT-1.5.4-2)."""
    try:
        value = data.decode()
    except UnicodeDecodeError:
        raise malformed("a string is not UTF-8") from None
    if "\0" in value:
        raise malformed("a string contains U+0000")
    return value


@dataclass(slots=True)
class Properties:
    """Properties of one packet. None or an empty tuple: the packet does not have the property. Immutable."""

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
        # Authentication data is never shown, not even in a traceback.
        values = {name: getattr(self, name) for name in sorted(_NAMES) if name != "authentication_data"}
        shown = [f"{name}={value!r}" for name, value in values.items() if value not in (None, ())]
        return f"Properties({', '.join(shown)})"


#: Properties of packets without properties. ``is NONE`` is a fast test; it may be false for equal objects.
NONE: Final = Properties()


class _Type(NamedTuple):
    read: Callable[[Reader], Any]
    write: Callable[[Any], bytes]


_FLAG: Final = _Type(Reader.byte, lambda value: bytes((value,)))  # 0 or 1
_TWO_BYTES: Final = _Type(Reader.two_bytes, _TWO.pack)
_FOUR_BYTES: Final = _Type(Reader.four_bytes, _FOUR.pack)
_VARIABLE: Final = _Type(Reader.variable, write_variable)
_TEXT: Final = _Type(Reader.text, write_text)
_BINARY: Final = _Type(Reader.binary, write_binary)
_PAIR: Final = _Type(
    lambda reader: (reader.text(), reader.text()), lambda pair: write_text(pair[0]) + write_text(pair[1])
)

# MQTT 5.0, Table 2-4
_TABLE: Final[dict[int, tuple[str, _Type]]] = {
    0x01: ("payload_format", _FLAG),
    0x02: ("message_expiry", _FOUR_BYTES),
    0x03: ("content_type", _TEXT),
    0x08: ("response_topic", _TEXT),
    0x09: ("correlation_data", _BINARY),
    0x0B: ("subscription_ids", _VARIABLE),
    0x11: ("session_expiry", _FOUR_BYTES),
    0x12: ("assigned_client_id", _TEXT),
    0x13: ("server_keep_alive", _TWO_BYTES),
    0x15: ("authentication_method", _TEXT),
    0x16: ("authentication_data", _BINARY),
    0x17: ("request_problem_information", _FLAG),
    0x18: ("will_delay", _FOUR_BYTES),
    0x19: ("request_response_information", _FLAG),
    0x1A: ("response_information", _TEXT),
    0x1C: ("server_reference", _TEXT),
    0x1F: ("reason_string", _TEXT),
    0x21: ("receive_maximum", _TWO_BYTES),
    0x22: ("topic_alias_maximum", _TWO_BYTES),
    0x23: ("topic_alias", _TWO_BYTES),
    0x24: ("maximum_qos", _FLAG),
    0x25: ("retain_available", _FLAG),
    0x26: ("user", _PAIR),
    0x27: ("maximum_packet_size", _FOUR_BYTES),
    0x28: ("wildcard_subscription_available", _FLAG),
    0x29: ("subscription_ids_available", _FLAG),
    0x2A: ("shared_subscription_available", _FLAG),
}
_NAMES: Final = frozenset(name for name, _ in _TABLE.values())


def _set(*names: str) -> frozenset[str]:
    assert all(name in _NAMES for name in names), names
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


def read_properties(reader: Reader, allowed: frozenset[str]) -> Properties:
    """Read the properties at the position of ``reader``, and return them. Raises MqttError if a property is not
    ``allowed`` in this packet, occurs twice (except for ``user``) or has a value that is not permitted. Rules that
    concern several packets are not checked."""
    length = reader.variable()
    if length == 0:
        return NONE
    end = reader.at + length
    if end > reader.end:
        raise malformed("the properties are longer than their packet")
    packet_end, reader.end = reader.end, end
    values: dict[str, Any] = {}
    user: list[tuple[str, str]] = []
    user_bytes = 0
    while reader.at < end:
        identifier = reader.variable()
        found = _TABLE.get(identifier)
        if found is None:
            raise malformed(f"unknown property 0x{identifier:02X}")
        name, kind = found
        if name not in allowed:
            # MQTT-3.3.4-6 is an exception to 2.2.2.2: "an Identifier which is not valid for its packet type" is
            # malformed
            if name == "subscription_ids":
                raise protocol_error("only SUBSCRIBE may have a subscription identifier")
            raise malformed(f"the property {name} is not permitted in this packet")
        if kind is _PAIR:
            if len(user) == USER_PROPERTIES_MAX:
                raise MqttError(Reason.QUOTA_EXCEEDED, f"more than {USER_PROPERTIES_MAX} user properties")
            at = reader.at
            user.append(kind.read(reader))
            user_bytes += reader.at - at
            # prove: user-properties-are-limited-in-bytes
            if user_bytes > USER_BYTES_MAX:
                raise MqttError(Reason.QUOTA_EXCEEDED, f"user properties of more than {USER_BYTES_MAX} bytes")
            continue
        if name in values:
            raise protocol_error(f"the property {name} occurs twice")
        value = kind.read(reader)
        _check(name, kind, value)
        values[name] = (value,) if name in _REPEATED else value
    reader.end = packet_end
    if user:
        values["user"] = tuple(user)
    return Properties(**values)


def _check(name: str, kind: _Type, value: Any) -> None:
    if kind is _FLAG and value > 1:
        raise protocol_error(f"the property {name} is {value}, which is neither 0 nor 1")
    if value == 0 and name in _NEVER_ZERO:
        raise MqttError(_NEVER_ZERO[name], f"the property {name} must not be 0")
    # 3.3.2.3.5: a response topic is a topic name
    if name == "response_topic" and (not value or "+" in value or "#" in value):
        raise protocol_error("the response topic is empty or has a wildcard")


def write_properties(properties: Properties) -> bytes:
    """Return the encoded properties with their length, as in a packet. Strings and binary data must have at most
    BYTES_MAX bytes."""
    if properties is NONE:
        return b"\0"
    parts: list[bytes] = []
    for identifier, (name, kind) in _TABLE.items():
        value = getattr(properties, name)
        if value is not None:
            values = value if name in _REPEATED else (value,)
            parts += [bytes((identifier,)) + kind.write(each) for each in values]
    return write_variable(sum(map(len, parts))) + b"".join(parts)
