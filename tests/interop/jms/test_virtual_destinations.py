"""Composite destinations with selectors, and mirrored queues, as a broker's settings have them."""

from __future__ import annotations

import pytest

from tests.support.interop.jms.jvm import Jvm
from tests.support.interop.jms.peers import Peer

pytestmark = pytest.mark.service


@pytest.mark.parametrize("mode", ["AUTO", "TRANSACTED"])
@pytest.mark.parametrize("persistent", [True, False])
def test_a_composite_queue_sends_on_what_its_selectors_take(
    jvm: Jvm, only_tandemmq: Peer, name: str, mode: str, persistent: bool
) -> None:
    connection = jvm.connect(only_tandemmq.url())
    queue = connection.session().consumer("queue://FORWARDED")
    topic = connection.session().consumer("topic://FORWARDED")
    session = connection.session(mode)
    for colour in ("red", "blue"):
        options = {"properties": {"colour": colour}, "persistent": persistent}
        session.send(f"queue://COMPOSITE.{name}", colour, **options)
    if mode == "TRANSACTED":
        session.commit()
    assert queue.bodies(2) == ["red", "blue"]
    assert topic.receive().body == "red"
    assert topic.take() is None
    assert connection.session().browse(f"COMPOSITE.{name}") == []
    connection.close()


def test_a_mirrored_queue_keeps_its_messages_and_tells_a_topic(jvm: Jvm, only_tandemmq: Peer, name: str) -> None:
    connection = jvm.connect(only_tandemmq.url())
    topic = connection.session().consumer(f"topic://VirtualTopic.Mirror.MIRRORED.{name}")
    connection.session().send(f"queue://MIRRORED.{name}", *"ab")
    assert topic.bodies(2) == ["a", "b"]
    assert connection.session().consumer(f"queue://MIRRORED.{name}").bodies(2) == ["a", "b"]
    connection.close()
