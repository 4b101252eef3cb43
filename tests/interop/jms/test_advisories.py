"""The advisory topics: what clients learn of others."""

from __future__ import annotations

import pytest

from tests.support.acceptance.openwire_wire import OpenWire
from tests.support.interop.jms.jvm import Consumer, Jvm, Message
from tests.support.interop.jms.peers import Peer

pytestmark = [pytest.mark.service, pytest.mark.promise("advisories")]


def until(consumer: Consumer, text: str) -> Message:
    """The next advisory that is about this; of others there may be any number."""
    while True:
        message = consumer.receive()
        if text in str(message["aboutText"]) or text in str(message.properties):
            return message


def test_the_destination_source_knows_queues_and_topics(jvm: Jvm, broker: Peer, name: str) -> None:
    before = jvm.connect(broker.url())
    before.session().send(f"queue://{name}.BEFORE", "a")
    connection = jvm.connect(broker.url())
    wanted = [f"queue://{name}.BEFORE"]
    assert set(wanted) <= set(connection.destinations(wanted)), "what is there is told to who comes"
    before.session().send(f"queue://{name}.AFTER", "a")
    before.session().send(f"topic://{name}.TOPIC", "a")
    temporary = before.session().temporary_queue()
    wanted += [f"queue://{name}.AFTER", f"topic://{name}.TOPIC", temporary]
    assert set(wanted) <= set(connection.destinations(wanted))
    before.destroy(f"queue://{name}.AFTER")
    assert f"queue://{name}.AFTER" not in connection.destinations(gone=[f"queue://{name}.AFTER"])
    before.close()
    assert temporary not in connection.destinations(gone=[temporary])
    connection.close()


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_the_consumer_event_source_counts(jvm: Jvm, broker: Peer, name: str, kind: str) -> None:
    connection, other = jvm.connect(broker.url()), jvm.connect(broker.url())
    session = other.session()
    first = session.consumer(f"{kind}://{name}")
    events = connection.consumers_of(f"{kind}://{name}")
    assert events.heard(1)[-1] == {"count": 1, "isStarted": True}, "who was there is told"
    second = session.consumer(f"{kind}://{name}")
    assert events.heard(2)[-1] == {"count": 2, "isStarted": True}
    first.close()
    assert events.heard(3)[-1] == {"count": 1, "isStarted": False}
    second.close()
    assert events.heard(4)[-1] == {"count": 0, "isStarted": False}
    connection.close()
    other.close()


