"""Topics: noLocal, and durable subscriptions that are here and away."""

from __future__ import annotations

import pytest

from tests.support.interop.jms.jvm import Jvm
from tests.support.interop.jms.peers import Peer

pytestmark = [pytest.mark.service, pytest.mark.promise("durable-subscription-kept")]


def test_every_subscriber_hears_what_is_said_after_it_came(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    session.send(f"topic://{name}", "too early")
    consumers = [connection.session().consumer(f"topic://{name}") for _ in range(3)]
    session.send(f"topic://{name}", "a", "b")
    assert [consumer.bodies(2) for consumer in consumers] == [["a", "b"]] * 3
    connection.close()


def test_who_wants_nothing_of_its_own_hears_others_alone(jvm: Jvm, broker: Peer, name: str) -> None:
    connection, other = jvm.connect(broker.url()), jvm.connect(broker.url())
    session = connection.session()
    consumer = session.consumer(f"topic://{name}", no_local=True)
    session.send(f"topic://{name}", "mine")
    other.session().send(f"topic://{name}", "theirs")
    assert consumer.receive().body == "theirs"
    assert consumer.take() is None
    connection.close()
    other.close()


def test_a_durable_subscription_keeps_what_is_said_while_it_is_away(jvm: Jvm, broker: Peer, name: str) -> None:
    sender = jvm.connect(broker.url()).session()
    connection = jvm.connect(broker.url(), clientId=name)
    session = connection.session()
    first = session.durable(f"topic://{name}", "news")
    sender.send(f"topic://{name}", "online")
    assert first.receive().body == "online"
    connection.close()
    sender.send(f"topic://{name}", "offline 1", "offline 2")

    again = jvm.connect(broker.url(), clientId=name)
    session = again.session()
    consumer = session.durable(f"topic://{name}", "news")
    assert consumer.bodies(2) == ["offline 1", "offline 2"]
    consumer.close()
    assert session.durable(f"topic://{name}", "news").take() is None
    again.close()


def test_what_a_durable_subscriber_did_not_acknowledge_comes_again(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url(), clientId=name)
    session = connection.session("CLIENT")
    consumer = session.durable(f"topic://{name}", "news")
    session.send(f"topic://{name}", *"abc")
    consumer.receive().acknowledge()
    assert consumer.receive().body == "b"
    connection.close()
    again = jvm.connect(broker.url(), clientId=name)
    messages = [again.session().durable(f"topic://{name}", "news").receive()]
    assert messages[0].body == "b"
    again.close()


def test_durable_subscriptions_of_one_name_belong_to_their_client(jvm: Jvm, broker: Peer, name: str) -> None:
    one, two = jvm.connect(broker.url(), clientId=f"{name}-1"), jvm.connect(broker.url(), clientId=f"{name}-2")
    consumers = [connection.session().durable(f"topic://{name}", "news") for connection in (one, two)]
    one.session().send(f"topic://{name}", "a")
    assert [consumer.receive().body for consumer in consumers] == ["a", "a"]
    one.close()
    two.close()


def test_a_changed_selector_begins_anew(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url(), clientId=name)
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
    connection.close()


def test_a_changed_topic_begins_anew(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url(), clientId=name)
    session = connection.session()
    session.durable(f"topic://{name}.A", "news").close()
    session.send(f"topic://{name}.A", "old")
    consumer = session.durable(f"topic://{name}.B", "news")
    session.send(f"topic://{name}.A", "not any more")
    session.send(f"topic://{name}.B", "new")
    assert consumer.receive().body == "new"
    assert consumer.take() is None
    connection.close()


def test_a_durable_subscription_of_several_topics_keeps_what_is_said_in_each(jvm: Jvm, broker: Peer, name: str) -> None:
    several = f"topic://{name}.A,{name}.B"
    sender = jvm.connect(broker.url()).session()
    connection = jvm.connect(broker.url(), clientId=name)
    connection.session().durable(several, "news")
    connection.close()
    for topic in "ACB":
        sender.send(f"topic://{name}.{topic}", topic)

    again = jvm.connect(broker.url(), clientId=name)
    session = again.session()
    consumer = session.durable(several, "news")
    assert sorted(consumer.bodies(2)) == ["A", "B"]
    assert consumer.take() is None
    consumer.close()
    session.unsubscribe("news")
    again.close()


def test_after_unsubscribe_nothing_is_kept(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url(), clientId=name)
    session = connection.session()
    session.durable(f"topic://{name}", "news").close()
    session.send(f"topic://{name}", "a")
    session.unsubscribe("news")
    session.send(f"topic://{name}", "b")
    assert session.durable(f"topic://{name}", "news").take() is None
    connection.close()


def test_a_durable_subscriber_may_hear_others_alone(jvm: Jvm, broker: Peer, name: str) -> None:
    connection, other = jvm.connect(broker.url(), clientId=name), jvm.connect(broker.url())
    session = connection.session()
    consumer = session.durable(f"topic://{name}", "news", no_local=True)
    session.send(f"topic://{name}", "mine")
    other.session().send(f"topic://{name}", "theirs")
    assert consumer.receive().body == "theirs"
    assert consumer.take() is None
    connection.close()
    other.close()


def test_a_durable_subscriber_with_a_small_prefetch_hears_all(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url("jms.prefetchPolicy.durableTopicPrefetch=5"), clientId=name)
    session = connection.session()
    consumer = session.durable(f"topic://{name}", "news")
    bodies = [str(number) for number in range(60)]
    connection.session().send(f"topic://{name}", *bodies)
    assert consumer.bodies(60) == bodies
    connection.close()


def test_a_transacted_topic_subscriber_hears_again_what_it_rolled_back(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url("jms.redeliveryPolicy.initialRedeliveryDelay=0"), clientId=name)
    session = connection.session("TRANSACTED")
    consumer = session.durable(f"topic://{name}", "news")
    connection.session().send(f"topic://{name}", *"ab")
    assert consumer.bodies(2) == ["a", "b"]
    session.rollback()
    assert consumer.bodies(2) == ["a", "b"]
    session.commit()
    assert consumer.take() is None
    connection.close()
