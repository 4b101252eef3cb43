"""MQTT 5 clients that publish and subscribe with QoS 2 with two addresses, while brokers are stopped and continued:
with aiomqtt, with Paho, and a client without a library that follows the rules.

Each is one client object with one session for the whole run. If a broker is silent for ``SILENT_SECONDS``, the client
tries the next address.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiomqtt
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes

from tandemmq.broker.protocols.mqtt.packets import (
    Acknowledgement,
    Connect,
    Filter,
    Packet,
    PacketType,
    PingRequest,
    Publish,
    Subscribe,
    Version,
)
from tandemmq.broker.protocols.mqtt.properties import NONE, Properties
from tests.support.acceptance.mqtt_failover import FailoverClient, next_of
from tests.support.acceptance.paho_client import properties
from tests.support.protocols.mqtt.client_packets import ServerPacket, decode, encode

TOPIC = "sleeps/once"
PUBLISHER, SUBSCRIBER = "publisher", "subscriber"
SESSION_SECONDS = 3600
KEEP_ALIVE_SECONDS = 2
SILENT_SECONDS = 1.0
UNCONFIRMED_MAX = 5
PACE_SECONDS = 0.01
_LOST = (OSError, EOFError, TimeoutError, ConnectionError)


class Work:
    """The payloads that are published and received. ``is_open``: more are published; ``is_over``: clients end. Safe in
    any thread."""

    def __init__(self) -> None:
        self.published: list[str] = []
        self.confirmed: set[str] = set()
        self.received: list[str] = []
        self.connects = 0
        self.is_subscribed = False
        self.is_open = False
        self.is_over = False

    def next(self) -> str | None:
        """Return the next payload to publish; None if there is none now."""
        if not self.is_open or len(self.published) - len(self.confirmed) >= UNCONFIRMED_MAX:
            return None
        self.published.append(f"m{len(self.published)}")
        return self.published[-1]

    @property
    def is_complete(self) -> bool:
        return set(self.published) == self.confirmed == set(self.received)


class Raw:
    """One session, with connections to one address after the other. It answers late, so that messages are in flight
    whenever a broker is stopped."""

    def __init__(self, work: Work, client_id: str, ports: Sequence[int]) -> None:
        self._work = work
        self._client_id = client_id
        self._ports = itertools.cycle(ports)
        self._seen: dict[int, str] = {}  # received QoS 2 messages, until PUBREL
        self._sent: dict[int, tuple[str, bool]] = {}  # payload, and whether PUBREC came
        self._ids = itertools.count(1)
        self._unsaid: list[Packet] = []
        self._writer: asyncio.StreamWriter | None = None

    async def live(self) -> None:
        while not self._work.is_over:
            try:
                await self._connection(next(self._ports))
            except _LOST:
                await asyncio.sleep(0.05)
            finally:
                if self._writer is not None:
                    self._writer.transport.abort()
                    self._writer = None

    async def _connection(self, port: int) -> None:
        reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        session = Properties(session_expiry=SESSION_SECONDS)
        self._say(Connect(Version.V5, self._client_id, False, KEEP_ALIVE_SECONDS, None, None, None, session))
        self._unsaid.clear()
        rest = b""
        is_greeted = False
        heard = asked = time.monotonic()
        while not self._work.is_over or (is_greeted and self._sent):
            try:
                data = await asyncio.wait_for(reader.read(1 << 16), PACE_SECONDS)
                if not data:
                    return
                heard = time.monotonic()
            except TimeoutError:
                data = b""
                unsaid, self._unsaid = self._unsaid, []
                for answer in unsaid:
                    self._say(answer)
            rest += data
            while (made := decode(rest)) is not None:
                packet, rest = made
                is_greeted = is_greeted or packet.type is PacketType.CONNACK
                self._hear(packet)
            now = time.monotonic()
            if now - heard > SILENT_SECONDS:
                raise TimeoutError("the broker is silent")
            if is_greeted and now - asked > SILENT_SECONDS / 2:
                asked = now
                self._say(PingRequest())
            while is_greeted and self._client_id == PUBLISHER and (payload := self._work.next()) is not None:
                packet_id = next(each for each in self._ids if each % 50 + 1 not in self._sent) % 50 + 1
                self._sent[packet_id] = payload, False
                self._say(Publish(TOPIC, payload.encode(), 2, False, False, packet_id, NONE))

    def _say(self, packet: Packet) -> None:
        assert self._writer is not None, "on a connection"
        self._writer.write(encode(packet))

    def _hear(self, packet: ServerPacket) -> None:
        packet_id = packet.packet_id
        match packet.type:
            case PacketType.CONNACK:
                self._greeted(packet)
            case PacketType.SUBACK:
                self._work.is_subscribed = True
            case PacketType.PUBLISH:
                if packet_id not in self._seen:
                    self._seen[packet_id] = packet.payload.decode()
                    self._work.received.append(self._seen[packet_id])
                self._unsaid.append(Acknowledgement(PacketType.PUBREC, packet_id, 0, NONE))
            case PacketType.PUBREL:
                self._seen.pop(packet_id, None)
                self._unsaid.append(Acknowledgement(PacketType.PUBCOMP, packet_id, 0, NONE))
            case PacketType.PUBREC if packet_id in self._sent:
                self._sent[packet_id] = self._sent[packet_id][0], True
                self._say(Acknowledgement(PacketType.PUBREL, packet_id, 0, NONE))
            case PacketType.PUBCOMP if packet_id in self._sent:
                self._work.confirmed.add(self._sent.pop(packet_id)[0])

    def _greeted(self, packet: ServerPacket) -> None:
        assert packet.codes == [0], packet
        self._work.connects += 1
        if not packet.session_present:
            assert not self._seen, "the broker must keep the session"
            assert not self._sent, "the broker must keep the session"
        if self._client_id == SUBSCRIBER and not self._work.is_subscribed:
            self._say(Subscribe(1, (Filter(TOPIC, 2, False, False, 0),), NONE))
        for packet_id, (payload, is_received) in self._sent.items():
            if is_received:
                self._say(Acknowledgement(PacketType.PUBREL, packet_id, 0, NONE))
            else:
                self._say(Publish(TOPIC, payload.encode(), 2, False, True, packet_id, NONE))


class Paho:
    """The same with Paho's client, in separate threads."""

    def __init__(self, work: Work, client_id: str, ports: Sequence[int]) -> None:
        self._work = work
        self._client_id = client_id
        self._ports = itertools.cycle(ports)
        self._came, self._lost = threading.Event(), threading.Event()
        self._sent: dict[int, str] = {}
        self._client = client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion.MQTTv5, reconnect_on_failure=False
        )
        client.on_connect = lambda *_: self._came.set()
        client.on_disconnect = lambda *_: self._lost.set()
        client.on_subscribe = lambda *_: setattr(work, "is_subscribed", True)
        client.on_message = lambda _client, _data, message: work.received.append(message.payload.decode())
        client.on_publish = lambda _client, _data, mid, _reason, _properties: self._confirmed(mid)

    def _confirmed(self, mid: int) -> None:
        payload = self._sent.get(mid)
        if payload is not None:
            self._work.confirmed.add(payload)

    async def live(self) -> None:
        await asyncio.to_thread(self._live)

    def _live(self) -> None:
        while not self._work.is_over:
            self._came.clear()
            self._lost.clear()
            try:
                self._client.connect(
                    "127.0.0.1",
                    next(self._ports),
                    keepalive=KEEP_ALIVE_SECONDS,
                    clean_start=False,
                    properties=properties(PacketTypes.CONNECT, SessionExpiryInterval=SESSION_SECONDS),
                )
            except OSError:
                time.sleep(0.05)
                continue
            self._client.loop_start()
            try:
                if self._came.wait(SILENT_SECONDS):
                    self._work.connects += 1
                    self._connected()
            finally:
                self._client.loop_stop()
                socket = self._client.socket()
                if socket is not None:
                    socket.close()

    def _connected(self) -> None:
        if self._client_id == SUBSCRIBER and not self._work.is_subscribed:
            self._client.subscribe(TOPIC, 2)
        while not self._lost.wait(PACE_SECONDS) and not self._work.is_over:
            while self._client_id == PUBLISHER and (payload := self._work.next()) is not None:
                self._sent[self._client.publish(TOPIC, payload, 2).mid] = payload


