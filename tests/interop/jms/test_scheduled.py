"""Delayed and repeated messages: AMQ_SCHEDULED_*."""

from __future__ import annotations

import pytest

from tests.support.interop.jms.jvm import JmsError, Jvm
from tests.support.interop.jms.peers import Peer

pytestmark = [pytest.mark.service, pytest.mark.promise("scheduled-in-time")]


def test_a_delayed_message_comes_when_its_time_has_come(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    consumer = connection.session().consumer(f"queue://{name}")
    session.send(f"queue://{name}", "later", properties={"AMQ_SCHEDULED_DELAY": {"long": 1500}})
    session.send(f"queue://{name}", "at once")
    assert consumer.bodies(2) == ["at once", "later"]
    assert consumer.take() is None
    connection.close()


def test_a_repeated_message_comes_so_many_times_and_once(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    consumer = connection.session().consumer(f"queue://{name}")
    schedule = {"AMQ_SCHEDULED_DELAY": {"long": 300}, "AMQ_SCHEDULED_PERIOD": {"long": 200}, "AMQ_SCHEDULED_REPEAT": 2}
    connection.session().send(f"queue://{name}", "again", properties=schedule | {"colour": "red"})
    messages = [consumer.receive() for _ in range(3)]
    assert [message.body for message in messages] == ["again"] * 3
    assert len({message["id"] for message in messages}) == 3, "each is a message of its own"
    assert [message.properties["colour"] for message in messages] == ["red"] * 3
    assert consumer.take(1500) is None
    connection.close()


def test_a_cron_entry_is_taken(jvm: Jvm, broker: Peer, name: str) -> None:
    """It comes at the next full minute: here only that it does not come at once, and harms nobody."""
    connection = jvm.connect(broker.url())
    consumer = connection.session().consumer(f"queue://{name}")
    connection.session().send(f"queue://{name}", "yearly", properties={"AMQ_SCHEDULED_CRON": "0 3 1 1 *"})
    assert consumer.take() is None
    connection.close()


def test_a_delayed_message_of_a_transaction_waits_for_the_commit(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    consumer = connection.session().consumer(f"queue://{name}")
    session = connection.session("TRANSACTED")
    session.send(f"queue://{name}", "never", properties={"AMQ_SCHEDULED_DELAY": {"long": 1}})
    session.rollback()
    session.send(f"queue://{name}", "later", properties={"AMQ_SCHEDULED_DELAY": {"long": 1}})
    session.commit()
    assert consumer.receive().body == "later"
    assert consumer.take() is None
    connection.close()


def test_a_repetition_beyond_the_bound_is_a_format_exception(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    repeated = {"AMQ_SCHEDULED_DELAY": 5, "AMQ_SCHEDULED_PERIOD": 1, "AMQ_SCHEDULED_REPEAT": 1001}
    with pytest.raises(JmsError) as refusal:
        connection.session().send(f"queue://{name}", "x", properties=repeated)
    assert refusal.value.kind == "MessageFormatException"
    connection.close()
