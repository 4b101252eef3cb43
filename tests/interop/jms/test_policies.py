"""Policies of destinations, and producers that are held back, as a JMS client meets them."""

from __future__ import annotations

import pytest

from tests.interop.jms.conftest import Connect
from tests.support.interop.jms.jvm import JmsConnection

pytestmark = pytest.mark.service


def test_who_asks_for_what_it_missed_is_given_what_the_topic_kept(connection: JmsConnection, name: str) -> None:
    topic = f"topic://KEPT.{name}"
    first = connection.session().consumer(topic)
    connection.session().send(topic, *"abc")
    assert first.bodies(3) == ["a", "b", "c"]
    late = connection.session().consumer(f"{topic}?consumer.retroactive=true")
    other = connection.session().consumer(topic)
    assert late.bodies(2) == ["b", "c"]
    connection.session().send(topic, "d")
    assert [late.receive().body, other.receive().body] == ["d", "d"]


def test_without_the_extension_a_transaction_holds_its_prefetch_and_no_more(connect: Connect, name: str) -> None:
    connection = connect("jms.prefetchPolicy.queuePrefetch=2")
    queue = f"queue://STRICT.{name}"
    connection.session().send(queue, *"abcd")
    session = connection.session("TRANSACTED")
    consumer = session.consumer(queue)
    assert consumer.bodies(2) == ["a", "b"]
    assert consumer.take() is None
    session.commit()
    assert consumer.bodies(2) == ["c", "d"]
    session.commit()


BODY = "x" * 10_000


@pytest.mark.parametrize("size", [2_000, 50_000])
def test_a_producer_window_lets_all_through_in_the_end(connect: Connect, queue: str, size: int) -> None:
    """A window smaller than a message holds one at a time; ProducerAck opens it again."""
    connection = connect(f"jms.producerWindowSize={size}&jms.useAsyncSend=true")
    consumer = connection.session().consumer(queue)
    connection.session().send(queue, *[BODY] * 40, persistent=False)
    assert consumer.bodies(40) == [BODY] * 40


def test_a_blocked_producer_blocks_nobody_else(connect: Connect, queue: str, name: str) -> None:
    blocked = connect("jms.alwaysSyncSend=true")
    producer = blocked.session().producer(f"queue://LIMITED.{name}")
    sending = producer.send_later(*[BODY] * 20, persistent=False)
    other = connect()
    session = other.session()
    session.send(queue, "free")
    assert session.consumer(queue).receive().body == "free"
    assert session.consumer(f"queue://LIMITED.{name}").bodies(20) == [BODY] * 20
    assert len(sending.result()) == 20


def test_an_exclusive_consumer_goes_before_others(connection: JmsConnection, queue: str) -> None:
    plain = connection.session().consumer(queue)
    exclusive = connection.session().consumer(f"{queue}?consumer.exclusive=true")
    connection.session().send(queue, *"abcd")
    assert exclusive.bodies(4) == list("abcd")
    assert plain.take() is None


def test_when_the_higher_one_is_full_the_lower_one_is_served(connection: JmsConnection, queue: str) -> None:
    low = connection.session().consumer(f"{queue}?consumer.priority=1&consumer.prefetchSize=10")
    high = connection.session().consumer(f"{queue}?consumer.priority=10&consumer.prefetchSize=2")
    connection.session().send(queue, *"abcd")
    assert low.bodies(2) == ["c", "d"]
    assert high.bodies(2) == ["a", "b"]
