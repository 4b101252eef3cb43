"""A log of the packets between a broker and its MQTT clients, and a check of who broke the rules of QoS 2 (MQTT 5.0,
4.3.3) if a payload comes twice.

A tap is a proxy between the clients and one broker. It records each chunk that passes, so the log shows what a broker
wrote, independent of the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from tandemmq.broker.protocols.mqtt.packets import Acknowledgement, Connect, Packet, PacketType, Publish
from tandemmq.broker.protocols.mqtt.parser import PacketParser
from tests.support.protocols.mqtt.client_packets import ServerPacket, decode

PACKET_BYTES_MAX = 1 << 20
CHUNK_BYTES = 1 << 16


@dataclass
class Conversation:
    """One connection. ``chunks``: time, whether to the client, and the bytes."""

    broker: str
    number: int
    chunks: list[tuple[float, bool, bytes]] = field(default_factory=list)


@dataclass(frozen=True)
class LoggedPacket:
    """A packet; ``at`` in seconds of the monotonic clock, when its last byte passed."""

    at: float
    broker: str
    connection: int
    packet: Packet | ServerPacket

    @property
    def is_to_client(self) -> bool:
        return isinstance(self.packet, ServerPacket)

    def __str__(self) -> str:
        way = "to client" if self.is_to_client else "to broker"
        return f"{self.at:.3f} {self.broker} connection {self.connection} {way}: {self.packet}"


class Tap:
    """Listen on ``port`` while open, and forward all data to the broker's port ``target``. Runs in the event loop."""

    def __init__(self, broker: str, target: int) -> None:
        self.broker = broker
        self.log: list[Conversation] = []
        self.port = 0
        self._target = target
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_broker, to_broker = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        conversation = Conversation(self.broker, len(self.log))
        self.log.append(conversation)
        passing = [
            asyncio.create_task(_pass(reader, to_broker, conversation, is_to_client=False)),
            asyncio.create_task(_pass(from_broker, writer, conversation, is_to_client=True)),
        ]
        try:
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in passing:
                task.cancel()
            writer.transport.abort()
            to_broker.transport.abort()


async def _pass(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, conversation: Conversation, *, is_to_client: bool
) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            conversation.chunks.append((time.monotonic(), is_to_client, data))
            writer.write(data)
            await writer.drain()


def packets_of(client_id: str, log: Iterable[Conversation]) -> list[LoggedPacket]:
    """Return all packets of one client's connections, in the order in which they passed."""
    found: list[LoggedPacket] = []
    for conversation in log:
        parser = PacketParser(PACKET_BYTES_MAX)
        rest = b""
        is_its = False
        here: list[LoggedPacket] = []
        for at, is_to_client, data in conversation.chunks:
            if is_to_client:
                rest += data
                while parser.version is not None and (made := decode(rest, parser.version)) is not None:
                    packet, rest = made
                    here.append(LoggedPacket(at, conversation.broker, conversation.number, packet))
                continue
            parser.feed(data)
            while (sent := parser.next_packet()) is not None:
                is_its = is_its or (isinstance(sent, Connect) and sent.client_id == client_id)
                here.append(LoggedPacket(at, conversation.broker, conversation.number, sent))
        if is_its:
            found += here
    return sorted(found, key=lambda each: each.at)


def faults_of_brokers(packets: Iterable[LoggedPacket]) -> dict[str, str]:
    """Return the QoS 2 payloads that brokers sent to one client against the rules, and the violation: another packet
    id, no DUP, twice on one connection, or after PUBREL."""
    first: dict[str, LoggedPacket] = {}
    last: dict[str, tuple[str, int]] = {}
    released: dict[int, LoggedPacket] = {}
    faults: dict[str, str] = {}
    for each in packets:
        packet = each.packet
        if not isinstance(packet, ServerPacket):
            continue
        if packet.type is PacketType.PUBREL:
            released[packet.packet_id] = each
        elif packet.type is PacketType.PUBLISH and packet.qos == 2:
            payload = packet.payload.decode()
            before = first.get(payload)
            if before is None:
                first[payload] = each
            else:
                assert isinstance(before.packet, ServerPacket), "only publications are kept here"
                release = released.get(packet.packet_id)
                if before.packet.packet_id != packet.packet_id:
                    faults[payload] = f"another packet id: {before}; {each}"
                elif release is not None and release.at > before.at:
                    faults[payload] = f"behind PUBREL: {before}; {release}; {each}"
                elif not packet.dup or last[payload] == (each.broker, each.connection):
                    faults[payload] = f"without DUP, or on the same connection: {before}; {each}"
            last[payload] = each.broker, each.connection
    return faults


def published_twice(packets: Iterable[LoggedPacket]) -> dict[str, str]:
    """Return the QoS 2 payloads that a client published against the rules: with another packet id, or after PUBREL."""
    first: dict[str, LoggedPacket] = {}
    released: dict[int, LoggedPacket] = {}
    faults: dict[str, str] = {}
    for each in packets:
        packet = each.packet
        if isinstance(packet, Acknowledgement) and packet.type is PacketType.PUBREL:
            released[packet.packet_id] = each
        elif isinstance(packet, Publish) and packet.qos == 2:
            payload = packet.payload.decode()
            before = first.setdefault(payload, each)
            assert isinstance(before.packet, Publish), "only publications are kept here"
            release = released.get(packet.packet_id)
            if before.packet.packet_id != packet.packet_id:
                faults[payload] = f"another packet id: {before}; {each}"
            elif release is not None and release.at > before.at:
                faults[payload] = f"behind PUBREL: {before}; {release}; {each}"
    return faults
