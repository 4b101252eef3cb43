"""Topics: noLocal, and durable subscriptions with and without a connected client."""

from __future__ import annotations

import pytest

from tests.interop.jms.conftest import Connect
from tests.support.interop.jms.jvm import JmsConnection, JmsSession

pytestmark = [pytest.mark.service, pytest.mark.promise("durable-subscription-kept")]


def test_who_wants_nothing_of_its_own_hears_others_alone(connect: Connect, name: str) -> None:
    connection, other = connect(), connect()
    session = connection.session()
    consumer = session.consumer(f"topic://{name}", no_local=True)
    session.send(f"topic://{name}", "mine")
    other.session().send(f"topic://{name}", "theirs")
    assert consumer.receive().body == "theirs"
    assert consumer.take() is None


def test_a_durable_subscription_keeps_what_is_said_while_it_is_away(connect: Connect, name: str) -> None:
    sender = connect().session()
    connection = connect(clientId=name)
    session = connection.session()
    first = session.durable(f"topic://{name}", "news")
    sender.send(f"topic://{name}", "online")
    assert first.receive().body == "online"
    connection.close()
    sender.send(f"topic://{name}", "offline 1", "offline 2")

    again = connect(clientId=name)
    session = again.session()
    consumer = session.durable(f"topic://{name}", "news")
    assert consumer.bodies(2) == ["offline 1", "offline 2"]
    consumer.close()
    assert session.durable(f"topic://{name}", "news").take() is None


def test_what_a_durable_subscriber_did_not_acknowledge_comes_again(connect: Connect, name: str) -> None:
    connection = connect(clientId=name)
    session = connection.session("CLIENT")
    consumer = session.durable(f"topic://{name}", "news")
    session.send(f"topic://{name}", *"abc")
    consumer.receive().acknowledge()
    assert consumer.receive().body == "b"
    connection.close()
    again = connect(clientId=name)
    messages = [again.session().durable(f"topic://{name}", "news").receive()]
    assert messages[0].body == "b"


def test_a_changed_selector_begins_anew(connect: Connect, name: str) -> None:
    connection = connect(clientId=name)
    session = connection.session()
    session.durable(f"topic://{name}", "news", selector="colour = 'red'").close()
    session.send(f"topic://{name}", "red 1", properties={"colour": "red"})
    session.send(f"topic://{name}", "blue 1", properties={"colour": "blue"})
    consumer = session.durable(f"topic://{name}", "news", selector="colour = 'red'")
    assert consumer.receive().body == "red 1"
    assert consumer.take() is None
    consumer.close()
    session.send(f"topic://{name}", "red 2", properties={"colour": "red"})
    changed = session.durable(f"topic://{name}", "news", selector="colour = 'blue'")
    assert changed.take() is None, "what the former one kept is gone"
    session.send(f"topic://{name}", "blue 2", properties={"colour": "blue"})
    assert changed.receive().body == "blue 2"


def test_a_durable_subscription_of_several_topics_keeps_what_is_said_in_each(connect: Connect, name: str) -> None:
    several = f"topic://{name}.A,{name}.B"
    sender = connect().session()
    connection = connect(clientId=name)
    connection.session().durable(several, "news")
    connection.close()
    for topic in "ACB":
        sender.send(f"topic://{name}.{topic}", topic)

    again = connect(clientId=name)
    session = again.session()
    consumer = session.durable(several, "news")
    assert sorted(consumer.bodies(2)) == ["A", "B"]
    assert consumer.take() is None
    consumer.close()
    session.unsubscribe("news")


@pytest.mark.parametrize("strange", ["a/b", "a:b", "a+b%20c", "<img src=x>", "..", "a?x=1#y", "{x}", "#/__proto__"])
@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_every_name_goes_and_comes(
    connection: JmsConnection, session: JmsSession, name: str, kind: str, strange: str
) -> None:
    consumer = connection.session().consumer(f"{kind}://{name}{strange}")
    session.send(f"{kind}://{name}{strange}", "x")
    message = consumer.receive()
    # From the first "?" on it is no name, but an option of the client's.
    assert (message.body, message["destination"]) == ("x", f"{kind}://{name}{strange.partition('?')[0]}")
