"""Producers that are held back: windows of their own, and queues that are full."""

from __future__ import annotations

import pytest

from tests.support.interop.jms.jvm import JmsError, Jvm
from tests.support.interop.jms.peers import Peer

pytestmark = pytest.mark.service

BODY = "x" * 10_000


@pytest.mark.parametrize("size", [2_000, 50_000])
def test_a_producer_window_lets_all_through_in_the_end(jvm: Jvm, broker: Peer, name: str, size: int) -> None:
    """A window smaller than a message holds one at a time; ProducerAck opens it again."""
    connection = jvm.connect(broker.url(f"jms.producerWindowSize={size}&jms.useAsyncSend=true"))
    consumer = connection.session().consumer(f"queue://{name}")
    connection.session().send(f"queue://{name}", *[BODY] * 40, persistent=False)
    assert consumer.bodies(40) == [BODY] * 40
    connection.close()


def test_a_full_queue_holds_the_producer_until_there_is_room(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url("jms.alwaysSyncSend=true"))
    producer = connection.session().producer(f"queue://LIMITED.{name}")
    sending = producer.send_later(*[BODY] * 20, persistent=False)
    consumer = jvm.connect(broker.url()).session().consumer(f"queue://LIMITED.{name}")
    assert consumer.bodies(20) == [BODY] * 20
    assert len(sending.result()) == 20
    connection.close()


def test_a_blocked_producer_blocks_nobody_else(jvm: Jvm, broker: Peer, name: str) -> None:
    blocked = jvm.connect(broker.url("jms.alwaysSyncSend=true"))
    producer = blocked.session().producer(f"queue://LIMITED.{name}")
    sending = producer.send_later(*[BODY] * 20, persistent=False)
    other = jvm.connect(broker.url())
    session = other.session()
    session.send(f"queue://{name}", "free")
    assert session.consumer(f"queue://{name}").receive().body == "free"
    assert session.consumer(f"queue://LIMITED.{name}").bodies(20) == [BODY] * 20
    assert len(sending.result()) == 20
    other.close()
    blocked.close()


def test_a_client_may_give_up_sending(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url("jms.alwaysSyncSend=true&jms.sendTimeout=500"))
    producer = connection.session().producer(f"queue://LIMITED.{name}")
    with pytest.raises(JmsError) as raised:
        producer.send(*[BODY] * 20, persistent=False)
    assert "RequestTimedOutIOException" in raised.value.text
    connection.close()
