"""Each way of a message, a consumer or a destination requires the rights that its user has at that time.

A destination that begins counts for that user. Each way is combined with all rights.
"""

# proves: recreating-needs-the-right, each-copy-needs-the-right, reading-needs-the-right
# proves: creating-needs-the-right, deleting-needs-the-right
# proves: what-begins-counts, durable-topics-count, dead-letters-count, dead-letters-leave-room
# proves: due-with-the-rights-of-now, refused-when-due-is-kept, schedule-refused-at-once, reply-refused-at-once
# proves: due-topics-begin-again, bridges-act-later, origin-needs-the-right, branches-know-what-they-reach

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any, Final

import pytest

from tandemmq.broker.admin.api.message_work import origin_of, retried
from tandemmq.broker.core.commands import (
    AckMode,
    AddDestination,
    AddProducer,
    ErrorKind,
    Move,
    RemoveDestination,
    Send,
    refusal,
)
from tandemmq.broker.core.policies import Policies
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.virtual_destinations import Composite, Forward, Mirrored, VirtualDestinations
from tandemmq.broker.engine.dead_letters import CAUSE_PROPERTY
from tandemmq.broker.engine.scheduler import MANAGEMENT
from tandemmq.broker.security.rights import Grant
from tandemmq.store.records.altered import altered
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import XA, Client
from tests.unit.broker.security.conftest import RuledAccess
from tests.unit.broker.security.test_connection_ids import Secured

QUEUE, TOPIC = DestinationKind.QUEUE, DestinationKind.TOPIC


def queue(name: str) -> Destination:
    return Destination(QUEUE, name)


OPEN, SECRET, SENDS_ON, CHAIN, MIRRORED = map(
    queue, ("open.a", "secret", "open.sends-on", "open.chain", "open.mirrored")
)
BOTH = queue("open.a,secret")
NEWS, MIRROR = Destination(TOPIC, "secret"), Destination(TOPIC, "secret.open.mirrored")
VIRTUAL, FED = Destination(TOPIC, "VirtualTopic.open"), queue("Consumer.secret.VirtualTopic.open")
ASKED = Destination(TOPIC, MANAGEMENT)
BRIDGE = Principal("bridge b", may_everything=True)
DLQ = queue("ActiveMQ.DLQ.Queue.secret")
LATER: Final = {"AMQ_SCHEDULED_DELAY": 60_000}
ENDLESS: Final = {"AMQ_SCHEDULED_PERIOD": 60_000, "AMQ_SCHEDULED_REPEAT": -1}
CRON: Final = {"AMQ_SCHEDULED_CRON": "* * * * *"}
CRON_RUN: Final = {**CRON, "AMQ_SCHEDULED_PERIOD": 1_000, "AMQ_SCHEDULED_REPEAT": 2}
READ, WRITE, ADMIN = "read", "write", "admin"
ALL, ROOT = frozenset({"all"}), frozenset({"root"})
RIGHTS: Final = [frozenset(some) for count in range(4) for some in combinations((READ, WRITE, ADMIN), count)]
GRANTS: Final = [
    *(
        Grant(kind, pattern, frozenset({READ}), frozenset({WRITE}), frozenset({ADMIN}))
        for kind in (QUEUE, TOPIC)
        for pattern in ("secret.>", "Consumer.>")
    ),
    *(Grant(kind, "open.>", ALL, ALL, ALL) for kind in (QUEUE, TOPIC)),
    *(Grant(TOPIC, name, frozenset(), ALL, ALL) for name in (MANAGEMENT, VIRTUAL.name)),
    *(Grant(kind, ">", ROOT, ROOT, ROOT) for kind in (QUEUE, TOPIC)),
]


