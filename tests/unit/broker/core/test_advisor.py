"""Listeners of advisory topics, and the existing objects that a new listener receives."""

from __future__ import annotations

import pytest

from tandemmq.broker.core.advisor import Audience, Subject, subjects
from tandemmq.broker.core.names import split
from tandemmq.store.records.message import Destination, DestinationKind

# The advisory topics to which every Java client listens.
TEMPORARIES = "ActiveMQ.Advisory.TempQueue,ActiveMQ.Advisory.TempTopic"


def topic(name: str) -> Destination:
    return Destination(DestinationKind.TOPIC, name)


def test_there_are_no_listeners_before_the_first_subscription() -> None:
    audience = Audience()
    assert not audience.is_there
    audience.joined(split(topic("weather")))
    audience.joined((Destination(DestinationKind.QUEUE, "ActiveMQ.Advisory.TempQueue"),))
    assert not audience.is_there
    audience.joined(split(topic(TEMPORARIES)))
    assert audience.is_there
    assert audience.has_listener("ActiveMQ.Advisory.TempTopic")
    assert not audience.has_listener("ActiveMQ.Advisory.Connection")


def test_the_last_listener_that_leaves_ends_the_audience() -> None:
    audience = Audience()
    for _ in range(2):
        audience.joined(split(topic(TEMPORARIES)))
        audience.joined((topic("ActiveMQ.Advisory.>"),))
    for is_there in (True, False):
        assert audience.has_listener("ActiveMQ.Advisory.TempQueue")
        audience.left((topic("ActiveMQ.Advisory.>"),))
        assert audience.has_listener("ActiveMQ.Advisory.Connection") is is_there
        audience.left(split(topic(TEMPORARIES)))
        assert audience.is_there is is_there
    assert not audience.has_listener("ActiveMQ.Advisory.TempQueue")


@pytest.mark.parametrize("pattern", [">", "*.Advisory.>", "ActiveMQ.>", "ActiveMQ.*.Consumer.Queue.>", "*.*.*.*.*"])
def test_wildcards_hear_what_they_match(pattern: str) -> None:
    audience = Audience()
    audience.joined((topic(pattern),))
    assert audience.is_there
    assert audience.has_listener("ActiveMQ.Advisory.Consumer.Queue.orders")


ALL = frozenset(Subject)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("ActiveMQ.Advisory.Connection", {Subject.CONNECTIONS}), ("ActiveMQ.Advisory.Queue", {Subject.QUEUES}),
        ("ActiveMQ.Advisory.Topic", {Subject.TOPICS}), ("ActiveMQ.Advisory.TempQueue", {Subject.TEMP_QUEUES}),
        ("ActiveMQ.Advisory.TempTopic", {Subject.TEMP_TOPICS}),
        ("ActiveMQ.Advisory.Consumer.Queue.A.B", {Subject.CONSUMERS}),
        ("ActiveMQ.Advisory.Consumer.Queue.>", {Subject.CONSUMERS}),
        ("ActiveMQ.Advisory.Producer.Topic.A", {Subject.PRODUCERS}), ("ActiveMQ.Advisory.Queue.A", set()),
        ("ActiveMQ.Advisory.Consumer", set()), ("ActiveMQ.Advisory.MasterBroker", {Subject.MASTER}),
        ("ActiveMQ.Advisory.MessageDLQd.Queue.A", set()), ("ActiveMQ.Advisory.*", ALL),
        ("ActiveMQ.Advisory.>", ALL), ("ActiveMQ.>", ALL), (">", ALL),
        ("weather", set()), ("weather.>", set()),
    ],
)  # fmt: skip
def test_a_new_listener_is_told_what_its_topic_is_about(name: str, told: set[Subject]) -> None:
    assert (subjects(topic(name)), subjects(Destination(DestinationKind.QUEUE, name))) == (told, frozenset())
