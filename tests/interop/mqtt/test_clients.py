"""Clients as people have them: paho and aiomqtt, each version of MQTT."""

from __future__ import annotations

import asyncio

import aiomqtt
import pytest

from tests.support.interop.mqtt_side import COMES_SECONDS, VERSIONS, MqttSide

pytestmark = pytest.mark.promise("mqtt-conforms")

QOS = (0, 1, 2)
each_version = pytest.mark.parametrize("version", VERSIONS)


@each_version
@pytest.mark.parametrize("qos", QOS)
def test_what_is_published_comes_with_its_qos(port: int, name: str, version: str, qos: int) -> None:
    reader, writer = MqttSide(port, f"{name}-r", version), MqttSide(port, f"{name}-w", version)
    assert reader.subscribe(f"{name}/+", 2) == 2

    for number in range(50):
        writer.publish(f"{name}/a", str(number), qos)

    messages = [reader.take() for _ in range(50)]
    assert [message.payload for message in messages] == [b"%d" % number for number in range(50)]
    assert {(message.topic, message.qos, message.retain) for message in messages} == {(f"{name}/a", qos, False)}
    reader.close()
    writer.close()


@each_version
@pytest.mark.parametrize("ends", ["close", "break_off"])
def test_a_kept_session_has_what_came_meanwhile(port: int, name: str, version: str, ends: str) -> None:
    reader, writer = MqttSide(port, f"{name}-r", version, is_kept=True), MqttSide(port, f"{name}-w", version)
    assert not reader.has_session
    reader.subscribe(f"{name}/one", 1)
    reader.subscribe(f"{name}/two", 2)
    reader.subscribe(f"{name}/none", 0)
    getattr(reader, ends)()

    for topic, qos in (("one", 1), ("two", 2), ("none", 1)):
        writer.publish(f"{name}/{topic}", topic, qos)
    reader = MqttSide(port, f"{name}-r", version, is_kept=True)

    assert reader.has_session == (version != "3.1")  # which has no word for it
    assert sorted(reader.payloads(2)) == [b"one", b"two"]
    writer.publish(f"{name}/none", "now", 0)
    assert reader.take().payload == b"now"
    reader.unsubscribe(f"{name}/two")
    writer.publish(f"{name}/two", "gone", 2)
    assert reader.is_quiet()
    reader.close()
    # A clean session is the end of it.
    MqttSide(port, f"{name}-r", version).close()
    reader = MqttSide(port, f"{name}-r", version, is_kept=True)
    writer.publish(f"{name}/one", "lost", 1)
    assert not reader.has_session
    assert reader.is_quiet()
    reader.close()
    writer.close()


def test_what_mqtt_5_says_beside_the_payload_comes_as_it_was(port: int, name: str) -> None:
    client = MqttSide(port, name, "5.0")
    client.subscribe(name, 1)
    user = [("b", "1"), ("a", "2"), ("b", "3")]
    client.publish(
        name, "x", UserProperty=user, ContentType="text/plain", ResponseTopic="a/b", CorrelationData=b"\xff\x00",
        PayloadFormatIndicator=1, MessageExpiryInterval=100,
    )  # fmt: skip

    carried = client.take().properties

    assert carried is not None
    assert carried.UserProperty == user
    assert (carried.ContentType, carried.ResponseTopic, carried.CorrelationData) == ("text/plain", "a/b", b"\xff\x00")
    assert (carried.PayloadFormatIndicator, 98 <= carried.MessageExpiryInterval <= 100) == (1, True)
    client.close()


async def test_aiomqtt_publishes_and_iterates(port: int, name: str) -> None:
    for protocol in aiomqtt.ProtocolVersion:
        async with aiomqtt.Client("127.0.0.1", port, identifier=f"{name}-{protocol.name}", protocol=protocol) as client:
            topic = f"{name}/{protocol.name}"
            for qos in QOS:
                await client.subscribe(f"{topic}/{qos}/#", qos=qos)
                await client.publish(f"{topic}/{qos}", str(qos), qos=qos)
            found = set()
            async with asyncio.timeout(COMES_SECONDS):
                async for message in client.messages:
                    found.add((str(message.topic), message.payload, message.qos))
                    if len(found) == len(QOS):
                        break
            assert found == {(f"{topic}/{qos}", b"%d" % qos, qos) for qos in QOS}
