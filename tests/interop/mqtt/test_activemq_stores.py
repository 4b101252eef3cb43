"""A client of ActiveMQ's MQTT whose session is kept, and a store that goes to TandemMQ and back: it misses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tandemmq.bench.peers.ports import free_port
from tandemmq.broker.protocols.mqtt.packets import PacketType
from tandemmq.store.tools.check import check
from tests.support.acceptance.broker_process import BrokerProcess, tandemmq
from tests.support.acceptance.mqtt_wire import Mqtt
from tests.support.acceptance.paho_client import PahoClient
from tests.support.interop.jms.peers import MQTT, ActiveMQ
from tests.support.protocols.mqtt.client_packets import ServerPacket

pytestmark = [pytest.mark.service, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def _installed(require_service: Callable[[object, str], None]) -> None:
    require_service(all(each.exists() for each in MQTT), "no MQTT for ActiveMQ (package libmqtt-client-java)")


class Store:
    """A directory that one of the two brokers has at a time."""

    def __init__(self, directory: Path, classes: Path) -> None:
        directory.mkdir()
        self._directory = directory
        self._classes = classes
        self._port = free_port()

    @contextmanager
    def in_activemq(self) -> Iterator[int]:
        """Return the MQTT port of ActiveMQ."""
        peer = ActiveMQ(self._directory, self._classes, mqtt=self._port)
        try:
            peer.wait()
            yield self._port
        finally:
            peer.close()

    @contextmanager
    def in_tandemmq(self) -> Iterator[int]:
        broker = BrokerProcess(self._directory / "kahadb", "a")
        broker.mqtt = self._port
        broker.start().wait_role("master")
        try:
            yield self._port
            assert broker.terminate() == 0
            assert "Traceback" not in broker.log.read_text()
        finally:
            broker.stop()
        report = check(broker.data)
        assert report.is_clean, report.problems

    def hand_back(self) -> None:
        done = tandemmq("store", "handback", str(self._directory / "kahadb"))
        assert done.returncode == 0, done.stderr


@pytest.fixture
def store(tmp_path: Path, classes: Path) -> Store:
    return Store(tmp_path / "store", classes)


def publish(port: int, *topics: str) -> None:
    client = PahoClient(port, "publisher", "3.1.1")
    for topic in topics:
        client.publish(topic, topic, 2)
    client.leave()


def test_a_client_of_activemq_comes_back_to_its_session(store: Store) -> None:
    with store.in_activemq() as port:
        client = PahoClient(port, "sensor", "3.1.1", is_kept=True)
        client.subscribe("home/+/heat", 1)
        client.subscribe("alarm/#", 2)
        client.subscribe("noise", 0)
        client.leave()
        publish(port, "home/a/heat", "alarm/fire", "home/b/heat", "other")
    with store.in_tandemmq() as port:
        publish(port, "home/c/heat", "alarm/water/deep")
        client = PahoClient(port, "sensor", "3.1.1", is_kept=True)
        assert client.session_present
        messages = [client.take() for _ in range(5)]
        found = {(message.topic, message.payload.decode(), message.qos) for message in messages}
        expected = [("home/a/heat", 1), ("home/b/heat", 1), ("home/c/heat", 1), ("alarm/fire", 2)]
        assert found == {(topic, topic, qos) for topic, qos in [*expected, ("alarm/water/deep", 2)]}
        publish(port, "home/d/heat", "noise")
        assert client.take().topic == "home/d/heat"
        assert client.is_quiet()
        client.unsubscribe("alarm/#")
        client.leave()
        publish(port, "alarm/gone", "home/e/heat")
        client = PahoClient(port, "sensor", "3.1.1", is_kept=True)
        assert client.session_present
        assert client.payloads(1) == [b"home/e/heat"]
        assert client.is_quiet()
        client.leave()


def test_a_client_of_tandemmq_goes_back_to_activemq_and_comes_again(store: Store) -> None:
    with store.in_tandemmq() as port:
        client = PahoClient(port, "sensor", "3.1.1", is_kept=True)
        client.subscribe("home/+/heat", 1)
        client.subscribe("alarm/#", 2)
        client.leave()
        publish(port, "home/a/heat", "alarm/fire")
        first = holding(port)
    store.hand_back()
    with store.in_activemq() as port:
        publish(port, "home/b/heat")
        client = PahoClient(port, "sensor", "3.1.1", is_kept=True)
        assert sorted(client.payloads(3)) == [b"alarm/fire", b"home/a/heat", b"home/b/heat"]
        client.subscribe("new", 1)
        client.leave()
        publish(port, "home/c/heat", "new")
    with store.in_tandemmq() as port:
        client = PahoClient(port, "sensor", "3.1.1", is_kept=True)
        assert client.session_present
        assert sorted(client.payloads(2)) == [b"home/c/heat", b"new"]
        assert client.is_quiet()
        client.leave()
        assert holding(port) == [each._replace(dup=True) for each in first]


def holding(port: int) -> list[ServerPacket]:
    """Return a session that received two retained messages, and acknowledged none."""
    with Mqtt(port) as client:
        client.connect("holder", lasts=True)
        if not client.session_present:
            for topic in ("kept/a", "kept/b"):
                assert client.publish(topic, retain=True) in (0, 0x10)
            client.subscribe("kept/+", qos=1)
        given = [client.hear_of(PacketType.PUBLISH) for _ in range(2)]
        return [each for each in given if each is not None]
