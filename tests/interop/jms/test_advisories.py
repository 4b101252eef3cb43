"""The advisory topics: facts that a client learns about other clients."""

from __future__ import annotations

import pytest

from tests.interop.jms.conftest import Connect
from tests.support.acceptance.openwire_wire import OpenWire
from tests.support.interop.jms.jvm import Consumer, JmsConnection, JmsSession, Message
from tests.support.interop.jms.peers import Peer

pytestmark = [pytest.mark.service, pytest.mark.promise("advisories")]


def until(consumer: Consumer, text: str) -> Message:
    """The next advisory that is about this; of others there may be any number."""
    while True:
        message = consumer.receive()
        if text in str(message["aboutText"]) or text in str(message.properties):
            return message


def test_the_destination_source_knows_queues_and_topics(connect: Connect, name: str) -> None:
    before = connect()
    before.session().send(f"queue://{name}.BEFORE", "a")
    connection = connect()
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


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_the_consumer_event_source_counts(connect: Connect, name: str, kind: str) -> None:
    connection, other = connect(), connect()
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


def test_connections_are_told(connect: Connect, connection: JmsConnection, name: str) -> None:
    consumer = connection.session().consumer("topic://ActiveMQ.Advisory.Connection")
    other = connect(clientId=name)
    came = until(consumer, name)
    assert came["about"] == "ConnectionInfo"
    assert came["type"] == "Advisory"
    other.close()
    assert until(consumer, other.connection_id)["about"] == "RemoveInfo"


def test_an_expired_message_is_told(connection: JmsConnection, session: JmsSession, name: str) -> None:
    consumer = connection.session().consumer(f"topic://ActiveMQ.Advisory.Expired.Queue.SHORT.{name}")
    [message_id] = session.send(f"queue://SHORT.{name}", "a", ttl=30)
    came = consumer.receive()
    assert came["about"] == "ActiveMQTextMessage"
    assert came.properties["orignalMessageId"] == message_id


def test_a_dead_letter_is_told(connect: Connect, queue: str, name: str) -> None:
    connection = connect("jms.redeliveryPolicy.maximumRedeliveries=0&jms.redeliveryPolicy.initialRedeliveryDelay=0")
    # The topic is named after the destination that the message came from.
    consumer = connection.session().consumer("topic://ActiveMQ.Advisory.MessageDLQd.Queue.>")
    connection.session().send(queue, "poison")
    session = connection.session("TRANSACTED")
    assert session.consumer(queue).receive().body == "poison"
    session.rollback()
    came = until(consumer, name)
    assert came["about"] == "ActiveMQTextMessage"


@pytest.mark.parametrize("kind", ["topic", "queue"])
def test_a_message_that_nobody_takes_is_told_where_the_policy_says_so(
    connection: JmsConnection, name: str, kind: str
) -> None:
    consumer = connection.session().consumer(f"topic://ActiveMQ.Advisory.NoConsumer.{kind.title()}.TOLD.{name}")
    connection.session().send(f"{kind}://TOLD.{name}", "to nobody", persistent=False)
    assert consumer.receive().body == "to nobody"


def test_what_arrives_in_a_virtual_topic_is_told_of_the_topic_itself(connection: JmsConnection, name: str) -> None:
    topic = f"VirtualTopic.TOLD.{name}"
    fed = connection.session().consumer(f"queue://Consumer.G.{topic}")
    consumer = connection.session().consumer(f"topic://ActiveMQ.Advisory.MessageDelivered.Topic.{topic}")
    [message_id] = connection.session().send(f"topic://{topic}", "a")
    assert fed.receive().body == "a"
    assert consumer.receive().properties["orignalMessageId"] == message_id


def test_a_producer_is_told_by_the_address_of_the_greeting(
    connection: JmsConnection, broker: Peer, queue: str, name: str
) -> None:
    consumer = connection.session().consumer(f"topic://ActiveMQ.Advisory.Producer.Queue.{name}")
    connection.session().producer(queue)
    came = consumer.receive()
    assert (came["about"], str(came.properties["producerCount"])) == ("ProducerInfo", "1")
    client = OpenWire(broker.port).connect(client_id=name)
    assert client.broker_info.broker_url == came.properties["originBrokerURL"]
    client.close()


@pytest.mark.parametrize("what", ["MessageConsumed", "MessageDelivered"])
def test_deliveries_are_told_where_the_policy_says_so(connection: JmsConnection, name: str, what: str) -> None:
    consumer = connection.session().consumer(f"topic://ActiveMQ.Advisory.{what}.Queue.TOLD.{name}")
    [message_id] = connection.session().send(f"queue://TOLD.{name}", "a")
    assert connection.session().consumer(f"queue://TOLD.{name}").receive().body == "a"
    came = consumer.receive()
    assert came["about"] == "ActiveMQTextMessage"
    assert came.properties["orignalMessageId"] == message_id


def test_a_queue_nobody_may_forget(connection: JmsConnection, queue: str, name: str) -> None:
    """A new consumer of an advisory topic is the only one that receives the existing objects."""
    kept = connection.session().consumer(queue)
    first = connection.session().consumer(f"topic://ActiveMQ.Advisory.Consumer.Queue.{name}")
    assert first.receive()["about"] == "ConsumerInfo"
    second = connection.session().consumer(f"topic://ActiveMQ.Advisory.Consumer.Queue.{name}")
    assert second.receive()["about"] == "ConsumerInfo"
    assert first.take() is None
    kept.close()
    assert first.receive()["about"] == "RemoveInfo"
