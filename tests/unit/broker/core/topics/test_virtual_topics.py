"""Queues of virtual topics, with and without wildcards, as they come and go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.core import names
from tandemmq.broker.core.topics import virtual_topics
from tandemmq.broker.core.topics.virtual_topics import VirtualTopics
from tandemmq.store.records.message import Destination, DestinationKind

WORDS = st.sampled_from(["VirtualTopic", "X", "A", "*", ">"])
NAMES = st.lists(WORDS, min_size=1, max_size=4).map(lambda words: "Consumer.g." + ".".join(words))
TOPICS = [f"VirtualTopic.{rest}" for rest in ("X", "A", "X.A", "X.A.X", "A.A")]


def queue(name: str) -> Destination:
    return Destination(DestinationKind.QUEUE, name)


@given(st.lists(st.tuples(NAMES, st.booleans()), max_size=20), st.integers(1, 3))
def test_a_topic_feeds_the_queues_whose_names_match(changes: list[tuple[str, bool]], remembered: int) -> None:
    virtual = VirtualTopics()
    there: dict[str, None] = {}
    before, virtual_topics.REMEMBERED_MAX = virtual_topics.REMEMBERED_MAX, remembered
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
        virtual_topics.REMEMBERED_MAX = before
    assert not virtual.queues("news")


def test_what_consumers_with_wildcards_have_a_queue_of_their_name() -> None:
    with_queue = ["Consumer.g.VirtualTopic.>", "Consumer.*.VirtualTopic.X", "Consumer.g.>"]
    without = ["Consumer.g.VirtualTopic.X", "Consumer.>", "VirtualTopic.>", "orders.>", "Consumer.g"]
    virtual = VirtualTopics()
    assert [virtual.needs_queue(queue(name)) for name in (*with_queue, *without)] == [True] * 3 + [False] * 5
    assert not virtual.needs_queue(Destination(DestinationKind.TOPIC, with_queue[0]))
