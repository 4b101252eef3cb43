"""Clients of JMS and STOMP on the other side of a topic: names, bodies, QoS and further fields."""

from __future__ import annotations

import json
from typing import Any

import pytest
import stomp

from tests.support.acceptance.broker_process import BrokerProcess, wait_until
from tests.support.acceptance.paho_client import PahoClient
from tests.support.interop.jms.jvm import JmsSession, Jvm

pytestmark = pytest.mark.promise("protocols-meet")


class StompPy(stomp.ConnectionListener):
    """stomp.py, and what came."""

    def __init__(self, broker: BrokerProcess, **headers: str) -> None:
        self.receipts: list[str] = []
        self.frames: list[Any] = []
        self.connection = stomp.Connection12([("127.0.0.1", broker.stomp)], auto_decode=False)
        self.connection.set_listener("notes", self)
        self.connection.connect(wait=True, headers=headers)

    def on_receipt(self, frame: Any) -> None:
        self.receipts.append(frame.headers["receipt-id"])

    def on_message(self, frame: Any) -> None:
        self.frames.append(frame)

    def subscribe(self, destination: str, **headers: str) -> None:
        self.connection.subscribe(destination, id="1", receipt="subscribed", headers=headers)
        wait_until(lambda: "subscribed" in self.receipts, "it subscribes")

    def take(self) -> Any:
        wait_until(lambda: self.frames, "a message comes")
        return self.frames.pop(0)


@pytest.fixture
def session(jvm: Jvm, broker: BrokerProcess) -> JmsSession:
    return jvm.connect(f"tcp://127.0.0.1:{broker.openwire}").session()


# ---- JMS


@pytest.mark.service
def test_mqtt_to_jms(session: JmsSession, port: int, name: str) -> None:
    consumer = session.consumer(f"topic://{name}.*.c")
    client = PahoClient(port, name, "5.0")
    client.publish(
        f"{name}/b.b/c", b"\xff", 1, UserProperty=[("colour", "red")], CorrelationData=b"7", ResponseTopic="answers/x"
    )
    client.publish(f"{name}/b/c", "text", 0, PayloadFormatIndicator=1, ContentType="text/plain")

    first, second = consumer.receive(), consumer.receive()

    assert (first["kind"], first.body, first["destination"]) == ("bytes", b"\xff", f"topic://{name}.b/b.c")
    assert (first["persistent"], first["correlation"], first["replyTo"]) == (True, "7", "topic://answers.x")
    assert first.properties["colour"] == "red"
    assert (second["kind"], second.body, second["persistent"]) == ("text", "text", False)
    assert second.properties["content-type"] == "text/plain"
    client.leave()


@pytest.mark.service
@pytest.mark.parametrize("version", ["3.1.1", "5.0"])
def test_jms_to_mqtt(session: JmsSession, port: int, name: str, version: str) -> None:
    client = PahoClient(port, name, version)
    client.subscribe(f"{name}/+/c", 2)
    producer = session.producer(f"topic://{name}.b.c")
    producer.send("text \u00e9", correlation="7", replyTo="topic://answers.x", properties={"colour": "red"})
    producer.send(b"\xff", kind="bytes", persistent=False)
    producer.send({"a": 1}, kind="map")

    text, octets, map_ = client.take(), client.take(), client.take()

    assert (text.topic, text.payload.decode(), text.qos) == (f"{name}/b/c", "text \u00e9", 1)
    assert (octets.payload, octets.qos) == (b"\xff", 0)
    assert json.loads(map_.payload) == {"map": {"entry": {"string": "a", "int": 1}}}, "as in STOMP"
    if version == "5.0":
        carried = text.properties
        assert carried is not None
        assert (carried.CorrelationData, carried.ResponseTopic) == (b"7", "answers/x")
        assert carried.UserProperty == [("colour", "red")]
        assert carried.PayloadFormatIndicator == 1
    client.leave()


