"""Times of deliveries: by priority, by schedule, and never after the expiration."""

from __future__ import annotations

import pytest

from tests.support.interop.jms.jvm import JmsConnection, JmsSession
from tests.support.interop.jms.peers import Peer

pytestmark = [
    pytest.mark.service,
    pytest.mark.promise("priorities-hold", "scheduled-in-time", "expired-is-not-delivered"),
]


def test_a_queue_without_the_policy_keeps_the_order_of_arrival(
    connection: JmsConnection, session: JmsSession, queue: str
) -> None:
    for priority in (4, 1, 9):
        session.send(queue, str(priority), priority=priority)
    consumer = connection.session().consumer(f"{queue}?consumer.prefetchSize=0")
    assert consumer.bodies(3) == ["4", "1", "9"]


def test_a_late_urgent_message_overtakes_what_still_waits(
    connection: JmsConnection, session: JmsSession, name: str
) -> None:
    session.send(f"queue://PRIORITY.{name}", *"abc", priority=3)
    consumer = connection.session().consumer(f"queue://PRIORITY.{name}?consumer.prefetchSize=0")
    assert consumer.receive().body == "a"
    session.send(f"queue://PRIORITY.{name}", "urgent", priority=9)
    assert consumer.bodies(3) == ["urgent", "b", "c"]


@pytest.mark.parametrize("comes_first", [True, False])
def test_a_queue_longer_than_memory_goes_by_priority(
    connection: JmsConnection, session: JmsSession, name: str, comes_first: bool
) -> None:
    queue = f"queue://PRIORITY.{name}"
    taking = connection.session()
    consumer = taking.consumer(f"{queue}?consumer.prefetchSize=1") if comes_first else None
    sent: list[tuple[int, str]] = []
    for batch in range(9):  # 2,700 messages; 2,000 are in memory
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


def test_a_browser_shows_the_highest_priority_first(session: JmsSession, name: str) -> None:
    for priority in (4, 1, 9, 4, 0, 9):
        session.send(f"queue://PRIORITY.{name}", str(priority), priority=priority)
    assert [message.body for message in session.browse(f"queue://PRIORITY.{name}")] == ["9", "9", "4", "4", "1", "0"]


def test_a_delayed_message_comes_when_its_time_has_come(
    connection: JmsConnection, session: JmsSession, queue: str
) -> None:
    consumer = connection.session().consumer(queue)
    session.send(queue, "later", properties={"AMQ_SCHEDULED_DELAY": {"long": 1500}})
    session.send(queue, "at once")
    assert consumer.bodies(2) == ["at once", "later"]
    assert consumer.take() is None


def test_a_repeated_message_comes_so_many_times_and_once(connection: JmsConnection, queue: str) -> None:
    consumer = connection.session().consumer(queue)
    schedule = {"AMQ_SCHEDULED_DELAY": {"long": 300}, "AMQ_SCHEDULED_PERIOD": {"long": 200}, "AMQ_SCHEDULED_REPEAT": 2}
    connection.session().send(queue, "again", properties=schedule | {"colour": "red"})
    messages = [consumer.receive() for _ in range(3)]
    assert [message.body for message in messages] == ["again"] * 3
    assert len({message["id"] for message in messages}) == 3, "each is a message of its own"
    assert [message.properties["colour"] for message in messages] == ["red"] * 3
    assert consumer.take(1500) is None


def test_a_delayed_message_of_a_transaction_waits_for_the_commit(connection: JmsConnection, queue: str) -> None:
    consumer = connection.session().consumer(queue)
    session = connection.session("TRANSACTED")
    session.send(queue, "never", properties={"AMQ_SCHEDULED_DELAY": {"long": 1}})
    session.rollback()
    session.send(queue, "later", properties={"AMQ_SCHEDULED_DELAY": {"long": 1}})
    session.commit()
    assert consumer.receive().body == "later"
    assert consumer.take() is None


def test_what_expires_in_the_queue_is_a_dead_letter(session: JmsSession, broker: Peer, name: str) -> None:
    """No client requests it: the broker searches on its own."""
    session.send(f"queue://SHORT.{name}", "short", ttl=50)
    session.send(f"queue://SHORT.{name}", "long")
    dead = session.consumer(f"queue://ActiveMQ.DLQ.Queue.SHORT.{name}").receive()
    assert (dead.body, dead["originalDestination"]) == ("short", f"queue://SHORT.{name}")
    assert dead["expiration"] == 0
    assert dead.properties["originalExpiration"]["long"] > 0
    assert [message.body for message in session.browse(f"queue://SHORT.{name}")] == ["long"]


def test_an_expired_message_that_is_not_persistent_is_dropped(session: JmsSession, name: str) -> None:
    session.send(f"queue://SHORT.{name}", "dropped", ttl=20, persistent=False)
    session.send(f"queue://SHORT.{name}", "marker", ttl=40)
    dead = session.consumer(f"queue://ActiveMQ.DLQ.Queue.SHORT.{name}")
    assert dead.receive().body == "marker"
    assert dead.take() is None


def test_what_expires_at_the_client_is_not_delivered(
    connection: JmsConnection, session: JmsSession, broker: Peer, queue: str, name: str
) -> None:
    """Prefetched in time, received too late: the client reports this, and the broker keeps a dead letter."""
    consumer = connection.session().consumer(queue)
    session.send(queue, "short", ttl=400)
    session.send(queue, "long")
    waiting = session.consumer(f"queue://{name}.never")
    assert waiting.take(600) is None  # as long as it takes
    assert consumer.receive().body == "long"
    assert session.consumer(f"queue://ActiveMQ.DLQ.Queue.{name}").receive().body == "short"
