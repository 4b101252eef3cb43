"""What waits for its time is seen and removed by who has the right, under the one name that rights are given for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tandemmq.broker.core.access import Credentials, OpenAccess, Operation
from tandemmq.broker.core.commands import ErrorKind, Send
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.engine.scheduler import MANAGEMENT
from tandemmq.broker.security.rights import Grant, Rights
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.security.test_connection_ids import Secured

TOPIC = Destination(DestinationKind.TOPIC, MANAGEMENT)
EVERYBODY, WRITERS, OPERATORS = frozenset(("all",)), frozenset(("writers",)), frozenset(("operators",))
RIGHTS = (
    Grant(DestinationKind.QUEUE, ">", EVERYBODY, EVERYBODY, EVERYBODY),
    Grant(DestinationKind.TOPIC, MANAGEMENT.lower(), EVERYBODY, EVERYBODY, EVERYBODY),
    Grant(DestinationKind.TOPIC, f"{MANAGEMENT}.x", EVERYBODY, EVERYBODY, EVERYBODY),
    Grant(DestinationKind.TOPIC, MANAGEMENT, WRITERS | OPERATORS, WRITERS | OPERATORS, OPERATORS),
)
GROUPS = {"eve": EVERYBODY, "wim": EVERYBODY | WRITERS, "ops": EVERYBODY | OPERATORS}


class SmallAccess(OpenAccess):
    def __init__(self) -> None:
        super().__init__(is_everywhere=True)
        self.rights = Rights(RIGHTS)

    def connect(self, credentials: Credentials, then: Callable[[Any], None]) -> None:
        assert credentials.login is not None
        then(Principal(credentials.login, GROUPS[credentials.login]))

    def check(self, principal: Principal, operation: Operation, destination: Destination) -> None:
        self.rights.check(principal, operation, destination)


@pytest.fixture
def harness() -> Secured:
    """A message of ops waits for its time."""
    harness = Secured(EngineSettings())
    harness.access = SmallAccess()
    harness.begin_term()
    harness.user("ops", None).send("waits", properties={"AMQ_SCHEDULED_DELAY": 1000})
    harness.turn()
    return harness


def remove_all(client: Any, destination: Destination) -> None:
    message = client.message("", destination, properties={"AMQ_SCHEDULER_ACTION": "REMOVEALL"})
    client.handle(Send(message, None, "asked"))


def waiting(harness: Secured) -> int:
    harness.engine.tick(harness.now)
    harness.turn()
    return harness.counts["scheduled"]


def test_who_may_not_write_there_is_refused(harness: Secured) -> None:
    client = harness.user("eve", None)
    remove_all(client, TOPIC)
    assert [error.kind for error in client.session.errors] == [ErrorKind.SECURITY]
    assert waiting(harness) == 1


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
def test_by_another_name_nothing_is_done(harness: Secured, destination: Destination) -> None:
    client = harness.user("eve", None)
    remove_all(client, destination)
    harness.turn()
    assert waiting(harness) == 1


def test_who_has_the_right_removes_them(harness: Secured) -> None:
    waiting(harness)
    client = harness.user("ops", None)
    remove_all(client, TOPIC)
    harness.turn()
    assert client.receipts == ["asked"]
    assert waiting(harness) == 0
    assert harness.stored() == 0
