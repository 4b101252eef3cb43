"""The client side of MQTT: it encodes a client's packets, and decodes a server's. It shares only the packet classes
with the broker."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from tandemmq.broker.protocols.mqtt.packets import (
    Acknowledgement,
    Authentication,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    PingRequest,
    Publish,
    Subscribe,
    Unsubscribe,
    Version,
)
from tandemmq.broker.protocols.mqtt.properties import NONE, Properties

# MQTT 5.0, Table 2-4: b, h and i are integers of one, two and four bytes, v is a variable byte integer, s a string,
# d binary data, p a pair of strings.
PROPERTIES = {
    "payload_format": (0x01, "b"),
    "message_expiry": (0x02, "i"),
    "content_type": (0x03, "s"),
    "response_topic": (0x08, "s"),
    "correlation_data": (0x09, "d"),
    "subscription_ids": (0x0B, "v"),
    "session_expiry": (0x11, "i"),
    "assigned_client_id": (0x12, "s"),
    "server_keep_alive": (0x13, "h"),
    "authentication_method": (0x15, "s"),
    "authentication_data": (0x16, "d"),
    "request_problem_information": (0x17, "b"),
    "will_delay": (0x18, "i"),
    "request_response_information": (0x19, "b"),
    "response_information": (0x1A, "s"),
    "server_reference": (0x1C, "s"),
    "reason_string": (0x1F, "s"),
    "receive_maximum": (0x21, "h"),
    "topic_alias_maximum": (0x22, "h"),
    "topic_alias": (0x23, "h"),
    "maximum_qos": (0x24, "b"),
    "retain_available": (0x25, "b"),
    "user": (0x26, "p"),
    "maximum_packet_size": (0x27, "i"),
    "wildcard_subscription_available": (0x28, "b"),
    "subscription_ids_available": (0x29, "b"),
    "shared_subscription_available": (0x2A, "b"),
}
_NAMES = {identifier: (name, kind) for name, (identifier, kind) in PROPERTIES.items()}


# ---- a client's packets


def encode(packet: Packet, version: Version = Version.V5) -> bytes:
    """Return the bytes of ``packet`` for a client of ``version``; a CONNECT has its own version."""
    is_5 = version is Version.V5
    match packet:
        case Connect():
            return framed(0x10, _connect(packet))
        case Publish():
            body = string(packet.topic) + (short(packet.packet_id) if packet.qos else b"")
            if is_5:
                body += properties_of(packet.properties)
            return framed(0x30 | packet.dup << 3 | packet.qos << 1 | packet.retain, body + packet.payload)
        case Acknowledgement():
            first = packet.type << 4 | (2 if packet.type is PacketType.PUBREL else 0)
            return framed(first, short(packet.packet_id) + (_reason(packet.reason, packet.properties) if is_5 else b""))
        case Subscribe():
            body = short(packet.packet_id) + (properties_of(packet.properties) if is_5 else b"")
            for each in packet.filters:
                options = each.qos | each.no_local << 2 | each.retain_as_published << 3 | each.retain_handling << 4
                body += string(each.topic_filter) + bytes((options,))
            return framed(0x82, body)
        case Unsubscribe():
            body = short(packet.packet_id) + (properties_of(packet.properties) if is_5 else b"")
            return framed(0xA2, body + b"".join(map(string, packet.filters)))
        case PingRequest():
            return framed(0xC0, b"")
        case Disconnect():
            return framed(0xE0, _reason(packet.reason, packet.properties) if is_5 else b"")
        case Authentication():
            return framed(0xF0, _reason(packet.reason, packet.properties))


def _connect(packet: Connect) -> bytes:
    is_5 = packet.version is Version.V5
    will = packet.will
    flags = packet.clean_start << 1
    flags |= (packet.username is not None) << 7 | (packet.password is not None) << 6
    body = string("MQIsdp" if packet.version is Version.V3_1 else "MQTT") + bytes((packet.version,))
    if will is not None:
        flags |= 4 | will.qos << 3 | will.retain << 5
    body += bytes((flags,)) + short(packet.keep_alive)
    if is_5:
        body += properties_of(packet.properties)
    body += string(packet.client_id)
    if will is not None:
        body += (properties_of(will.properties) if is_5 else b"") + string(will.topic) + binary(will.payload)
    if packet.username is not None:
        body += string(packet.username)
    if packet.password is not None:
        body += binary(packet.password)
    return body


def _reason(reason: int, properties: Properties) -> bytes:
    if properties == NONE:
        return bytes((reason,)) if reason else b""
    return bytes((reason,)) + properties_of(properties)


def framed(first: int, body: bytes) -> bytes:
    """Return a packet with this first byte."""
    return bytes((first,)) + variable(len(body)) + body


def short(value: int) -> bytes:
    return struct.pack(">H", value)


def string(value: str) -> bytes:
    return binary(value.encode())


def binary(value: bytes) -> bytes:
    return short(len(value)) + value


def variable(value: int) -> bytes:
    head, tail = value & 0x7F, value >> 7
    return bytes((head,)) if not tail else bytes((head | 0x80,)) + variable(tail)


def properties_of(properties: Properties) -> bytes:
    """Return the properties, preceded by their length."""
    body = b"".join(_property(name, getattr(properties, name)) for name in PROPERTIES)
    return variable(len(body)) + body


def _property(name: str, value: Any) -> bytes:
    if value is None:
        return b""
    identifier, kind = PROPERTIES[name]
    head = bytes((identifier,))
    match kind:
        case "s":
            return head + string(value)
        case "d":
            return head + binary(value)
        case "v":
            return b"".join(head + variable(each) for each in value)
        case "p":
            return b"".join(head + string(key) + string(text) for key, text in value)
        case _:
            return head + struct.pack(f">{kind.upper()}", value)


# ---- a server's packets


class ServerPacket(NamedTuple):
    """A packet of a server. ``codes``: its return or reason codes, a list also for a single one. Fields that it does
    not have are empty."""

    type: PacketType
    codes: list[int]
    packet_id: int = 0
    properties: Properties = NONE
    session_present: bool = False
    topic: str = ""
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False


def decode(data: bytes, version: Version = Version.V5) -> tuple[ServerPacket, bytes] | None:
    """Return the first packet of a server, and the bytes after it; None if it is incomplete. AssertionError: it is not
    a valid packet of a server."""
    at = next((at + 1 for at in range(1, len(data)) if data[at] < 0x80), 0)
    assert at <= 5, f"no remaining length: {data[:5].hex()}"
    if at == 0:
        return None
    length = _Body(data[1:at]).variable()
    if at + length > len(data):
        return None
    body = _Body(data[at : at + length])
    packet = _server_packet(data[0], body, version is Version.V5)
    assert not body.rest, f"{packet} and {body.rest.hex()}"
    return packet, data[at + length :]


def decode_all(data: bytes, version: Version = Version.V5) -> list[ServerPacket]:
    """Return the packets of a server in ``data``, which must be complete."""
    packets = []
    while data:
        found = decode(data, version)
        assert found is not None, f"incomplete packet: {data.hex()}"
        packet, data = found
        packets.append(packet)
    return packets


class _Body:
    def __init__(self, rest: bytes) -> None:
        self.rest = rest

    def take(self, length: int) -> bytes:
        assert len(self.rest) >= length, f"{self.rest.hex()} lacks bytes"
        taken, self.rest = self.rest[:length], self.rest[length:]
        return taken

    def number(self, length: int) -> int:
        return int.from_bytes(self.take(length), "big")

    def variable(self) -> int:
        byte = self.number(1)
        return byte if byte < 0x80 else byte & 0x7F | self.variable() << 7

    def binary(self) -> bytes:
        return self.take(self.number(2))

    def string(self) -> str:
        return self.binary().decode()

    def properties(self) -> Properties:
        inside = _Body(self.take(self.variable()))
        values: dict[str, Any] = {}
        while inside.rest:
            name, kind = _NAMES[inside.variable()]
            if kind in "vp":
                value: Any = inside.variable() if kind == "v" else (inside.string(), inside.string())
                values[name] = (*values.get(name, ()), value)
                continue
            assert name not in values, f"{name} twice"
            match kind:
                case "s":
                    values[name] = inside.string()
                case "d":
                    values[name] = inside.binary()
                case _:
                    values[name] = inside.number(struct.calcsize(kind))
        return Properties(**values)


def _server_packet(first: int, body: _Body, is_5: bool) -> ServerPacket:
    kind = PacketType(first >> 4)
    flags = first & 0x0F
    if kind is PacketType.PUBLISH:
        qos = flags >> 1 & 3
        topic = body.string()
        packet_id = body.number(2) if qos else 0
        properties = body.properties() if is_5 else NONE
        payload = body.take(len(body.rest))
        return ServerPacket(kind, [], packet_id, properties, False, topic, payload, qos, flags & 1 == 1, flags & 8 == 8)
    assert flags == (2 if kind is PacketType.PUBREL else 0), f"flags of {kind.name}: {flags:04b}"
    match kind:
        case PacketType.CONNACK:
            acknowledge_flags, code = body.take(2)
            assert acknowledge_flags < 2, f"flags {acknowledge_flags}"
            properties = body.properties() if is_5 else NONE
            return ServerPacket(kind, [code], 0, properties, acknowledge_flags == 1)
        case PacketType.PUBACK | PacketType.PUBREC | PacketType.PUBREL | PacketType.PUBCOMP:
            packet_id = body.number(2)
            return ServerPacket(kind, *_reason_read(body, is_5, packet_id))
        case PacketType.SUBACK | PacketType.UNSUBACK:
            packet_id = body.number(2)
            properties = body.properties() if is_5 else NONE
            return ServerPacket(kind, list(body.take(len(body.rest))), packet_id, properties)
        case PacketType.PINGRESP:
            return ServerPacket(kind, [])
        case PacketType.DISCONNECT | PacketType.AUTH:
            assert is_5, f"{kind.name} of a server before MQTT 5.0"
            return ServerPacket(kind, *_reason_read(body, is_5, 0))
        case _:
            raise AssertionError(f"{kind.name} of a server")


def _reason_read(body: _Body, is_5: bool, packet_id: int) -> tuple[list[int], int, Properties]:
    reason = body.number(1) if is_5 and body.rest else 0
    return [reason], packet_id, body.properties() if is_5 and body.rest else NONE
