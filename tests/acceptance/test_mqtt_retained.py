"""Retained messages of real clients, over restarts and fail-overs of real brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.broker.protocols.mqtt.packets import Acknowledgement, PacketType
from tandemmq.broker.protocols.mqtt.properties import NONE
from tests.support.acceptance.broker_process import wait_until
from tests.support.acceptance.mqtt_broker import MqttBroker
from tests.support.acceptance.mqtt_wire import Mqtt
from tests.support.acceptance.paho_client import PahoClient

# More than any consumer may have unacknowledged; a topic is a destination, of which there are 100,000 at most.
MANY = 40_000
OWED = 1_000
OPEN_MAX = 40
MANY_SECONDS_MAX = 300.0


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[MqttBroker]]:
    pair = [MqttBroker(tmp_path / "store", name) for name in ("one", "two")]
    yield pair
    for each in pair:
        each.stop()


@pytest.fixture
def broker(brokers: list[MqttBroker]) -> MqttBroker:
    brokers[0].start()
    brokers[0].wait_role("master")
    return brokers[0]


def _wait_retained(port: int, topic_filter: str, expected: dict[str, bytes]) -> None:
    """A new subscriber of a new master is given those, and no others, when all are read."""
    with PahoClient(port) as client:
        client.subscribe(topic_filter)
        found = client.wait_messages(len(expected), MANY_SECONDS_MAX)
        assert {message.topic: bytes(message.payload) for message in found} == expected


def _retained(port: int, topic_filter: str) -> dict[str, bytes]:
    """What a new subscriber is given before what is sent afterwards."""
    with PahoClient(port) as client:
        client.subscribe(topic_filter)
        client.subscribe("the-end")
        client.publish("the-end", b"")
        wait_until(lambda: client.messages and client.messages[-1].topic == "the-end", "all retained messages")
        found = client.messages[:-1]
        assert all(message.retain for message in found)
        return {message.topic: bytes(message.payload) for message in found}


def test_a_new_subscriber_is_given_the_last_one_of_each_topic(broker: MqttBroker) -> None:
    with PahoClient(broker.mqtt) as publisher:
        for qos in (0, 1, 2):
            publisher.publish(f"home/{qos}/temperature", b"old", qos, retain=True)
            publisher.publish(f"home/{qos}/temperature", b"new", qos, retain=True)
        publisher.publish("home/gone", b"old", retain=True)
        publisher.publish("home/gone", b"", retain=True)
        publisher.publish("home/plain", b"now")
        publisher.publish("elsewhere", b"x", retain=True)
    expected = {f"home/{qos}/temperature": b"new" for qos in (0, 1, 2)}
    assert _retained(broker.mqtt, "home/#") == expected
    assert _retained(broker.mqtt, "home/+/temperature") == expected
    assert _retained(broker.mqtt, "elsewhere/#") == {"elsewhere": b"x"}


@pytest.mark.promise("mqtt-retained")
def test_they_survive_a_kill_and_a_failover(brokers: list[MqttBroker]) -> None:
    one, two = brokers
    one.start()
    one.wait_role("master")
    two.start()
    two.wait_role("standby")
    with PahoClient(one.mqtt) as publisher:
        for number in range(200):
            publisher.publish(f"a/{number}", b"old", retain=True)
        for number in range(100):
            publisher.publish(f"a/{number}", b"new", retain=True)
        for number in range(50):
            publisher.publish(f"a/{number}", b"", retain=True)
    expected = {f"a/{number}": b"new" if number < 100 else b"old" for number in range(50, 200)}
    one.kill()
    two.wait_role("master")
    _wait_retained(two.mqtt, "a/+", expected)
    with PahoClient(two.mqtt) as publisher:
        publisher.publish("a/50", b"", retain=True)
    two.kill()
    one.start()
    one.wait_role("master")
    del expected["a/50"]
    _wait_retained(one.mqtt, "a/+", expected)


class Taker:
    """A client that completes what it gets in order, so many at a time, and has ``OPEN_MAX`` open at most."""

    def __init__(self, qos: int) -> None:
        self.qos = qos
        self.got: list[bytes] = []  # without what came again
        self.open: dict[int, bytes] = {}

    def connect(self, client: Mqtt) -> None:
        client.connect("taker", lasts=True, receive_maximum=OPEN_MAX)

    def take(self, client: Mqtt, completed: int) -> None:
        """Until so many are completed, and what follows is there."""
        again = list(self.open)  # is to come first, in this order
        while completed or again or len(self.open) < min(OPEN_MAX, OWED - len(self.got)):
            packet = client.hear()
            assert packet is not None, "the broker hung up"
            if packet.type is PacketType.PUBREL:
                client.say(Acknowledgement(PacketType.PUBCOMP, packet.packet_id, 0, NONE))
                continue
            assert packet.type is PacketType.PUBLISH, packet
            if again:
                assert (packet.packet_id, packet.dup) == (again.pop(0), True)
                assert packet.payload == self.open[packet.packet_id]
            else:
                assert not packet.dup
                assert packet.packet_id not in self.open
                self.got.append(packet.payload)
                self.open[packet.packet_id] = packet.payload
            while completed and not again and (len(self.open) == OPEN_MAX or len(self.got) == OWED):
                self._complete(client)
                completed -= 1

    def _complete(self, client: Mqtt) -> None:
        first = next(iter(self.open))
        del self.open[first]
        kind = PacketType.PUBACK if self.qos == 1 else PacketType.PUBREC
        client.say(Acknowledgement(kind, first, 0, NONE))


@pytest.mark.parametrize("qos", [1, 2])
def test_a_session_goes_on_with_them_at_the_next_master(brokers: list[MqttBroker], qos: int) -> None:
    """What was completed does not come again; what was not has its packet id, DUP, and its place."""
    one, two = brokers
    one.start()
    one.wait_role("master")
    two.start()
    two.wait_role("standby")
    with PahoClient(one.mqtt, in_flight=1000) as publisher:
        sent = [publisher.client.publish(f"o/{number:05}", b"%d" % number, 2, retain=True) for number in range(OWED)]
        for each in sent:
            each.wait_for_publish(300)
    taker = Taker(qos)
    with Mqtt(one.mqtt) as client:
        taker.connect(client)
        assert client.subscribe("o/#", qos=qos) == [qos]
        taker.take(client, OWED // 2)
        assert client.publish("elsewhere") in (0, 0x10)  # so what was said before is stored, too
        one.kill()
    two.wait_role("master")
    with Mqtt(two.mqtt) as client:
        taker.connect(client)
        assert client.session_present
        taker.take(client, OWED - OWED // 2)
        assert not taker.open
        client.subscribe("the-end")
        client.publish("the-end", qos=0)
        last = client.hear_of(PacketType.PUBLISH)
        assert last is not None
        assert last.topic == "the-end"
    assert taker.got == [b"%d" % number for number in range(OWED)]


@pytest.mark.timeout(900)
def test_very_many_are_kept_and_read_again_by_the_next_master(brokers: list[MqttBroker]) -> None:
    one, two = brokers
    one.start()
    one.wait_role("master")
    two.start()
    two.wait_role("standby")
    with PahoClient(one.mqtt, in_flight=1000) as publisher:
        sent = [
            publisher.client.publish(f"t/{number % 100}/{number}", b"%d" % number, 1, retain=True)
            for number in range(MANY)
        ]
        for each in sent:
            each.wait_for_publish(300)
    one.kill()
    two.wait_role("master")
    # Whoever comes while they are read waits for them, and is served otherwise.
    expected = {f"t/{number % 100}/{number}": b"%d" % number for number in range(MANY)}
    _wait_retained(two.mqtt, "t/#", expected)
    _wait_retained(two.mqtt, "t/7/+", {topic: body for topic, body in expected.items() if topic.startswith("t/7/")})
