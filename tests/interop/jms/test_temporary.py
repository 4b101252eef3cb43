"""Temporary destinations: request and reply, their owners, advisories about them, and their end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tandemmq.broker.security.users import make
from tests.interop.jms.conftest import Connect
from tests.support.interop.jms.jvm import JmsConnection, JmsError, JmsSession, Jvm
from tests.support.interop.jms.peers import TandemMQ

pytestmark = [pytest.mark.service, pytest.mark.promise("temporary-destinations", "rights")]


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_request_and_reply(connect: Connect, queue: str, kind: str) -> None:
    client, server = connect(), connect()
    asking, serving = client.session(), server.session()
    reply_to = asking.temporary_queue() if kind == "queue" else asking.temporary_topic()
    answers = asking.consumer(reply_to)
    requests = serving.consumer(queue)
    [request_id] = asking.send(queue, "question", replyTo=reply_to)

    request = requests.receive()
    assert request["replyTo"] == reply_to
    serving.send(request["replyTo"], "answer", correlation=request["id"], persistent=False)

    answer = answers.receive()
    assert (answer.body, answer["correlation"]) == ("answer", request_id)


def test_nobody_else_may_consume_from_it(connect: Connect) -> None:
    owner, other = connect(), connect()
    queue = owner.session().temporary_queue()
    with pytest.raises(JmsError) as raised:
        other.session().consumer(queue)
    assert raised.value.kind == "InvalidDestinationException"


def test_one_in_use_cannot_be_deleted(session: JmsSession) -> None:
    queue = session.temporary_queue()
    consumer = session.consumer(queue)
    with pytest.raises(JmsError):
        session.delete(queue)
    consumer.close()
    session.delete(queue)


@pytest.mark.parametrize("hears_of_it", [False, True])
def test_sending_to_one_that_is_gone_is_refused(connect: Connect, hears_of_it: bool) -> None:
    """An advisory reports the owner's end; a client without the advisory gets an error of the broker."""
    owner, other = connect(), connect("" if hears_of_it else "jms.watchTopicAdvisories=false")
    queue = owner.session().temporary_queue()
    session = other.session()
    session.send(queue, "while it is there")
    owner.close()
    bodies = ["too late"] * (20_000 if hears_of_it else 1)  # until the advisory has come
    with pytest.raises(JmsError) as raised:
        session.send(queue, *bodies, persistent=not hears_of_it)
    assert raised.value.kind in ("InvalidDestinationException", "DestinationDoesNotExistException"), raised.value


SETTINGS = """\
[security]
users_file = "{users}"

[[security.authorization]]
queue = "OPEN.>"
read = ["*"]
write = ["*"]
admin = ["*"]
"""


class Users:
    """A broker, and a JVM in which its users connect."""

    def __init__(self, jvm: Jvm, peer: TandemMQ) -> None:
        self._jvm = jvm
        self._peer = peer

    def connect(self, name: str, options: str = "", **fields: Any) -> JmsConnection:
        return self._jvm.connect(self._peer.url(options), user=name, password=f"{name} secret", **fields)


@pytest.fixture(scope="module")
def users(jvm: Jvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Users]:
    directory = tmp_path_factory.mktemp("secured")
    file = directory / "users"
    file.write_text("".join(f"{name}:{make(f'{name} secret')}::\n" for name in ("ann", "bob", "eve")))
    file.chmod(0o600)
    peer = TandemMQ(directory / "data", settings=SETTINGS.format(users=file))
    peer.wait()
    yield Users(jvm, peer)
    peer.close()


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_request_and_reply_between_users(users: Users, name: str, kind: str) -> None:
    ann, bob, eve = (users.connect(each) for each in ("ann", "bob", "eve"))
    asking, serving = ann.session(), bob.session()
    requests = serving.consumer(f"queue://OPEN.{name}")
    for number in range(3):
        reply_to = asking.temporary_queue() if kind == "queue" else asking.temporary_topic()
        answers = asking.consumer(reply_to)
        asking.send(f"queue://OPEN.{name}", "question", replyTo=reply_to)
        request = requests.receive()
        serving.send(request["replyTo"], f"answer {number}", correlation=request["id"], persistent=False)
        assert answers.receive().body == f"answer {number}"
    with pytest.raises(JmsError) as raised:  # no client gave her the name
        eve.session().send(reply_to, "spam")
    assert raised.value.kind == "InvalidDestinationException"
    for each in (ann, bob, eve):
        each.close()


def test_another_connection_of_the_same_user_knows_them_all(users: Users, name: str) -> None:
    ann, other = users.connect("ann"), users.connect("ann")
    made = ann.session().temporary_queue()
    answers = ann.session().consumer(made)
    late = users.connect("ann")
    for each in (other, late):
        session = each.session()
        session.consumer(f"queue://OPEN.{name}")  # the answer comes after the earlier advisories
        session.send(made, "a")
        assert answers.receive().body == "a"
    for each in (ann, other, late):
        each.close()


def test_who_was_given_it_knows_when_it_is_gone(users: Users, name: str) -> None:
    ann, bob = users.connect("ann"), users.connect("bob")
    made = ann.session().temporary_queue()
    ann.session().send(f"queue://OPEN.{name}", "question", replyTo=made)
    session = bob.session()
    assert session.consumer(f"queue://OPEN.{name}").receive()["replyTo"] == made
    session.send(made, "while it is there")
    ann.close()
    with pytest.raises(JmsError) as raised:
        session.send(made, *["too late"] * 20_000, persistent=False)
    assert raised.value.kind in ("InvalidDestinationException", "DestinationDoesNotExistException"), raised.value
    bob.close()
