"""All acknowledge modes: acknowledged messages, redeliveries and their marks, and dead letters."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.jms.conftest import Connect
from tests.support.interop.jms.jvm import JmsConnection, JmsError, Jvm
from tests.support.interop.jms.peers import Pair, Peer
from tests.support.services.proxy import Proxy, Way

pytestmark = [pytest.mark.service, pytest.mark.promise("jms-works-unmodified", "acknowledged-stays-gone")]

PROMPT = "jms.redeliveryPolicy.initialRedeliveryDelay=0&jms.redeliveryPolicy.redeliveryDelay=0"
ONCE = f"{PROMPT}&jms.redeliveryPolicy.maximumRedeliveries=1"


def left_in(connection: JmsConnection, queue: str) -> list[object]:
    """Return the messages that a new consumer receives, with their delivery counts."""
    session = connection.session("CLIENT")
    consumer = session.consumer(queue)
    found: list[object] = []
    while (message := consumer.take()) is not None:
        found.append((message.body, message["deliveries"]))
    session.close()
    return found


@pytest.mark.parametrize("mode", ["AUTO", "DUPS_OK"])
def test_what_was_received_is_acknowledged(connection: JmsConnection, queue: str, mode: str) -> None:
    session = connection.session(mode)
    session.send(queue, *"abc")
    consumer = session.consumer(queue)
    assert consumer.bodies(2) == ["a", "b"]
    session.close()
    assert left_in(connection, queue) == [("c", 1)]


def test_client_acknowledges_all_that_its_session_received(connection: JmsConnection, queue: str) -> None:
    session = connection.session("CLIENT")
    session.send(queue, *"abcde")
    consumer = session.consumer(queue)
    consumer.receive()
    consumer.receive()
    consumer.receive().acknowledge()
    assert consumer.receive().body == "d"
    session.close()
    assert left_in(connection, queue) == [("d", 2), ("e", 1)]


def test_individual_acknowledges_one(connection: JmsConnection, queue: str) -> None:
    session = connection.session("INDIVIDUAL")
    session.send(queue, *"abcd")
    consumer = session.consumer(queue)
    messages = [consumer.receive() for _ in range(3)]
    messages[1].acknowledge()
    session.close()
    assert left_in(connection, queue) == [("a", 2), ("c", 2), ("d", 1)]


def test_a_transaction_takes_all_or_nothing(connect: Connect, queue: str) -> None:
    connection = connect(PROMPT)
    session = connection.session("TRANSACTED")
    session.send(queue, *"abc")
    other = connection.session().consumer(queue)
    assert other.take() is None, "nothing is there before the commit"
    session.commit()
    other.close()
    consumer = session.consumer(queue)
    assert consumer.bodies(2) == ["a", "b"]
    session.send(queue, "never")
    session.rollback()
    again = [consumer.receive() for _ in range(3)]
    assert [(message.body, message["redelivered"], message["deliveries"]) for message in again] == [
        ("a", True, 2),
        ("b", True, 2),
        ("c", False, 1),
    ]
    session.commit()
    session.close()
    assert left_in(connection, queue) == []


def test_recover_delivers_again_in_order(connect: Connect, queue: str) -> None:
    connection = connect(PROMPT)
    session = connection.session("CLIENT")
    session.send(queue, *"abc")
    consumer = session.consumer(queue)
    assert consumer.bodies(2) == ["a", "b"]
    session.recover()
    again = [consumer.receive() for _ in range(3)]
    assert [(message.body, message["deliveries"]) for message in again] == [("a", 2), ("b", 2), ("c", 1)]
    assert again[0]["redelivered"]
    again[2].acknowledge()


def test_what_is_rolled_back_too_often_is_a_dead_letter_with_its_cause(connect: Connect, queue: str, name: str) -> None:
    connection = connect(ONCE)
    session = connection.session("TRANSACTED")
    connection.session().send(queue, "poison", "good", properties={"n": 7})
    consumer = session.consumer(queue)
    for deliveries in (1, 2):
        message = consumer.receive()
        assert (message.body, message["deliveries"]) == ("poison", deliveries)
        session.rollback()
    assert consumer.receive().body == "good"
    session.commit()

    dead = connection.session().consumer(f"queue://ActiveMQ.DLQ.Queue.{name}").receive()

    assert (dead.body, dead["originalDestination"]) == ("poison", queue)
    assert dead.properties["n"] == 7
    assert "exceeds redelivery policy limit" in dead.properties["dlqDeliveryFailureCause"]
    assert (dead["redelivered"], dead["persistent"]) == (False, True)


def test_a_listener_that_fails_is_given_the_message_again(connect: Connect, queue: str) -> None:
    connection = connect(PROMPT)
    session = connection.session()
    listener = connection.session().listener(queue, throws=2)
    session.send(queue, "a")
    heard = listener.heard(3)
    assert [(message["body"], message["deliveries"]) for message in heard] == [("a", 1), ("a", 2), ("a", 3)]
    listener.close()
    assert left_in(connection, queue) == []


def test_a_dead_letter_that_was_not_persistent_is_dropped(connect: Connect, queue: str, name: str) -> None:
    connection = connect(ONCE)
    listener = connection.session().listener(queue, throws=2)
    session = connection.session()
    session.send(queue, "poison", persistent=False)
    session.send(queue, "good")
    assert [message["body"] for message in listener.heard(3)] == ["poison", "poison", "good"]
    listener.close()
    assert session.consumer(f"queue://ActiveMQ.DLQ.Queue.{name}").take() is None
    assert session.consumer(queue).take() is None


def test_a_broken_connection_gives_back_what_it_had(connect: Connect, connection: JmsConnection, queue: str) -> None:
    sender = connect()
    sender.session().send(queue, *"abc")
    consumer = connection.session("CLIENT").consumer(queue)
    assert consumer.bodies(2) == ["a", "b"]
    connection.close()
    assert left_in(sender, queue) == [("a", 2), ("b", 2), ("c", 1)]


def test_what_the_client_delivered_again_by_itself_is_counted(jvm: Jvm, only_tandemmq: Peer, name: str) -> None:
    """The client reports its redeliveries from the second rollback on. ActiveMQ 5.17 counts from 2 again."""
    broker = only_tandemmq
    way = Proxy(broker.port)
    connection = jvm.connect(f"tcp://127.0.0.1:{way.port}?{PROMPT}")
    session = connection.session("TRANSACTED")
    consumer = session.consumer(f"queue://{name}")
    other = jvm.connect(broker.url()).session()
    other.send(f"queue://{name}", "a")
    for deliveries in (1, 2, 3):
        assert consumer.receive()["deliveries"] == deliveries
        session.rollback()
    assert consumer.receive()["deliveries"] == 4
    connection.session().send(f"queue://{name}.other", "behind what it said")  # the client waits for the receipt
    way.set(Way.CUT)
    assert other.consumer(f"queue://{name}").receive()["deliveries"] == 4
    way.close()


KEPT = "jms.nonBlockingRedelivery=true&jms.redeliveryPolicy.initialRedeliveryDelay=4000"


@pytest.mark.parametrize(
    ("acks", "is_master_lost"),
    [("", False), ("&jms.transactedIndividualAck=true", False), ("", True)],
    ids=["at the commit", "one by one", "the master dies"],
)
def test_two_transactions_that_were_committed_never_took_the_same_message(
    jvm: Jvm, classes: Path, name: str, tmp_path: Path, acks: str, is_master_lost: bool
) -> None:
    """A client rolls back, and keeps the message for the redelivery delay. During the delay its connection breaks.
    ActiveMQ 5.17 accepts both commits if the new connection received no other message before."""
    pair = Pair("tandemmq", tmp_path / "data", classes)
    way = Proxy(pair.ports[0])
    try:
        slow = jvm.connect(f"failover:(tcp://127.0.0.1:{way.port})?maxReconnectDelay=20&{KEPT}{acks}")
        keeping = slow.session("TRANSACTED")
        consumer = keeping.consumer(f"queue://{name}")
        keeping.producer(f"queue://{name}.OUT").send("warm")
        keeping.commit()
        other = jvm.connect(pair.url()).session("TRANSACTED")
        other.send(f"queue://{name}", "a")
        other.commit()
        assert consumer.receive().body == "a"
        keeping.rollback()
        waiting = other.consumer(f"queue://{name}")

        way.set(Way.CUT)
        if is_master_lost:
            pair.kill_master()
            way.to_port = pair.ports[1]
        assert waiting.receive().body == "a"
        other.send(f"queue://{name}.OUT", "a")
        way.set(Way.OPEN)
        assert consumer.receive().body == "a", "what it kept"
        keeping.send(f"queue://{name}.OUT", "a again")
        with pytest.raises(JmsError, match="TransactionRolledBack"):
            keeping.commit()
        other.commit()

        slow.close()
        waiting.close()
        assert other.consumer(f"queue://{name}.OUT").rest() == ["warm", "a"]
        assert other.consumer(f"queue://{name}").rest() == []
    finally:
        way.close()
        pair.close()
