"""Advisory messages: topic and content for each fact."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tandemmq.broker.core.advisor import (
    ConnectionFact,
    ConsumerFact,
    DestinationFact,
    DurableFact,
    Fact,
    FastProducerFact,
    FullFact,
    MasterFact,
    MessageEvent,
    MessageFact,
    ProducerFact,
    SlowConsumerFact,
)
from tandemmq.broker.protocols.openwire import schema
from tandemmq.broker.protocols.openwire.advisories import Advisories
from tandemmq.broker.protocols.openwire.codec import message_of
from tandemmq.broker.protocols.openwire.types import ConnectionId, ConsumerId
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tests.support.protocols.openwire.peer import CONNECTION, CONSUMER, NOW, PRODUCER, QUEUE, TOPIC
from tests.support.protocols.openwire.vectors import vectors

pytestmark = pytest.mark.promise("advisories")

TEMP_QUEUE = Destination(DestinationKind.TEMP_QUEUE, f"{CONNECTION}:1")
TEMP_TOPIC = Destination(DestinationKind.TEMP_TOPIC, f"{CONNECTION}:2")
MESSAGE = Message(QUEUE, f"{PRODUCER}:7", b"secret", BodyKind.TEXT, properties={"colour": "red"})


def advisories() -> Advisories:
    return Advisories(
        "ID:b1-advisory-3",
        lambda: NOW,
        itertools.count(500),
        broker_id="B1",
        broker_name="localhost",
        broker_url="tcp://broker:61616",
    )


def told(fact: Fact) -> tuple[Message, schema.WireMessage]:
    """The message, and as a JMS client sees it."""
    advisor = advisories()
    topic = advisor.topic(fact)
    assert topic is not None
    message = advisor.message(fact, topic)
    assert message.destination == topic
    assert message.raw is not None
    return message, message_of(message.raw)


FACTS: list[tuple[Fact, str, Any, dict[str, Any]]] = [
    (
        ConnectionFact(CONNECTION, True, "client-1", "system", "10.0.0.1:5000"),
        "Connection",
        schema.ConnectionInfo(
            connection_id=ConnectionId(CONNECTION), client_id="client-1", user_name="system", client_ip="10.0.0.1:5000"
        ),
        {},
    ),
    (ConnectionFact(CONNECTION, False), "Connection", schema.RemoveInfo(object_id=ConnectionId(CONNECTION)), {}),
    (DestinationFact(QUEUE, True), "Queue", schema.DestinationInfo(destination=QUEUE, operation_type=0), {}),
    (DestinationFact(TOPIC, False), "Topic", schema.DestinationInfo(destination=TOPIC, operation_type=1), {}),
    (
        DestinationFact(TEMP_QUEUE, True, CONNECTION),
        "TempQueue",
        schema.DestinationInfo(connection_id=ConnectionId(CONNECTION), destination=TEMP_QUEUE, operation_type=0),
        {},
    ),
    (
        DestinationFact(TEMP_TOPIC, False, CONNECTION),
        "TempTopic",
        schema.DestinationInfo(connection_id=ConnectionId(CONNECTION), destination=TEMP_TOPIC, operation_type=1),
        {},
    ),
    (
        ProducerFact(CONNECTION, "1:1", QUEUE, True, 2),
        "Producer.Queue.TEST.Q",
        schema.ProducerInfo(producer_id=PRODUCER, destination=QUEUE),
        {"producerCount": 2},
    ),
    (
        ProducerFact(CONNECTION, "1:1", TOPIC, False, 0),
        "Producer.Topic.TEST.T",
        schema.RemoveInfo(object_id=PRODUCER),
        {"producerCount": 0},
    ),
    (
        ConsumerFact(CONNECTION, "1:1", QUEUE, True, 1, "client-1", None, "a = 1", 1000, 5, is_exclusive=True),
        "Consumer.Queue.TEST.Q",
        schema.ConsumerInfo(
            consumer_id=CONSUMER,
            destination=QUEUE,
            prefetch_size=1000,
            selector="a = 1",
            client_id="client-1",
            priority=5,
            exclusive=True,
        ),
        {"consumerCount": 1},
    ),
    (
        ConsumerFact(CONNECTION, "1:1", TEMP_QUEUE, False, 0),
        f"Consumer.Queue.{TEMP_QUEUE.name}",
        schema.RemoveInfo(object_id=CONSUMER),
        {"consumerCount": 0},
    ),
    (
        DurableFact(CONNECTION, "client-1", "durable", TOPIC, 0),
        "Consumer.Topic.TEST.T",
        schema.RemoveSubscriptionInfo(
            connection_id=ConnectionId(CONNECTION), subscription_name="durable", client_id="client-1"
        ),
        {"consumerCount": 0},
    ),
    (
        SlowConsumerFact(CONNECTION, "1:1", TOPIC),
        "SlowConsumer.Topic.TEST.T",
        schema.ConsumerInfo(consumer_id=CONSUMER, destination=TOPIC),
        {"consumerId": str(CONSUMER)},
    ),
    (
        FastProducerFact(CONNECTION, "1:1", QUEUE),
        "FastProducer.Queue.TEST.Q",
        schema.ProducerInfo(producer_id=PRODUCER, destination=QUEUE),
        {"producerId": str(PRODUCER)},
    ),
    (FullFact(QUEUE, "memory", 70_000), "FULL.TEST.Q", None, {"usageName": "memory", "usageCount": 70_000}),
    (MasterFact(), "MasterBroker", None, {}),
]


@pytest.mark.parametrize(("fact", "name", "structure", "properties"), FACTS, ids=[fact[1] for fact in FACTS])
def test_each_fact_has_its_topic_and_its_command(
    fact: Fact, name: str, structure: Any, properties: dict[str, Any]
) -> None:
    message, wire = told(fact)
    assert message.destination == Destination(DestinationKind.TOPIC, f"ActiveMQ.Advisory.{name}")
    assert wire.data_structure == structure
    origin = {"originBrokerId": "B1", "originBrokerName": "localhost", "originBrokerURL": "tcp://broker:61616"}
    assert message.properties == origin | properties
    assert (message.type, message.persistent, message.body, message.timestamp) == ("Advisory", False, b"", NOW)


def test_a_temporary_queue_is_told_in_activemqs_words() -> None:
    (theirs,) = (each for each in vectors() if str(each) == "Advisory-tempQueueAdd v11 loose")
    _, wire = told(DestinationFact(TEMP_QUEUE, True, CONNECTION))
    expected = message_of(theirs.frames[0])
    for name in ("destination", "type", "persistent", "priority", "data_structure", "content", "response_required"):
        assert getattr(wire, name) == getattr(expected, name)


@pytest.mark.parametrize(
    "event", [event for event in MessageEvent if event is not MessageEvent.NO_CONSUMER], ids=lambda event: event.value
)
def test_an_advisory_about_a_message_contains_the_message(event: MessageEvent) -> None:
    fact = MessageFact(event, MESSAGE, QUEUE, (CONNECTION, "1:1"), 3)
    message, wire = told(fact)
    assert message.destination.name == f"ActiveMQ.Advisory.{event.value}.Queue.TEST.Q"
    inner = wire.data_structure
    assert isinstance(inner, schema.ActiveMQTextMessage)
    assert inner.message_id is not None
    assert inner.message_id.key == MESSAGE.message_id
    assert inner.content is None
    assert message.properties is not None
    assert message.properties["orignalMessageId"] == MESSAGE.message_id
    assert message.properties["consumerId"] == str(CONSUMER)
    assert message.properties["discardedCount"] == 3
    _, whole = told(MessageFact(event, MESSAGE, QUEUE, has_body=True))
    assert isinstance(whole.data_structure, schema.ActiveMQTextMessage)
    assert whole.data_structure.content == b"\0\0\0\6secret"


def test_a_message_without_a_consumer_comes_itself() -> None:
    fact = MessageFact(MessageEvent.NO_CONSUMER, MESSAGE, QUEUE)
    advisor = advisories()
    topic = advisor.topic(fact)
    assert topic == Destination(DestinationKind.TOPIC, "ActiveMQ.Advisory.NoConsumer.Queue.TEST.Q")
    message = advisor.message(fact, topic)
    assert (message.destination, message.original_destination) == (topic, QUEUE)
    assert (message.body, message.message_id, message.properties) == (b"secret", MESSAGE.message_id, {"colour": "red"})


def test_there_are_no_advisories_about_advisories() -> None:
    advisor = advisories()
    advisory = Destination(DestinationKind.TOPIC, "ActiveMQ.Advisory.Queue")
    assert advisor.topic(ConsumerFact(CONNECTION, "1:1", advisory, True, 1)) is None
    assert advisor.topic(DestinationFact(advisory, True)) is None
    assert advisor.topic(ProducerFact(CONNECTION, "1:1", None, True, 1)) is None


def test_each_advisory_has_an_id_and_a_number_of_its_own_and_a_composite_is_one_name() -> None:
    advisor = advisories()
    both = Destination(DestinationKind.QUEUE, "A,B")
    topic = advisor.topic(ConsumerFact(CONNECTION, "1:1", both, True, 1))
    assert topic == Destination(DestinationKind.TOPIC, "ActiveMQ.Advisory.Consumer.Queue.A&sbquo;B")
    first, second = (advisor.message(MasterFact(), topic) for _ in range(2))
    assert first.message_id != second.message_id
    assert (first.broker_sequence, second.broker_sequence) == (500, 501)


def test_subscriptions_of_other_protocols_have_numbers_for_names() -> None:
    ids = []
    for name in ("news", "news", "other", f"{1 << 70}:1", "1:2:3"):
        _, wire = told(ConsumerFact("ID:stomp", name, QUEUE, False, 0))
        assert isinstance(wire.data_structure, schema.RemoveInfo)
        assert isinstance(wire.data_structure.object_id, ConsumerId)
        assert wire.data_structure.object_id.session_id == -1
        ids.append(wire.data_structure.object_id)
    assert len(set(ids)) == 4


def test_an_advisory_omits_a_selector_that_is_too_long() -> None:
    message, wire = told(ConsumerFact(CONNECTION, "1:1", QUEUE, True, 1, selector="x" * 70_000))
    assert wire.data_structure is None
    assert message.properties is None
    long = Destination(DestinationKind.QUEUE, "x" * 60_000)
    assert advisories().topic(DestinationFact(long, True)) is not None
    assert advisories().topic(ConsumerFact(CONNECTION, "1:1", long, True, 1)) is None