class World(Secured):
    """``ann`` has ``rights`` on what is secret, and all on what is open; root has all. ``there``: what exists."""

    def __init__(
        self, rights: frozenset[str], *there: Destination, policies: Policies | None = None, **settings: Any
    ) -> None:
        forwards = [Composite(QUEUE, a.name, (Forward(b),)) for a, b in ((SENDS_ON, SECRET), (CHAIN, SENDS_ON))]
        virtual = VirtualDestinations(forwards, [Mirrored(MIRRORED.name, "secret.")])
        self.groups = {"ann": ALL | rights, "bob": ALL, "root": ROOT}
        self.access = RuledAccess(self.groups, GRANTS)
        super().__init__(EngineSettings(virtual_destinations=virtual, **settings), policies)
        self.come()
        for each in there:
            self.root.handle(AddDestination(each))

    def come(self) -> None:
        self.ann, self.bob, self.root = (self.user(name, None, client_id=name) for name in ("ann", "bob", "root"))
        self.turn()

    def give(self, client: Any, destination: Destination, **fields: Any) -> None:
        """Send x, and let time go by until what is scheduled is due."""
        client.send("x", destination, **fields)
        self.turn()
        if "properties" in fields:
            self.wait(61)

    def count(self, destination: Destination) -> int:
        """Messages that were sent there."""
        target = self.destinations.existing(destination)
        return 0 if target is None else target.enqueued

    def take(self, client: Any, source: Destination) -> Any:
        client.subscribe("taken", source, AckMode.RANGE)
        self.turn()
        return client.session.delivered[-1]


def send(destination: Destination, **fields: Any) -> Callable[[World], None]:
    return lambda world: world.give(world.ann, destination, **fields)


def in_transaction(world: World) -> None:
    world.ann.begin().send("x", SECRET, transaction="t").commit()


def in_branch(world: World) -> None:
    world.ann.begin_branch().send("x", SENDS_ON, transaction=XA.key).prepare().turn().commit_branch()


def due_after_failover(world: World) -> None:
    world.ann.send("x", BOTH, properties=LATER).turn()
    world.fail_over()
    world.wait(61)


def move(destination: Destination) -> Callable[[World], None]:
    def moved(world: World) -> None:
        world.root.store("x", destination=OPEN)
        found = world.take(world.ann, OPEN)
        world.ann.handle(Move("taken", found.tag, altered(found.message, destination=destination)))

    return moved


def forge(world: World) -> None:
    """An operator retries a letter that died nowhere."""
    message = world.ann.message("x", OPEN, original_destination=SECRET)
    world.ann.handle(Send(message)).turn()
    found = world.take(world.root, OPEN)
    if origin_of(found.message) is not None:
        world.root.handle(Move("taken", found.tag, retried(found.message)))


def reply(destination: Destination) -> Callable[[World], None]:
    def asked(world: World) -> None:
        world.ann.store("x", destination=OPEN, properties=ENDLESS)
        asking = {"AMQ_SCHEDULER_ACTION": "BROWSE"}
        world.ann.store("", destination=ASKED, properties=asking, reply_to=destination)

    return asked


def may_write(rights: frozenset[str], is_there: bool) -> bool:
    return WRITE in rights and (is_there or ADMIN in rights)


