"""The other end of a bridge, which follows the rules of QoS 1 and 2 over all connections."""

from __future__ import annotations

from collections import Counter

from tandemmq.broker.protocols.mqtt.packets import PacketType, Publish
from tandemmq.broker.protocols.mqtt.properties import NONE, Properties
from tests.support.broker.bridge_world import World

#: Payload and QoS of the messages that it sends to down/x; the same messages are sent to up/x.
MESSAGES = [("a", 2), ("b", 1), ("c", 2)]


class OtherBroker:
    """The other broker's session of the bridge: it sends ``MESSAGES`` to down/x, and receives messages for up/x."""

    def __init__(self) -> None:
        self.got: Counter[str] = Counter()
        self.seen: set[int] = set()  # packet ids of QoS 2 that came and are not released
        self.waiting = list(reversed(MESSAGES))
        self.sent: dict[int, tuple[str, int, bool]] = {}  # payload, QoS, whether it is released
        self.heard: list[tuple[PacketType, int]] = []
        self._next_id = 0

    # ---- broker.bridges.link.Remote

    def publish(
        self, topic: str, payload: bytes, qos: int, packet_id: int, retain: bool, dup: bool, properties: Properties
    ) -> bool:
        if qos == 1 or packet_id not in self.seen:
            self.got[payload.decode()] += 1
        if qos == 2:
            self.seen.add(packet_id)
        self.heard.append((PacketType.PUBACK if qos == 1 else PacketType.PUBREC, packet_id))
        return True

    def acknowledge(self, type: PacketType, packet_id: int) -> None:
        if type is PacketType.PUBREL:
            self.seen.discard(packet_id)
            self.heard.append((PacketType.PUBCOMP, packet_id))
        elif type is PacketType.PUBREC:
            self.sent[packet_id] = (*self.sent[packet_id][:2], True)
            self.heard.append((PacketType.PUBREL, packet_id))
        else:
            self.sent.pop(packet_id)

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    # ---- its end of the connection

    def connect(self, world: World) -> None:
        """Connect with the existing session; unanswered packets are sent again."""
        self.heard.clear()
        world.flow.attach(self, is_resumed=True, receive_maximum=10)
        for packet_id, (payload, qos, is_released) in list(self.sent.items()):
            if is_released:
                world.flow.released(packet_id)
            else:
                world.flow.published(Publish("down/x", payload.encode(), qos, False, True, packet_id, NONE))

    def step(self, world: World) -> bool:
        """Send one packet; return False if there is none to send now."""
        if self.heard:
            type, packet_id = self.heard.pop(0)
            if type is PacketType.PUBREL:
                world.flow.released(packet_id)
            else:
                world.flow.acknowledged(type, packet_id)
        elif self.waiting and not self.sent:
            payload, qos = self.waiting.pop()
            self._next_id += 1
            self.sent[self._next_id] = payload, qos, False
            world.flow.published(Publish("down/x", payload.encode(), qos, False, False, self._next_id, NONE))
        else:
            return False
        return True

    @property
    def is_done(self) -> bool:
        """Return whether it knows of no unfinished work."""
        return not (self.waiting or self.sent or self.seen) and set(self.got) >= {payload for payload, _ in MESSAGES}


async def prepare(world: World) -> None:
    """Send messages on both sides, and start to collect what comes."""
    await world.gather("down/x")
    for payload, qos in MESSAGES:
        await world.send("up/x", payload, properties={"ActiveMQ.MQTT.QoS": qos})


async def check(world: World, other: OtherBroker) -> None:
    """Check that nothing is lost in either direction, that QoS 2 messages came once, and that no record is left."""
    assert other.is_done, (other.waiting, other.sent, other.seen, other.got)
    here = Counter(await world.gathered("down/x"))
    for payload, qos in MESSAGES:
        for got in (other.got, here):
            assert got[payload] == 1 or (qos == 1 and got[payload] > 1), (payload, got)
    assert world.records == 0
