"""What waits for its time is its user's: others neither see nor remove it, but for who has the admin right."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core.commands import AckMode, Send
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tests.unit.broker.security.test_durable_owners import Harness

MANAGEMENT = Destination(DestinationKind.TOPIC, "ActiveMQ.Scheduler.Management")
ANSWERS = Destination(DestinationKind.QUEUE, "answers")
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
        self._say(
            LATER,
            {"AMQ_SCHEDULED_DELAY": 60_000, "AMQ_SCHEDULED_PERIOD": 60_000, "AMQ_SCHEDULED_REPEAT": 1} | forged,
            body,
        )

    def sees(self) -> list[str]:
        before = len(self.client.bodies)
        self._say(MANAGEMENT, {"AMQ_SCHEDULER_ACTION": "BROWSE"})
        return sorted(self.client.bodies[before:])

    def removes(self, job: str | None = None) -> None:
        if job is None:
            self._say(MANAGEMENT, {"AMQ_SCHEDULER_ACTION": "REMOVEALL"})
        else:
            self._say(MANAGEMENT, {"AMQ_SCHEDULER_ACTION": "REMOVE", "scheduledJobId": job})


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


def test_nobody_is_told_whose_it_is(harness: Harness) -> None:
    ann, reader = Asking(harness, "ann"), harness.user("reader", "ID:r:1")
    reader.subscribe("s", LATER, AckMode.AUTO)
    ann.schedules("x")
    ann.sees()
    harness.wait(61)
    for message in (reader.session.delivered[-1].message, ann.client.session.delivered[-1].message):
        assert not any(name.startswith("tandemmqScheduled") for name in message.properties or {})
