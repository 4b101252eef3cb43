"""Parser of a client's bytes, which may arrive in any pieces: it returns packets. Pure.

The buffered part of an incomplete packet never exceeds the limit. A value that is not permitted in a packet raises
MqttError with the reason code of MQTT 5.0. The only state of the conversation is the version: CONNECT must be the first
packet, and sets the version of all others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from tandemmq.broker.core.slices import Work
from tandemmq.broker.protocols.mqtt.packets import (
    DUP,
    FLAG_BITS,
    FLAGGED,
    Acknowledgement,
    Authentication,
    Connect,
    Disconnect,
    Filter,
    Packet,
    PacketType,
    PingRequest,
    Publish,
    Subscribe,
    Unsubscribe,
    Version,
    Will,
)
from tandemmq.broker.protocols.mqtt.properties import (
    NONE,
    OF_ACKNOWLEDGEMENT,
    OF_AUTH,
    OF_CONNECT,
    OF_DISCONNECT,
    OF_PUBLISH,
    OF_SUBSCRIBE,
    OF_UNSUBSCRIBE,
    OF_WILL,
    VARIABLE_BYTES_MAX,
    Properties,
    Reader,
    decoded,
    read_properties,
)
from tandemmq.broker.protocols.mqtt.reason_codes import MqttError, Reason, malformed, protocol_error
from tandemmq.broker.protocols.mqtt.topics import check_filter, check_topic, share_of

T = TypeVar("T")

# Maximum number of topics of one client that are remembered, and their maximum length.
TOPICS_REMEMBERED_MAX: Final = 1_000
TOPIC_BYTES_REMEMBERED_MAX: Final = 256
# Constants, because looking up a member of an enumeration is slow, and each packet needs one.
_V5: Final = Version.V5
_SUCCESS: Final = Reason.SUCCESS
_PUBREL: Final = PacketType.PUBREL
_SERVER_TYPES: Final = frozenset((PacketType.CONNACK, PacketType.SUBACK, PacketType.UNSUBACK, PacketType.PINGRESP))
_ACKNOWLEDGEMENTS: Final = {
    int(each): each for each in (PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP)
}
#: Limit of the filters of one SUBSCRIBE or UNSUBSCRIBE. A filter takes more memory than bytes on the wire.
FILTERS_MAX: Final = 1000
# Limits of the filters, and of their bytes, that one call reads. This takes half a millisecond.
FILTERS_AT_ONCE: Final = 128
FILTER_BYTES_AT_ONCE: Final = 16 * 1024
_PROTOCOL_NAMES: Final = {Version.V3_1: b"MQIsdp", Version.V3_1_1: b"MQTT", Version.V5: b"MQTT"}
# Reason codes that a client may send (MQTT 5.0, Tables 3-4 to 3-7, 3-10 and 3-11).
_OF_RECEIVING: Final = frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99))
_OF_RELEASING: Final = frozenset((0x00, 0x92))
_OF_DISCONNECT: Final = frozenset((0x00, 0x04, *range(0x80, 0x84), 0x90, *range(0x93, 0x9A)))
_REASONS: Final[dict[PacketType, frozenset[int]]] = {
    PacketType.PUBACK: _OF_RECEIVING,
    PacketType.PUBREC: _OF_RECEIVING,
    PacketType.PUBREL: _OF_RELEASING,
    PacketType.PUBCOMP: _OF_RELEASING,
    PacketType.DISCONNECT: _OF_DISCONNECT,
    PacketType.AUTH: frozenset((0x18, 0x19)),
}
_BRIDGE_BIT: Final = 0x80


class PacketParser:
    """Cuts received bytes into packets. ``feed`` each piece, then call ``next_packet`` until it returns None and
    ``is_reading`` is false.

    ``next_packet`` raises MqttError when the peer breaks the protocol or a limit; do not use the parser after that.
    ``version`` is None before CONNECT. It is also set if another part of CONNECT is wrong, because the answer needs it.
    ``packet_bytes_max`` may be changed between two packets. ``offset``: number of the buffered bytes that are already
    parsed.
    """

    __slots__ = ("_data", "_filters", "_partial", "_topics", "_wanted", "offset", "packet_bytes_max", "version")

    def __init__(self, packet_bytes_max: int) -> None:
        self.version: Version | None = None
        self.packet_bytes_max = packet_bytes_max
        self._data = b""
        self.offset = 0
        # Bytes of an incomplete packet, until they are _wanted bytes.
        self._partial = bytearray()
        self._wanted = 0
        self._topics: dict[bytes, str] = {}  # cache of valid topics
        self._filters: Work[Packet] | None = None  # reads the filters of the packet that ends at ``offset``

    @property
    def is_reading(self) -> bool:
        """True if only some filters of a complete packet are read. The next call of ``next_packet`` reads more of
        them."""
        return self._filters is not None

    @property
    def unfinished_bytes(self) -> int:
        """Number of buffered bytes of an incomplete packet."""
        return len(self._partial)

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        partial = self._partial
        if not partial:
            # Buffered packets that were not returned yet come first.
            self._data = self._data[self.offset :] + data if self._data else data
            self.offset = 0
            return
        partial += data
        if len(partial) >= self._wanted:
            self._data = bytes(partial)
            self._partial = bytearray()

    def next_packet(self) -> Packet | None:
        """Return the next complete packet; None: more bytes are needed, or more calls (``is_reading``)."""
        if self._filters is not None:
            return self._read_filters(self._filters)
        data = self._data
        start = self.offset
        size = len(data)
        if start + 2 > size:
            if start < size:
                self._check_first_byte(data[start])
                self._wait(start, 2)
            else:
                self._data = b""
                self.offset = 0
            return None
        first = data[start]
        length = data[start + 1]
        at = start + 2
        if length >= 0x80:
            shift = 7
            length &= 0x7F
            while True:
                if at == size:
                    self._check_first_byte(first)
                    self._wait(start, at + 1 - start)
                    return None
                byte = data[at]
                at += 1
                length |= (byte & 0x7F) << shift
                if byte < 0x80:
                    if byte == 0 and self.version is _V5:
                        raise malformed("the remaining length has more bytes than it needs")
                    break
                shift += 7
                if shift == 7 * VARIABLE_BYTES_MAX:
                    raise malformed(f"the remaining length has more than {VARIABLE_BYTES_MAX} bytes")
        end = at + length
        if end - start > self.packet_bytes_max:
            self._check_first_byte(first)
            raise MqttError(
                Reason.PACKET_TOO_LARGE,
                f"a packet of {end - start} bytes is longer than {self.packet_bytes_max} bytes",
            )
        if end > size:
            self._check_first_byte(first)
            self._wait(start, end - start)
            return None
        self.offset = end
        version = self.version
        if version is not None:
            if 0x30 <= first <= 0x3F:
                return self._publish(version, first, data, at, end)
            if 0x40 <= first <= 0x7F:
                return _acknowledgement(version, first, data, at, end)
        self._check_first_byte(first)
        reader = Reader(data, at, end)
        if version is None:
            return self._connect(first, reader)
        kind = PacketType(first >> 4)
        if kind is PacketType.SUBSCRIBE:
            return self._read_filters(_subscribe(version, reader))
        if kind is PacketType.UNSUBSCRIBE:
            return self._read_filters(_unsubscribe(version, reader))
        return read_other(version, kind, reader)

    def _read_filters(self, filters: Work[Packet]) -> Packet | None:
        """Read the next filters of a packet. Return the packet after the last filters, otherwise None."""
        self._filters = filters
        try:
            next(filters)
        except StopIteration as done:
            self._filters = None
            packet: Packet = done.value
            return packet
        return None

    def _publish(self, version: Version, first: int, data: bytes, at: int, end: int) -> Publish:
        qos = first >> 1 & 3
        if qos == 3 or first & DUP:
            _check_publish_flags(version, first)
        topic_at = at + 2
        if topic_at > end:
            raise malformed("the packet ends inside a field")
        at = topic_at + (data[at] << 8 | data[at + 1])
        payload_at = at + 2 if qos else at
        if payload_at > end:
            raise malformed("the packet ends inside a field")
        name = data[topic_at:at]
        known = self._topics.get(name)
        topic = decoded(name) if known is None else known
        packet_id = 0
        if qos:
            packet_id = data[at] << 8 | data[at + 1]
            if packet_id == 0:
                raise no_packet_id()
        properties = NONE
        if version is _V5:
            if payload_at < end and data[payload_at] == 0:
                payload_at += 1
            else:
                reader = Reader(data, payload_at, end)
                properties = read_properties(reader, OF_PUBLISH)
                payload_at = reader.at
        if known is None:
            if topic or version is not _V5:
                self._remember(name, topic)
            elif properties.topic_alias is None:
                raise protocol_error("PUBLISH has neither a topic nor a topic alias")  # 3.3.2.1
        return Publish(topic, data[payload_at:end], qos, first & 1 == 1, first & DUP != 0, packet_id, properties)

    def _remember(self, name: bytes, topic: str) -> None:
        """Check a topic name, and cache it if it is short."""
        check_topic(topic)
        if len(name) <= TOPIC_BYTES_REMEMBERED_MAX:
            if len(self._topics) >= TOPICS_REMEMBERED_MAX:
                self._topics.clear()
            self._topics[name] = topic

    def _connect(self, first: int, reader: Reader) -> Connect:
        last_of_length = reader.data[reader.at - 1]
        try:
            self.version = version = read_version(reader)
        except UnknownVersion as error:
            self.version = error.answered_in
            raise
        _check_flags(version, first)
        if last_of_length == 0 and version is _V5:
            raise malformed("the remaining length has more bytes than it needs")
        packet = read_connect(version, reader)
        check_end(reader)
        return packet

    def _wait(self, start: int, wanted: int) -> None:
        """Buffer the bytes from ``start``. Parse them again when there are ``wanted`` bytes."""
        self._partial = bytearray(memoryview(self._data)[start:])
        self._wanted = wanted
        self._data = b""
        self.offset = 0

    def _check_first_byte(self, first: int) -> None:
        """Check that the first byte of a packet is one that a client may send now, before the rest of the packet
        arrives."""
        kind = first >> 4
        version = self.version
        if version is None:
            if kind != PacketType.CONNECT:
                raise protocol_error("the first packet is not CONNECT")
            return  # its flags depend on the version, which is not known yet
        if kind == PacketType.CONNECT:
            raise protocol_error("a second CONNECT")
        if kind in _SERVER_TYPES:
            raise protocol_error(f"only a server sends {PacketType(kind).name}")
        if kind == 0 or (kind == PacketType.AUTH and version is not _V5):
            raise malformed(f"there is no packet type {kind}")
        if kind == PacketType.PUBLISH:
            _check_publish_flags(version, first)
        else:
            _check_flags(version, first)


def _check_publish_flags(version: Version, first: int) -> None:
    qos = first >> 1 & 3
    if qos == 3:
        raise malformed("QoS 3")  # MQTT-3.3.1-4
    if first & DUP and qos == 0 and version is not Version.V3_1:
        raise malformed("DUP with QoS 0")  # MQTT-3.3.1-2


def _check_flags(version: Version, first: int) -> None:
    """Check the reserved flags: MQTT-2.1.3-1 (3.1.1: MQTT-2.2.2-2). MQTT 3.1 ignores them, and uses one as DUP for
    repeated packets."""
    wanted = FLAG_BITS if first >> 4 in FLAGGED else 0
    if first & 0x0F != wanted and version is not Version.V3_1:
        raise malformed(f"the flags of {PacketType(first >> 4).name} are not {wanted:04b}")


def _acknowledgement(version: Version, first: int, data: bytes, at: int, end: int) -> Acknowledgement:
    kind = _ACKNOWLEDGEMENTS[first >> 4]
    if first & 0x0F != (FLAG_BITS if kind is _PUBREL else 0):
        _check_flags(version, first)
    if end - at < 2:
        raise malformed("the packet ends inside a field")
    packet_id = data[at] << 8 | data[at + 1]
    if packet_id == 0:
        raise no_packet_id()
    if end - at == 2:
        return Acknowledgement(kind, packet_id, _SUCCESS, NONE)
    reader = Reader(data, at + 2, end)
    if version is not _V5:
        check_end(reader)
    reason, properties = read_reason(reader, kind, OF_ACKNOWLEDGEMENT)
    check_end(reader)
    return Acknowledgement(kind, packet_id, reason, properties)


def check_end(reader: Reader) -> None:
    """Check that no bytes are left after the last field of the packet."""
    if reader.left:
        raise malformed(f"{reader.left} bytes after the last field of the packet")


def no_packet_id() -> MqttError:
    """Return the error for a packet that has the packet identifier 0."""
    return protocol_error("packet identifier 0")  # MQTT-2.2.1-3, 2.2.1-4 (3.1.1: MQTT-2.3.1-1)


def read_reason(reader: Reader, kind: PacketType, allowed: frozenset[str]) -> tuple[int, Properties]:
    """Return the reason code and the properties of a packet of MQTT 5.0. Both may be missing at the end of the
    packet."""
    reason = reader.byte() if reader.left else Reason.SUCCESS
    if reason not in _REASONS[kind]:
        raise protocol_error(f"a client must not send {kind.name} with the reason code 0x{reason:02X}")
    return reason, read_properties(reader, allowed) if reader.left else NONE


# ---- CONNECT


class UnknownVersion(MqttError):
    """The protocol version of CONNECT is not supported. ``answered_in``: the version of the CONNACK that answers; None:
    MQTT 3."""

    def __init__(self, name: bytes, level: int) -> None:
        super().__init__(
            Reason.UNSUPPORTED_PROTOCOL_VERSION,
            f"the protocol {name[:20]!r} of level {level} is not supported: only MQTT 3.1, 3.1.1 and 5.0 are",
        )
        # A bridge of mosquitto sets the highest bit of the level in MQTT 3, and connects without it after a refusal.
        is_newer = name == _PROTOCOL_NAMES[_V5] and _V5 < level < _BRIDGE_BIT
        self.answered_in = _V5 if is_newer else None


def read_version(reader: Reader) -> Version:
    """Read the protocol name and level, with which CONNECT begins, and return the version. Raises UnknownVersion."""
    name = reader.binary()
    level = reader.byte()
    for version, its_name in _PROTOCOL_NAMES.items():
        if level == version and name == its_name:
            return version
    raise UnknownVersion(name, level)


def read_connect(version: Version, reader: Reader) -> Connect:
    """Read the rest of a CONNECT after its version, and return the packet."""
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
        raise malformed("QoS or retain of a will are set, but the will flag is not")  # MQTT-3.1.2-11, 3.1.2-13
    if has_password and not has_username and version is not _V5:
        raise malformed("a password without a user name")  # 3.1.1: MQTT-3.1.2-22
    keep_alive = reader.two_bytes()
    properties = NONE
    if version is _V5:
        properties = read_properties(reader, OF_CONNECT)
        if properties.authentication_data is not None and properties.authentication_method is None:
            raise protocol_error("authentication data without a method")  # 3.1.2.11.10
    client_id = reader.text()
    will = _will(version, reader, will_qos, will_retain == 1) if has_will else None
    # MQTT 3.1, CONNECT: a flag may be set although the string is missing.
    username = reader.text() if has_username and (reader.left or not is_3_1) else None
    password = reader.binary() if has_password and (reader.left or not is_3_1) else None
    if not client_id and (is_3_1 or (version is Version.V3_1_1 and not clean_start)):
        # MQTT-3.1.3-8 of 3.1.1. MQTT 3.1 does not permit an empty identifier. Its limit of 23 characters is not
        # enforced.
        raise MqttError(
            Reason.CLIENT_IDENTIFIER_NOT_VALID, "an empty client identifier is permitted only with a clean session"
        )
    return Connect(version, client_id, clean_start == 1, keep_alive, will, username, password, properties)


def _will(version: Version, reader: Reader, qos: int, retain: bool) -> Will:
    properties = read_properties(reader, OF_WILL) if version is _V5 else NONE
    topic = reader.text()
    check_topic(topic)
    return Will(topic, reader.binary(), qos, retain, properties)


# ---- all other packets


def read_other(version: Version, kind: PacketType, reader: Reader) -> Packet:
    """Read a packet of any other type, and return it."""
    packet: Packet
    if kind is PacketType.PINGREQ:
        packet = PingRequest()
    elif kind is PacketType.DISCONNECT:
        packet = _disconnect(version, reader)
    else:
        packet = _authentication(reader)
    check_end(reader)
    return packet


# ---- SUBSCRIBE and UNSUBSCRIBE are read in steps, because they may have very many filters


def _subscribe(version: Version, reader: Reader) -> Work[Packet]:
    packet_id, properties = _head(version, reader, OF_SUBSCRIBE)
    filters = yield from _in_steps(version, reader, _filter)
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


def _unsubscribe(version: Version, reader: Reader) -> Work[Packet]:
    packet_id, properties = _head(version, reader, OF_UNSUBSCRIBE)
    filters = yield from _in_steps(version, reader, _filter_alone)
    if not filters:
        raise protocol_error("UNSUBSCRIBE without a topic filter")  # MQTT-3.10.3-2
    return Unsubscribe(packet_id, tuple(filters), properties)


def _filter_alone(version: Version, reader: Reader) -> str:
    topic_filter = reader.text()
    if version is _V5:
        _check_any_filter(topic_filter)
    else:
        check_filter(topic_filter)
    return topic_filter


def _in_steps(version: Version, reader: Reader, read: Callable[[Version, Reader], T]) -> Work[list[T]]:
    """Return the results of ``read``, called in steps until the end of the packet."""
    found: list[T] = []
    pause = reader.at + FILTER_BYTES_AT_ONCE
    while reader.left:
        if len(found) == FILTERS_MAX:
            raise MqttError(Reason.QUOTA_EXCEEDED, f"more than {FILTERS_MAX} topic filters in one packet")
        if found and (reader.at >= pause or len(found) % FILTERS_AT_ONCE == 0):
            pause = reader.at + FILTER_BYTES_AT_ONCE
            yield
        found.append(read(version, reader))
    return found


def _head(version: Version, reader: Reader, allowed: frozenset[str]) -> tuple[int, Properties]:
    packet_id = reader.two_bytes()
    if packet_id == 0:
        raise no_packet_id()
    return packet_id, read_properties(reader, allowed) if version is _V5 else NONE


def _check_any_filter(topic_filter: str) -> bool:
    """Check a topic filter. Return whether it is the filter of a shared subscription, which only MQTT 5.0 has."""
    if share_of(topic_filter) is not None:
        return True
    check_filter(topic_filter)
    return False


def _disconnect(version: Version, reader: Reader) -> Disconnect:
    if version is not _V5:
        return Disconnect(Reason.NORMAL_DISCONNECTION, NONE)
    return Disconnect(*read_reason(reader, PacketType.DISCONNECT, OF_DISCONNECT))


def _authentication(reader: Reader) -> Authentication:
    reason, properties = read_reason(reader, PacketType.AUTH, OF_AUTH)
    if properties.authentication_method is None:
        raise protocol_error("AUTH without an authentication method")  # 3.15.2.2.2
    return Authentication(reason, properties)
