"""Policies for destinations: their maximum number, the life of unused ones, times of redelivery, the search for expired
messages, and the messages that consumers of topics recover or lose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tandemmq.broker.core import policies
from tandemmq.broker.core.commands import AckMode, AddDestination, AddProducer, ErrorKind, Pull, RemoveProducer
from tandemmq.broker.core.policies import (
    CLIENT_QUEUE_PREFETCH,
    CLIENT_TOPIC_PREFETCH,
    DestinationPolicy,
    Eviction,
    EvictionKind,
    Policies,
    PolicyEntry,
    RedeliveryPolicy,
)
from tandemmq.broker.core.slices import at_once
from tandemmq.broker.core.topics import recovery
from tandemmq.broker.core.topics.recovery import Recovery, RecoveryKind
from tandemmq.broker.engine import acknowledge as acknowledger
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import DLQ, ORDERS, PRICES, XA

QUEUE, TOPIC = DestinationKind.QUEUE, DestinationKind.TOPIC


def names(harness) -> list[str]:
    told = at_once(harness.engine.statistics())
    return [each["name"] for each in (*told["queues"], *told["topics"])]


# ---- redelivery


@pytest.fixture
def again(make_harness):
    """A harness where a refused message is redelivered after 2, 4 and 8 seconds, and then not again."""
    redelivery = RedeliveryPolicy(
        3, 2_000, 2_000, use_exponential_back_off=True, back_off_multiplier=2, maximum_redelivery_delay=8_000
    )
    return make_harness(DestinationPolicy(redelivery=redelivery), stomp_nack="requeue")


def test_a_refused_message_comes_again_when_its_time_has_come(again):
    client = again.consumer(prefetch=1).send("a").store("b").nack("a", receipt="r")
    assert (client.receipts, client.bodies) == (["r"], ["a", "b"])
    client.ack("b")
    again.wait(1.9)
    assert (client.bodies, again.figures()["messages"]) == (["a", "b"], 1)
    again.wait(0.2)
    assert client.bodies == ["a", "b", "a"]
    client.nack("a")
    again.wait(3.9)
    assert client.bodies == ["a", "b", "a"]
    again.wait(0.2)
    client.nack("a")
    again.wait(8.1)
    client.nack("a").turn()
    assert (client.bodies, again.figures(DLQ.name)["messages"]) == (["a", "b", "a", "a", "a"], 1)


def test_a_delayed_redelivery_survives_its_consumer_and_the_broker(again):
    again.consumer().store("a").nack("a").vanish()
    other = again.consumer()
    assert other.bodies == []
    again.wait(3)
    assert other.bodies == ["a"]
    other.nack("a")
    again.fail_over()
    assert again.consumer().turn().bodies == ["a"]


def test_a_delayed_redelivery_is_deleted_with_its_queue(again):
    again.consumer().send("a", persistent=False).nack("a").unsubscribe()
    queue = again.destinations.by_name[ORDERS]
    again.destinations.remove(queue)
    again.wait(3)
    assert again.counts["memory_non_persistent_bytes"] == 0


def test_beyond_a_bound_refused_messages_come_again_at_once(again, monkeypatch):
    monkeypatch.setattr(acknowledger, "DELAYED_MAX", 1)
    assert again.consumer().store(*"ab").nack("a").nack("b").bodies == ["a", "b", "b"]


# ---- limits of the number of destinations


def test_a_pattern_comes_to_so_many_destinations(make_harness):
    harness = make_harness(Policies([PolicyEntry(QUEUE, "A.>", replace(DestinationPolicy(), max_destinations=2))]))
    client = harness.client()
    for name in ("A.1", "A.2", "B", "A.3", "A.1"):
        client.send("x", Destination(QUEUE, name), receipt=name)
    client.handle(AddDestination(Destination(QUEUE, "A.4"), "created")).turn()
    assert client.receipts == ["A.1", "A.2", "B", "A.1"]
    assert [error.kind for error in client.session.errors] == [ErrorKind.RESOURCE] * 2
    assert "More than 2 destinations match A.>" in client.errors[0]


def test_those_that_the_store_has_from_before_count(make_harness):
    harness = make_harness(Policies([PolicyEntry(QUEUE, "A.>", replace(DestinationPolicy(), max_destinations=1))]))
    harness.client().send("x", Destination(QUEUE, "A.1")).turn()
    harness.fail_over()
    client = harness.client().send("x", Destination(QUEUE, "A.2"))
    assert len(client.errors) == 1


# ---- unused ones


@pytest.fixture
def tidy(make_harness):
    """A harness where what was unused for ten seconds goes."""
    return make_harness(DestinationPolicy(gc_inactive_destinations=True, inactive_timeout_before_gc=10_000))


def test_an_unused_queue_is_deleted_and_can_be_created_again(tidy):
    client = tidy.client().send("a", receipt="1").send("b", PRICES)
    client.subscribe("s", ORDERS, AckMode.AUTO).turn().unsubscribe()
    tidy.wait(9)
    assert names(tidy) == ["orders", "prices"]
    tidy.wait(3)
    assert (names(tidy), tidy.store.owners(), tidy.counts["destinations_gone_idle_total"]) == ([], [], 2)
    client.send("c", receipt="2").turn()
    assert (client.receipts, tidy.figures()["messages"]) == (["1", "2"], 1)


def test_without_a_policy_everything_stays(make_harness):
    goes = DestinationPolicy(gc_inactive_destinations=True, inactive_timeout_before_gc=10_000)
    for entries, left in ((), ["orders", "prices"]), ([PolicyEntry(TOPIC, "prices", goes)], ["orders"]):
        harness = make_harness(Policies(entries))
        harness.client().send("b", PRICES).handle(AddDestination(ORDERS))
        harness.wait(1_000)
        assert sorted(names(harness)) == left


def test_a_used_queue_stays(tidy):
    client = tidy.client("me").send("a").subscribe("s", Destination(QUEUE, "consumed"))
    client.subscribe("d", PRICES, durable_name="d")
    client.handle(AddProducer("1:1", Destination(QUEUE, "produced")))
    tidy.wait(60)
    assert sorted(names(tidy)) == ["consumed", "orders", "prices", "produced"]
    client.handle(RemoveProducer("1:1"))
    tidy.wait(12)
    assert sorted(names(tidy)) == ["consumed", "orders", "prices"]


def test_a_queue_that_gets_messages_stays(tidy):
    client = tidy.client()
    for _ in range(5):
        client.send("a", PRICES)
        tidy.wait(9)
    assert (names(tidy), tidy.counts["destinations_gone_idle_total"]) == (["prices"], 0)


def test_no_message_is_lost_that_is_sent_while_the_queue_is_being_deleted(tidy):
    client = tidy.consumer("s", ORDERS, AckMode.AUTO).unsubscribe()
    tidy.wait(10)
    assert names(tidy) == ["orders"]
    tidy.now += 1_000
    tidy.engine.tick(tidy.now)  # the mark is passed to the store
    client.send("late", receipt="r").turn()
    assert (client.receipts, tidy.figures()["messages"], tidy.stored()) == (["r"], 1, 1)


def test_a_queue_stays_while_a_prepared_branch_may_add_to_it(tidy):
    tidy.client().begin_branch().send("a", transaction=XA.key).prepare()
    tidy.wait(60)
    assert names(tidy) == ["orders"]


def test_empty_ones_from_before_go_too(tidy):
    tidy.client().send("a").subscribe("s", ORDERS, AckMode.AUTO).turn()
    assert tidy.stored() == 0
    tidy.fail_over()
    tidy.wait(15)
    assert (names(tidy), tidy.store.owners()) == ([], [])


# ---- expired messages


@pytest.mark.parametrize(("period", "seconds"), [(1_000, 2), (30_000, 30)])
def test_expired_messages_are_searched_at_the_interval_of_the_policy(make_harness, period, seconds):
    harness = make_harness(DestinationPolicy(expire_messages_period=period))
    harness.client().send("a", expiration=1_500).turn()
    harness.wait(seconds - 1.5)
    assert harness.counts["expired_total"] == 0
    harness.wait(1)
    assert harness.counts["expired_total"] == 1


def test_expired_messages_may_stay_until_they_are_found(make_harness):
    harness = make_harness(DestinationPolicy(expire_messages_period=0))
    client = harness.client().send("a", expiration=1_500).turn()
    harness.wait(100)
    assert harness.counts["expired_total"] == 0
    client.subscribe().turn()
    assert (client.bodies, harness.counts["expired_total"]) == ([], 1)


# ---- priorities


def test_a_client_that_can_pull_gets_the_effective_prefetch(make_harness):
    harness = make_harness(DestinationPolicy(queue_prefetch=0, topic_prefetch=7), prefetch_max=500)
    client, other = harness.consumer("unsaid", prefetch=CLIENT_QUEUE_PREFETCH), harness.client()
    client.subscribe("said", prefetch=20).subscribe("too much", prefetch=600)
    client.subscribe("topic", Destination(DestinationKind.TOPIC, "t"), prefetch=CLIENT_TOPIC_PREFETCH)
    assert client.session.prefetches == [("unsaid", 0), ("too much", 500), ("topic", 7)]
    assert client.client.subscriptions["unsaid"].is_pull
    other.session.can_pull = False
    other.subscribe("s", prefetch=CLIENT_QUEUE_PREFETCH).subscribe("own")
    assert other.session.prefetches == []
    assert [each.prefetch for each in other.client.subscriptions.values()] == [1, 1]


def test_a_browser_that_pulls_sees_all(harness):
    client, sender = harness.client(), harness.client()
    nothings = client.session.nothings
    sender.store(*range(5))
    client.subscribe("b", ack=AckMode.RANGE, prefetch=0, is_browser=True).turn()
    for number in range(5):
        assert (client.bodies, nothings) == ([str(each) for each in range(number)], [])
        client.handle(Pull("b", -1)).turn()
    assert client.bodies == [str(each) for each in range(5)]
    client.handle(Pull("b", -1))
    assert len(nothings) in (1, 2)
    assert set(nothings) == {"b"}


def test_a_pull_that_does_not_wait_is_answered_at_once(harness):
    client = harness.consumer(prefetch=0)
    for bodies, told in (([], ["s"]), (["a"], ["s"]), (["a"], ["s", "s"])):
        client.handle(Pull("s", -1)).turn()
        assert (client.bodies, client.session.nothings) == (bodies, told)
        if not bodies:
            harness.client().store("a")


# ---- when a queue begins to give out


def test_a_queue_waits_for_so_many_consumers_and_begins_anew_without_any(make_harness):
    harness = make_harness(DestinationPolicy(consumers_before_dispatch_starts=2, time_before_dispatch_starts=10_000))
    one, two = harness.client(), harness.client()
    one.send("a").subscribe()
    harness.wait(5)
    assert one.bodies == []
    two.subscribe().turn()
    assert one.bodies + two.bodies == ["a"]
    one.unsubscribe()
    two.unsubscribe().turn()
    before = len(one.bodies)
    one.subscribe()
    harness.wait(5)
    assert len(one.bodies) == before
    harness.wait(6)
    assert len(one.bodies) == before + 1


@pytest.mark.parametrize(("consumers", "milliseconds", "seconds"), [(0, 3_000, 3), (5, 0, 1)])
def test_a_queue_waits_no_longer_than_its_policy_says(make_harness, consumers, milliseconds, seconds):
    policy = DestinationPolicy(consumers_before_dispatch_starts=consumers, time_before_dispatch_starts=milliseconds)
    harness = make_harness(policy)
    client = harness.client().send("a").subscribe()
    harness.wait(seconds - 0.1)
    assert client.bodies == []
    harness.wait(0.1)
    assert client.bodies == ["a"]


# ---- plain consumers of topics: the messages that they recover, and those that they lose


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
