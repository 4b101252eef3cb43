"""Bytes into packets, however they were cut on their way. Pure.

Promises: the kept part of an unfinished packet stays under the limit; values that no packet may have are refused,
with the reason code that MQTT 5.0 has for it. Knows no state of the conversation but that CONNECT is the first packet,
and sets the version of all others. PUBLISH and its acknowledgements are read here, all others in ``requests``.
"""

from __future__ import annotations

from typing import Final

from tandemmq.broker.protocols.mqtt import properties as properties_of
from tandemmq.broker.protocols.mqtt.fields import VARIABLE_BYTES_MAX, Reader, decoded
from tandemmq.broker.protocols.mqtt.packets import (
    DUP,
    FLAG_BITS,
    FLAGGED,
    Acknowledgement,
    Connect,
    Packet,
    PacketType,
    Publish,
    Version,
)
from tandemmq.broker.protocols.mqtt.properties import NONE
from tandemmq.broker.protocols.mqtt.reasons import MqttError, Reason, malformed, protocol_error
from tandemmq.broker.protocols.mqtt.requests import (
    UnknownVersion,
    check_end,
    no_packet_id,
    read_connect,
    read_other,
    read_reason,
    read_version,
)
from tandemmq.broker.protocols.mqtt.topics import check_topic

# Topics that are remembered, of one client, and how long they may be.
TOPICS_REMEMBERED_MAX: Final = 1_000
TOPIC_BYTES_REMEMBERED_MAX: Final = 256

# A member of an enumeration is found slowly, and these are needed for each packet.
_V5: Final = Version.V5
_SUCCESS: Final = Reason.SUCCESS
_PUBREL: Final = PacketType.PUBREL

_SERVER_TYPES: Final = frozenset((PacketType.CONNACK, PacketType.SUBACK, PacketType.UNSUBACK, PacketType.PINGRESP))
_ACKNOWLEDGEMENTS: Final = {
    int(each): each for each in (PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP)
}


class PacketParser:
    """Cuts what arrives into packets: ``feed`` each piece, then ask for ``next_packet`` until it gives None.

    ``next_packet`` raises MqttError when the peer breaks the protocol or a limit; the parser is of no use after that.
    ``version`` is None before CONNECT. It is there also when something else in CONNECT was wrong, for that is
    then answered in this version. ``packet_bytes_max`` may be changed between two packets. ``offset``: bytes of what
    waits that were used for packets.
    """

    __slots__ = ("_data", "_partial", "_topics", "_wanted", "offset", "packet_bytes_max", "version")

    def __init__(self, packet_bytes_max: int) -> None:
        self.version: Version | None = None
        self.packet_bytes_max = packet_bytes_max
        self._data = b""
        self.offset = 0
        # An unfinished packet waits here until it has _wanted bytes.
        self._partial = bytearray()
        self._wanted = 0
        self._topics: dict[bytes, str] = {}  # that came before, and are valid

    @property
    def unfinished_bytes(self) -> int:
        """Number of bytes held of a packet that is not whole."""
        return len(self._partial)

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        partial = self._partial
        if not partial:
            # Packets that were not fetched yet come first.
            self._data = self._data[self.offset :] + data if self._data else data
            self.offset = 0
            return
        partial += data
        if len(partial) >= self._wanted:
            self._data = bytes(partial)
            self._partial = bytearray()

    def next_packet(self) -> Packet | None:
        """Return the next whole packet, or None when more bytes are needed."""
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
                f"a packet of {end - start} bytes, and {self.packet_bytes_max} are the most",
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
        return self._connect(first, reader) if version is None else read_other(version, PacketType(first >> 4), reader)

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
                properties = properties_of.decode(reader, properties_of.OF_PUBLISH)
                payload_at = reader.at
        if known is None:
            if topic or version is not _V5:
                self._remember(name, topic)
            elif properties.topic_alias is None:
                raise protocol_error("neither a topic nor a topic alias")  # 3.3.2.1
        return Publish(topic, data[payload_at:end], qos, first & 1 == 1, first & DUP != 0, packet_id, properties)

    def _remember(self, name: bytes, topic: str) -> None:
        """Check a topic name, and remember it if it is short."""
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
        """Keep the packet that begins at ``start`` until it is worth parsing again: it has ``wanted`` bytes."""
        self._partial = bytearray(memoryview(self._data)[start:])
        self._wanted = wanted
        self._data = b""
        self.offset = 0

    def _check_first_byte(self, first: int) -> None:
        """Check that the byte begins a packet that a client may send now, before the rest of the packet is awaited."""
        kind = first >> 4
        version = self.version
        if version is None:
            if kind != PacketType.CONNECT:
                raise protocol_error("the first packet is not CONNECT")
            return  # its flags depend on its version
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
    """Check the flags. MQTT-2.1.3-1 (3.1.1: MQTT-2.2.2-2). MQTT 3.1 does not use them, or has DUP there when a packet
    is sent again."""
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
    reason, properties = read_reason(reader, kind, properties_of.OF_ACKNOWLEDGEMENT)
    check_end(reader)
    return Acknowledgement(kind, packet_id, reason, properties)
