"""A shared subscription of MQTT with QoS 2 on a real broker: who was sent a message has it, whoever dies meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.broker.protocols.mqtt.packets import Acknowledgement, PacketType, Unsubscribe
from tandemmq.broker.protocols.mqtt.properties import NONE
from tandemmq.store.tools.check import check
from tests.support.acceptance.broker_process import wait_until
from tests.support.acceptance.mqtt_broker import MqttBroker
from tests.support.acceptance.mqtt_wire import Mqtt
from tests.support.acceptance.paho_client import PahoClient

SHARE = "$share/g/orders/#"
LONG = 3_600


def take(port: int) -> Mqtt:
    """A member that answers when it is told to."""
    taker = Mqtt(port)
    assert taker.connect("taker", lasts=True) == [0]
    return taker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[MqttBroker]:
    broker = MqttBroker(tmp_path / "store", "a")
    broker.start()
    broker.wait_role("master")
    yield broker
    broker.stop()
    report = check(broker.data)
    assert report.is_clean, report.problems


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
