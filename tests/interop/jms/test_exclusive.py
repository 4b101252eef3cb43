"""Who of several consumers is served."""

from __future__ import annotations

import pytest

from tests.support.interop.jms.jvm import Jvm
from tests.support.interop.jms.peers import Peer

pytestmark = pytest.mark.service


def test_an_exclusive_consumer_is_given_everything(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url("jms.prefetchPolicy.queuePrefetch=1"))
    first = connection.session().consumer(f"queue://{name}?consumer.exclusive=true")
    second = connection.session().consumer(f"queue://{name}?consumer.exclusive=true")
    session = connection.session()
    bodies = [str(number) for number in range(20)]
    session.send(f"queue://{name}", *bodies)
    assert first.bodies(20) == bodies
    first.close()
    session.send(f"queue://{name}", "for the next")
    assert second.receive().body == "for the next"
    connection.close()


def test_an_exclusive_consumer_goes_before_others(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    plain = connection.session().consumer(f"queue://{name}")
    exclusive = connection.session().consumer(f"queue://{name}?consumer.exclusive=true")
    connection.session().send(f"queue://{name}", *"abcd")
    assert exclusive.bodies(4) == list("abcd")
    assert plain.take() is None
    connection.close()


def test_a_consumer_of_higher_priority_is_served_first(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    low = connection.session().consumer(f"queue://{name}?consumer.priority=1")
    high = connection.session().consumer(f"queue://{name}?consumer.priority=10")
    connection.session().send(f"queue://{name}", *"abcd")
    assert high.bodies(4) == list("abcd")
    assert low.take() is None
    connection.close()


def test_when_the_higher_one_is_full_the_lower_one_is_served(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    low = connection.session().consumer(f"queue://{name}?consumer.priority=1&consumer.prefetchSize=10")
    high = connection.session().consumer(f"queue://{name}?consumer.priority=10&consumer.prefetchSize=2")
    connection.session().send(f"queue://{name}", *"abcd")
    assert low.bodies(2) == ["c", "d"]
    assert high.bodies(2) == ["a", "b"]
    connection.close()
