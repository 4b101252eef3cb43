"""A connection id belongs to who had it first, also while he is away: the ids of his messages begin with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from broker.connection_ids import ConnectionIds
from broker.core.access import Credentials, OpenAccess, Principal
from broker.core.commands import Connect, ErrorKind
from broker.core.settings import EngineSettings
from broker.engine import Engine
from store.records.message_ids import client_message_id
from tests.engine.conftest import Client, House

ID = "ID:host-5001-1700000000000-1:1"


class Everybody(OpenAccess):
    """Everybody is who he says."""

    def connect(self, credentials: Credentials, then: Callable[[Any], None]) -> None:
        assert credentials.login is not None
        then(Principal(credentials.login))


class Later(Everybody):
    """It takes time to find out who that is."""

    def connect(self, credentials: Credentials, then: Callable[[Any], None]) -> None:
        self.answer = partial(super().connect, credentials, then)


class Secured(House):
    access: Any = Everybody()

    def _new_engine(self) -> Engine:
        engine = Engine(self.store, self.settings, lambda: self.now, access=self.access, advisor=self.advisor)
        self.store.start(engine)
        return engine

    def user(self, name: str, connection_id: str = ID, address: str = "10.0.0.1") -> Any:
        self.clients += 1
        client: Any = Client(self, f"ID:test-1-{self.clients}")
        client.peer = f"{address}:{5000 + self.clients}"
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
    house.turn()
    if is_away:
        ann.vanish()
    assert is_refused(house.user("bob"))
    again = house.user("ann")
    assert again.session.errors == []
    assert ann.is_closed


def test_nobody_takes_it_between_a_failover_and_her_coming_back(house: Secured) -> None:
    """Else he stored messages under the ids of hers, and what she sent again was taken for that."""
    ann = house.user("ann")
    house.turn()
    ann.vanish()
    house.fail_over()
    assert is_refused(house.user("bob"))
    ann = house.user("ann")
    assert ann.is_connected


def test_it_is_answered_when_the_store_knows_whose_it_is(house: Secured) -> None:
    """What follows waits meanwhile; who comes back is not kept waiting."""
    ann = house.user("ann")
    ann.send("m", receipt="r")
    assert not ann.is_connected
    assert not ann.is_reading
    assert is_refused(house.user("bob"))
    house.turn()
    assert ann.is_connected
    assert ann.is_reading
    assert ann.receipts == ["r"]
    assert house.user("ann").is_connected


def test_who_had_to_be_found_out_waits_for_that_too(house: Secured) -> None:
    house.access = Later()
    house.fail_over()
    ann = house.user("ann")
    assert not ann.is_reading
    house.access.answer()
    assert not ann.is_reading
    house.turn()
    assert ann.is_connected
    assert ann.is_reading


def test_who_leaves_meanwhile_leaves_nothing(house: Secured) -> None:
    house.user("ann").vanish()
    house.turn()
    assert house.counts["clients"] == 0


def test_one_that_was_forgotten_is_not_taken_from_who_is_there(house: Secured) -> None:
    house.engine._connection_owners = ConnectionIds([], limit=1)
    ann = house.user("ann")
    house.user("ann", "another")
    house.turn()
    assert is_refused(house.user("bob"))
    assert not ann.is_closed


def test_the_numbers_of_stomp_clients_are_nobodys_connection(house: Secured) -> None:
    """Their ids are made of the producer and the user: `ID:shop@ann:1:1:42`."""
    assert is_refused(house.user("bob", "ID:shop@ann"))
    assert client_message_id("shop", 42, "ann").rsplit(":", 3)[0] == "ID:shop@ann"
    assert not is_refused(house.user("bob", "ID:bob@host:5001-1700000000000-1:1"))


def test_a_long_id_is_refused(house: Secured) -> None:
    client = house.user("ann", "ID:" + "x" * 600)
    assert [error.kind for error in client.session.errors] == [ErrorKind.CLIENT_ID]


def test_where_no_users_are_set_up_nothing_is_kept(house: Secured) -> None:
    house.access = OpenAccess(is_everywhere=True)
    house.fail_over()
    house.user("ann").vanish()
    house.turn()
    assert house.store.connections() == []
    assert house.user("bob").is_connected


NEXT = "ID:host-5001-1700000000000-1:2"
ELSEWHERE = "10.6.6.6"


@pytest.mark.parametrize("is_away", [False, True])
def test_nobody_takes_the_next_one_of_anothers_program(house: Secured, is_away: bool) -> None:
    ann = house.user("ann")
    house.turn()
    if is_away:
        ann.vanish()
    assert is_refused(house.user("mallory", NEXT, ELSEWHERE))
    assert is_refused(house.user("mallory", "ID:host-5001-1700000000000-1:77", ELSEWHERE))
    again = house.user("ann", NEXT)
    house.turn()
    assert again.is_connected


def test_her_program_may_be_anywhere(house: Secured) -> None:
    """Its way to the broker may change."""
    house.user("ann")
    house.turn()
    ann = house.user("ann", NEXT, "10.0.0.2")
    house.turn()
    assert ann.is_connected


def test_a_program_that_connects_for_several_users_gets_numbers_for_each(house: Secured) -> None:
    house.user("ann")
    house.turn()
    bob = house.user("bob", NEXT)
    house.turn()
    assert bob.is_connected
    for number, address in ((3, "10.0.0.1"), (4, "10.0.0.9")):
        again = house.user("bob", f"ID:host-5001-1700000000000-1:{number}", address)
        house.turn()
        assert again.is_connected
    assert is_refused(house.user("mallory", "ID:host-5001-1700000000000-1:5", ELSEWHERE))


def test_after_a_failover_a_program_is_known_when_it_is_back(house: Secured) -> None:
    ann = house.user("ann")
    house.turn()
    ann.vanish()
    house.fail_over()
    assert is_refused(house.user("mallory", ID, ELSEWHERE))
    house.user("ann", address="10.0.0.7")
    assert is_refused(house.user("mallory", NEXT, ELSEWHERE))
    bob = house.user("bob", NEXT, "10.0.0.7")
    house.turn()
    assert bob.is_connected


@pytest.mark.parametrize("id", ["ID:client:1", "ID:client:2", "worker-1", "ID:a-1-2:3"])
def test_ids_that_no_program_counts_are_free(house: Secured, id: str) -> None:
    house.user("ann", "ID:client:0")
    house.turn()
    bob = house.user("bob", id, ELSEWHERE)
    house.turn()
    assert bob.is_connected


def test_a_program_is_remembered_as_long_as_an_id_of_it() -> None:
    ids = ConnectionIds([], limit=4)
    ids.take(ID, "ann", "10.0.0.1")
    assert ids.is_refused(NEXT, "bob", ELSEWHERE)
    for number in range(20):
        ids.take(f"ID:host-5001-1700000000000-2:{number}", "ann", "10.0.0.1")
    assert not ids.is_refused(NEXT, "bob", ELSEWHERE)
    assert len(ids._programs) == 1
