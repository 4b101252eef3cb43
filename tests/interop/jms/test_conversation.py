"""Connections of JMS clients, and the errors for invalid requests."""

from __future__ import annotations

import pytest

from tandemmq.broker.protocols.openwire import schema
from tandemmq.broker.protocols.openwire.types import ConnectionId, SessionId
from tandemmq.store.records.message import Destination, DestinationKind
from tests.interop.jms.conftest import Connect
from tests.support.acceptance.openwire_wire import OpenWire
from tests.support.interop.jms.jvm import JmsConnection, JmsError, JmsSession
from tests.support.interop.jms.peers import Peer

pytestmark = [pytest.mark.service, pytest.mark.promise("jms-works-unmodified")]


def test_a_message_goes_from_one_connection_to_another(connect: Connect, queue: str) -> None:
    sender, receiver = connect(), connect()
    consumer = receiver.session().consumer(queue)

    [message_id] = sender.session().send(queue, "hello")

    message = consumer.receive()
    assert (message.body, message["id"], message["destination"]) == ("hello", message_id, queue)
    assert message_id.startswith(sender.connection_id)
    assert (message["redelivered"], message["deliveries"], message["priority"]) == (False, 1, 4)
    assert consumer.take() is None


@pytest.mark.parametrize(
    "options",
    [
        "wireFormat.tightEncodingEnabled=false",
        "wireFormat.cacheEnabled=false",
        "wireFormat.stackTraceEnabled=false",
        "wireFormat.maxInactivityDuration=0",
        "jms.watchTopicAdvisories=false",
        "jms.useAsyncSend=true",
        "jms.alwaysSyncSend=true",
        "jms.dispatchAsync=false",
        "jms.optimizeAcknowledge=true",
        "jms.copyMessageOnSend=false",
        "jms.nestedMapAndListEnabled=false",
        "wireFormat.version=6",
        "wireFormat.version=9",
        "wireFormat.version=10",
    ],
)
def test_clients_may_set_their_options(connect: Connect, queue: str, options: str) -> None:
    connection = connect(options)
    session = connection.session()
    consumer = session.consumer(queue)
    session.send(queue, "one", "two", properties={"colour": "red"})
    assert consumer.bodies(2) == ["one", "two"]


def test_a_client_id_is_for_one_connection(connect: Connect, name: str) -> None:
    first = connect(clientId=name)
    with pytest.raises(JmsError) as raised:
        connect(clientId=name)
    assert raised.value.kind == "InvalidClientIDException"
    assert name in raised.value.text
    first.close()
    connect(clientId=name).close()


def test_a_durable_subscription_in_use_is_neither_given_nor_removed(connect: Connect, name: str) -> None:
    connection = connect(clientId=name)
    session = connection.session()
    first = session.durable(f"topic://{name}", "news")
    with pytest.raises(JmsError, match="in use") as refused:
        connection.session().durable(f"topic://{name}", "news")
    with pytest.raises(JmsError) as kept:
        session.unsubscribe("news")
    assert refused.value.kind == kept.value.kind == "JMSException"
    first.close()
    session.unsubscribe("news")


def test_an_unknown_durable_subscription_cannot_be_removed(connect: Connect, name: str) -> None:
    connection = connect(clientId=name)
    with pytest.raises(JmsError) as raised:
        connection.session().unsubscribe("never was")
    assert raised.value.kind == "InvalidDestinationException"


def test_a_queue_in_use_cannot_be_destroyed(connection: JmsConnection, session: JmsSession, queue: str) -> None:
    consumer = session.consumer(queue)
    with pytest.raises(JmsError) as raised:
        connection.destroy(queue)
    assert raised.value.kind == "JMSException"
    consumer.close()
    session.send(queue, "goes with it")
    connection.destroy(queue)
    assert session.consumer(queue).take() is None


def test_a_stopped_connection_receives_nothing_and_loses_nothing(connect: Connect, queue: str) -> None:
    connection = connect(start=False)
    session = connection.session()
    consumer = session.consumer(queue)
    session.send(queue, "kept")
    assert consumer.take() is None
    connection.start()
    assert consumer.receive().body == "kept"


def test_what_a_closed_consumer_did_not_take_goes_to_the_next(session: JmsSession, queue: str) -> None:
    session.send(queue, *"abcd")
    first = session.consumer(queue)
    assert first.receive().body == "a"
    first.close()
    second = session.consumer(queue)
    message = second.receive()
    assert (message.body, message["deliveries"]) == ("b", 1)
    assert second.bodies(2) == ["c", "d"]


def test_a_socket_may_carry_one_connection_after_the_other(broker: Peer, name: str) -> None:
    """Connection pools and ActiveMQ's resource adapter use one socket for several connections, one after the other."""
    queue = Destination(DestinationKind.QUEUE, name)
    client = OpenWire(broker.port).connect(client_id=f"{name}-first")
    client.consume(queue)
    client.send(queue, b"left")
    client.ask(schema.RemoveInfo, object_id=ConnectionId(client.id))
    client.dispatched.clear()
    for number in range(3):
        client.id = f"{client.id}-{number}"
        client.ask(schema.ConnectionInfo, connection_id=ConnectionId(client.id), client_id=f"{name}-again")
        client.ask(schema.SessionInfo, session_id=SessionId(client.id, 1))
        client.consume(queue)
        assert client.next_dispatched().message is not None, "what the one before did not acknowledge"
        client.ask(schema.RemoveInfo, object_id=ConnectionId(client.id))
        client.dispatched.clear()
    client.close()