@pytest.mark.service
def test_a_jms_request_is_answered_by_mqtt(session: JmsSession, port: int, name: str) -> None:
    client = PahoClient(port, name, "5.0")
    client.subscribe(f"{name}/requests", 1)
    answers = session.consumer(f"topic://{name}.answers")
    session.send(f"topic://{name}.requests", "?", replyTo=f"topic://{name}.answers", correlation="c-1")
    asked = client.take().properties
    assert asked is not None
    client.publish(asked.ResponseTopic, "!", CorrelationData=asked.CorrelationData, PayloadFormatIndicator=1)
    answer = answers.receive()
    assert (answer.body, answer["correlation"]) == ("!", "c-1")
    client.leave()


# ---- STOMP


def test_mqtt_to_stomp(broker: BrokerProcess, port: int, name: str) -> None:
    reader = StompPy(broker)
    reader.subscribe(f"/topic/{name}.>")
    client = PahoClient(port, name, "5.0")
    client.publish(f"{name}/a", "x", 1, UserProperty=[("colour", "red")], ContentType="text/css", CorrelationData=b"7")
    frame = reader.take()
    assert (frame.body, frame.headers["destination"]) == (b"x", f"/topic/{name}.a")
    told = {key: frame.headers[key] for key in ("colour", "content-type", "correlation-id", "persistent")}
    assert told == {"colour": "red", "content-type": "text/css", "correlation-id": "7", "persistent": "true"}
    client.leave()
    reader.connection.disconnect()


@pytest.mark.parametrize("version", ["3.1", "3.1.1", "5.0"])
def test_stomp_to_mqtt(broker: BrokerProcess, port: int, name: str, version: str) -> None:
    client = PahoClient(port, name, version)
    client.subscribe(f"{name}/#", 2)
    writer = StompPy(broker)
    headers = {"colour": "red", "correlation-id": "7", "reply-to": "/topic/answers.x"}
    writer.connection.send(f"/topic/{name}.a", "stored", persistent="true", content_type="text/css", headers=headers)
    writer.connection.send(f"/topic/{name}.a", "not stored")

    stored, other = client.take(), client.take()

    assert (stored.topic, stored.payload, stored.qos) == (f"{name}/a", b"stored", 1)
    assert (other.payload, other.qos) == (b"not stored", 0)
    if version == "5.0":
        carried = stored.properties
        assert carried is not None
        assert (carried.ContentType, carried.CorrelationData) == ("text/css", b"7")
        assert (carried.ResponseTopic, ("colour", "red") in carried.UserProperty) == ("answers/x", True)
    client.leave()
    writer.connection.disconnect()


def test_a_queue_gets_mqtt_messages_by_a_virtual_topic(broker: BrokerProcess, port: int, name: str) -> None:
    """Queues have no topic names; a virtual topic feeds one."""
    reader = StompPy(broker)
    reader.subscribe(f"/queue/Consumer.A.VirtualTopic.{name}")
    client = PahoClient(port, name, "3.1.1")
    client.publish(f"VirtualTopic/{name}", "x", 2)
    assert reader.take().body == b"x"
    client.leave()
    reader.connection.disconnect()


@pytest.mark.parametrize("qos", [1, 2])
def test_a_durable_subscription_that_is_named_as_activemq_does_is_a_session(
    broker: BrokerProcess, port: int, name: str, qos: int
) -> None:
    durable = StompPy(broker, **{"client-id": name})
    subscription = f"{'AT_LEAST_ONCE' if qos == 1 else 'EXACTLY_ONCE'}:{name}/+"
    durable.subscribe(f"/topic/{name}.*", **{"activemq.subscriptionName": subscription})
    durable.connection.disconnect()
    other = PahoClient(port, f"{name}-w", "3.1.1")
    other.publish(f"{name}/a", "gathered", 2)

    client = PahoClient(port, name, "3.1.1", is_kept=True)

    assert client.session_present
    message = client.take()
    assert (message.payload, message.qos) == (b"gathered", qos)
    client.unsubscribe(f"{name}/+")
    client.leave()
    other.publish(f"{name}/a", "lost", 2)
    client = PahoClient(port, name, "3.1.1", is_kept=True)
    assert client.is_quiet()
    client.leave()
    other.leave()
