"""Every acknowledge mode: what is acknowledged, what comes back, how it is marked, and where it ends."""

from __future__ import annotations

import pytest

from tests.support.acceptance.zombie_proxy import Proxy, Way
from tests.support.interop.jms.jvm import JmsConnection, JmsError, Jvm
from tests.support.interop.jms.peers import Peer

pytestmark = [pytest.mark.service, pytest.mark.promise("jms-works-unmodified", "acknowledged-stays-gone")]

PROMPT = "jms.redeliveryPolicy.initialRedeliveryDelay=0&jms.redeliveryPolicy.redeliveryDelay=0"
ONCE = f"{PROMPT}&jms.redeliveryPolicy.maximumRedeliveries=1"


def left_in(connection: JmsConnection, queue: str) -> list[object]:
    """What a consumer that comes anew is given, with the count of its deliveries."""
    session = connection.session("CLIENT")
    consumer = session.consumer(queue)
    found: list[object] = []
    while (message := consumer.take()) is not None:
        found.append((message.body, message["deliveries"]))
    session.close()
    return found


@pytest.mark.parametrize("mode", ["AUTO", "DUPS_OK"])
def test_what_was_received_is_acknowledged(jvm: Jvm, broker: Peer, name: str, mode: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session(mode)
    session.send(f"queue://{name}", *"abc")
    consumer = session.consumer(f"queue://{name}")
    assert consumer.bodies(2) == ["a", "b"]
    session.close()
    assert left_in(connection, f"queue://{name}") == [("c", 1)]
    connection.close()


def test_client_acknowledges_all_that_its_session_received(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session("CLIENT")
    session.send(f"queue://{name}", *"abcde")
    consumer = session.consumer(f"queue://{name}")
    consumer.receive()
    consumer.receive()
    consumer.receive().acknowledge()
    assert consumer.receive().body == "d"
    session.close()
    assert left_in(connection, f"queue://{name}") == [("d", 2), ("e", 1)]
    connection.close()


def test_individual_acknowledges_one(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session("INDIVIDUAL")
    session.send(f"queue://{name}", *"abcd")
    consumer = session.consumer(f"queue://{name}")
    messages = [consumer.receive() for _ in range(3)]
    messages[1].acknowledge()
    session.close()
    assert left_in(connection, f"queue://{name}") == [("a", 2), ("c", 2), ("d", 1)]
    connection.close()


def test_a_transaction_takes_all_or_nothing(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url(PROMPT))
    session = connection.session("TRANSACTED")
    session.send(f"queue://{name}", *"abc")
    other = connection.session().consumer(f"queue://{name}")
    assert other.take() is None, "nothing is there before the commit"
    session.commit()
    other.close()
    consumer = session.consumer(f"queue://{name}")
    assert consumer.bodies(2) == ["a", "b"]
    session.send(f"queue://{name}", "never")
    session.rollback()
    again = [consumer.receive() for _ in range(3)]
    assert [(message.body, message["redelivered"], message["deliveries"]) for message in again] == [
        ("a", True, 2),
        ("b", True, 2),
        ("c", False, 1),
    ]
    session.commit()
    session.close()
    assert left_in(connection, f"queue://{name}") == []
    connection.close()


def test_what_a_transaction_received_comes_back_when_its_session_ends(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session("TRANSACTED")
    connection.session().send(f"queue://{name}", *"abc")
    assert session.consumer(f"queue://{name}").bodies(2) == ["a", "b"]
    session.close()
    assert [body for body, _ in left_in(connection, f"queue://{name}")] == ["a", "b", "c"]
    connection.close()


def test_a_transaction_moves_messages_from_queue_to_queue(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    connection.session().send(f"queue://{name}.A", *"ab")
    session = connection.session("TRANSACTED")
    consumer = session.consumer(f"queue://{name}.A")
    for _ in range(2):
        session.send(f"queue://{name}.B", consumer.receive().body.upper())
    session.commit()
    session.close()
    assert left_in(connection, f"queue://{name}.A") == []
    assert left_in(connection, f"queue://{name}.B") == [("A", 1), ("B", 1)]
    connection.close()


def test_recover_delivers_again_in_order(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url(PROMPT))
    session = connection.session("CLIENT")
    session.send(f"queue://{name}", *"abc")
    consumer = session.consumer(f"queue://{name}")
    assert consumer.bodies(2) == ["a", "b"]
    session.recover()
    again = [consumer.receive() for _ in range(3)]
    assert [(message.body, message["deliveries"]) for message in again] == [("a", 2), ("b", 2), ("c", 1)]
    assert again[0]["redelivered"]
    again[2].acknowledge()
    connection.close()


def test_what_is_rolled_back_too_often_is_a_dead_letter_with_its_cause(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url(ONCE))
    session = connection.session("TRANSACTED")
    connection.session().send(f"queue://{name}", "poison", "good", properties={"n": 7})
    consumer = session.consumer(f"queue://{name}")
    for deliveries in (1, 2):
        message = consumer.receive()
        assert (message.body, message["deliveries"]) == ("poison", deliveries)
        session.rollback()
    assert consumer.receive().body == "good"
    session.commit()

    dead = connection.session().consumer(f"queue://ActiveMQ.DLQ.Queue.{name}").receive()

    assert (dead.body, dead["originalDestination"]) == ("poison", f"queue://{name}")
    assert dead.properties["n"] == 7
    assert "exceeds redelivery policy limit" in dead.properties["dlqDeliveryFailureCause"]
    assert (dead["redelivered"], dead["persistent"]) == (False, True)
    connection.close()


def test_a_listener_that_fails_is_given_the_message_again(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url(PROMPT))
    session = connection.session()
    listener = connection.session().listener(f"queue://{name}", throws=2)
    session.send(f"queue://{name}", "a")
    heard = listener.heard(3)
    assert [(message["body"], message["deliveries"]) for message in heard] == [("a", 1), ("a", 2), ("a", 3)]
    listener.close()
    assert left_in(connection, f"queue://{name}") == []
    connection.close()


def test_a_listener_that_always_fails_makes_a_dead_letter(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url(ONCE))
    listener = connection.session().listener(f"queue://{name}", throws=2)
    connection.session().send(f"queue://{name}", "poison", "good")
    assert [message["body"] for message in listener.heard(3)] == ["poison", "poison", "good"]
    assert connection.session().consumer(f"queue://ActiveMQ.DLQ.Queue.{name}").receive().body == "poison"
    connection.close()


def test_a_dead_letter_that_was_not_persistent_is_dropped(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url(ONCE))
    listener = connection.session().listener(f"queue://{name}", throws=2)
    session = connection.session()
    session.send(f"queue://{name}", "poison", persistent=False)
    session.send(f"queue://{name}", "good")
    assert [message["body"] for message in listener.heard(3)] == ["poison", "poison", "good"]
    listener.close()
    assert session.consumer(f"queue://ActiveMQ.DLQ.Queue.{name}").take() is None
    assert session.consumer(f"queue://{name}").take() is None
    connection.close()


def test_a_broken_connection_gives_back_what_it_had(jvm: Jvm, broker: Peer, name: str) -> None:
    sender = jvm.connect(broker.url())
    sender.session().send(f"queue://{name}", *"abc")
    connection = jvm.connect(broker.url())
    consumer = connection.session("CLIENT").consumer(f"queue://{name}")
    assert consumer.bodies(2) == ["a", "b"]
    connection.close()
    assert left_in(sender, f"queue://{name}") == [("a", 2), ("b", 2), ("c", 1)]
    sender.close()


def test_what_the_client_delivered_again_by_itself_is_counted(jvm: Jvm, only_tandemmq: Peer, name: str) -> None:
    """It says so from its second rollback on. ActiveMQ 5.17 begins again with 2."""
    broker = only_tandemmq
    way = Proxy(broker.port)
    session = jvm.connect(f"tcp://127.0.0.1:{way.port}?{PROMPT}").session("TRANSACTED")
    consumer = session.consumer(f"queue://{name}")
    other = jvm.connect(broker.url()).session()
    other.send(f"queue://{name}", "a")
    for deliveries in (1, 2, 3):
        assert consumer.receive()["deliveries"] == deliveries
        session.rollback()
    assert consumer.receive()["deliveries"] == 4
    way.set(Way.CUT)
    assert other.consumer(f"queue://{name}").receive()["deliveries"] == 4
    way.close()


KEPT = "jms.nonBlockingRedelivery=true&jms.redeliveryPolicy.initialRedeliveryDelay=2000"


@pytest.mark.parametrize("acks", ["", "&jms.transactedIndividualAck=true"], ids=["at the commit", "one by one"])
def test_two_transactions_that_were_committed_never_took_the_same_message(
    jvm: Jvm, only_tandemmq: Peer, name: str, acks: str
) -> None:
    """A client rolls back and keeps its copy for the redelivery delay; its connection breaks meanwhile. ActiveMQ 5.17
    takes both commits, if the new connection was given nothing else before."""
    broker = only_tandemmq
    way = Proxy(broker.port)
    try:
        slow = jvm.connect(f"failover:(tcp://127.0.0.1:{way.port})?maxReconnectDelay=20&{KEPT}{acks}")
        keeping = slow.session("TRANSACTED")
        consumer = keeping.consumer(f"queue://{name}")
        keeping.producer(f"queue://{name}.OUT").send("warm")
        keeping.commit()
        other = jvm.connect(broker.url()).session("TRANSACTED")
        other.send(f"queue://{name}", "a")
        other.commit()
        assert consumer.receive().body == "a"
        keeping.rollback()
        waiting = other.consumer(f"queue://{name}")

        way.set(Way.CUT)
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


def test_many_messages_are_acknowledged_in_batches(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url("jms.optimizeAcknowledge=true&jms.prefetchPolicy.queuePrefetch=20"))
    bodies = [str(number) for number in range(200)]
    sending = connection.session()
    sending.send(f"queue://{name}", *bodies)
    session = connection.session()
    assert session.consumer(f"queue://{name}").bodies(200) == bodies
    session.close()
    assert left_in(connection, f"queue://{name}") == []
    connection.close()


def test_two_consumers_share_a_queue_and_no_message(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url("jms.prefetchPolicy.queuePrefetch=1"))
    listeners = [connection.session().listener(f"queue://{name}") for _ in range(2)]
    bodies = [str(number) for number in range(50)]
    connection.session().send(f"queue://{name}", *bodies)
    end = connection.session()
    while sum(len(listener.heard(0)) for listener in listeners) < 50:
        assert listeners[0].heard(1), "both take part"
    got = [[int(message["body"]) for message in listener.heard(1)] for listener in listeners]
    assert sorted(got[0] + got[1]) == list(range(50))
    assert got == [sorted(got[0]), sorted(got[1])]
    assert all(got)
    end.close()
    connection.close()
