"""Requests of a client, read from its bytes: CONNECT, SUBSCRIBE, UNSUBSCRIBE, PINGREQ, DISCONNECT and AUTH. Pure.

Raises MqttError for a value that no packet may have, with the reason code that MQTT 5.0 has for it.
"""

from __future__ import annotations

from typing import Final

from tandemmq.broker.protocols.mqtt import properties as properties_of
from tandemmq.broker.protocols.mqtt.fields import Reader
from tandemmq.broker.protocols.mqtt.packets import (
    Authentication,
    Connect,
    Disconnect,
    Filter,
    Packet,
    PacketType,
    PingRequest,
    Subscribe,
    Unsubscribe,
    Version,
    Will,
)
from tandemmq.broker.protocols.mqtt.properties import NONE, Properties
from tandemmq.broker.protocols.mqtt.reasons import MqttError, Reason, malformed, protocol_error
from tandemmq.broker.protocols.mqtt.topics import check_filter, check_topic, share_of

#: Filters of one SUBSCRIBE or UNSUBSCRIBE: each takes more memory than bytes on the wire.
FILTERS_MAX: Final = 1000

_V5: Final = Version.V5
_PROTOCOL_NAMES: Final = {Version.V3_1: b"MQIsdp", Version.V3_1_1: b"MQTT", Version.V5: b"MQTT"}

# Properties that a client may send (MQTT 5.0, Tables 3-4 to 3-10 and 3-13, 3.15.2.1).
_OF_RECEIVING: Final = frozenset(
    (
        Reason.SUCCESS,
        Reason.NO_MATCHING_SUBSCRIBERS,
        Reason.UNSPECIFIED_ERROR,
        Reason.IMPLEMENTATION_SPECIFIC_ERROR,
        Reason.NOT_AUTHORIZED,
        Reason.TOPIC_NAME_INVALID,
        Reason.PACKET_IDENTIFIER_IN_USE,
        Reason.QUOTA_EXCEEDED,
        Reason.PAYLOAD_FORMAT_INVALID,
    )
)
_OF_RELEASING: Final = frozenset((Reason.SUCCESS, Reason.PACKET_IDENTIFIER_NOT_FOUND))
_REASONS: Final[dict[PacketType, frozenset[Reason]]] = {
    PacketType.PUBACK: _OF_RECEIVING,
    PacketType.PUBREC: _OF_RECEIVING,
    PacketType.PUBREL: _OF_RELEASING,
    PacketType.PUBCOMP: _OF_RELEASING,
    PacketType.DISCONNECT: frozenset(
        (
            Reason.NORMAL_DISCONNECTION,
            Reason.DISCONNECT_WITH_WILL,
            Reason.UNSPECIFIED_ERROR,
            Reason.MALFORMED_PACKET,
            Reason.PROTOCOL_ERROR,
            Reason.IMPLEMENTATION_SPECIFIC_ERROR,
            Reason.TOPIC_NAME_INVALID,
            Reason.RECEIVE_MAXIMUM_EXCEEDED,
            Reason.TOPIC_ALIAS_INVALID,
            Reason.PACKET_TOO_LARGE,
            Reason.MESSAGE_RATE_TOO_HIGH,
            Reason.QUOTA_EXCEEDED,
            Reason.ADMINISTRATIVE_ACTION,
            Reason.PAYLOAD_FORMAT_INVALID,
        )
    ),
    PacketType.AUTH: frozenset((Reason.CONTINUE_AUTHENTICATION, Reason.REAUTHENTICATE)),
}


def check_end(reader: Reader) -> None:
    """Check that nothing stands behind the last field of the packet."""
    if reader.left:
        raise malformed(f"{reader.left} bytes behind what the packet says")


def no_packet_id() -> MqttError:
    """Return the error for a packet that has the packet identifier 0."""
    return protocol_error("packet identifier 0")  # MQTT-2.2.1-3, 2.2.1-4 (3.1.1: MQTT-2.3.1-1)


