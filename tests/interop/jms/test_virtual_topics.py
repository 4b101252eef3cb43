"""VirtualTopic.X is copied to each queue Consumer.*.VirtualTopic.X, and is a topic as before."""

from __future__ import annotations

import pytest

from tests.support.interop.jms.jvm import Jvm
from tests.support.interop.jms.peers import Peer

pytestmark = pytest.mark.service


def test_each_group_of_consumers_has_its_copy(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    one = [connection.session().consumer(f"queue://Consumer.one.VirtualTopic.{name}") for _ in range(2)]
    two = connection.session().consumer(f"queue://Consumer.two.VirtualTopic.{name}")
    plain = connection.session().consumer(f"topic://VirtualTopic.{name}")
    session.send(f"topic://VirtualTopic.{name}", *"ab")
    assert two.bodies(2) == ["a", "b"]
    assert plain.bodies(2) == ["a", "b"]
    assert sorted(one[0].rest() + one[1].rest()) == ["a", "b"]
    connection.close()


def test_the_queue_keeps_what_comes_while_nobody_is_there(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    session.consumer(f"queue://Consumer.one.VirtualTopic.{name}").close()
    session.send(f"topic://VirtualTopic.{name}", "kept")
    message = session.consumer(f"queue://Consumer.one.VirtualTopic.{name}").receive()
    assert message.body == "kept"
    connection.close()


def test_the_copies_belong_to_the_transaction(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    consumer = connection.session().consumer(f"queue://Consumer.one.VirtualTopic.{name}")
    session = connection.session("TRANSACTED")
    session.send(f"topic://VirtualTopic.{name}", "never")
    session.rollback()
    session.send(f"topic://VirtualTopic.{name}", "kept")
    session.commit()
    assert consumer.receive().body == "kept"
    assert consumer.take() is None
    connection.close()


def test_deep_names_are_virtual_topics_too(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    consumer = session.consumer(f"queue://Consumer.one.VirtualTopic.{name}.deep.er")
    session.send(f"topic://VirtualTopic.{name}.deep.er", "a")
    assert consumer.receive().body == "a"
    connection.close()


def test_a_consumer_with_a_wildcard_gets_what_came_live_and_while_it_was_away(
    jvm: Jvm, broker: Peer, name: str
) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    wild, deep = f"queue://Consumer.one.VirtualTopic.{name}.>", f"topic://VirtualTopic.{name}.A.IT"
    consumer = session.consumer(wild)
    session.send(deep, *"abc")
    assert consumer.bodies(3) == ["a", "b", "c"]
    consumer.close()
    session.send(deep, *"def")
    assert session.consumer(wild).bodies(3) == ["d", "e", "f"]
    connection.close()
