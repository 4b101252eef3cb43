"""MQTT clients that follow the rules across connections and terms, and record what the broker confirmed."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from tandemmq.broker.mqtt.session_expiry import GRACE_SECONDS
from tandemmq.broker.protocols.mqtt.packets import (
    Acknowledgement,
    Connect,
    Disconnect,
    Filter,
    Packet,
    PacketType,
    Publish,
    Subscribe,
    Unsubscribe,
    Version,
    Will,
)
from tandemmq.broker.protocols.mqtt.properties import NONE, Properties
from tandemmq.broker.protocols.mqtt.reason_codes import Reason
from tests.support.broker.mqtt_wire import MqttWire
from tests.support.crash.mqtt_promises import UNSURE_SECONDS, Promises, Published, Subscribed, Wills
from tests.support.crash.mqtt_term import MqttTerm
from tests.support.protocols.mqtt.client_packets import ServerPacket, decode_all, encode

# Few packet ids, so that each is used again soon.
PACKET_IDS = 5
UNCONFIRMED_MAX = 3
NEVER = float("inf")
FAILED_FROM = 0x80


@dataclass(frozen=True, slots=True)
class Say:
    topic: str
    qos: int
    is_retained: bool = False
    is_empty: bool = False


@dataclass(frozen=True, slots=True)
class Want:
    filter: str
    qos: int


@dataclass(frozen=True, slots=True)
class Leave:
    filter: str


@dataclass(frozen=True, slots=True)
class Go:
    """An end of a connection. ``how``: cut, left, left with will, taken over. ``is_clean``: the client returns with a
    new session."""

    how: str
    away: float = 0.0
    is_clean: bool = False


Act = Say | Want | Leave | Go


class Device:
    """The client of one client id. ``expiry``: session expiry interval in seconds."""

    def __init__(
        self,
        promises: Promises,
        client_id: str,
        acts: Sequence[Act],
        *,
        version: Version = Version.V5,
        expiry: int = 3600,
        receive_maximum: int = 3,
        wills: Wills | None = None,
    ) -> None:
        self.client_id = client_id
        self.wills = wills
        self.back_at = 0.0
        self._promises = promises
        self._acts = deque(acts)
        self._version = version
        self._expiry = expiry if version is Version.V5 else 0xFFFFFFFF
        self._receive_maximum = receive_maximum
        self._wire: MqttWire | None = None
        self._taken_over: MqttWire | None = None
        self._term: MqttTerm | None = None
        self._is_greeted = False
        self._is_clean = False
        self._has_session: bool | None = False  # None: unknown
        self._left_at = 0.0
        self._subscribed: dict[str, Subscribed] = {}
        self._asked: tuple[int, Want | Leave] | None = None
        self._sent: dict[int, Published] = {}  # by packet id
        self._received: set[int] = set()  # packet ids with a PUBREC
        self._seen: dict[int, str] = {}  # received QoS 2 payloads by packet id
        self._seen_here: set[int] = set()  # on this connection
        self._open: set[int] = set()  # packet ids that came on this connection, with an incomplete exchange
        self._unsaid: list[Packet] = []
        self._last_id = 0
        promises.join(client_id)

    @property
    def is_there(self) -> bool:
        return self._wire is not None

    @property
    def is_done(self) -> bool:
        """Return whether the client has left for ever, or has nothing more to do and no incomplete exchange."""
        if self._wire is None:
            return self.back_at == NEVER
        is_idle = not self._acts and not self._sent and self._asked is None and not self._unsaid and not self._seen
        return is_idle and self._is_greeted

    def has(self, topic_filter: str) -> bool:
        """Return whether this subscription is confirmed."""
        return topic_filter in self._subscribed and self._subscribed[topic_filter].granted_at > 0

    def filters_at(self, now: float) -> set[str] | None:
        """Return the filters of its session; None if the session has ended."""
        is_over = self._wire is None and now - self._left_at > max(self._expiry, GRACE_SECONDS) + UNSURE_SECONDS
        return None if is_over else set(self._subscribed)

    # ---- actions

    def step(self, term: MqttTerm, dice: random.Random) -> None:
        """Make one action. Its answers are read later."""
        if self._wire is None:
            self._connect(term)
        elif not self._is_greeted:
            return
        elif self._unsaid and (dice.random() < 0.7 or not self._acts):
            count = dice.randint(1, len(self._unsaid))
            packets, self._unsaid = self._unsaid[:count], self._unsaid[count:]
            self._say(*packets)
        elif self._acts and self._may(self._acts[0]):
            self._act(self._acts.popleft())

    def _may(self, act: Act) -> bool:
        if isinstance(act, Say):
            is_alone = not any(each.is_retained and each.topic == act.topic for each in self._sent.values())
            return is_alone and len(self._sent) < UNCONFIRMED_MAX
        return self._asked is None or isinstance(act, Go)

    def _act(self, act: Act) -> None:
        match act:
            case Say():
                self._publish(act)
            case Want() | Leave():
                self._ask(act)
            case Go():
                self._go(act)

    def _connect(self, term: MqttTerm) -> None:
        now = term.loop.time()
        self._term = term
        self._wire = MqttWire(term, term.mqtt, version=self._version)
        self._is_greeted = False
        will = None
        if self.wills is not None:
            delay = Properties(will_delay=self.wills.delay)
            will = Will(f"wills/{self.client_id}", self.wills.connecting(now).encode(), 2, False, delay)
        properties = NONE
        if self._version is Version.V5:
            properties = Properties(session_expiry=self._expiry, receive_maximum=self._receive_maximum)
        if self._has_session:
            self._look_at_time(term, now)
        self._said_connect = (self._has_session, self._is_clean)
        connect = Connect(self._version, self.client_id, self._is_clean, 0, will, None, None, properties)
        self._wire.arrive(encode(connect, self._version))

    def _look_at_time(self, term: MqttTerm, now: float) -> None:
        """Check whether its session has expired by now."""
        away = now - self._left_at
        if away > self._expiry - UNSURE_SECONDS:
            in_this_term = now - max(self._left_at, term.began)
            is_over = in_this_term > max(self._expiry, GRACE_SECONDS) + UNSURE_SECONDS
            self._has_session = False if is_over else None

    def _say(self, *packets: Packet) -> None:
        assert self._wire is not None
        for packet in packets:
            self._promises.next_moment()
            if isinstance(packet, Acknowledgement) and packet.type in (PacketType.PUBACK, PacketType.PUBCOMP):
                self._open.discard(packet.packet_id)
        self._wire.arrive(b"".join(encode(each, self._version) for each in packets))

    def _free_id(self) -> int:
        used = {*self._sent, *([self._asked[0]] if self._asked else [])}
        while True:
            self._last_id = self._last_id % PACKET_IDS + 1
            if self._last_id not in used:
                return self._last_id

    def _publish(self, act: Say) -> None:
        message = self._promises.publish(
            self.client_id, act.topic, act.qos, is_retained=act.is_retained, is_empty=act.is_empty
        )
        packet_id = self._free_id() if act.qos else 0
        if act.qos:
            self._sent[packet_id] = message
        message.sent_at = self._promises.next_moment()
        self._say(self._packet(packet_id, message, is_dup=False))

    @staticmethod
    def _packet(packet_id: int, message: Published, *, is_dup: bool) -> Publish:
        payload = message.payload.encode()
        return Publish(message.topic, payload, message.qos, message.is_retained, is_dup, packet_id, NONE)

    def _ask(self, act: Want | Leave) -> None:
        packet_id = self._free_id()
        self._asked = packet_id, act
        moment = self._promises.next_moment()
        if isinstance(act, Want):
            there = self._subscribed.get(act.filter)
            if there is None:
                there = self._subscribed[act.filter] = Subscribed(act.filter, act.qos, moment)
                self._promises.subscribed[self.client_id].append(there)
            there.qos = min(there.qos, act.qos)
            there.asked += 1
            self._say(Subscribe(packet_id, (Filter(act.filter, act.qos, False, False, 0),), NONE))
        else:
            there = self._subscribed[act.filter]
            there.leaving_at = there.leaving_at or moment
            self._say(Unsubscribe(packet_id, (act.filter,), NONE))

    def _go(self, act: Go) -> None:
        wire, term = self._wire, self._term
        assert wire is not None
        assert term is not None
        now = term.loop.time()
        match act.how:
            case "cut":
                wire.close()
            case "left" | "left with will":
                reason = Reason.DISCONNECT_WITH_WILL if act.how == "left with will" else Reason.SUCCESS
                self._say(Disconnect(reason, NONE))
        self._over(now, act.how)
        self.back_at = now + act.away
        self._is_clean = act.is_clean
        if act.how == "taken over":
            self._taken_over = wire
            self._connect(term)

    def _over(self, now: float, how: str) -> None:
        self._wire = self._taken_over = None
        self._is_greeted = False
        self._left_at = now
        self._unsaid = []
        self._seen_here.clear()
        self._open.clear()
        if self.wills is not None and how != "crash":
            self.wills.ended(how, now)

    def broker_died(self, now: float, dice: random.Random) -> None:
        """The broker was killed: the last packets of the client arrived, or not."""
        if self.wills is not None:
            self.wills.crashed(now)
        if self._wire is None:
            return
        if dice.random() < 0.5:
            self.hear()
        was_greeted, left_at = self._is_greeted, self._left_at
        self._over(now, "crash")
        if not was_greeted:
            self._left_at = left_at  # the broker may not know that the client had returned
            has_session, is_clean = self._said_connect
            if has_session is False:  # a session, if there is one, is new
                self._begin_anew()
            elif has_session is None:  # a session, if there is one, may be the former or a new one: begin another
                self._is_clean = True
            self._has_session = has_session if has_session and not is_clean else None
        stays_away = (self.wills is not None or self._expiry < 60) and dice.random() < 0.5
        self.back_at = now + (3 * GRACE_SECONDS if stays_away else 0)

    # ---- packets of the broker

    def hear(self) -> None:
        """Process the packets that came since the last call."""
        wire = self._wire
        if wire is None:
            return
        for packet in decode_all(wire.session.take(), self._version):
            self._promises.next_moment()
            self._heard(packet)
        assert not wire.is_closed, f"the broker closed the connection of {self.client_id}"

    def _heard(self, packet: ServerPacket) -> None:
        packet_id = packet.packet_id
        assert all(code < FAILED_FROM or packet.type is PacketType.PUBCOMP for code in packet.codes), packet
        match packet.type:
            case PacketType.CONNACK:
                self._greeted(packet)
            case PacketType.PUBLISH:
                self._came(packet)
            case PacketType.PUBREL:
                self._seen.pop(packet_id, None)
                self._seen_here.discard(packet_id)
                self._unsaid.append(Acknowledgement(PacketType.PUBCOMP, packet_id, 0, NONE))
            case PacketType.PUBACK:
                assert self._sent[packet_id].qos == 1, packet
                self._confirmed(self._sent.pop(packet_id))
            case PacketType.PUBREC:
                self._confirmed(self._sent[packet_id])
                if packet_id not in self._received:
                    self._received.add(packet_id)
                    self._unsaid.append(Acknowledgement(PacketType.PUBREL, packet_id, 0, NONE))
            case PacketType.PUBCOMP:
                self._completed(packet)
            case PacketType.SUBACK | PacketType.UNSUBACK:
                self._answered(packet)
            case _:
                raise AssertionError(f"{self.client_id} does not expect {packet}")

    def _greeted(self, packet: ServerPacket) -> None:
        assert self._term is not None
        expected = False if self._is_clean else self._has_session
        is_present = packet.session_present
        assert expected is None or is_present is expected, f"{self.client_id}: {packet}, and not {expected}"
        assert self._taken_over is None or self._taken_over.is_closed, (
            "the broker has not closed the connection that was taken over"
        )
        self._taken_over = None
        self._is_greeted = self._has_session = True
        self._is_clean = False
        if self.wills is not None:
            self.wills.connected(self._term.loop.time())
        if not is_present:
            self._begin_anew()
        again: list[Packet] = []
        for packet_id, message in self._sent.items():
            if packet_id in self._received:
                again.append(Acknowledgement(PacketType.PUBREL, packet_id, 0, NONE))
            else:
                again.append(self._packet(packet_id, message, is_dup=is_present))
        self._say(*again)  # MQTT-4.6.0-1: before anything new
        if self._asked is not None:
            act, self._asked = self._asked[1], None
            if isinstance(act, Want) or act.filter in self._subscribed:
                self._ask(act)

    def _begin_anew(self) -> None:
        """Begin a new session: the promises for the former one end."""
        for each in self._subscribed.values():
            each.has_ended = True
        self._subscribed.clear()
        self._seen.clear()
        self._received.clear()
        for message in self._sent.values():
            message.may_repeat = True

    def _came(self, packet: ServerPacket) -> None:
        packet_id, payload = packet.packet_id, packet.payload.decode()
        if packet.qos:
            self._open.add(packet_id)
            is_allowed = len(self._open) <= self._receive_maximum or self._version is not Version.V5
            assert is_allowed, f"{self.client_id} gets more than its Receive Maximum"
        if packet.qos == 2:
            self._unsaid.append(Acknowledgement(PacketType.PUBREC, packet_id, 0, NONE))
            held = self._seen.get(packet_id)
            assert held in (None, payload), f"{self.client_id} has {held} as {packet_id}, and now comes {payload}"
            assert packet_id not in self._seen_here, f"{packet_id} comes twice on one connection"
            if held is not None:
                assert packet.dup, f"{packet} comes again"
                return
            self._seen[packet_id] = payload
            self._seen_here.add(packet_id)
        elif packet.qos == 1:
            self._unsaid.append(Acknowledgement(PacketType.PUBACK, packet_id, 0, NONE))
        self._promises.came(self.client_id, payload, is_retained=packet.retain)

    def _confirmed(self, message: Published) -> None:
        message.confirmed_at = message.confirmed_at or self._promises.moment

    def _completed(self, packet: ServerPacket) -> None:
        packet_id = packet.packet_id
        assert packet_id in self._received, packet
        assert packet.codes == [Reason.SUCCESS], packet
        self._received.discard(packet_id)
        del self._sent[packet_id]

    def _answered(self, packet: ServerPacket) -> None:
        assert self._asked is not None, packet
        packet_id, act = self._asked
        assert packet.packet_id == packet_id, packet
        self._asked = None
        if isinstance(act, Want):
            there = self._subscribed[act.filter]
            there.granted_at = there.granted_at or self._promises.moment
            assert packet.codes == [act.qos] or self._version is not Version.V5, packet
        else:
            self._subscribed.pop(act.filter).left_at = self._promises.moment