WRITING: Final[dict[str, tuple[Callable[[World], None], Destination]]] = {
    "send": (send(SECRET), SECRET),
    "send to a topic": (send(NEWS), NEWS),
    "list": (send(BOTH), SECRET),
    "forward": (send(SENDS_ON), SECRET),
    "forward of a forward": (send(CHAIN), SECRET),
    "forward, not stored": (send(SENDS_ON, persistent=False), SECRET),
    "mirrored": (send(MIRRORED), MIRROR),
    "transaction": (in_transaction, SECRET),
    "XA, forward": (in_branch, SECRET),
    "scheduled": (send(SECRET, properties=LATER), SECRET),
    "scheduled, not stored": (send(SECRET, properties=LATER, persistent=False), SECRET),
    "scheduled, list": (send(BOTH, properties=LATER), SECRET),
    "scheduled, forward": (send(SENDS_ON, properties=LATER), SECRET),
    "scheduled, forward of a forward": (send(CHAIN, properties=LATER), SECRET),
    "scheduled, mirrored": (send(MIRRORED, properties=LATER), MIRROR),
    "scheduled, again and again": (send(SENDS_ON, properties=ENDLESS), SECRET),
    "scheduled, cron": (send(SENDS_ON, properties=CRON), SECRET),
    "scheduled, list, failover": (due_after_failover, SECRET),
    "move": (move(SECRET), SECRET),
    "move, list": (move(BOTH), SECRET),
    "move, forward": (move(SENDS_ON), SECRET),
    "move, mirrored": (move(MIRRORED), MIRROR),
    "a client's original destination": (forge, SECRET),
    "reply of the scheduler": (reply(SECRET), SECRET),
    "reply of the scheduler, forward": (reply(SENDS_ON), SECRET),
}


@pytest.mark.parametrize("is_there", [True, False], ids=["there", "new"])
@pytest.mark.parametrize("rights", RIGHTS, ids=lambda rights: "+".join(sorted(rights)) or "none")
@pytest.mark.parametrize("way", WRITING)
def test_a_send_or_creation_without_the_right_is_refused(way: str, rights: frozenset[str], is_there: bool) -> None:
    act, target = WRITING[way]
    world = World(rights, *([target] if is_there else []))
    act(world)
    world.turn()
    is_due = may_write(rights, is_there)
    assert (world.count(target) > 0) == is_due
    assert world.destinations.exists(target) == (is_there or is_due)
    assert bool(world.ann.errors) == (not is_due and act is not forge), "who asks is told at once"
    if is_due and not is_there:
        assert world.destinations.maker(target) == ("root" if act is forge else "ann")


@pytest.mark.parametrize("rights", RIGHTS, ids=lambda rights: "+".join(sorted(rights)) or "none")
def test_a_virtual_topic_feeds_queues_that_are_there_and_needs_the_right_for_itself_alone(
    rights: frozenset[str],
) -> None:
    for there in ((), (FED,)):
        for fields in ({}, {"properties": LATER}):
            world = World(rights, *there)
            world.give(world.ann, VIRTUAL, **fields)
            assert world.count(FED) == len(there)


# ---- reading, creating, deleting


def subscribe(destination: Destination, **options: Any) -> Callable[[World], None]:
    return lambda world: world.ann.subscribe("s", destination, AckMode.AUTO, **options)


def handle(command: Callable[[], Any]) -> Callable[[World], None]:
    return lambda world: world.ann.handle(command())


READING: Final[dict[str, tuple[Callable[[World], None], Destination]]] = {
    "subscribe": (subscribe(SECRET), SECRET),
    "list": (subscribe(BOTH), SECRET),
    "wildcard": (subscribe(queue("*")), SECRET),
    "browse": (subscribe(SECRET, is_browser=True), SECRET),
    "topic": (subscribe(NEWS), NEWS),
    "topic, wildcard": (subscribe(NEWS._replace(name=">")), NEWS),
    "durable": (subscribe(NEWS, durable_name="d"), NEWS),
    "durable, wildcard": (subscribe(NEWS._replace(name="*"), durable_name="d"), NEWS),
    "shared": (subscribe(NEWS, share="g"), NEWS),
}


@pytest.mark.parametrize("is_there", [True, False], ids=["there", "new"])
@pytest.mark.parametrize("rights", RIGHTS, ids=lambda rights: "+".join(sorted(rights)) or "none")
@pytest.mark.parametrize("way", READING)
def test_a_read_without_the_right_is_refused(way: str, rights: frozenset[str], is_there: bool) -> None:
    act, target = READING[way]
    world = World(rights, *([target] if is_there else []))
    if is_there and target is SECRET:
        world.root.store("before", destination=SECRET)
    act(world)
    world.turn()
    is_pattern = "wildcard" in way
    may = READ in rights and (is_there or is_pattern or ADMIN in rights)
    assert world.destinations.exists(target) == (is_there or (may and not is_pattern))
    if not is_there and may and not is_pattern:
        assert world.destinations.maker(target) == "ann"
    world.root.store("after", destination=target)
    assert bool({"before", "after"} & {*world.ann.bodies}) == (may and (is_there or way != "browse"))


