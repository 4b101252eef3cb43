"""One send to several destinations, and one subscription of many."""

from __future__ import annotations

import pytest

from tests.support.interop.jms.jvm import Jvm
from tests.support.interop.jms.peers import Peer

pytestmark = [pytest.mark.service, pytest.mark.promise("composite-and-wildcards")]


def test_a_composite_send_reaches_all(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    heard = connection.session().consumer(f"topic://{name}.T")
    [message_id] = session.send(f"queue://{name}.A,queue://{name}.B,topic://{name}.T", "to all")
    found = [session.consumer(f"queue://{name}.{letter}").receive() for letter in "AB"] + [heard.receive()]
    assert [message.body for message in found] == ["to all"] * 3
    assert {message["id"] for message in found} == {message_id}
    connection.close()


def test_a_composite_send_belongs_to_its_transaction(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session("TRANSACTED")
    session.send(f"queue://{name}.A,{name}.B", "never")
    session.rollback()
    session.send(f"queue://{name}.A,{name}.B", "kept")
    session.commit()
    for letter in "AB":
        consumer = connection.session().consumer(f"queue://{name}.{letter}")
        assert consumer.receive().body == "kept"
        assert consumer.take() is None
    connection.close()


def test_a_composite_consumer_hears_several_queues(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    consumer = connection.session().consumer(f"queue://{name}.A,{name}.B")
    session.send(f"queue://{name}.A", "a")
    session.send(f"queue://{name}.B", "b")
    messages = [consumer.receive() for _ in range(2)]
    assert sorted(message.body for message in messages) == ["a", "b"]
    assert sorted(message["destination"] for message in messages) == [f"queue://{name}.A", f"queue://{name}.B"]
    connection.close()


@pytest.mark.parametrize(
    ("pattern", "heard"),
    [
        ("*.1", ["A.1", "B.1"]),
        ("A.*", ["A.1", "A.2"]),
        (">", ["A.1", "A.2", "B.1", "A.1.x"]),
        ("A.>", ["A.1", "A.2", "A.1.x"]),
    ],
)
@pytest.mark.parametrize("kind", ["topic", "queue"])
def test_a_wildcard_hears_what_matches(
    jvm: Jvm, broker: Peer, name: str, kind: str, pattern: str, heard: list[str]
) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    consumer = connection.session().consumer(f"{kind}://{name}.{pattern}")
    for place in ("A.1", "A.2", "B.1", "A.1.x"):
        session.send(f"{kind}://{name}.{place}", place)
    assert sorted(consumer.bodies(len(heard))) == sorted(heard)
    assert consumer.take() is None
    connection.close()


def test_a_wildcard_consumer_acknowledges_what_it_took(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    connection.session().send(f"queue://{name}.A", "a1", "a2")
    connection.session().send(f"queue://{name}.B", "b1", "b2")
    session = connection.session("CLIENT")
    consumer = session.consumer(f"queue://{name}.*")
    messages = [consumer.receive() for _ in range(4)]
    messages[-1].acknowledge()
    session.close()
    for letter in "AB":
        assert connection.session().consumer(f"queue://{name}.{letter}").take() is None
    connection.close()


def test_a_wildcard_consumer_finds_queues_that_come_later(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    consumer = connection.session().consumer(f"queue://{name}.>")
    assert consumer.take() is None
    connection.session().send(f"queue://{name}.LATE.ONE", "found")
    assert consumer.receive().body == "found"
    connection.close()


def test_a_durable_subscription_of_a_wildcard(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url(), clientId=name)
    session = connection.session()
    session.durable(f"topic://{name}.>", "all").close()
    session.send(f"topic://{name}.A", "a")
    session.send(f"topic://{name}.B", "b")
    assert sorted(session.durable(f"topic://{name}.>", "all").bodies(2)) == ["a", "b"]
    connection.close()
