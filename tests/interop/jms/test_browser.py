"""Queue browsers look and take nothing."""

from __future__ import annotations

import pytest

from tests.support.interop.jms.jvm import Jvm
from tests.support.interop.jms.peers import Peer

pytestmark = pytest.mark.service


def test_a_browser_sees_all_in_order_and_takes_nothing(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    bodies = [str(number) for number in range(300)]
    ids = session.send(f"queue://{name}", *bodies)
    for _ in range(2):
        seen = session.browse(f"queue://{name}")
        assert [(message["id"], message.body) for message in seen] == list(zip(ids, bodies, strict=True))
    assert session.consumer(f"queue://{name}").bodies(300) == bodies
    connection.close()


def test_a_browser_of_an_empty_queue_ends(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    assert connection.session().browse(f"queue://{name}") == []
    connection.close()


@pytest.mark.parametrize("prefetch", [1, 7])
def test_a_browser_with_a_small_prefetch_sees_all(jvm: Jvm, broker: Peer, name: str, prefetch: int) -> None:
    connection = jvm.connect(broker.url(f"jms.prefetchPolicy.queueBrowserPrefetch={prefetch}"))
    session = connection.session()
    session.send(f"queue://{name}", *map(str, range(50)))
    assert [message.body for message in session.browse(f"queue://{name}")] == [str(n) for n in range(50)]
    connection.close()


def test_a_browser_has_a_selector(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    for number in range(10):
        session.send(f"queue://{name}", str(number), properties={"n": number})
    assert [message.body for message in session.browse(f"queue://{name}", "n >= 7")] == ["7", "8", "9"]
    connection.close()


def test_a_browser_sees_what_others_hold_and_have_not_acknowledged(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    session.send(f"queue://{name}", *"abc")
    holding = connection.session("CLIENT")
    consumer = holding.consumer(f"queue://{name}")
    consumer.receive().acknowledge()
    assert consumer.receive().body == "b"
    assert [message.body for message in session.browse(f"queue://{name}")] == ["b", "c"]
    connection.close()


def test_a_browser_may_stop_half_way(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    session.send(f"queue://{name}", *"abcd")
    assert [message.body for message in session.browse(f"queue://{name}", count=2)] == ["a", "b"]
    assert session.consumer(f"queue://{name}").bodies(4) == list("abcd")
    connection.close()
