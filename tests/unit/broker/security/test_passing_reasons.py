"""Nothing that a user scheduled, and may still send, is lost because something is away for a moment."""

# proves: due-topics-begin-again, due-waits-for-its-queue, idle-ones-begin-again, deleted-ones-do-not-begin-again
# proves: letters-of-durables-count-for-their-users, room-after-a-restart
# proves: schedules-outlast-a-moment, too-large-later-is-refused-at-once, large-ones-that-wait-are-sent
# proves: large-ones-stay-accepted

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from tandemmq.broker.core.commands import AckMode, AddDestination, Nack, RemoveDestination
from tandemmq.broker.core.policies import DEFAULT_TARGET, DeadLetterStrategy, DestinationPolicy, Policies, PolicyEntry
from tandemmq.broker.core.principal import Principal
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import Client
from tests.unit.broker.security.test_principals import (
    ALL,
    BOTH,
    CHAIN,
    CRON,
    CRON_RUN,
    ENDLESS,
    LATER,
    NEWS,
    READ,
    SECRET,
    SENDS_ON,
    WRITE,
    World,
    queue,
)

SCHEDULES = pytest.mark.parametrize(
    "schedule", [LATER, ENDLESS, CRON, CRON_RUN], ids=["once", "endless", "cron", "run"]
)
REPEATED = pytest.mark.parametrize("schedule", [ENDLESS, CRON, CRON_RUN], ids=["endless", "cron", "run"])
GOES_WHEN_IDLE = Policies((), DestinationPolicy(gc_inactive_destinations=True, inactive_timeout_before_gc=5_000))


@pytest.mark.parametrize("listening", [NEWS, NEWS._replace(name=">")], ids=["name", "wildcard"])
@SCHEDULES
def test_a_topic_that_a_failover_took_begins_again(schedule: dict[str, Any], listening: Destination) -> None:
    world = World(frozenset({WRITE}), NEWS)
    world.ann.store("x", destination=NEWS, properties=schedule)
    world.fail_over()
    world.come()
    if listening != NEWS:
        world.root.subscribe("s", listening, AckMode.AUTO)
    world.wait(65)  # no client has named the topic since
    if listening == NEWS:
        world.root.subscribe("s", listening, AckMode.AUTO)
    world.wait(65)
    assert world.counts["scheduled"] == (schedule is not LATER)
    assert bool(world.root.bodies) == (schedule is not LATER or listening != NEWS)
    assert world.destinations.maker(NEWS) == "ann"


def test_a_will_reaches_a_topic_that_a_failover_took() -> None:
    world = World(frozenset({WRITE}))
    world.root.subscribe("s", NEWS._replace(name=">"), AckMode.AUTO)
    ann, session = Principal("ann", world.groups["ann"]), Destination(SECRET.kind, "ActiveMQ.MQTT.Session.ann")
    away = Client(world, "ID:will", lambda client: world.engine.opened_for(client, ann, session))  # type: ignore[arg-type]
    away.send("will", NEWS)
    world.turn()
    assert world.root.bodies == ["will"]


@SCHEDULES
def test_a_queue_that_was_deleted_is_waited_for(schedule: dict[str, Any]) -> None:
    world = World(frozenset({WRITE}), SECRET)
    world.ann.store("x", destination=SECRET, properties=schedule)
    world.root.handle(RemoveDestination(SECRET)).turn()
    world.wait(7_300)
    assert (world.destinations.exists(SECRET), world.counts["scheduled"]) == (False, 1)
    world.root.handle(AddDestination(SECRET))
    world.wait(65)
    assert world.count(SECRET) > 0
    assert bool(world.counts["scheduled"]) == (schedule is not LATER)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_destination_that_ended_unused_can_be_created_by_a_user_that_may_send(is_deleted: bool) -> None:
    world = World(frozenset({WRITE}), SECRET, policies=GOES_WHEN_IDLE)
    world.ann.store("x", destination=SECRET, properties=CRON)
    world.wait(10)
    assert not world.destinations.exists(SECRET)
    if is_deleted:
        world.root.handle(RemoveDestination(SECRET)).turn()
    world.ann.store("now", destination=SECRET)
    world.wait(61)
    assert (len(world.ann.errors), world.count(SECRET) > 0) == (is_deleted, not is_deleted)
    assert world.counts["scheduled"] == 1


