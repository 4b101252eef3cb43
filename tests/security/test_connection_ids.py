"""A connection id belongs to who had it first, also while he is away: the ids of his messages begin with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import broker.engine
from broker.core.access import Credentials, OpenAccess, Principal
from broker.core.commands import Connect, ErrorKind
from broker.core.settings import EngineSettings
from broker.engine import Engine
from tests.engine.conftest import Client, House

ID = "ID:host-5001-1700000000000-1:1"


class Everybody(OpenAccess):
    """Everybody is who he says."""

    def connect(self, credentials: Credentials, then: Callable[[Any], None]) -> None:
        assert credentials.login is not None
        then(Principal(credentials.login))


class Secured(House):
    def _new_engine(self) -> Engine:
        engine = Engine(self.store, self.settings, lambda: self.now, access=Everybody())
        self.store.start(engine)
        return engine

    def user(self, name: str, connection_id: str = ID) -> Any:
        self.clients += 1
        client: Any = Client(self, f"ID:test-1-{self.clients}")
        client.handle(Connect(login=name, connection_id=connection_id))
        return client


@pytest.fixture
def house() -> Secured:
    return Secured(EngineSettings())


def is_refused(client: Any) -> bool:
    return [error.kind for error in client.session.errors] == [ErrorKind.SECURITY]


@pytest.mark.parametrize("is_away", [False, True])
def test_nobody_else_gets_it(house: Secured, is_away: bool) -> None:
    ann = house.user("ann")
    if is_away:
        ann.vanish()
    assert is_refused(house.user("bob"))
    again = house.user("ann")
    assert again.session.errors == []
    assert ann.is_closed


def test_those_that_were_not_seen_for_longest_are_forgotten(house: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.engine, "CONNECTION_OWNERS_MAX", 2)
    for name in ("one", "two", "one", "three"):
        house.user("ann", name).vanish()
    assert is_refused(house.user("bob", "one"))
    assert not is_refused(house.user("bob", "two"))