class OfAiomqtt:
    """A subscriber with aiomqtt, as in the example."""

    def __init__(self, work: Work, client_id: str, ports: Sequence[int]) -> None:
        self._work = work
        addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
        session = properties(PacketTypes.CONNECT, SessionExpiryInterval=SESSION_SECONDS)
        options: dict[str, Any] = {"protocol": aiomqtt.ProtocolVersion.V5, "clean_start": False, "properties": session}
        self._client = FailoverClient(addresses, client_id, keepalive=KEEP_ALIVE_SECONDS, **options)

    async def live(self) -> None:
        while not self._work.is_over:
            # AttributeError: the socket was closed before aiomqtt registered it.
            with contextlib.suppress(aiomqtt.MqttError, AttributeError):
                async with self._client as client:
                    self._work.connects += 1
                    if not self._work.is_subscribed:
                        await client.subscribe(TOPIC, qos=2)
                        self._work.is_subscribed = True
                    messages = aiter(client.messages)
                    while (message := await next_of(messages, 2 * SILENT_SECONDS)) is not None:
                        assert isinstance(message.payload, bytes)
                        self._work.received.append(message.payload.decode())


Client = Callable[[Work, str, Sequence[int]], Any]
#: Publisher and subscriber by name of the kind. No publisher uses aiomqtt: its Paho forgets a PUBREC when an attempt to
#: connect fails.
KINDS: dict[str, tuple[Client, Client]] = {"aiomqtt": (Paho, OfAiomqtt), "paho": (Paho, Paho), "raw": (Raw, Raw)}


def lives(kind: str, work: Work, ports: Sequence[int]) -> list[Awaitable[None]]:
    """Return the runs of publisher and subscriber, which end when the work is over."""
    publisher, subscriber = KINDS[kind]
    return [publisher(work, PUBLISHER, ports).live(), subscriber(work, SUBSCRIBER, ports).live()]