@pytest.mark.parametrize("change", ["right", "user"])
@REPEATED
def test_a_schedule_outlasts_a_user_who_is_away_for_a_moment(schedule: dict[str, Any], change: str) -> None:
    world = World(frozenset({WRITE, READ}), SECRET)
    world.ann.store("x", destination=SECRET, properties=schedule)
    world.fail_over()
    groups = world.groups["ann"]
    if change == "user":
        del world.groups["ann"]
    else:
        world.groups["ann"] = ALL
    world.wait(600)
    assert (world.count(SECRET), world.counts["scheduled"]) == (0, 1)
    world.groups["ann"] = groups
    world.wait(125)
    assert (world.count(SECRET) > 0, world.counts["scheduled"] > 0) == (True, True)


SMALL: Final = Policies([PolicyEntry(SECRET.kind, SECRET.name, DestinationPolicy(max_message_size=1_900))])


@pytest.mark.parametrize("destination", [BOTH, SENDS_ON, CHAIN, SECRET])
def test_a_message_too_large_for_later_sending_is_refused_at_once(destination: Destination) -> None:
    world = World(frozenset({WRITE}), SECRET, policies=SMALL, transaction_bytes_max=3_000)
    world.ann.send("x" * 2_000, destination, properties=LATER)
    world.turn()
    assert (len(world.ann.errors), world.counts.get("scheduled", 0)) == (1, 0)


@pytest.mark.parametrize("destination", [BOTH, SENDS_ON, CHAIN, SECRET])
def test_a_message_accepted_before_the_limit_is_sent(destination: Destination) -> None:
    world = World(frozenset({WRITE}), SECRET)
    world.ann.send("x" * 2_000, destination, properties=LATER)
    world.turn()
    world.settings = replace(world.settings, transaction_bytes_max=3_000)
    if destination == SECRET:
        world.policies = SMALL
    world.fail_over()
    world.wait(61)
    assert (world.count(SECRET), world.counts["scheduled"]) == (1, 0)


LETTERS: Final = Destination(DestinationKind.TOPIC, "ActiveMQ.DLQ.Queue.secret")
TO_TOPICS: Final = Policies((), DestinationPolicy(dead_letter=DeadLetterStrategy(use_queue_for_queue_messages=False)))


@pytest.mark.parametrize("durable", [True, False])
def test_a_refused_one_is_kept_where_dead_letters_go_to_a_topic(durable: bool) -> None:
    world = World(frozenset({WRITE}), SECRET, policies=TO_TOPICS)
    world.root.subscribe("d", LETTERS, AckMode.AUTO, durable_name="d" if durable else None)
    world.ann.store("x", destination=SECRET, properties=LATER)
    world.groups["ann"] = ALL
    world.wait(61)
    assert (world.root.bodies, world.count(DEFAULT_TARGET)) == ((["x"], 0) if durable else ([], 1))


LIMIT: Final = 20
TO_EACH: Final = DeadLetterStrategy(destination_per_durable_subscriber=True, enable_audit=False)


@pytest.mark.parametrize("is_after_failover", [False, True])
def test_dead_letters_of_durable_subscriptions_count_for_who_has_them(is_after_failover: bool) -> None:
    world = World(frozenset({READ}), NEWS, policies=Policies((), DestinationPolicy(dead_letter=TO_EACH)))
    world.settings = replace(world.settings, destinations_max=LIMIT)
    world.fail_over()
    world.come()
    world.root.handle(AddDestination(NEWS))
    names = [f"d{number}" for number in range(2 * LIMIT)]
    for name in names:
        world.ann.subscribe(name, NEWS, AckMode.INDIVIDUAL, durable_name=name).turn()
    world.root.store("x", destination=NEWS)
    if is_after_failover:
        world.fail_over()
        world.come()
        for name in names:
            world.ann.subscribe(name, NEWS, AckMode.INDIVIDUAL, durable_name=name).turn()
    for found in list(world.ann.session.delivered):
        world.ann.handle(Nack(found.subscription, found.tag)).turn()
    world.root.store("x", destination=SECRET)
    assert world.root.errors == []
    assert world.destinations.maker(queue("ActiveMQ.DLQ.Topic.secret.ann:d0")) == "ann"
    assert 0 < world.count(DEFAULT_TARGET) < 2 * LIMIT


def test_dead_letters_leave_room_after_a_restart() -> None:
    """After a restart the creators of the existing destinations are not known."""
    world = World(frozenset(), destinations_max=LIMIT)
    names = [f"open.{number}" for number in range(LIMIT // 2)]
    for name in names:
        world.ann.store(name, destination=queue(name))
    world.fail_over()
    world.come()
    for name in names:
        world.ann.subscribe(name, queue(name)).turn().nack(name).turn()
    world.bob.store("x", destination=queue("open.bob"))
    assert (world.bob.errors, world.count(DEFAULT_TARGET) > 0) == ([], True)
