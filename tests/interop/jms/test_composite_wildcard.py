"""One send to several destinations, one subscription of many, and virtual destinations."""

from __future__ import annotations

import pytest

from tests.support.interop.jms.jvm import JmsConnection, JmsSession, Jvm
from tests.support.interop.jms.peers import Peer

pytestmark = [pytest.mark.service, pytest.mark.promise("composite-and-wildcards")]


def test_a_composite_send_reaches_all(connection: JmsConnection, session: JmsSession, name: str) -> None:
    heard = connection.session().consumer(f"topic://{name}.T")
    [message_id] = session.send(f"queue://{name}.A,queue://{name}.B,topic://{name}.T", "to all")
    found = [session.consumer(f"queue://{name}.{letter}").receive() for letter in "AB"] + [heard.receive()]
    assert [message.body for message in found] == ["to all"] * 3
    assert {message["id"] for message in found} == {message_id}


def test_a_composite_consumer_hears_several_queues(connection: JmsConnection, session: JmsSession, name: str) -> None:
    consumer = connection.session().consumer(f"queue://{name}.A,{name}.B")
    session.send(f"queue://{name}.A", "a")
    session.send(f"queue://{name}.B", "b")
    messages = [consumer.receive() for _ in range(2)]
    assert sorted(message.body for message in messages) == ["a", "b"]
    assert sorted(message["destination"] for message in messages) == [f"queue://{name}.A", f"queue://{name}.B"]


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
    connection: JmsConnection, session: JmsSession, name: str, kind: str, pattern: str, heard: list[str]
) -> None:
    consumer = connection.session().consumer(f"{kind}://{name}.{pattern}")
    for place in ("A.1", "A.2", "B.1", "A.1.x"):
        session.send(f"{kind}://{name}.{place}", place)
    assert sorted(consumer.bodies(len(heard))) == sorted(heard)
    assert consumer.take() is None


def test_a_wildcard_consumer_finds_queues_that_come_later(connection: JmsConnection, name: str) -> None:
    consumer = connection.session().consumer(f"queue://{name}.>")
    assert consumer.take() is None
    connection.session().send(f"queue://{name}.LATE.ONE", "found")
    assert consumer.receive().body == "found"


def test_each_group_of_consumers_has_its_copy(connection: JmsConnection, session: JmsSession, name: str) -> None:
    one = [connection.session().consumer(f"queue://Consumer.one.VirtualTopic.{name}") for _ in range(2)]
    two = connection.session().consumer(f"queue://Consumer.two.VirtualTopic.{name}")
    plain = connection.session().consumer(f"topic://VirtualTopic.{name}")
    session.send(f"topic://VirtualTopic.{name}", *"ab")
    assert two.bodies(2) == ["a", "b"]
    assert plain.bodies(2) == ["a", "b"]
    assert sorted(one[0].rest() + one[1].rest()) == ["a", "b"]


def test_the_copies_belong_to_the_transaction(connection: JmsConnection, name: str) -> None:
    consumer = connection.session().consumer(f"queue://Consumer.one.VirtualTopic.{name}")
    session = connection.session("TRANSACTED")
    session.send(f"topic://VirtualTopic.{name}", "never")
    session.rollback()
    session.send(f"topic://VirtualTopic.{name}", "kept")
    session.commit()
    assert consumer.receive().body == "kept"
    assert consumer.take() is None


def test_a_consumer_with_a_wildcard_gets_what_came_live_and_while_it_was_away(session: JmsSession, name: str) -> None:
    wild, deep = f"queue://Consumer.one.VirtualTopic.{name}.>", f"topic://VirtualTopic.{name}.A.IT"
    consumer = session.consumer(wild)
    session.send(deep, *"abc")
    assert consumer.bodies(3) == ["a", "b", "c"]
    consumer.close()
    session.send(deep, *"def")
    assert session.consumer(wild).bodies(3) == ["d", "e", "f"]


@pytest.mark.parametrize("mode", ["AUTO", "TRANSACTED"])
@pytest.mark.parametrize("persistent", [True, False])
def test_a_composite_queue_sends_on_what_its_selectors_take(
    jvm: Jvm, only_tandemmq: Peer, name: str, mode: str, persistent: bool
) -> None:
    connection = jvm.connect(only_tandemmq.url())
    queue = connection.session().consumer("queue://FORWARDED")
    topic = connection.session().consumer("topic://FORWARDED")
    session = connection.session(mode)
    for colour in ("red", "blue"):
        options = {"properties": {"colour": colour}, "persistent": persistent}
        session.send(f"queue://COMPOSITE.{name}", colour, **options)
    if mode == "TRANSACTED":
        session.commit()
    assert queue.bodies(2) == ["red", "blue"]
    assert topic.receive().body == "red"
    assert topic.take() is None
    assert connection.session().browse(f"COMPOSITE.{name}") == []
    connection.close()


def test_a_mirrored_queue_keeps_its_messages_and_tells_a_topic(jvm: Jvm, only_tandemmq: Peer, name: str) -> None:
    connection = jvm.connect(only_tandemmq.url())
    topic = connection.session().consumer(f"topic://VirtualTopic.Mirror.MIRRORED.{name}")
    connection.session().send(f"queue://MIRRORED.{name}", *"ab")
    assert topic.bodies(2) == ["a", "b"]
    assert connection.session().consumer(f"queue://MIRRORED.{name}").bodies(2) == ["a", "b"]
    connection.close()