def test_connections_are_told(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    consumer = connection.session().consumer("topic://ActiveMQ.Advisory.Connection")
    other = jvm.connect(broker.url(), clientId=name)
    came = until(consumer, name)
    assert came["about"] == "ConnectionInfo"
    assert came["type"] == "Advisory"
    other.close()
    assert until(consumer, other.connection_id)["about"] == "RemoveInfo"
    connection.close()


def test_producers_are_told(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    consumer = connection.session().consumer(f"topic://ActiveMQ.Advisory.Producer.Queue.{name}")
    session = connection.session()
    producer = session.producer(f"queue://{name}")
    came = consumer.receive()
    assert came["about"] == "ProducerInfo"
    assert str(came.properties["producerCount"]) == "1"
    producer.close()
    assert consumer.receive()["about"] == "RemoveInfo"
    connection.close()


def test_new_queues_are_told_and_those_that_go(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    consumer = connection.session().consumer("topic://ActiveMQ.Advisory.Queue")
    connection.session().send(f"queue://{name}", "a")
    came = until(consumer, name)
    assert came["about"] == "DestinationInfo"
    connection.destroy(f"queue://{name}")
    assert until(consumer, name)["about"] == "DestinationInfo"
    connection.close()


def test_an_expired_message_is_told(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    consumer = connection.session().consumer(f"topic://ActiveMQ.Advisory.Expired.Queue.SHORT.{name}")
    [message_id] = session.send(f"queue://SHORT.{name}", "a", ttl=30)
    came = consumer.receive()
    assert came["about"] == "ActiveMQTextMessage"
    assert came.properties["orignalMessageId"] == message_id
    connection.close()


def test_a_dead_letter_is_told(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(
        broker.url("jms.redeliveryPolicy.maximumRedeliveries=0&jms.redeliveryPolicy.initialRedeliveryDelay=0")
    )
    # The topic is named after the destination that the message came from.
    consumer = connection.session().consumer("topic://ActiveMQ.Advisory.MessageDLQd.Queue.>")
    connection.session().send(f"queue://{name}", "poison")
    session = connection.session("TRANSACTED")
    assert session.consumer(f"queue://{name}").receive().body == "poison"
    session.rollback()
    came = until(consumer, name)
    assert came["about"] == "ActiveMQTextMessage"
    connection.close()


def test_a_topic_message_that_nobody_hears_is_told_where_the_policy_says_so(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    consumer = connection.session().consumer(f"topic://ActiveMQ.Advisory.NoConsumer.Topic.TOLD.{name}")
    connection.session().send(f"topic://TOLD.{name}", "to nobody", persistent=False)
    assert consumer.receive().body == "to nobody"
    connection.close()


def test_a_queue_message_that_nobody_consumes_is_told_where_the_policy_says_so(
    jvm: Jvm, broker: Peer, name: str
) -> None:
    connection = jvm.connect(broker.url())
    consumer = connection.session().consumer(f"topic://ActiveMQ.Advisory.NoConsumer.Queue.TOLD.{name}")
    connection.session().send(f"queue://TOLD.{name}", "to nobody yet", persistent=False)
    assert consumer.receive().body == "to nobody yet"
    connection.close()


def test_what_arrives_in_a_virtual_topic_is_told_of_the_topic_itself(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    topic = f"VirtualTopic.TOLD.{name}"
    queue = connection.session().consumer(f"queue://Consumer.G.{topic}")
    consumer = connection.session().consumer(f"topic://ActiveMQ.Advisory.MessageDelivered.Topic.{topic}")
    [message_id] = connection.session().send(f"topic://{topic}", "a")
    assert queue.receive().body == "a"
    assert consumer.receive().properties["orignalMessageId"] == message_id
    connection.close()


def test_advisories_and_the_greeting_name_one_address(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    consumer = connection.session().consumer(f"topic://ActiveMQ.Advisory.Producer.Queue.{name}")
    connection.session().producer(f"queue://{name}")
    told = consumer.receive().properties["originBrokerURL"]
    client = OpenWire(broker.port).connect(client_id=name)
    assert client.broker_info.broker_url == told
    client.close()
    connection.close()


@pytest.mark.parametrize("what", ["MessageConsumed", "MessageDelivered"])
def test_deliveries_are_told_where_the_policy_says_so(jvm: Jvm, broker: Peer, name: str, what: str) -> None:
    connection = jvm.connect(broker.url())
    consumer = connection.session().consumer(f"topic://ActiveMQ.Advisory.{what}.Queue.TOLD.{name}")
    [message_id] = connection.session().send(f"queue://TOLD.{name}", "a")
    assert connection.session().consumer(f"queue://TOLD.{name}").receive().body == "a"
    came = consumer.receive()
    assert came["about"] == "ActiveMQTextMessage"
    assert came.properties["orignalMessageId"] == message_id
    connection.close()


def test_a_queue_nobody_may_forget(jvm: Jvm, broker: Peer, name: str) -> None:
    """Who is there when a consumer of an advisory comes is told to it alone."""
    connection = jvm.connect(broker.url())
    kept = connection.session().consumer(f"queue://{name}")
    first = connection.session().consumer(f"topic://ActiveMQ.Advisory.Consumer.Queue.{name}")
    assert first.receive()["about"] == "ConsumerInfo"
    second = connection.session().consumer(f"topic://ActiveMQ.Advisory.Consumer.Queue.{name}")
    assert second.receive()["about"] == "ConsumerInfo"
    assert first.take() is None
    kept.close()
    assert first.receive()["about"] == "RemoveInfo"
    connection.close()
