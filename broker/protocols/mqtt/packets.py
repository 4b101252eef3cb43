"""MQTT packets (3.1, 3.1.1 and 5.0): objects for the packets of a client, and encoders for the packets of a server.
Pure.

    | type << 4 | flags, u8 | remaining length, variable byte integer | variable header | payload |

``parser`` makes the objects from bytes. The caller of an encoder must ensure that strings and binary data have at most
properties.BYTES_MAX bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from tandemmq.broker.protocols.mqtt.properties import NONE, Properties, write_properties, write_variable
from tandemmq.broker.protocols.mqtt.reason_codes import Reason, return_code

FLAG_BITS: Final = 0b0010
DUP: Final = 0b1000
_SUCCESS: Final = Reason.SUCCESS
PINGRESP: Final = b"\xd0\0"


class Version(IntEnum):
    """Protocol levels in CONNECT."""

    V3_1 = 3
    V3_1_1 = 4
    V5 = 5


class PacketType(IntEnum):
    """MQTT 5.0, Table 2-1."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


# Packets of MQTT 3.x have no properties (NONE). Other fields that MQTT 3.x lacks have the defaults of MQTT 5.0.


@dataclass(slots=True)
class Will:
    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: Properties


@dataclass(slots=True)
class Connect:
    """CONNECT. ``clean_start`` is the clean session flag of MQTT 3.x."""

    version: Version
    client_id: str
    clean_start: bool
    keep_alive: int
    will: Will | None
    username: str | None
    password: bytes | None
    properties: Properties

    def __repr__(self) -> str:
        # A password is never shown, not even in a traceback.
        return f"Connect({self.version!r}, {self.client_id!r}, {self.username!r})"


# Classes of which each message makes an object have their own ``__init__``: the generated one of a dataclass is
# interpreted even if the module is compiled.


@dataclass(slots=True, init=False)
class Publish:
    """PUBLISH. ``topic`` is empty if a topic alias replaces it; ``packet_id`` is 0 with QoS 0."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int
    properties: Properties

    def __init__(
        self, topic: str, payload: bytes, qos: int, retain: bool, dup: bool, packet_id: int, properties: Properties
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.dup = dup
        self.packet_id = packet_id
        self.properties = properties


@dataclass(slots=True, init=False)
class Acknowledgement:
    """PUBACK, PUBREC, PUBREL or PUBCOMP."""

    type: PacketType
    packet_id: int
    reason: int
    properties: Properties

    def __init__(self, type: PacketType, packet_id: int, reason: int, properties: Properties) -> None:
        self.type = type
        self.packet_id = packet_id
        self.reason = reason
        self.properties = properties


@dataclass(slots=True)
class Filter:
    topic_filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int


@dataclass(slots=True)
class Subscribe:
    packet_id: int
    filters: tuple[Filter, ...]
    properties: Properties


@dataclass(slots=True)
class Unsubscribe:
    packet_id: int
    filters: tuple[str, ...]
    properties: Properties


@dataclass(slots=True)
class PingRequest:
    pass


@dataclass(slots=True)
class Disconnect:
    reason: int
    properties: Properties


@dataclass(slots=True)
class Authentication:
    reason: int
    properties: Properties


Packet = Connect | Publish | Acknowledgement | Subscribe | Unsubscribe | PingRequest | Disconnect | Authentication
# Packet types with the flags 0010 (MQTT 5.0, Table 2-2). All others except PUBLISH have the flags 0000.
FLAGGED: Final = frozenset((PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE))
# Constants, because looking up a member of an enumeration is slow, and each packet needs one.
_V5: Final = Version.V5
_PUBREL: Final = PacketType.PUBREL


def connack(
    version: Version,
    *,
    session_present: bool = False,
    reason: Reason = Reason.SUCCESS,
    properties: Properties = NONE,
) -> bytes:
    """Return CONNACK. Session Present is 0 in a refusal (MQTT-3.2.2-6; 3.1.1: MQTT-3.2.2-4) and in MQTT 3.1."""
    is_present = session_present and reason == Reason.SUCCESS and version is not Version.V3_1
    if version is not _V5:
        return bytes((0x20, 2, is_present, return_code(reason)))
    return _packet(0x20, bytes((is_present, reason)) + write_properties(properties))


def publish_head(
    version: Version,
    topic: bytes,
    payload_bytes: int,
    qos: int,
    packet_id: int,
    retain: bool,
    dup: bool,
    properties: Properties,
) -> bytes:
    """Return the part of a PUBLISH before its payload, which has ``payload_bytes`` bytes. ``topic``: encoded as a
    string of MQTT."""
    head = topic
    if qos:
        head += packet_id.to_bytes(2, "big")
    if version is _V5:
        head += b"\0" if properties is NONE else write_properties(properties)
    first = 0x30 | (DUP if dup else 0) | qos << 1 | retain
    return bytes((first,)) + write_variable(len(head) + payload_bytes) + head


# For each packet type, the fixed header of a packet that has only the packet id.
SHORT_HEADS: Final = {
    type: bytes((type << 4 | (FLAG_BITS if type in FLAGGED else 0), 2))
    for type in (PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP)
}


def acknowledgement(
    version: Version, type: PacketType, packet_id: int, reason: int = Reason.SUCCESS, properties: Properties = NONE
) -> bytes:
    """Return PUBACK, PUBREC, PUBREL or PUBCOMP in the shortest form (3.4.2.1)."""
    if version is not _V5 or (reason == _SUCCESS and properties is NONE):
        return SHORT_HEADS[type] + packet_id.to_bytes(2, "big")
    first = type << 4 | (FLAG_BITS if type is _PUBREL else 0)
    if properties is NONE:
        return bytes((first, 3, packet_id >> 8, packet_id & 0xFF, reason))
    return _packet(first, bytes((packet_id >> 8, packet_id & 0xFF, reason)) + write_properties(properties))


def suback(version: Version, packet_id: int, codes: Sequence[int]) -> bytes:
    """Return SUBACK. ``codes``: one for each filter, in the order of the filters. In MQTT 3.x all failures are 0x80
    (MQTT 3.1 does not define a failure)."""
    head = packet_id.to_bytes(2, "big")
    if version is _V5:
        return _packet(0x90, head + write_properties(NONE) + bytes(codes))
    return _packet(0x90, head + bytes(min(code, Reason.UNSPECIFIED_ERROR) for code in codes))


def unsuback(version: Version, packet_id: int, codes: Sequence[int]) -> bytes:
    """Return UNSUBACK, with ``codes`` as in ``suback``. In MQTT 3.x it has no codes."""
    head = packet_id.to_bytes(2, "big")
    if version is _V5:
        head += write_properties(NONE) + bytes(codes)
    return _packet(0xB0, head)


def disconnect(reason: Reason, properties: Properties = NONE) -> bytes:
    """Return DISCONNECT of MQTT 5.0. In older versions, a server does not send it."""
    if properties is NONE:
        return b"\xe0\0" if reason == Reason.NORMAL_DISCONNECTION else bytes((0xE0, 1, reason))
    return _packet(0xE0, bytes((reason,)) + write_properties(properties))


def _packet(first: int, content: bytes) -> bytes:
    return bytes((first,)) + write_variable(len(content)) + content
