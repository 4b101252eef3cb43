"""State of MQTT clients over kills and failovers of real brokers: wills, sessions, retained messages, shares.

The module also tests the figures on topics below $SYS/.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from tandemmq.broker.protocols.mqtt.packets import Acknowledgement, PacketType, Unsubscribe
from tandemmq.broker.protocols.mqtt.properties import NONE
from tests.support.acceptance.broker_process import MqttBroker, serving, wait_until
from tests.support.acceptance.mqtt_wire import Mqtt
from tests.support.acceptance.paho_client import PahoClient
from tests.support.security.passwords import cheap

WILL = ("wills/one", b"gone", 1, False)
LONG = 3600
# Retained messages that a session is owed, and how many its client leaves open.
OWED = 1_000
OPEN_MAX = 40


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[tuple[MqttBroker, ...]]:
    """Master and standby."""
    with serving(*(MqttBroker(tmp_path / "store", name) for name in ("one", "two"))) as pair:
        yield pair


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[MqttBroker]:
    with serving(MqttBroker(tmp_path / "store", "one")) as (broker,):
        yield broker


@pytest.fixture
def watcher(broker: MqttBroker) -> Iterator[PahoClient]:
    """Sees all wills."""
    with PahoClient(broker.mqtt) as watcher:
        watcher.subscribe("wills/#")
        yield watcher


def _wills(watcher: PahoClient) -> list[str]:
    """The topics of those that came before a message that is sent now."""
    now = b"%d" % len(watcher.messages)
    watcher.publish("wills/now", now)
    wait_until(lambda: watcher.messages and watcher.messages[-1].payload == now, "what is sent now")
    return [message.topic for message in watcher.messages if message.topic != "wills/now"]


def _wait_will(watcher: PahoClient, topic: str = "wills/one") -> mqtt.MQTTMessage:
    return wait_until(lambda: next((each for each in watcher.messages if each.topic == topic), None), f"will {topic}")


def _ended(broker: MqttBroker, client_id: str) -> None:
    """Wait until nothing of the session is stored."""

    def is_gone() -> bool:
        status = broker.status()
        assert status is not None
        names = [queue["name"] for queue in status["queues"]]
        clients = [subscription["client_id"] for subscription in status["subscriptions"]]
        return f"ActiveMQ.MQTT.Session.{client_id}" not in names and client_id not in clients

    wait_until(is_gone, f"the session of {client_id} ends")


@pytest.mark.parametrize("version", ["3.1.1", pytest.param("5.0", marks=pytest.mark.promise("mqtt-wills"))])
def test_the_will_of_a_lost_connection_is_published_at_once(
    broker: MqttBroker, watcher: PahoClient, version: str
) -> None:
    PahoClient(broker.mqtt, "first", version=version, will=WILL).drop()
    assert _wait_will(watcher).payload == b"gone"
    assert not watcher.messages[0].retain


@pytest.mark.promise("mqtt-wills")
def test_the_will_of_who_leaves_in_order_is_not_published_unless_he_wants_it(
    broker: MqttBroker, watcher: PahoClient
) -> None:
    PahoClient(broker.mqtt, "first", will=WILL).leave()
    PahoClient(broker.mqtt, "stays", expiry=LONG, will=("wills/stays", b"", 1, False)).leave()
    with_will = ReasonCode(PacketTypes.DISCONNECT, "Disconnect with will message")
    PahoClient(broker.mqtt, "second", will=("wills/wanted", b"gone", 1, False)).leave(with_will)
    _wait_will(watcher, "wills/wanted")
    assert _wills(watcher) == ["wills/wanted"]


@pytest.mark.promise("mqtt-wills")
def test_a_retained_will_is_there_for_who_comes_later(broker: MqttBroker, watcher: PahoClient) -> None:
    PahoClient(broker.mqtt, "first", will=("wills/one", b"offline", 1, True)).drop()
    _wait_will(watcher)
    with PahoClient(broker.mqtt) as later:
        later.subscribe("wills/one")
        found = later.wait_messages(1)[0]
        assert (found.payload, found.retain) == (b"offline", True)


def test_silence_beyond_the_keep_alive_is_a_lost_connection(broker: MqttBroker, watcher: PahoClient) -> None:
    silent = PahoClient(broker.mqtt, "first", keep_alive=1, will=WILL)
    silent.client.loop_stop()  # the client sends no more pings
    _wait_will(watcher)
    silent.drop()


def test_a_client_that_comes_back_in_time_has_no_will_published(broker: MqttBroker, watcher: PahoClient) -> None:
    PahoClient(broker.mqtt, "first", expiry=LONG, will=WILL, will_delay=3).drop()
    again = PahoClient(broker.mqtt, "first", expiry=LONG, clean=False)
    assert again.session_present
    # One that is lost now, with as long a delay, says when the first would have come.
    PahoClient(broker.mqtt, "second", expiry=LONG, will=("wills/second", b"", 1, False), will_delay=3).drop()
    _wait_will(watcher, "wills/second")
    assert _wills(watcher) == ["wills/second"]
    again.leave()


@pytest.mark.promise("mqtt-sessions-end")
def test_a_session_ends_when_its_time_is_over_and_leaves_nothing(broker: MqttBroker) -> None:
    first = PahoClient(broker.mqtt, "first", expiry=1)
    first.subscribe("a/#", 1)
    first.subscribe("b/+", 2)
    first.leave()
    stays = PahoClient(broker.mqtt, "stays", version="3.1.1", clean=False)
    stays.subscribe("a/#", 1)
    stays.leave()
    _ended(broker, "first")
    with PahoClient(broker.mqtt, "first", expiry=LONG, clean=False) as again:
        assert not again.session_present
    with PahoClient(broker.mqtt, "stays", version="3.1.1", clean=False) as again:
        assert again.session_present


RIGHTS = """\
[[connectors]]
uri = "mqtt://127.0.0.1:{mqtt}"

