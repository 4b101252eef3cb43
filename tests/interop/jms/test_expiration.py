"""Messages whose time is over: not delivered, and dead letters."""

from __future__ import annotations

import pytest

from tests.support.interop.jms.jvm import Jvm
from tests.support.interop.jms.peers import Peer

pytestmark = [pytest.mark.service, pytest.mark.promise("expired-is-not-delivered")]


def test_a_message_in_time_is_delivered_with_its_expiration(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    session.send(f"queue://{name}", "a", ttl=60_000)
    message = session.consumer(f"queue://{name}").receive()
    assert message["expiration"] - message["timestamp"] == 60_000
    connection.close()


def test_what_expires_in_the_queue_is_a_dead_letter(jvm: Jvm, broker: Peer, name: str) -> None:
    """Nobody asks for it: the broker looks by itself."""
    connection = jvm.connect(broker.url())
    session = connection.session()
    session.send(f"queue://SHORT.{name}", "short", ttl=50)
    session.send(f"queue://SHORT.{name}", "long")
    dead = session.consumer(f"queue://ActiveMQ.DLQ.Queue.SHORT.{name}").receive()
    assert (dead.body, dead["originalDestination"]) == ("short", f"queue://SHORT.{name}")
    assert dead["expiration"] == 0
    assert dead.properties["originalExpiration"]["long"] > 0
    assert [message.body for message in session.browse(f"queue://SHORT.{name}")] == ["long"]
    connection.close()


def test_an_expired_message_that_is_not_persistent_is_dropped(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    session.send(f"queue://SHORT.{name}", "dropped", ttl=20, persistent=False)
    session.send(f"queue://SHORT.{name}", "marker", ttl=40)
    dead = session.consumer(f"queue://ActiveMQ.DLQ.Queue.SHORT.{name}")
    assert dead.receive().body == "marker"
    assert dead.take() is None
    connection.close()


def test_what_expires_at_the_client_is_not_delivered(jvm: Jvm, broker: Peer, name: str) -> None:
    """Prefetched in time, asked for too late: the client says so, and the broker keeps it as a dead letter."""
    connection = jvm.connect(broker.url())
    session = connection.session()
    consumer = connection.session().consumer(f"queue://{name}")
    session.send(f"queue://{name}", "short", ttl=400)
    session.send(f"queue://{name}", "long")
    waiting = session.consumer(f"queue://{name}.never")
    assert waiting.take(600) is None  # as long as it takes
    assert consumer.receive().body == "long"
    assert session.consumer(f"queue://ActiveMQ.DLQ.Queue.{name}").receive().body == "short"
    connection.close()
