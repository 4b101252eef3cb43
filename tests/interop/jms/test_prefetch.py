"""Number of messages that a consumer receives before it acknowledges, and consumers that request each message."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.jms.conftest import Connect
from tests.support.interop.jms.jvm import JmsConnection, Jvm
from tests.support.interop.jms.peers import TandemMQ

pytestmark = pytest.mark.service

PULL = "consumer.prefetchSize=0"


def test_a_pulling_consumer_takes_one_at_a_time(connection: JmsConnection, queue: str) -> None:
    first = connection.session().consumer(f"{queue}?{PULL}")
    second = connection.session().consumer(f"{queue}?{PULL}")
    connection.session().send(queue, *"abcd")
    assert first.receive().body == "a"
    assert second.receive().body == "b"
    assert second.receive().body == "c"
    assert first.receive().body == "d"


def test_a_pull_that_waits_is_served_when_a_message_comes(connection: JmsConnection, queue: str) -> None:
    consumer = connection.session().consumer(f"{queue}?{PULL}")
    waiting = consumer.receive_later(timeout=30_000)
    connection.session().send(queue, "at last")
    assert waiting.result()["body"] == "at last"


def test_a_pull_that_is_over_takes_nothing(connection: JmsConnection, queue: str) -> None:
    """A message that arrives after the time-out is for the next request."""
    consumer = connection.session().consumer(f"{queue}?{PULL}")
    assert consumer.take(100) is None
    connection.session().send(queue, "late")
    other = connection.session().consumer(f"{queue}?{PULL}")
    assert other.receive().body == "late"
    assert consumer.take(100) is None


def test_a_consumer_holds_as_many_as_its_prefetch(connect: Connect, queue: str) -> None:
    connection = connect("jms.prefetchPolicy.queuePrefetch=10")
    session = connection.session()
    holding = connection.session("CLIENT").consumer(queue)
    session.send(queue, *map(str, range(13)))
    assert holding.receive().body == "0"
    other = connection.session().consumer(queue)
    assert other.bodies(3) == ["10", "11", "12"]
    assert other.take() is None


@pytest.mark.parametrize("mode", ["AUTO", "CLIENT", "DUPS_OK", "INDIVIDUAL", "TRANSACTED"])
def test_a_small_prefetch_does_not_end_a_long_delivery(connection: JmsConnection, queue: str, mode: str) -> None:
    """A consumer that has not acknowledged yet receives more: the client reports the deliveries."""
    bodies = [str(number) for number in range(50)]
    connection.session().send(queue, *bodies)
    session = connection.session(mode)
    consumer = session.consumer(f"{queue}?consumer.prefetchSize=10")
    messages = [consumer.receive() for _ in range(50)]
    assert [message.body for message in messages] == bodies
    for message in messages:
        message.acknowledge()
    if mode == "TRANSACTED":
        session.commit()
    session.close()
    assert connection.session().consumer(queue).take() is None


def test_where_the_policy_gives_nothing_ahead_an_idle_consumer_holds_nothing(
    connection: JmsConnection, name: str
) -> None:
    """The client gets the change by ConsumerControl, and pulls."""
    queue = f"queue://PULL.{name}"
    connection.session("TRANSACTED").consumer(queue)  # never receives
    session = connection.session("TRANSACTED")
    consumer = session.consumer(queue)
    connection.session().send(queue, *"abc")
    assert consumer.bodies(3) == ["a", "b", "c"]
    session.commit()


CHANGING = '[[destinations]]\nqueue = "CHANGES.>"\nqueue_prefetch = %d\n'


@pytest.fixture
def changing(tmp_path: Path, jvm: Jvm) -> Iterator[TandemMQ]:
    """A separate broker; its policy for CHANGES.> has a prefetch of two."""
    peer = TandemMQ(tmp_path / "data", settings=CHANGING % 2)
    peer.wait()
    yield peer
    peer.close()


def change(peer: TandemMQ, tmp_path: Path, prefetch: int) -> None:
    """The policy is another one, and the broker has taken it over."""
    text = "prefetches follow the settings"
    before = peer.process.log.read_text().count(text)
    (tmp_path / "data.toml").write_text(CHANGING % prefetch)
    peer.process.kill(signal.SIGHUP)
    peer.process.wait_log(text, before + 1)


def test_a_consumer_that_is_on_pulls_when_the_policy_gives_nothing_ahead_any_more(
    jvm: Jvm, changing: TandemMQ, tmp_path: Path
) -> None:
    """Without ConsumerControl the client would wait for messages that the broker does not send."""
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
