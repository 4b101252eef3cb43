"""A small MQTT client over a socket that can send any packets, and returns each answer with its reason codes."""

from __future__ import annotations

import socket
import ssl
from typing import Any, Self

from tandemmq.broker.protocols.mqtt.packets import (
    Connect,
    Filter,
    Packet,
    PacketType,
    Publish,
    Subscribe,
    Version,
    Will,
)
from tandemmq.broker.protocols.mqtt.properties import NONE, Properties
from tests.support.protocols.mqtt.client_packets import ServerPacket, decode, encode

SECONDS_MAX = 20.0
_ANSWERS = {1: PacketType.PUBACK, 2: PacketType.PUBREC}


class Mqtt:
    """One connection. The caller answers incoming packets."""

    def __init__(
        self,
        port: int,
        version: Version = Version.V5,
        *,
        host: str = "127.0.0.1",
        source: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.version = version
        self.socket = socket.create_connection((host, port), SECONDS_MAX, source_address=(source, 0))
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self._received = b""
        self.waiting: list[ServerPacket] = []  # packets that came before the expected answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def say(self, *packets: Packet | bytes) -> None:
        self.socket.sendall(
            b"".join(each if isinstance(each, bytes) else encode(each, self.version) for each in packets)
        )

    def hear(self) -> ServerPacket | None:
        """Return the next packet; None if the broker closed the connection."""
        if self.waiting:
            return self.waiting.pop(0)
        return self._read()

    def _read(self) -> ServerPacket | None:
        while (found := decode(self._received, self.version)) is None:
            try:
                more = self.socket.recv(1 << 16)
            except TimeoutError:
                raise
            except OSError:  # of TLS, too
                return None
            if not more:
                return None
            self._received += more
        packet, self._received = found
        return packet

    def hear_of(self, kind: PacketType) -> ServerPacket | None:
        """Return the next packet of that kind; packets before it are kept for later. None: the broker closed the
        connection."""
        for at, packet in enumerate(self.waiting):
            if packet.type is kind:
                return self.waiting.pop(at)
        while (read := self._read()) is not None:
            if read.type is kind:
                return read
            self.waiting.append(read)
        return None

    def connect(
        self,
        client_id: str = "",
        user: str | None = None,
        password: str | None = None,
        *,
        lasts: bool = False,
        will: Will | None = None,
        keep_alive: int = 0,
        **properties: Any,
    ) -> list[int]:
        """Connect; return the codes of CONNACK. ``lasts``: with a persistent session."""
        carried = NONE
        if self.version is Version.V5:
            carried = Properties(session_expiry=3600 if lasts else None, **properties)
        secret = None if password is None else password.encode()
        self.say(Connect(self.version, client_id, not lasts, keep_alive, will, user, secret, carried))
        answer = self.hear()
        assert answer is not None, "the broker closed the connection without CONNACK"
        assert answer.type is PacketType.CONNACK
        self.session_present = answer.session_present
        return list(answer.codes)

    def subscribe(self, *filters: str, qos: int = 0) -> list[int]:
        """Subscribe; return the codes of SUBACK."""
        self.say(Subscribe(1, tuple(Filter(each, qos, False, False, 0) for each in filters), NONE))
        answer = self.hear_of(PacketType.SUBACK)
        assert answer is not None, "the broker closed the connection"
        return list(answer.codes)

    def publish(
        self, topic: str, payload: bytes = b"x", *, qos: int = 1, retain: bool = False, id: int = 1
    ) -> int | None:
        """Publish; return the reason code of PUBACK or PUBREC. None: the broker closed the connection, as MQTT 3
        demands instead of a code."""
        self.say(Publish(topic, payload, qos, retain, False, id if qos else 0, NONE))
        if not qos:
            return 0
        answer = self.hear_of(_ANSWERS[qos])
        return None if answer is None else (*answer.codes, 0)[0]

    def is_closed(self) -> bool:
        """Return whether the broker closes the connection; packets before that are discarded."""
        while self.hear() is not None:
            pass
        return True