@pytest.mark.parametrize("is_there", [True, False], ids=["there", "new"])
@pytest.mark.parametrize("rights", RIGHTS, ids=lambda rights: "+".join(sorted(rights)) or "none")
def test_creating_and_deleting_needs_the_right(rights: frozenset[str], is_there: bool) -> None:
    for command, needed, leaves in (
        (AddDestination(SECRET), {ADMIN}, True),
        (AddProducer("p", SECRET), {ADMIN, WRITE}, True),
        (RemoveDestination(SECRET), {ADMIN}, False),
    ):
        world = World(rights, *([SECRET] if is_there else []))
        world.ann.handle(command)
        world.turn()
        assert world.destinations.exists(SECRET) == (leaves if needed <= rights else is_there)


# ---- the rights of then


@pytest.mark.parametrize("way", ["send", "list", "transaction", "producer"])
def test_a_user_that_may_only_write_cannot_create_a_deleted_destination_again(way: str) -> None:
    world = World(frozenset({WRITE}), SECRET)
    world.ann.store("x", destination=SECRET)
    world.root.handle(RemoveDestination(SECRET)).turn()
    if way == "producer":
        world.ann.handle(AddProducer("p", SECRET))
    elif way == "transaction":
        in_transaction(world)
    else:
        world.give(world.ann, SECRET if way == "send" else BOTH)
    world.turn()
    assert not world.destinations.exists(SECRET)
    assert "not authorized to create" in world.ann.errors[-1]


