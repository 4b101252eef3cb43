"""The figures on topics below $SYS/, of a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.acceptance.broker_process import wait_until
from tests.support.acceptance.mqtt_broker import MqttBroker
from tests.support.acceptance.paho_client import PahoClient


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[MqttBroker]:
    broker = MqttBroker(tmp_path / "store", "one", "--set", "mqtt.sys_interval=300")
    broker.start()
    broker.wait_role("master")
    yield broker
    broker.stop()


@pytest.mark.promise("mqtt-figures")
def test_figures_come_at_once_and_again(broker: MqttBroker) -> None:
    with PahoClient(broker.mqtt, "keeps", expiry=3600) as other, PahoClient(broker.mqtt) as client:
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


def test_nothing_is_published_that_nobody_asked_for(broker: MqttBroker) -> None:
    with PahoClient(broker.mqtt) as client, PahoClient(broker.mqtt) as asking:
        client.subscribe("#")
        asking.subscribe("$SYS/broker/uptime")
        asking.wait_messages(3)
        client.publish("a", b"1")
        client.wait_messages(1)
        assert [each.topic for each in client.messages] == ["a"]
        assert {each.topic for each in asking.messages} == {"$SYS/broker/uptime"}
        status = broker.status()
        assert status is not None
        topics = {topic["name"] for topic in status["topics"]}
        assert "$SYS.broker.uptime" in topics
        assert "$SYS.broker.version" not in topics
        assert status["counts"]["mqtt_clients"] == 2