def read_reason(reader: Reader, kind: PacketType, allowed: frozenset[str]) -> tuple[int, Properties]:
    """Return the reason code and the properties of a packet of MQTT 5.0 that may end before either."""
    reason = reader.byte() if reader.left else Reason.SUCCESS
    if reason not in _REASONS[kind]:
        raise protocol_error(f"no client sends {kind.name} with the reason code 0x{reason:02X}")
    return reason, properties_of.decode(reader, allowed) if reader.left else NONE


# ---- CONNECT


class UnknownVersion(MqttError):
    """Version of CONNECT that is not known. ``answered_in``: the version whose CONNACK the client can read; None: that
    of MQTT 3."""

    def __init__(self, name: bytes, level: int) -> None:
        super().__init__(
            Reason.UNSUPPORTED_PROTOCOL_VERSION,
            f"no protocol {name[:20]!r} of level {level}: MQTT 3.1, 3.1.1 and 5.0 are",
        )
        # Bridges of mosquitto set the highest bit, in MQTT 3, and try again without it when they are refused.
        is_newer = name == _PROTOCOL_NAMES[_V5] and _V5 < level < _BRIDGE_BIT
        self.answered_in = _V5 if is_newer else None


_BRIDGE_BIT: Final = 0x80


def read_version(reader: Reader) -> Version:
    """Return the version of a CONNECT, which begins with it. Raises UnknownVersion."""
    name = reader.binary()
    level = reader.byte()
    for version, its_name in _PROTOCOL_NAMES.items():
        if level == version and name == its_name:
            return version
    raise UnknownVersion(name, level)


def read_connect(version: Version, reader: Reader) -> Connect:
    """Return a CONNECT, read from behind its version."""
    flags = reader.byte()
    has_username, has_password, will_retain, will_qos, has_will, clean_start, reserved = (
        flags >> 7 & 1,
        flags >> 6 & 1,
        flags >> 5 & 1,
        flags >> 3 & 3,
        flags >> 2 & 1,
        flags >> 1 & 1,
        flags & 1,
    )
    is_3_1 = version is Version.V3_1
    if reserved and not is_3_1:
        raise malformed("the reserved flag of CONNECT is set")  # MQTT-3.1.2-3
    if will_qos == 3:
        raise malformed("QoS 3 of a will")  # MQTT-3.1.2-12 (3.1.1: MQTT-3.1.2-14)
    if not has_will and (will_qos or will_retain) and not is_3_1:
        raise malformed("QoS or retain of a will that is not there")  # MQTT-3.1.2-11, 3.1.2-13
    if has_password and not has_username and version is not _V5:
        raise malformed("a password without a user name")  # 3.1.1: MQTT-3.1.2-22
    keep_alive = reader.two_bytes()
    properties = NONE
    if version is _V5:
        properties = properties_of.decode(reader, properties_of.OF_CONNECT)
        if properties.authentication_data is not None and properties.authentication_method is None:
            raise protocol_error("authentication data without a method")  # 3.1.2.11.10
    client_id = reader.text()
    will = _will(version, reader, will_qos, will_retain == 1) if has_will else None
    # MQTT 3.1, CONNECT: a flag may be set where the string is not there.
    username = reader.text() if has_username and (reader.left or not is_3_1) else None
    password = reader.binary() if has_password and (reader.left or not is_3_1) else None
    if not client_id and (is_3_1 or (version is Version.V3_1_1 and not clean_start)):
        # MQTT-3.1.3-8 of 3.1.1; MQTT 3.1 has no empty ones. It takes 23 characters at most; more do no harm.
        raise MqttError(
            Reason.CLIENT_IDENTIFIER_NOT_VALID, "an empty client identifier, which clean sessions alone have"
        )
    return Connect(version, client_id, clean_start == 1, keep_alive, will, username, password, properties)


def _will(version: Version, reader: Reader, qos: int, retain: bool) -> Will:
    properties = properties_of.decode(reader, properties_of.OF_WILL) if version is _V5 else NONE
    topic = reader.text()
    check_topic(topic)
    return Will(topic, reader.binary(), qos, retain, properties)


# ---- everything else


