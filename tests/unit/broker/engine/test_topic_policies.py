"""Policies for plain consumers of topics: the messages that they recover, and those that they lose."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core import policies
from tandemmq.broker.core.commands import AckMode
from tandemmq.broker.core.policies import DestinationPolicy, Eviction, EvictionKind
from tandemmq.broker.core.topics import recovery
from tandemmq.broker.core.topics.recovery import Recovery, RecoveryKind
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import PRICES

EVERY = Destination(DestinationKind.TOPIC, ">")


def ask(harness: Any, destination: Destination = PRICES, **options: Any) -> list[str]:
    """Return the messages that a new consumer recovers."""
    client = harness.consumer("s", destination, AckMode.AUTO, **{"is_retroactive": True, **options}).turn()
    bodies: list[str] = client.bodies
    client.unsubscribe("s")
    return bodies


@pytest.mark.parametrize(
    ("kept", "given"),
    [
        (Recovery(RecoveryKind.FIXED_COUNT, maximum_count=3), ["c", "d", "e"]),
        (Recovery(RecoveryKind.LAST_IMAGE), ["e"]),
        (Recovery(RecoveryKind.RETAINED_MESSAGE), ["d"]),
        (Recovery(RecoveryKind.TIMED, recover_duration=2_500), ["d", "e"]),
        (Recovery(RecoveryKind.FIXED_SIZED, maximum_size=1), []),
        (Recovery(RecoveryKind.FIXED_SIZED, maximum_size=1 << 20), ["a", "b", "c", "d", "e"]),
    ],
)
@pytest.mark.parametrize("is_persistent", [True, False])
def test_a_topic_gives_what_it_kept(make_harness: Any, kept: Recovery, given: list[str], is_persistent: bool) -> None:
    harness = make_harness(DestinationPolicy(recovery=kept))
    sender = harness.client()
    for body in "abcde":
        properties = {"ActiveMQ.Retain": True} if body in "bd" else None
        sender.send(body, PRICES, persistent=is_persistent, properties=properties)
        harness.wait(1)
    assert (ask(harness), ask(harness, EVERY), ask(harness, is_retroactive=False)) == (given, given, [])
    assert ask(harness, selector="JMSPriority > 5") == []
    harness.destinations.remove(harness.destinations.topic(PRICES, None))
    assert harness.engine.memory.used == 0, "what was kept is given back with the topic"


def test_each_consumer_gets_the_kept_messages_that_have_not_expired(make_harness: Any) -> None:
    harness = make_harness(DestinationPolicy(recovery=Recovery(RecoveryKind.FIXED_COUNT), always_retroactive=True))
    harness.client().send("old", PRICES, expiration=2_000).send("new", PRICES)
    harness.wait(3)
    assert ask(harness, is_retroactive=False) == ["new"]


def test_kept_messages_are_bounded_and_make_room_for_others(make_harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "KEPT_MESSAGES_MAX", 2)
    harness = make_harness(DestinationPolicy(recovery=Recovery(RecoveryKind.TIMED)))
    sender = harness.client().send_all("abc", PRICES)
    assert ask(harness) == ["b", "c"]
    harness.engine.memory.limit = 0
    sender.send("d", PRICES, persistent=True)
    harness.engine.memory.limit = 1 << 20
    assert ask(harness) == []


@pytest.mark.parametrize(
    ("kind", "looked_at", "kept"),
    [
        (EvictionKind.LOWEST_PRIORITY, 1000, ["a9", "c8", "e1"]),
        (EvictionKind.LOWEST_PRIORITY, 2, ["a9", "d1", "e1"]),  # of a long backlog a bounded part is looked at
        (EvictionKind.UNIQUE_PROPERTY, 1000, ["b1", "d1", "e1"]),
    ],
)
def test_which_messages_a_slow_consumer_loses_is_a_policy(
    make_harness: Any, monkeypatch: pytest.MonkeyPatch, kind: EvictionKind, looked_at: int, kept: list[str]
) -> None:
    monkeypatch.setattr(policies, "LOOKED_AT_MAX", looked_at)
    harness = make_harness(DestinationPolicy(pending_message_limit=3, eviction=Eviction(kind, "stock")))
    slow, sender = harness.consumer("s", PRICES, AckMode.AUTO), harness.client()
    slow.has_space = False
    for body, stock in (("a9", "x"), ("b1", "y"), ("c8", "x"), ("d1", "x"), ("e1", "z")):
        sender.send(body, PRICES, priority=int(body[1]), properties={"stock": stock}, persistent=False)
    assert slow.regain_space().turn().bodies == kept


def test_the_limit_may_be_a_multiple_of_the_prefetch(make_harness: Any) -> None:
    harness = make_harness(DestinationPolicy(pending_multiplier=1.5))
    slow, sender = harness.consumer("s", PRICES, AckMode.INDIVIDUAL, prefetch=2), harness.client()
    sender.send_all("abcdefg", PRICES, persistent=False)
    assert slow.bodies == ["a", "b"]
    for body in "ab":
        slow.ack(body)
    assert slow.bodies[2:] == ["e", "f"], "three waited, and of those two had room"
