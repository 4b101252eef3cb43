"""Limits of one user: the refusal names the setting, other users are not affected, and ended objects do not count."""

# proves: connections-of-a-user, destinations-of-a-user

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tandemmq.broker.core.commands import AddDestination, ErrorKind, RemoveDestination
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.security.test_connection_ids import Secured

LIMIT = 3
Use = Callable[[Secured, str, int], Any]


def _connection(harness: Secured, user: str, number: int) -> Any:
    return harness.user(user, f"ID:{user}:{number}")


def _queue(kind: DestinationKind) -> Use:
    def use(harness: Secured, user: str, number: int) -> Any:
        client = harness.user(user, f"ID:{user}:{number}")
        harness.turn()
        name = f"ID:{user}:{number}:1" if kind is DestinationKind.TEMP_QUEUE else f"{user}.{number}"
        client.handle(AddDestination(Destination(kind, name)))
        return client

    return use


USES: dict[str, tuple[str, Use]] = {
    "connections": ("user_connections_max", _connection),
    "queues": ("user_destinations_max", _queue(DestinationKind.QUEUE)),
    "topics": ("user_destinations_max", _queue(DestinationKind.TOPIC)),
    "temporary queues": ("user_destinations_max", _queue(DestinationKind.TEMP_QUEUE)),
}


@pytest.mark.parametrize("what", USES)
def test_a_user_has_no_more_than_its_limit(what: str) -> None:
    setting, use = USES[what]
    harness = Secured(EngineSettings(**{setting: LIMIT}))
    clients = [use(harness, "ann", number) for number in range(LIMIT + 1)]
    harness.turn()
    assert [client.session.errors for client in clients[:LIMIT]] == [[]] * LIMIT
    (refusal,) = clients[LIMIT].session.errors
    assert refusal.kind is ErrorKind.RESOURCE
    assert f"{setting} is {LIMIT}" in refusal.detail
    assert use(harness, "bob", 0).session.errors == []
    if what in ("queues", "topics"):
        kind = DestinationKind.QUEUE if what == "queues" else DestinationKind.TOPIC
        clients[0].handle(RemoveDestination(Destination(kind, "ann.0")))
    else:
        clients[0].vanish()
    harness.turn()
    again = use(harness, "ann", LIMIT + 2)
    harness.turn()
    assert again.session.errors == []


def test_a_reconnecting_connection_replaces_itself() -> None:
    harness = Secured(EngineSettings(user_connections_max=1))
    for _ in range(3):
        ann = harness.user("ann")
        harness.turn()
        assert (ann.session.errors, ann.is_connected) == ([], True)
    ann.vanish()
    harness.turn()
    assert harness.engine._login._of_user == {}