def read_other(version: Version, kind: PacketType, reader: Reader) -> Packet:
    """Return a packet of any of the other types."""
    packet: Packet
    if kind is PacketType.PINGREQ:
        packet = PingRequest()
    elif kind is PacketType.SUBSCRIBE:
        packet = _subscribe(version, reader)
    elif kind is PacketType.UNSUBSCRIBE:
        packet = _unsubscribe(version, reader)
    elif kind is PacketType.DISCONNECT:
        packet = _disconnect(version, reader)
    else:
        packet = _authentication(reader)
    check_end(reader)
    return packet


def _subscribe(version: Version, reader: Reader) -> Subscribe:
    packet_id, properties = _head(version, reader, properties_of.OF_SUBSCRIBE)
    filters: list[Filter] = []
    while reader.left:
        _check_filter_count(len(filters))
        filters.append(_filter(version, reader))
    if not filters:
        raise protocol_error("SUBSCRIBE without a topic filter")  # MQTT-3.8.3-2 (3.1.1: 3.8.3-3)
    return Subscribe(packet_id, tuple(filters), properties)


def _filter(version: Version, reader: Reader) -> Filter:
    topic_filter = reader.text()
    options = reader.byte()
    qos = options & 3
    if qos == 3:
        raise (protocol_error if version is _V5 else malformed)("QoS 3 of a subscription")  # 3.8.3.1
    if version is not _V5:
        if options > 2 and version is Version.V3_1_1:
            raise malformed("reserved bits beside the QoS of a subscription")  # 3.1.1: MQTT-3.8.3-4
        check_filter(topic_filter)
        return Filter(topic_filter, qos, False, False, 0)
    no_local = options & 0x04 != 0
    retain_handling = options >> 4 & 3
    if options & 0xC0:
        raise malformed("reserved bits of the subscription options")  # MQTT-3.8.3-5
    if retain_handling == 3:
        raise protocol_error("retain handling 3")  # 3.8.3.1
    if _check_any_filter(topic_filter) and no_local:
        raise protocol_error("no local of a shared subscription")  # MQTT-3.8.3-4
    return Filter(topic_filter, qos, no_local, options & 0x08 != 0, retain_handling)


def _unsubscribe(version: Version, reader: Reader) -> Unsubscribe:
    packet_id, properties = _head(version, reader, properties_of.OF_UNSUBSCRIBE)
    filters: list[str] = []
    while reader.left:
        _check_filter_count(len(filters))
        topic_filter = reader.text()
        if version is _V5:
            _check_any_filter(topic_filter)
        else:
            check_filter(topic_filter)
        filters.append(topic_filter)
    if not filters:
        raise protocol_error("UNSUBSCRIBE without a topic filter")  # MQTT-3.10.3-2
    return Unsubscribe(packet_id, tuple(filters), properties)


def _head(version: Version, reader: Reader, allowed: frozenset[str]) -> tuple[int, Properties]:
    packet_id = reader.two_bytes()
    if packet_id == 0:
        raise no_packet_id()
    return packet_id, properties_of.decode(reader, allowed) if version is _V5 else NONE


def _check_filter_count(count: int) -> None:
    if count == FILTERS_MAX:
        raise MqttError(Reason.QUOTA_EXCEEDED, f"more than {FILTERS_MAX} topic filters in one packet")


def _check_any_filter(topic_filter: str) -> bool:
    """Check a filter; return whether it is of a shared subscription, which only MQTT 5.0 has."""
    if share_of(topic_filter) is not None:
        return True
    check_filter(topic_filter)
    return False


def _disconnect(version: Version, reader: Reader) -> Disconnect:
    if version is not _V5:
        return Disconnect(Reason.NORMAL_DISCONNECTION, NONE)
    return Disconnect(*read_reason(reader, PacketType.DISCONNECT, properties_of.OF_DISCONNECT))


def _authentication(reader: Reader) -> Authentication:
    reason, properties = read_reason(reader, PacketType.AUTH, properties_of.OF_AUTH)
    if properties.authentication_method is None:
        raise protocol_error("AUTH without an authentication method")  # 3.15.2.2.2
    return Authentication(reason, properties)
