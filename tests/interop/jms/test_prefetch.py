"""How many messages a consumer is given before it acknowledges, and consumers that ask for each."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.interop.jms.jvm import Jvm
from tests.support.interop.jms.peers import Peer, TandemMQ

pytestmark = pytest.mark.service

PULL = "consumer.prefetchSize=0"


def test_a_pulling_consumer_takes_one_at_a_time(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    first = connection.session().consumer(f"queue://{name}?{PULL}")
    second = connection.session().consumer(f"queue://{name}?{PULL}")
    connection.session().send(f"queue://{name}", *"abcd")
    assert first.receive().body == "a"
    assert second.receive().body == "b"
    assert second.receive().body == "c"
    assert first.receive().body == "d"
    connection.close()


def test_receive_no_wait_asks_the_broker(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    consumer = connection.session().consumer(f"queue://{name}?{PULL}")
    assert consumer.take(0) is None
    session.send(f"queue://{name}", "a")
    assert [consumer.receive().body, consumer.take(0)] == ["a", None]
    connection.close()


def test_a_pull_that_waits_is_served_when_a_message_comes(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    consumer = connection.session().consumer(f"queue://{name}?{PULL}")
    waiting = consumer.receive_later(timeout=30_000)
    connection.session().send(f"queue://{name}", "at last")
    assert waiting.result()["body"] == "at last"
    connection.close()


def test_a_pull_that_is_over_takes_nothing(jvm: Jvm, broker: Peer, name: str) -> None:
    """A message that comes after the time is up is for whoever asks next."""
    connection = jvm.connect(broker.url())
    consumer = connection.session().consumer(f"queue://{name}?{PULL}")
    assert consumer.take(100) is None
    connection.session().send(f"queue://{name}", "late")
    other = connection.session().consumer(f"queue://{name}?{PULL}")
    assert other.receive().body == "late"
    assert consumer.take(100) is None
    connection.close()


def test_a_pull_honours_the_selector(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    session.send(f"queue://{name}", "blue", properties={"colour": "blue"})
    session.send(f"queue://{name}", "red", properties={"colour": "red"})
    consumer = connection.session().consumer(f"queue://{name}?{PULL}", selector="colour = 'red'")
    assert consumer.receive().body == "red"
    assert consumer.take(100) is None
    connection.close()


def test_what_was_pulled_and_rolled_back_comes_again(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url("jms.redeliveryPolicy.initialRedeliveryDelay=0"))
    connection.session().send(f"queue://{name}", *"ab")
    session = connection.session("TRANSACTED")
    consumer = session.consumer(f"queue://{name}?{PULL}")
    assert consumer.receive().body == "a"
    session.rollback()
    again = consumer.receive()
    assert (again.body, again["deliveries"]) == ("a", 2)
    assert consumer.receive().body == "b"
    session.commit()
    connection.close()


def test_a_prefetch_of_one_leaves_the_rest_to_others(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    greedy = connection.session("CLIENT")
    holding = greedy.consumer(f"queue://{name}?consumer.prefetchSize=1")
    connection.session().send(f"queue://{name}", *"abcde")
    assert holding.receive().body == "a"
    other = connection.session().consumer(f"queue://{name}")
    # The client asks for one more when it has delivered one; so much may be its own, and no more.
    assert other.rest()[-3:] == ["c", "d", "e"]
    connection.close()


def test_a_consumer_holds_as_many_as_its_prefetch(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url("jms.prefetchPolicy.queuePrefetch=10"))
    session = connection.session()
    holding = connection.session("CLIENT").consumer(f"queue://{name}")
    session.send(f"queue://{name}", *map(str, range(13)))
    assert holding.receive().body == "0"
    other = connection.session().consumer(f"queue://{name}")
    assert other.bodies(3) == ["10", "11", "12"]
    assert other.take() is None
    connection.close()


@pytest.mark.parametrize("mode", ["AUTO", "CLIENT", "DUPS_OK", "INDIVIDUAL", "TRANSACTED"])
def test_a_small_prefetch_does_not_end_a_long_delivery(jvm: Jvm, broker: Peer, name: str, mode: str) -> None:
    """Also who has not acknowledged yet is given more: the client says what it delivered."""
    connection = jvm.connect(broker.url())
    bodies = [str(number) for number in range(50)]
    connection.session().send(f"queue://{name}", *bodies)
    session = connection.session(mode)
    consumer = session.consumer(f"queue://{name}?consumer.prefetchSize=10")
    messages = [consumer.receive() for _ in range(50)]
    assert [message.body for message in messages] == bodies
    for message in messages:
        message.acknowledge()
    if mode == "TRANSACTED":
        session.commit()
    session.close()
    assert connection.session().consumer(f"queue://{name}").take() is None
    connection.close()


def test_where_the_policy_gives_nothing_ahead_an_idle_consumer_holds_nothing(jvm: Jvm, broker: Peer, name: str) -> None:
    """The client hears of it by ConsumerControl, and pulls."""
    connection = jvm.connect(broker.url())
    queue = f"queue://PULL.{name}"
    connection.session("TRANSACTED").consumer(queue)  # never receives
    session = connection.session("TRANSACTED")
    consumer = session.consumer(queue)
    connection.session().send(queue, *"abc")
    assert consumer.bodies(3) == ["a", "b", "c"]
    session.commit()
    connection.close()


def test_a_browser_with_a_prefetch_of_none_sees_the_queue(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url("jms.prefetchPolicy.queueBrowserPrefetch=0"))
    session = connection.session()
    session.send(f"queue://{name}", *(str(number) for number in range(20)))
    assert [message.body for message in session.browse(name)] == [str(number) for number in range(20)]
    connection.close()


CHANGING = '[[destinations]]\nqueue = "CHANGES.>"\nqueue_prefetch = %d\n'


@pytest.fixture
def changing(tmp_path: Path, jvm: Jvm) -> Iterator[TandemMQ]:
    """A broker of its own, whose policy for CHANGES.> gives two ahead."""
    peer = TandemMQ(tmp_path / "data", settings=CHANGING % 2)
    peer.wait()
    yield peer
    peer.close()


def change(peer: TandemMQ, tmp_path: Path, prefetch: int) -> None:
    """The policy is another one, and the broker has taken it over."""
    text = "prefetches are as the settings say"
    before = peer.process.log.read_text().count(text)
    (tmp_path / "data.toml").write_text(CHANGING % prefetch)
    peer.process.kill(signal.SIGHUP)
    peer.process.wait_log(text, before + 1)


def test_a_consumer_that_is_on_is_given_more_when_the_policy_changes(
    jvm: Jvm, changing: TandemMQ, tmp_path: Path
) -> None:
    connection = jvm.connect(changing.url())
    connection.session().send("queue://CHANGES.A", *"abcdef")
    holding = connection.session("CLIENT").consumer("queue://CHANGES.A")
    change(changing, tmp_path, 4)
    assert holding.receive().body == "a"
    other = connection.session().consumer("queue://CHANGES.A")
    assert other.bodies(2) == ["e", "f"]
    connection.close()


def test_a_consumer_that_is_on_pulls_when_the_policy_gives_nothing_ahead_any_more(
    jvm: Jvm, changing: TandemMQ, tmp_path: Path
) -> None:
    """Without ConsumerControl it would wait for what nobody sends it."""
    connection = jvm.connect(changing.url())
    first = connection.session().consumer("queue://CHANGES.B")
    change(changing, tmp_path, 0)
    second = connection.session().consumer("queue://CHANGES.B")
    connection.session().send("queue://CHANGES.B", *"abcd")
    assert first.receive().body == "a"
    assert second.bodies(2) == ["b", "c"]
    assert first.receive().body == "d"
    change(changing, tmp_path, 2)
    connection.session().send("queue://CHANGES.B", *"ef")
    assert {first.receive().body, second.receive().body} == {"e", "f"}
    connection.close()