[security]
users_file = "{users}"

[[security.authorization]]
topic = "wills.>"
read = ["watchers"]
write = ["senders"]
admin = ["senders", "watchers"]
[[security.authorization]]
topic = "$SYS.broker.version"
read = ["watchers"]
admin = ["watchers"]
"""


def test_a_will_has_the_rights_of_its_owner_also_with_the_next_master(tmp_path: Path) -> None:
    settings, users = tmp_path / "tandemmq.toml", tmp_path / "users"
    broker = MqttBroker(tmp_path / "store", "one", "--config", str(settings))
    broker.leaves_stomp_to_settings = True
    port, broker.mqtt = broker.mqtt, None  # type: ignore[assignment]
    groups = (("sender", "senders"), ("watcher", "watchers"), ("eve", ""))
    users.write_text("".join(f"{name}:{cheap(f'{name} secret')}:{group}:\n" for name, group in groups))
    users.chmod(0o600)
    settings.write_text(RIGHTS.format(mqtt=port, users=users))

    def login(name: str, client_id: str = "", will: tuple[str, bytes, int, bool] | None = None) -> PahoClient:
        expiry = LONG if client_id else 0
        return PahoClient(port, client_id, user=(name, f"{name} secret"), will=will, expiry=expiry)

    with serving(broker):
        with login("watcher") as watcher:
            watcher.subscribe("wills/#")
            login("eve", will=("wills/eve", b"", 1, False)).drop()
            broker.wait_log("the will of MQTT client")
            login("sender", will=("wills/sender", b"", 1, True)).drop()
            _wait_will(watcher, "wills/sender")
            assert [each.topic for each in watcher.messages] == ["wills/sender"]
            watcher.subscribe("$SYS/broker/version")
            watcher.wait_messages(2)
        with login("eve") as eve:
            assert eve.subscribe("$SYS/broker/version").is_failure
        lost = [login(name, f"{name}-1", (f"wills/{name}/1", b"", 1, False)) for name in ("eve", "sender")]
        broker.kill()
        for each in lost:
            each.drop()
        broker.start()
        broker.wait_role("master")
        with login("watcher") as watcher:
            watcher.subscribe("wills/+/1")
            _wait_will(watcher, "wills/sender/1")
            broker.wait_log("the will of MQTT client eve-1 is not published")
            assert [each.topic for each in watcher.messages] == ["wills/sender/1"]


def _wait_retained(port: int, topic_filter: str, expected: dict[str, bytes]) -> None:
    """A new subscriber of a new master is given those, and no others, when all are read."""
    with PahoClient(port) as client:
        client.subscribe(topic_filter)
        found = client.wait_messages(len(expected))
        assert {message.topic: bytes(message.payload) for message in found} == expected


def _retained(port: int, topic_filter: str) -> dict[str, bytes]:
    """Return the retained messages that a new subscriber receives before later ones."""
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
def test_they_survive_a_kill_and_a_failover(brokers: tuple[MqttBroker, ...]) -> None:
    one, two = brokers
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


SHARE = "$share/g/orders/#"


def take(port: int) -> Mqtt:
    """A member that answers when the test permits it."""
    taker = Mqtt(port)
    assert taker.connect("taker", lasts=True) == [0]
    return taker


@pytest.mark.parametrize("payload_format", [pytest.param(0, marks=pytest.mark.promise("mqtt-shares")), 1])
def test_what_was_begun_is_completed_to_its_taker_after_a_crash(broker: MqttBroker, payload_format: int) -> None:
    """MQTT-4.8.2-4."""
    taker = take(broker.mqtt)
    assert taker.subscribe(SHARE, qos=2) == [2]
    with PahoClient(broker.mqtt) as publisher:
        more = {"ContentType": "text/x", "UserProperty": [("k", "1"), ("k", "2")], "MessageExpiryInterval": LONG}
        publisher.publish("orders/1", "ü".encode(), 2, PayloadFormatIndicator=payload_format, **more)
    first = taker.hear()
    assert first is not None
    other = PahoClient(broker.mqtt, "other", expiry=LONG, clean=False)
    other.subscribe(SHARE, 2)
    broker.kill()
    taker.socket.close()
    other.drop()
    broker.start()
    broker.wait_role("master")

    other = PahoClient(broker.mqtt, "other", expiry=LONG, clean=False)
    taker = take(broker.mqtt)
    assert taker.session_present
    again = taker.hear()
    assert again is not None
    assert (again.packet_id, again.topic, again.payload, again.qos, again.dup) == (
        first.packet_id,
        "orders/1",
        "ü".encode(),
        2,
        True,
    )
    for name in ("content_type", "user"):
        assert getattr(again.properties, name) == getattr(first.properties, name)
    assert (again.properties.payload_format == 1) == (payload_format == 1)
    assert 0 < (again.properties.message_expiry or 0) <= LONG
    taker.say(Acknowledgement(PacketType.PUBREC, first.packet_id, 0, NONE))
    assert taker.hear_of(PacketType.PUBREL) is not None
    taker.say(Acknowledgement(PacketType.PUBCOMP, first.packet_id, 0, NONE), Unsubscribe(2, (SHARE,), NONE))
    assert taker.hear_of(PacketType.UNSUBACK) is not None
    taker.socket.close()
    with PahoClient(broker.mqtt) as publisher:
        publisher.publish("orders/2", b"after", 2)
    wait_until(lambda: other.messages, "the next one")
    assert [message.topic for message in other.messages] == ["orders/2"]
    other.leave()


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[MqttBroker]:
    """Run a broker that publishes its figures every 0.3 s."""
    with serving(MqttBroker(tmp_path / "store", "one", "--set", "mqtt.sys_interval=300")) as (broker,):
        yield broker


@pytest.mark.promise("mqtt-figures")
def test_figures_come_at_once_and_again(quick: MqttBroker) -> None:
    with PahoClient(quick.mqtt, "keeps", expiry=3600) as other, PahoClient(quick.mqtt) as client:
        other.publish("a/b", b"1", retain=True)
        client.subscribe("$SYS/broker/#")

        def figures() -> dict[str, str]:
            return {each.topic.removeprefix("$SYS/broker/"): each.payload.decode() for each in client.messages}

        wait_until(lambda: figures().get("messages/received", "0") != "0", "figures that take longer")
        found = figures()
        assert found["version"].startswith("tandemmq ")
        assert (found["role"], found["clients/connected"]) == ("master", "2")
        assert found["retained messages/count"] == "1"
        first = next(each for each in client.messages if each.topic == "$SYS/broker/uptime")
        assert first.retain
        uptimes = [each.payload for each in client.messages if each.topic == "$SYS/broker/uptime"]
        wait_until(
            lambda: any(
                b"seconds" in each.payload and each.payload not in uptimes
                for each in client.messages
                if each.topic == "$SYS/broker/uptime"
            ),
            "a later uptime",
        )
        other.publish("a/b", b"", retain=True)
        wait_until(lambda: figures()["retained messages/count"] == "0", "none is retained")


def test_nothing_is_published_that_nobody_asked_for(quick: MqttBroker) -> None:
    with PahoClient(quick.mqtt) as client, PahoClient(quick.mqtt) as asking:
        client.subscribe("#")
        asking.subscribe("$SYS/broker/uptime")
        asking.wait_messages(3)
        client.publish("a", b"1")
        client.wait_messages(1)
        assert [each.topic for each in client.messages] == ["a"]
        assert {each.topic for each in asking.messages} == {"$SYS/broker/uptime"}
        status = quick.status()
        assert status is not None
        topics = {topic["name"] for topic in status["topics"]}
        assert "$SYS.broker.uptime" in topics
        assert "$SYS.broker.version" not in topics
        assert status["counts"]["mqtt_clients"] == 2


class Taker:
    """A client that completes what it gets in order, so many at a time, and has ``OPEN_MAX`` open at most."""

    def __init__(self, qos: int) -> None:
        self.qos = qos
        self.got: list[bytes] = []  # without what came again
        self.open: dict[int, bytes] = {}

    def connect(self, client: Mqtt) -> None:
        client.connect("taker", lasts=True, receive_maximum=OPEN_MAX)

    def take(self, client: Mqtt, completed: int) -> None:
        """Receive until so many are completed, and the following ones are there."""
        again = list(self.open)  # is to come first, in this order
        while completed or again or len(self.open) < min(OPEN_MAX, OWED - len(self.got)):
            packet = client.hear()
            assert packet is not None, "the broker closed the connection"
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
def test_a_session_goes_on_with_them_at_the_next_master(brokers: tuple[MqttBroker, ...], qos: int) -> None:
    """Completed messages do not come again; others have their packet id, DUP, and their place."""
    one, two = brokers
    with PahoClient(one.mqtt, in_flight=1000) as publisher:
        sent = [publisher.client.publish(f"o/{number:05}", b"%d" % number, 2, retain=True) for number in range(OWED)]
        for each in sent:
            each.wait_for_publish(300)
    taker = Taker(qos)
    with Mqtt(one.mqtt) as client:
        taker.connect(client)
        assert client.subscribe("o/#", qos=qos) == [qos]
        taker.take(client, OWED // 2)
        assert client.publish("elsewhere") in (0, 0x10)  # so the earlier commands are stored, too
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