@pytest.mark.parametrize("change", ["right", "user"])
@pytest.mark.parametrize("is_after_failover", [False, True])
@pytest.mark.parametrize("schedule", [LATER, ENDLESS, CRON, CRON_RUN], ids=["once", "endless", "cron", "cron run"])
def test_a_due_message_without_the_right_is_a_dead_letter_with_the_reason(
    schedule: dict[str, Any], is_after_failover: bool, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(frozenset({WRITE}), SECRET)
    world.ann.store("x", destination=BOTH, properties=schedule)
    if change == "user":
        del world.groups["ann"]
    else:
        world.groups["ann"] = ALL
    if is_after_failover:
        world.fail_over()
        world.root = world.user("root", None)
    world.wait(200 if schedule is LATER else 3_800)
    assert (world.count(OPEN), world.count(SECRET), world.counts["scheduled"]) == (0, 0, 0)
    letter = world.take(world.root, queue("ActiveMQ.DLQ.Queue.open.a")).message
    reason = (
        "User ann no longer exists" if change == "user" else "User ann is not authorized to write to: queue://secret"
    )
    cause = letter.properties[CAUSE_PROPERTY]
    assert ("ann" in cause, "secret" in cause, "See the log" in cause) == (False, False, True)
    assert schedule is LATER or all(f"{name}={value!r}" in cause for name, value in schedule.items())
    assert reason in caplog.text
    assert len(world.root.session.delivered) == 1
    world.root.handle(Move("taken", world.root.session.delivered[-1].tag, retried(letter))).turn()
    assert (world.count(OPEN), world.count(SECRET)) == (1, 1)


def test_a_due_message_without_a_dead_letter_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    world = World(frozenset({WRITE}), SECRET)
    world.ann.store("x", destination=SECRET, properties=LATER, persistent=False)
    world.groups["ann"] = ALL
    world.wait(61)
    assert not world.destinations.exists(DLQ)
    assert "no dead letter is kept of it" in caplog.text


@pytest.mark.parametrize("is_of_settings", [True, False])
def test_a_scheduled_message_of_a_bridge_needs_the_bridge(is_of_settings: bool) -> None:
    """The bridge itself may begin later than the term."""
    world = World(frozenset(), SECRET)
    connection = Client(world, "ID:bridge", lambda client: world.engine.opened_as(client, BRIDGE))  # type: ignore[arg-type]
    connection.send("x", SECRET, properties=LATER)
    world.turn()
    world.of_settings = [BRIDGE] if is_of_settings else []
    world.fail_over()
    world.wait(61)
    assert (world.count(SECRET), world.count(DLQ)) == (int(is_of_settings), int(not is_of_settings))


@pytest.mark.parametrize("is_after_failover", [False, True])
def test_a_decision_about_a_branch_needs_the_right_for_all_its_destinations(is_after_failover: bool) -> None:
    world = World(frozenset({WRITE}), SECRET)
    world.ann.begin_branch().send("x", SENDS_ON, transaction=XA.key).prepare().turn()
    world.ann.vanish()
    if is_after_failover:
        world.fail_over()
        world.come()
    world.bob.commit_branch().turn()
    assert (world.count(SECRET), len(world.bob.errors)) == (0, 1)
    world.root.commit_branch().turn()
    assert (world.count(SECRET), world.root.errors) == (1, [])


@pytest.mark.parametrize(("kind", "seconds"), [(ErrorKind.TIMEOUT, 1), (ErrorKind.RESOURCE, 61)])
def test_a_due_message_waits_until_its_user_is_known(kind: ErrorKind, seconds: int) -> None:
    world = World(frozenset({WRITE}), SECRET)
    world.ann.store("x", destination=SECRET, properties=LATER)
    world.access.error = refusal("the directory is asked", kind=kind)
    world.wait(60.5)
    assert (world.count(SECRET), world.counts["scheduled"]) == (0, 1)
    world.access.error = None
    world.wait(seconds)
    assert (world.count(SECRET), world.counts["scheduled"]) == (1, 0)


# ---- destinations that begin count for their user


LIMIT: Final = 12


@pytest.mark.parametrize("way", ["scheduled", "moved", "dead letters", "dead letters behind each other", "durable"])
def test_a_user_with_very_many_automatic_destinations_leaves_room_for_others(way: str) -> None:
    world = World(frozenset(), destinations_max=LIMIT)
    names = [f"open.{number}" for number in range(2 * LIMIT)]
    if way == "scheduled":
        for name in names:
            world.ann.send("x", queue(f"{name},{name}b"), properties=LATER)
        world.wait(200)
    elif way == "moved":
        world.root.store(*names, destination=OPEN)
        world.ann.subscribe("taken", OPEN, AckMode.RANGE).turn()
        for found in list(world.ann.session.delivered):
            message = altered(found.message, destination=queue(found.body))
            world.ann.handle(Move("taken", found.tag, message)).turn()
    elif way == "dead letters":
        for name in names:
            world.ann.store(name, destination=queue(name)).subscribe(name, queue(name)).turn()
        for name in names[: LIMIT // 2]:
            world.ann.nack(name).turn()
        assert world.count(queue("ActiveMQ.DLQ")) == LIMIT // 2, "nothing is lost"
    elif way == "dead letters behind each other":
        for name in names[: LIMIT // 4]:
            world.ann.store(name, destination=queue(name)).subscribe(name, queue(name)).turn().nack(name).turn()
        assert world.ann.store("x", destination=queue(names[-1])).errors, "a queue and its dead letters are two"
    else:
        for name in names:
            world.ann.subscribe(name, Destination(TOPIC, name), AckMode.AUTO, durable_name=name).turn()
    for number in range(2):
        world.bob.store("x", destination=queue(f"open.bob.{number}"))
    assert world.bob.errors == []
