"""Scheduled messages belong to their user: other users neither see nor remove them, except users with the admin
right."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core.commands import AckMode, ErrorKind, Send
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.engine.scheduler import MANAGEMENT
from tandemmq.broker.security.rights import Grant
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tests.unit.broker.security.conftest import RuledAccess
from tests.unit.broker.security.test_connection_ids import Secured
from tests.unit.broker.security.test_durable_owners import Harness

TOPIC = Destination(DestinationKind.TOPIC, MANAGEMENT)
LATER = Destination(DestinationKind.QUEUE, "later")


class Asking:
    """A user who schedules, looks and removes."""

    def __init__(self, harness: Harness, name: str) -> None:
        self.harness = harness
        self.name = name
        self.client: Any = harness.user(name, f"ID:{name}:{id(self)}")
        self.answers = Destination(DestinationKind.QUEUE, f"answers.{name}")
        self.client.subscribe("answers", self.answers, AckMode.AUTO)
        self.number = 0

    def _say(self, destination: Destination, properties: dict[str, Any], body: str = "") -> None:
        self.number += 1
        message = Message(
            destination,
            f"{self.client.id}:1:1:{self.number}",
            body.encode(),
            persistent=True,
            properties=properties,
            reply_to=self.answers,
        )
        self.client.handle(Send(message))
        self.harness.turn()

    def schedules(self, body: str, **forged: Any) -> None:
        schedule = {"AMQ_SCHEDULED_DELAY": 60_000, "AMQ_SCHEDULED_PERIOD": 60_000, "AMQ_SCHEDULED_REPEAT": 1}
        self._say(LATER, schedule | forged, body)

    def sees(self) -> list[str]:
        before = len(self.client.bodies)
        self._say(TOPIC, {"AMQ_SCHEDULER_ACTION": "BROWSE"})
        return sorted(self.client.bodies[before:])

    def removes(self, job: str | None = None) -> None:
        one = {"AMQ_SCHEDULER_ACTION": "REMOVE", "scheduledJobId": job}
        self._say(TOPIC, {"AMQ_SCHEDULER_ACTION": "REMOVEALL"} if job is None else one)


@pytest.fixture
def harness() -> Harness:
    return Harness(EngineSettings())


@pytest.mark.parametrize("is_after_failover", [False, True])
def test_each_sees_and_removes_his_own(harness: Harness, is_after_failover: bool) -> None:
    ann, bob = Asking(harness, "ann"), Asking(harness, "bob")
    ann.schedules("ann's")
    bob.schedules("bob's", tandemmqScheduledUser="ann")
    if is_after_failover:
        harness.fail_over()
        harness.wait(1)
        ann, bob = Asking(harness, "ann"), Asking(harness, "bob")
    root = Asking(harness, "root")
    assert ann.sees() == ["ann's"]
    assert bob.sees() == ["bob's"]
    assert root.sees() == ["ann's", "bob's"]
    job = ann.client.session.delivered[-1].message.properties["scheduledJobId"]
    bob.removes(job)
    bob.removes()
    assert root.sees() == ["ann's"]
    harness.wait(61)
    assert ann.sees() == ["ann's"], "the repetition is hers, too"
    root.removes()
    assert ann.sees() == []


def test_the_owner_of_a_scheduled_message_is_not_shown(harness: Harness) -> None:
    ann, reader = Asking(harness, "ann"), harness.user("reader", "ID:r:1")
    reader.subscribe("s", LATER, AckMode.AUTO)
    ann.schedules("x")
    ann.sees()
    harness.wait(61)
    for message in (reader.session.delivered[-1].message, ann.client.session.delivered[-1].message):
        assert not any(name.startswith("tandemmqScheduled") for name in message.properties or {})


# ---- under the one name that rights are given for


EVERYBODY, WRITERS, OPERATORS = frozenset(("all",)), frozenset(("writers",)), frozenset(("operators",))
RIGHTS = (
    Grant(DestinationKind.QUEUE, ">", EVERYBODY, EVERYBODY, EVERYBODY),
    Grant(DestinationKind.TOPIC, MANAGEMENT.lower(), EVERYBODY, EVERYBODY, EVERYBODY),
    Grant(DestinationKind.TOPIC, f"{MANAGEMENT}.x", EVERYBODY, EVERYBODY, EVERYBODY),
    Grant(DestinationKind.TOPIC, MANAGEMENT, WRITERS | OPERATORS, WRITERS | OPERATORS, OPERATORS),
)
GROUPS = {"eve": EVERYBODY, "wim": EVERYBODY | WRITERS, "ops": EVERYBODY | OPERATORS}


@pytest.fixture
def ruled() -> Secured:
    """A message of ops waits for its time."""
    harness = Secured(EngineSettings())
    harness.access = RuledAccess(GROUPS, RIGHTS)
    harness.begin_term()
    harness.user("ops", None).send("waits", properties={"AMQ_SCHEDULED_DELAY": 1000})
    harness.turn()
    return harness


def remove_all(client: Any, destination: Destination) -> None:
    message = client.message("", destination, properties={"AMQ_SCHEDULER_ACTION": "REMOVEALL"})
    client.handle(Send(message, None, "asked"))


def waiting(ruled: Secured) -> int:
    ruled.engine.tick(ruled.now)
    ruled.turn()
    return ruled.counts["scheduled"]


def test_a_management_request_without_the_right_to_write_is_refused(ruled: Secured) -> None:
    client = ruled.user("eve", None)
    remove_all(client, TOPIC)
    assert [error.kind for error in client.session.errors] == [ErrorKind.SECURITY]
    assert waiting(ruled) == 1


@pytest.mark.parametrize(
    "destination",
    [
        Destination(DestinationKind.TEMP_QUEUE, MANAGEMENT),
        Destination(DestinationKind.TEMP_TOPIC, MANAGEMENT),
        Destination(DestinationKind.QUEUE, MANAGEMENT),
        Destination(DestinationKind.TOPIC, MANAGEMENT.lower()),
        Destination(DestinationKind.TOPIC, f"{MANAGEMENT}.x"),
        Destination(DestinationKind.TOPIC, f"{MANAGEMENT},x"),
    ],
    ids=str,
)
def test_by_another_name_nothing_is_done(ruled: Secured, destination: Destination) -> None:
    client = ruled.user("eve", None)
    remove_all(client, destination)
    ruled.turn()
    assert waiting(ruled) == 1


def test_a_user_with_the_right_can_remove_them(ruled: Secured) -> None:
    waiting(ruled)
    client = ruled.user("ops", None)
    remove_all(client, TOPIC)
    ruled.turn()
    assert client.receipts == ["asked"]
    assert waiting(ruled) == 0
    assert ruled.stored() == 0
