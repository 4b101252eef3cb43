"""Packets of a server, as bytes. Pure. Strings and binary data must have a place in a packet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tandemmq.broker.protocols.mqtt import fields
from tandemmq.broker.protocols.mqtt.packets import DUP, FLAG_BITS, FLAGGED, PacketType, Version
from tandemmq.broker.protocols.mqtt.properties import NONE, Properties, encode
from tandemmq.broker.protocols.mqtt.reasons import Reason, return_code

# A member of an enumeration is found slowly, and these are needed for each packet.
_V5: Final = Version.V5
_SUCCESS: Final = Reason.SUCCESS
_PUBREL: Final = PacketType.PUBREL


def connack(
    version: Version,
    *,
    session_present: bool = False,
    reason: Reason = Reason.SUCCESS,
    properties: Properties = NONE,
) -> bytes:
    """Return CONNACK. MQTT-3.2.2-6 (3.1.1: 3.2.2-4): no refusal reports a session. MQTT 3.1 never does."""
    is_present = session_present and reason == Reason.SUCCESS and version is not Version.V3_1
    if version is not _V5:
        return bytes((0x20, 2, is_present, return_code(reason)))
    return _packet(0x20, bytes((is_present, reason)) + encode(properties))


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
    """Return a PUBLISH up to its payload, which has ``payload_bytes``. ``topic``: as string."""
    head = topic
    if qos:
        head += packet_id.to_bytes(2, "big")
    if version is _V5:
        head += b"\0" if properties is NONE else encode(properties)
    first = 0x30 | (DUP if dup else 0) | qos << 1 | retain
    return bytes((first,)) + fields.variable(len(head) + payload_bytes) + head


# By type: the bytes before the packet id, where nothing stands behind it.
SHORT_HEADS: Final = {
    type: bytes((type << 4 | (FLAG_BITS if type in FLAGGED else 0), 2))
    for type in (PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP)
}


def acknowledgement(
    version: Version, type: PacketType, packet_id: int, reason: int = Reason.SUCCESS, properties: Properties = NONE
) -> bytes:
    """Return PUBACK, PUBREC, PUBREL or PUBCOMP; as short as may be (3.4.2.1)."""
    if version is not _V5 or (reason == _SUCCESS and properties is NONE):
        return SHORT_HEADS[type] + packet_id.to_bytes(2, "big")
    first = type << 4 | (FLAG_BITS if type is _PUBREL else 0)
    if properties is NONE:
        return bytes((first, 3, packet_id >> 8, packet_id & 0xFF, reason))
    return _packet(first, bytes((packet_id >> 8, packet_id & 0xFF, reason)) + encode(properties))


def suback(version: Version, packet_id: int, codes: Sequence[int], properties: Properties = NONE) -> bytes:
    """Return SUBACK. ``codes``: one for each filter, in their order. MQTT 3.x has one failure, 0x80, for all (3.1
    strictly none)."""
    head = packet_id.to_bytes(2, "big")
    if version is _V5:
        return _packet(0x90, head + encode(properties) + bytes(codes))
    return _packet(0x90, head + bytes(min(code, Reason.UNSPECIFIED_ERROR) for code in codes))


def unsuback(version: Version, packet_id: int, codes: Sequence[int], properties: Properties = NONE) -> bytes:
    """Return UNSUBACK, with ``codes`` as in ``suback``; MQTT 3.x has none there."""
    head = packet_id.to_bytes(2, "big")
    if version is _V5:
        head += encode(properties) + bytes(codes)
    return _packet(0xB0, head)


def disconnect(reason: Reason, properties: Properties = NONE) -> bytes:
    """Return DISCONNECT of MQTT 5.0: no server of an older version sends it."""
    if properties is NONE:
        return b"\xe0\0" if reason == Reason.NORMAL_DISCONNECTION else bytes((0xE0, 1, reason))
    return _packet(0xE0, bytes((reason,)) + encode(properties))


PINGRESP: Final = b"\xd0\0"


def _packet(first: int, content: bytes) -> bytes:
    return bytes((first,)) + fields.variable(len(content)) + content
