"""MQTT clients of an engine whose turns the test controls: the real session, bytes in and bytes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tandemmq.broker.core.principal import Principal
from tandemmq.broker.mqtt.retained_messages import number_of
from tandemmq.broker.protocols.mqtt.conversation import NEWEST, ConnectionEnd, Hooks, SentIds
from tandemmq.broker.protocols.mqtt.packets import (
    Acknowledgement,
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
from tandemmq.broker.protocols.mqtt.properties import NONE, Properties
from tandemmq.broker.protocols.mqtt.session import MqttLimits, MqttSession
from tandemmq.broker.protocols.mqtt.topics import matches, topic_of
from tandemmq.store.records.message import Destination, Message
from tests.support.broker.wire import Pieces, Wire
from tests.support.protocols.mqtt.client_packets import ServerPacket, decode_all, encode

V5 = Version.V5
ALL = (Version.V3_1, Version.V3_1_1, V5)
PUBACK, PUBREC, PUBREL, PUBCOMP = PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP
LIMITS = MqttLimits(packet_bytes_max=1 << 20)


class NotedHooks:
    """Record the calls of sessions, and provide the retained messages of the test."""

    def __init__(self) -> None:
        self.came_: list[tuple[str, bool]] = []
        self.left_: list[ConnectionEnd] = []
        self.refused_: list[tuple[str, str]] = []
        self.sent_: dict[str, SentIds] = {}
        self.messages: list[Message] = []
        self.newest = 0
        self.has_room = True
        self.will_bytes = 0  # size of stored wills
        self.is_loaded = True
        self.waiting: list[Callable[[], None]] = []

    def when_loaded(self, then: Callable[[], None]) -> None:
        self.waiting.append(then)

    def loaded(self) -> None:
        self.is_loaded = True
        while self.waiting:
            self.waiting.pop()()

    def retained(self, topic_filter: str, after: str = "", until: int = NEWEST) -> Iterator[Message | None]:
        for message in sorted(self.messages, key=_levels):
            assert message.original_destination is not None
            if (
                matches(topic_filter, topic_of(message.original_destination.name))
                and (not after or _levels(message) > after.split("/"))
                and number_of(message) <= until
            ):
                yield message
                yield None

    def may_retain(self, topic: Destination, size: int) -> int:
        self.newest += 1
        return self.newest if self.has_room else 0

    def may_have_will(self, principal: Principal, size: int) -> bool:
        if self.has_room:
            self.will_bytes += size
        return self.has_room

    def release_will(self, principal: Principal, size: int) -> None:
        self.will_bytes -= size

    def publish_refused(self, client_id: str, reason: str) -> None:
        self.refused_.append((client_id, reason))

    def client_connected(self, client_id: str, *, is_resumed: bool) -> None:
        self.came_.append((client_id, is_resumed))

    def client_left(self, end: ConnectionEnd) -> None:
        self.left_.append(end)
        self.will_bytes -= end.will_bytes
        self.sent_[end.client_id] = end.sent

    def take_sent_ids(self, client_id: str) -> SentIds | None:
        return self.sent_.pop(client_id, None)


def _levels(message: Message) -> list[str]:
    assert message.original_destination is not None
    return topic_of(message.original_destination.name).split("/")


class MqttWire(Wire):
    """An MQTT client."""

    session: MqttSession

    def __init__(
        self,
        harness: Any,
        hooks: Hooks | None = None,
        *,
        version: Version = V5,
        limits: MqttLimits = LIMITS,
        pieces: Pieces = Pieces.WHOLE,
        peer: str = "test:1",
    ) -> None:
        self.version = version
        self.hooks = hooks or NotedHooks()
        id = harness.connection_id()
        session = MqttSession(id, lambda: harness.now, limits=limits, hooks=self.hooks)
        super().__init__(harness, id, session, pieces=pieces, peer=peer)

    # ---- as a client

    def heard(self) -> list[ServerPacket]:
        """Return the packets that came since the last call."""
        self._harness.turn()
        return decode_all(self.session.take(), self.version)

    def say(self, *packets: Packet) -> list[ServerPacket]:
        """Send packets together; return the packets that come then."""
        self.receive(b"".join(encode(each, self.version) for each in packets))
        return self.heard()

    def connect(
        self,
        client_id: str = "me",
        *,
        clean: bool = True,
        expiry: int | None = None,
        keep_alive: int = 0,
        will: Will | None = None,
        username: str | None = None,
        password: bytes | None = None,
        **properties: Any,
    ) -> ServerPacket:
        """Send CONNECT; return its CONNACK. Further packets are kept for the next call.

        Without ``clean`` the session of MQTT 5 is kept for 100 s by default.
        """
        if expiry is None and not clean:
            expiry = 100
        carried = Properties(session_expiry=expiry, **properties) if self.version is V5 else NONE
        self.receive(
            encode(Connect(self.version, client_id, clean, keep_alive, will, username, password, carried), self.version)
        )
        self._harness.turn()
        first, *self._rest = decode_all(self.session.take(), self.version)
        assert first.type is PacketType.CONNACK
        self.connack = first
        return first

    @property
    def rest(self) -> list[ServerPacket]:
        """Return the packets after CONNACK."""
        return self._rest

    def publish(
        self,
        topic: str,
        payload: bytes | str = b"",
        *,
        qos: int = 0,
        id: int = 0,
        retain: bool = False,
        dup: bool = False,
        **properties: Any,
    ) -> list[ServerPacket]:
        carried = Properties(**properties) if properties else NONE
        data = payload.encode() if isinstance(payload, str) else payload
        return self.say(Publish(topic, data, qos, retain, dup, id or (7 if qos else 0), carried))

    def subscribe(
        self,
        *filters: str,
        qos: int = 0,
        id: int = 1,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        **properties: Any,
    ) -> list[ServerPacket]:
        asked = tuple(Filter(each, qos, no_local, retain_as_published, retain_handling) for each in filters)
        return self.say(Subscribe(id, asked, Properties(**properties) if properties else NONE))

    def unsubscribe(self, *filters: str, id: int = 2) -> list[ServerPacket]:
        return self.say(Unsubscribe(id, filters, NONE))

    def answer(self, type: PacketType, packet_id: int, reason: int = 0) -> list[ServerPacket]:
        return self.say(Acknowledgement(type, packet_id, reason, NONE))

    def ping(self) -> list[ServerPacket]:
        return self.say(PingRequest())

    def disconnect(self, reason: int = 0, expiry: int | None = None) -> list[ServerPacket]:
        carried = NONE if expiry is None else Properties(session_expiry=expiry)
        return self.say(Disconnect(reason, carried))


def types(packets: list[ServerPacket]) -> list[str]:
    return [each.type.name for each in packets]


def payloads(packets: list[ServerPacket]) -> list[str]:
    """Return the payloads of the messages among the packets."""
    return [each.payload.decode() for each in packets if each.type is PacketType.PUBLISH]


Make = Callable[..., MqttWire]
