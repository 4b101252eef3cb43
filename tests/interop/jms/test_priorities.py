"""Priorities inside a queue, where the policy says so; else the order of arrival."""

from __future__ import annotations

import pytest

from tests.support.interop.jms.jvm import Jvm
from tests.support.interop.jms.peers import Peer

pytestmark = [pytest.mark.service, pytest.mark.promise("priorities-hold")]


def test_higher_priorities_come_first_where_the_policy_says_so(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    for priority in (4, 1, 9, 4, 0, 9):
        session.send(f"queue://PRIORITY.{name}", str(priority), priority=priority)
    consumer = connection.session().consumer(f"queue://PRIORITY.{name}")
    messages = [consumer.receive() for _ in range(6)]
    assert [message.body for message in messages] == ["9", "9", "4", "4", "1", "0"]
    assert [message["priority"] for message in messages] == [9, 9, 4, 4, 1, 0]
    connection.close()


def test_a_queue_without_the_policy_keeps_the_order_of_arrival(jvm: Jvm, broker: Peer, name: str) -> None:
    # The client sorts what it holds: with one at a time it is the broker's order that is seen.
    connection = jvm.connect(broker.url())
    session = connection.session()
    for priority in (4, 1, 9):
        session.send(f"queue://{name}", str(priority), priority=priority)
    consumer = connection.session().consumer(f"queue://{name}?consumer.prefetchSize=0")
    assert consumer.bodies(3) == ["4", "1", "9"]
    connection.close()


def test_messages_of_one_priority_keep_their_order(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    session.send(f"queue://PRIORITY.{name}", *map(str, range(100)), priority=7)
    consumer = connection.session().consumer(f"queue://PRIORITY.{name}")
    assert consumer.bodies(100) == [str(number) for number in range(100)]
    connection.close()


def test_a_late_urgent_message_overtakes_what_still_waits(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    session.send(f"queue://PRIORITY.{name}", *"abc", priority=3)
    consumer = connection.session().consumer(f"queue://PRIORITY.{name}?consumer.prefetchSize=0")
    assert consumer.receive().body == "a"
    session.send(f"queue://PRIORITY.{name}", "urgent", priority=9)
    assert consumer.bodies(3) == ["urgent", "b", "c"]
    connection.close()


@pytest.mark.parametrize("comes_first", [True, False])
def test_a_queue_longer_than_memory_goes_by_priority(jvm: Jvm, broker: Peer, name: str, comes_first: bool) -> None:
    # Two or three windows of messages; the client sorts what it holds, so it holds one at a time.
    queue = f"queue://PRIORITY.{name}"
    connection = jvm.connect(broker.url())
    session = connection.session()
    taking = connection.session()
    consumer = taking.consumer(f"{queue}?consumer.prefetchSize=1") if comes_first else None
    sent: list[tuple[int, str]] = []
    for batch in range(18):
        for priority in (4, 9, 0):
            bodies = [f"{batch} {priority} {number}" for number in range(100)]
            session.send(queue, *bodies, priority=priority)
            sent += [(priority, body) for body in bodies]
    if consumer is None:
        consumer = taking.consumer(f"{queue}?consumer.prefetchSize=1")

    found = consumer.bodies(len(sent))

    expected = [body for _, body in sorted(sent, key=lambda each: -each[0])]
    if comes_first:  # it got the first one before anything else was there
        expected.remove(sent[0][1])
        expected.insert(0, sent[0][1])
    assert found == expected
    connection.close()


def test_a_browser_shows_the_highest_priority_first(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    for priority in (4, 1, 9, 4, 0, 9):
        session.send(f"queue://PRIORITY.{name}", str(priority), priority=priority)
    assert [message.body for message in session.browse(f"queue://PRIORITY.{name}")] == ["9", "9", "4", "4", "1", "0"]
    connection.close()
