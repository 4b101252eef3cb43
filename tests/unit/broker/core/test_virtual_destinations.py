"""Destinations that forward messages, and their targets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.core import names, virtual_destinations
from tandemmq.broker.core.virtual_destinations import (
    Composite,
    Forward,
    Mirrored,
    VirtualDestinations,
    VirtualTopic,
    VirtualTopics,
)
from tandemmq.store.records.message import Destination, DestinationKind, Message

QUEUE, TOPIC = DestinationKind.QUEUE, DestinationKind.TOPIC


def queue(name: str) -> Destination:
    return Destination(QUEUE, name)


def message(**properties: str) -> Message:
    return Message(queue("a"), "m", b"", properties=dict(properties))


def test_the_most_specific_entry_holds_for_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_destinations, "REMEMBERED_MAX", 2)
    wide, narrow = Composite(QUEUE, "A.>", (Forward(queue("x")),)), Composite(QUEUE, "A.B", (Forward(queue("y")),))
    mirrored = Mirrored(">")
    virtual = VirtualDestinations([wide, narrow], [mirrored])
    for _ in range(2):
        assert virtual.of(queue("A.B")) == (narrow, mirrored, False)
        assert virtual.of(queue("A.C")) == (wide, mirrored, False)
        assert virtual.of(Destination(TOPIC, "A.B")) == (None, None, False)
        assert virtual.of(Destination(TOPIC, "VirtualTopic.A")) == (None, None, True)
        assert virtual.of(Destination(DestinationKind.TEMP_QUEUE, "A.B")) == (None, None, False)
    assert virtual.is_plain(Destination(TOPIC, "A.B"))
    assert not virtual.is_plain(queue("B"))
    assert VirtualDestinations().is_plain(queue("B"))


def test_virtual_topics_may_be_called_otherwise() -> None:
    rules = (VirtualTopic("news.>", "For.*.", ".Q"), VirtualTopic(">", "All.", is_selector_aware=True))
    virtual = VirtualTopics(rules)
    there = [queue(name) for name in ("For.a.news.x.Q", "For.a.b.news.x.Q", "For.a.news.*.Q", "All.news.x", "All.y")]
    for each in there:
        virtual.know(each)
    assert sorted(each.name for each in virtual.queues("news.x")) == ["All.news.x", "For.a.news.*.Q", "For.a.news.x.Q"]
    assert [each.name for each in virtual.queues("y")] == ["All.y"]
    assert virtual.is_selector_aware(queue("All.y"), "y")
    assert not virtual.is_selector_aware(queue("For.a.news.x.Q"), "news.x")
    assert virtual.needs_queue(queue("For.a.news.*.Q"))
    virtual.forget(there[0])
    assert there[0] not in virtual.queues("news.x")


# ---- queues of virtual topics as they come and go


WORDS = st.sampled_from(["VirtualTopic", "X", "A", "*", ">"])
NAMES = st.lists(WORDS, min_size=1, max_size=4).map(lambda words: "Consumer.g." + ".".join(words))
TOPICS = [f"VirtualTopic.{rest}" for rest in ("X", "A", "X.A", "X.A.X", "A.A")]


@given(st.lists(st.tuples(NAMES, st.booleans()), max_size=20), st.integers(1, 3))
def test_a_topic_feeds_the_queues_whose_names_match(changes: list[tuple[str, bool]], remembered: int) -> None:
    virtual = VirtualTopics()
    there: dict[str, None] = {}
    before = virtual_destinations.TOPICS_REMEMBERED_MAX, virtual_destinations.QUEUES_REMEMBERED_MAX
    virtual_destinations.TOPICS_REMEMBERED_MAX, virtual_destinations.QUEUES_REMEMBERED_MAX = remembered, 2 * remembered
    try:
        for name, is_new in changes:
            (virtual.know if is_new else virtual.forget)(queue(name))
            if is_new:
                there[name] = None
            else:
                there.pop(name, None)
            for topic in TOPICS:
                wanted = [each for each in there if names.Pattern(each.split(".", 2)[2]).matches(topic)]
                assert sorted(each.name for each in virtual.queues(topic)) == sorted(wanted)
    finally:
        virtual_destinations.TOPICS_REMEMBERED_MAX, virtual_destinations.QUEUES_REMEMBERED_MAX = before
    assert not virtual.queues("news")


def test_consumers_with_wildcards_have_a_queue_of_their_name() -> None:
    with_queue = ["Consumer.g.VirtualTopic.>", "Consumer.*.VirtualTopic.X", "Consumer.g.>"]
    without = ["Consumer.g.VirtualTopic.X", "Consumer.>", "VirtualTopic.>", "orders.>", "Consumer.g"]
    virtual = VirtualTopics()
    assert [virtual.needs_queue(queue(name)) for name in (*with_queue, *without)] == [True] * 3 + [False] * 5
    assert not virtual.needs_queue(Destination(DestinationKind.TOPIC, with_queue[0]))
