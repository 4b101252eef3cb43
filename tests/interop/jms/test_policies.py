"""Policies of single destinations, as a JMS client meets them."""

from __future__ import annotations

import pytest

from tests.support.interop.jms.jvm import Jvm
from tests.support.interop.jms.peers import Peer

pytestmark = pytest.mark.service


def test_who_asks_for_what_it_missed_is_given_what_the_topic_kept(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    topic = f"topic://KEPT.{name}"
    first = connection.session().consumer(topic)
    connection.session().send(topic, *"abc")
    assert first.bodies(3) == ["a", "b", "c"]
    late = connection.session().consumer(f"{topic}?consumer.retroactive=true")
    other = connection.session().consumer(topic)
    assert late.bodies(2) == ["b", "c"]
    connection.session().send(topic, "d")
    assert [late.receive().body, other.receive().body] == ["d", "d"]
    connection.close()


def test_without_the_extension_a_transaction_holds_its_prefetch_and_no_more(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url("jms.prefetchPolicy.queuePrefetch=2"))
    queue = f"queue://STRICT.{name}"
    connection.session().send(queue, *"abcd")
    session = connection.session("TRANSACTED")
    consumer = session.consumer(queue)
    assert consumer.bodies(2) == ["a", "b"]
    assert consumer.take() is None
    session.commit()
    assert consumer.bodies(2) == ["c", "d"]
    session.commit()
    connection.close()


def test_a_queue_may_wait_for_its_consumers(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url("jms.prefetchPolicy.queuePrefetch=1"))
    queue = f"queue://TOGETHER.{name}"
    first = connection.session().consumer(queue)
    connection.session().send(queue, *"ab")
    assert first.take() is None
    second = connection.session().consumer(queue)
    assert sorted([first.receive().body, second.receive().body]) == ["a", "b"]
    connection.close()
