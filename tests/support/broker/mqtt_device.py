"""An MQTT client that follows the rules of QoS 1 and 2 across connections, and records what the broker confirmed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tandemmq.broker.protocols.mqtt.packets import (
    Acknowledgement,
    Connect,
    Filter,
    Packet,
    PacketType,
    Publish,
    Subscribe,
    Version,
)
from tandemmq.broker.protocols.mqtt.properties import NONE, Properties
from tests.support.broker.mqtt_wire import MqttWire
from tests.support.protocols.mqtt.client_packets import ServerPacket, encode

TOPIC = "t"
_PROPERTIES = Properties(session_expiry=100, receive_maximum=2)


class Device:
    """Subscribes to a topic with QoS 2, publishes ``messages`` to it (payload and QoS), and receives them.

    ``got``: number of deliveries to the application, by payload; ``confirmed``: payloads that the broker confirmed.
    ``topic_filter``: its subscription; ``asked``: number of its SUBSCRIBEs.
    """

    def __init__(
        self, make: Callable[[], MqttWire], messages: list[tuple[str, int]], *, topic_filter: str = TOPIC
    ) -> None:
        self._make = make
        self._topic_filter = topic_filter
        self.waiting = list(reversed(messages))
        self.sent: dict[int, tuple[str, int, bool]] = {}  # payload, QoS, whether it is released
        self.seen: set[int] = set()  # packet ids of QoS 2 that came and are not released
        self.got: Counter[str] = Counter()
        self.confirmed: set[str] = set()
        self.is_subscribed = False
        self.asked = 0
        self.is_greeted = False
        self._next_id = 0

    @property
    def is_done(self) -> bool:
        return not self.waiting and not self.sent and self.is_subscribed

    def live(self) -> None:
        """Connect, and continue until nothing more comes."""
        wire = self._make()
        wire.receive(encode(Connect(Version.V5, "me", False, 0, None, None, None, _PROPERTIES)))
        unsaid: list[Packet] = []
        heard = wire.heard()
        while True:
            for each in heard:
                unsaid += self._answer(each)
            if not unsaid and self.is_subscribed and self.is_greeted and self.waiting and not self.sent:
                payload, qos = self.waiting.pop()
                self._next_id += 1
                self.sent[self._next_id] = payload, qos, False
                unsaid.append(Publish(TOPIC, payload.encode(), qos, False, False, self._next_id, NONE))
            if unsaid:
                heard = wire.say(unsaid.pop(0))
            else:
                heard = wire.heard()
                if not heard:
                    break
        self.is_greeted = False

    def _answer(self, packet: ServerPacket) -> list[Packet]:
        packet_id = packet.packet_id
        match packet.type:
            case PacketType.CONNACK:
                return self._greeted(packet)
            case PacketType.SUBACK:
                self.is_subscribed = True
            case PacketType.PUBLISH if packet.qos < 2:
                self.got[packet.payload.decode()] += 1
                return [Acknowledgement(PacketType.PUBACK, packet_id, 0, NONE)] if packet.qos else []
            case PacketType.PUBLISH:
                if packet_id not in self.seen:
                    self.seen.add(packet_id)
                    self.got[packet.payload.decode()] += 1
                return [Acknowledgement(PacketType.PUBREC, packet_id, 0, NONE)]
            case PacketType.PUBREL:
                self.seen.discard(packet_id)
                return [Acknowledgement(PacketType.PUBCOMP, packet_id, 0, NONE)]
            case PacketType.PUBACK | PacketType.PUBCOMP:
                self.confirmed.add(self.sent.pop(packet_id)[0])
            case PacketType.PUBREC:
                payload, qos, _ = self.sent[packet_id]
                self.confirmed.add(payload)
                self.sent[packet_id] = payload, qos, True
                return [Acknowledgement(PacketType.PUBREL, packet_id, 0, NONE)]
            case _:
                raise AssertionError(f"{packet} is not expected")
        return []

    def _greeted(self, packet: ServerPacket) -> list[Packet]:
        self.is_greeted = True
        assert packet.codes == [0], packet
        assert packet.session_present or not (self.seen or self.sent or self.is_subscribed), (
            "the broker must keep the session"
        )
        self.asked += not self.is_subscribed
        again: list[Packet] = (
            [] if self.is_subscribed else [Subscribe(1000, (Filter(self._topic_filter, 2, False, False, 0),), NONE)]
        )
        for packet_id, (payload, qos, is_released) in self.sent.items():
            if is_released:
                again.append(Acknowledgement(PacketType.PUBREL, packet_id, 0, NONE))
            else:
                again.append(Publish(TOPIC, payload.encode(), qos, False, True, packet_id, NONE))
        return again
