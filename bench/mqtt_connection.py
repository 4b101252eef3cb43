"""A client of MQTT 3.1.1 for loads: a socket, and bulk parsing of its input."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from tandemmq.bench.driver.stomp import BenchError, Endpoint

CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK = 2, 3, 4, 5, 6, 7, 9
TIMEOUT_SECONDS = 30.0
READ_BYTES = 1 << 18
_PACKET_ID = struct.Struct(">H")


def length(count: int) -> bytes:
    """Encode a remaining length (3.1.1, 2.2.3)."""
    encoded = bytearray()
    while True:
        count, digit = divmod(count, 128)
        encoded.append(digit | (128 if count else 0))
        if not count:
            return bytes(encoded)


def text(value: str) -> bytes:
    return _PACKET_ID.pack(len(value)) + value.encode()


def packet(first: int, content: bytes) -> bytes:
    return bytes((first,)) + length(len(content)) + content


def answer(type: int, packet_id: bytes) -> bytes:
    """Return a PUBACK, PUBREC, PUBREL or PUBCOMP."""
    return bytes((type << 4 | (2 if type == PUBREL else 0), 2)) + packet_id


def publish_start(topic: str, qos: int, payload_bytes: int) -> bytes:
    """Return everything before the packet id, or, for QoS 0, before the payload."""
    head = text(topic)
    return bytes((PUBLISH << 4 | qos << 1,)) + length(len(head) + (2 if qos else 0) + payload_bytes) + head


class MqttConnection:
    """Connection of a load; ``sock`` is blocking. Raises BenchError or OSError."""

    def __init__(self, endpoint: Endpoint, client_id: str, *, is_clean: bool) -> None:
        self.sock = socket.create_connection((endpoint.host, endpoint.port), TIMEOUT_SECONDS)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        flags = 2 if is_clean else 0
        self.sock.sendall(packet(0x10, text("MQTT") + bytes((4, flags)) + b"\0\0" + text(client_id)))
        first, content = self._one()
        if first >> 4 != CONNACK or content[1]:
            raise BenchError(f"{endpoint.host}:{endpoint.port} refused the connection: {first:#x} {content!r}")

    def subscribe(self, topic: str, qos: int) -> None:
        self.sock.sendall(packet(0x82, b"\0\1" + text(topic) + bytes((qos,))))
        first, content = self._one()
        if first >> 4 != SUBACK or content[2] != qos:
            raise BenchError(f"the subscription was refused: {first:#x} {content!r}")

    def _one(self) -> tuple[int, bytes]:
        while True:
            for found in self.packets():
                return found
            data = self.sock.recv(READ_BYTES)
            if not data:
                raise BenchError("the broker hung up")
            self.feed(data)

    def feed(self, data: bytes) -> None:
        self._rest = self._rest + data if self._rest else data

    def packets(self) -> Iterator[tuple[int, bytes]]:
        """Yield first byte and content of each complete packet."""
        data, at, end = self._rest, 0, len(self._rest)
        while at + 2 <= end:
            count, shift, place = 0, 0, at + 1
            while place < end:
                digit = data[place]
                count |= (digit & 127) << shift
                place += 1
                if digit < 128:
                    break
                shift += 7
            else:
                break
            if place + count > end:
                break
            first, content = data[at], data[place : place + count]
            at = place + count
            self._rest = data[at:] if at == end else data
            try:
                yield first, content
            finally:
                self._rest = data[at:]
