"""MQTT packets, as a client sends them (MQTT 3.1, 3.1.1 and 5.0).

    | type << 4 | flags, u8 | remaining length, variable byte integer | variable header | payload |

``parser`` makes them of bytes, ``answers`` makes bytes of a server's packets.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from tandemmq.broker.protocols.mqtt.properties import Properties


class Version(IntEnum):
    """Protocol levels, under their usual names."""

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


# MQTT 3.x has no properties (NONE), and other fields that it lacks have the defaults of MQTT 5.0.


@dataclass(slots=True)
class Will:
    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: Properties


@dataclass(slots=True)
class Connect:
    """``clean_start`` is the clean session flag of MQTT 3.x."""

    version: Version
    client_id: str
    clean_start: bool
    keep_alive: int
    will: Will | None
    username: str | None
    password: bytes | None
    properties: Properties

    def __repr__(self) -> str:
        # A password is never shown, in no traceback either.
        return f"Connect({self.version!r}, {self.client_id!r}, {self.username!r})"


# Classes with an object for each message have their own ``__init__``: that of a dataclass is interpreted where all is
# compiled.


@dataclass(slots=True, init=False)
class Publish:
    """``topic`` is empty where a topic alias stands for it; ``packet_id`` is 0 with QoS 0."""

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

# Types whose flags are 0010 (MQTT 5.0, Table 2-2); those of all others, but for PUBLISH, are 0000.
FLAGGED: Final = frozenset((PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE))
FLAG_BITS: Final = 0b0010
DUP: Final = 0b1000
