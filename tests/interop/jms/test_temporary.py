"""Temporary destinations: request and reply, whose they are, and when they go."""

from __future__ import annotations

import pytest

from tests.support.interop.jms.jvm import JmsError, Jvm
from tests.support.interop.jms.peers import Peer

pytestmark = [pytest.mark.service, pytest.mark.promise("temporary-destinations")]


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_request_and_reply(jvm: Jvm, broker: Peer, name: str, kind: str) -> None:
    client, server = jvm.connect(broker.url()), jvm.connect(broker.url())
    asking, serving = client.session(), server.session()
    reply_to = asking.temporary_queue() if kind == "queue" else asking.temporary_topic()
    answers = asking.consumer(reply_to)
    requests = serving.consumer(f"queue://{name}")
    [request_id] = asking.send(f"queue://{name}", "question", replyTo=reply_to)

    request = requests.receive()
    assert request["replyTo"] == reply_to
    serving.send(request["replyTo"], "answer", correlation=request["id"], persistent=False)

    answer = answers.receive()
    assert (answer.body, answer["correlation"]) == ("answer", request_id)
    client.close()
    server.close()


def test_a_temporary_queue_is_named_after_its_connection(jvm: Jvm, broker: Peer) -> None:
    connection = jvm.connect(broker.url())
    assert connection.session().temporary_queue().startswith(f"temp-queue://{connection.connection_id}:")
    connection.close()


def test_nobody_else_may_consume_from_it(jvm: Jvm, broker: Peer) -> None:
    owner, other = jvm.connect(broker.url()), jvm.connect(broker.url())
    queue = owner.session().temporary_queue()
    with pytest.raises(JmsError) as raised:
        other.session().consumer(queue)
    assert raised.value.kind == "InvalidDestinationException"
    owner.close()
    other.close()


def test_another_session_of_its_connection_may(jvm: Jvm, broker: Peer) -> None:
    owner = jvm.connect(broker.url())
    queue = owner.session().temporary_queue()
    consumer = owner.session().consumer(queue)
    owner.session().send(queue, "a")
    assert consumer.receive().body == "a"
    owner.close()


def test_one_in_use_cannot_be_deleted(jvm: Jvm, broker: Peer) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    queue = session.temporary_queue()
    consumer = session.consumer(queue)
    with pytest.raises(JmsError):
        session.delete(queue)
    consumer.close()
    session.delete(queue)
    connection.close()


def test_sending_to_one_that_is_gone_is_refused(jvm: Jvm, broker: Peer) -> None:
    """The owner's end is told by an advisory; who did not hear it is told by the broker."""
    owner, other = jvm.connect(broker.url()), jvm.connect(broker.url("jms.watchTopicAdvisories=false"))
    queue = owner.session().temporary_queue()
    session = other.session()
    session.send(queue, "while it is there")
    owner.close()
    with pytest.raises(JmsError) as raised:
        session.send(queue, "too late")
    assert raised.value.kind in ("InvalidDestinationException", "DestinationDoesNotExistException"), raised.value
    other.close()


def test_who_watches_the_advisories_knows_that_it_is_gone(jvm: Jvm, broker: Peer) -> None:
    owner, other = jvm.connect(broker.url()), jvm.connect(broker.url())
    queue = owner.session().temporary_queue()
    session = other.session()
    session.send(queue, "while it is there")
    owner.close()
    bodies = ["too late"] * 20_000  # until the advisory has come
    with pytest.raises(JmsError) as raised:
        session.send(queue, *bodies, persistent=False)
    assert raised.value.kind in ("InvalidDestinationException", "DestinationDoesNotExistException"), raised.value
    other.close()


def test_one_that_is_deleted_takes_its_messages_along(jvm: Jvm, broker: Peer) -> None:
    connection = jvm.connect(broker.url("jms.watchTopicAdvisories=false"))
    session = connection.session()
    queue = session.temporary_queue()
    session.send(queue, "gone")
    session.delete(queue)
    another = session.temporary_queue()
    assert another != queue
    assert session.consumer(another).take() is None
    connection.close()
