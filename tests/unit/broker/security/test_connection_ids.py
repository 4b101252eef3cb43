"""A connection id belongs to its first user for good: the ids of this user's messages begin with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tandemmq.broker.core.access import Credentials, OpenAccess
from tandemmq.broker.core.commands import Connect, ErrorKind, Send
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.engine.id_owners import ConnectionIds
from tandemmq.broker.engine.part import Loop
from tandemmq.broker.settings.engine import engine_settings
from tandemmq.config.load import load
from tandemmq.store.records.frames import open_message
from tandemmq.store.records.message import Message
from tandemmq.store.records.message_ids import client_message_id
from tandemmq.store.records.openwire import encode_message
from tests.unit.broker.engine.conftest import ORDERS, Client, Harness

pytestmark = pytest.mark.promise("ids-have-owners")

ID = "ID:host-5001-1700000000000-1:1"


class Everybody(OpenAccess):
    """Access in which each client is the user that it names."""

    def connect(self, credentials: Credentials, then: Callable[[Any], None]) -> None:
        assert credentials.login is not None
        then(Principal(credentials.login))


class Later(Everybody):
    """Access that decides logins late."""

    def connect(self, credentials: Credentials, then: Callable[[Any], None]) -> None:
        self.answer = partial(super().connect, credentials, then)


class Secured(Harness):
    """A harness with users, whose work is done at once."""

    access: Any = Everybody()

    def loop(self) -> Loop:
        return Loop(lambda: self.now)

    def user(
        self, name: str, connection_id: str | None = ID, address: str = "10.0.0.1", *, client_id: str | None = None
    ) -> Any:
        client: Any = Client(self, self.connection_id())
        client.peer = f"{address}:{5000 + self.clients}"
        client.handle(Connect(client_id, name, connection_id=connection_id))
        return client


@pytest.fixture
def harness() -> Secured:
    return Secured(EngineSettings())


def is_refused(client: Any) -> bool:
    return [error.kind for error in client.session.errors] == [ErrorKind.SECURITY]


@pytest.mark.parametrize("owner", ["is there", "is away", "comes back after a failover"])
def test_another_user_cannot_get_the_connection_id(harness: Secured, owner: str) -> None:
    """Another user with that id could store messages under the owner's message ids. The broker would then take what
    the owner sends again for a duplicate."""
    ann = harness.user("ann")
    harness.turn()
    if owner != "is there":
        ann.vanish()
    if owner == "comes back after a failover":
        harness.fail_over()
    assert is_refused(harness.user("bob"))
    again = harness.user("ann")
    assert (again.session.errors, again.is_connected) == ([], True)
    assert ann.is_closed


def test_it_is_answered_when_the_store_knows_whose_it_is(harness: Secured) -> None:
    """Later commands wait meanwhile; a client that reconnects does not wait."""
    ann = harness.user("ann")
    ann.send("m", receipt="r")
    assert not ann.is_connected
    assert not ann.is_reading
    assert is_refused(harness.user("bob"))
    harness.turn()
    assert ann.is_connected
    assert ann.is_reading
    assert ann.receipts == ["r"]
    assert harness.user("ann").is_connected


def test_a_client_whose_user_was_looked_up_waits_for_the_store_too(harness: Secured) -> None:
    harness.access = Later()
    harness.fail_over()
    ann = harness.user("ann")
    assert ann.is_reading, "so that its end is noticed"
    harness.access.answer()
    assert not ann.is_reading
    harness.turn()
    assert ann.is_connected
    assert ann.is_reading


def test_a_client_that_leaves_meanwhile_leaves_nothing(harness: Secured) -> None:
    harness.user("ann").vanish()
    harness.turn()
    assert harness.counts["clients"] == 0


def test_a_forgotten_id_is_not_taken_from_a_connected_client(harness: Secured) -> None:
    harness.engine._login._connection_owners = ConnectionIds([], limit=1)
    ann = harness.user("ann")
    harness.user("ann", "another")
    harness.turn()
    assert is_refused(harness.user("bob"))
    assert not ann.is_closed


def test_the_numbers_of_stomp_clients_are_nobodys_connection(harness: Secured) -> None:
    """The ids of such messages contain the producer and the user: `ID:shop@ann:1:1:42`."""
    assert is_refused(harness.user("bob", "ID:shop@ann"))
    assert client_message_id("shop", 42, "ann").rsplit(":", 3)[0] == "ID:shop@ann"
    assert not is_refused(harness.user("bob", "ID:bob@host:5001-1700000000000-1:1"))


def test_a_long_id_is_refused(harness: Secured) -> None:
    client = harness.user("ann", "ID:" + "x" * 600)
    assert [error.kind for error in client.session.errors] == [ErrorKind.CLIENT_ID]


def test_without_users_no_owner_is_stored(harness: Secured) -> None:
    harness.access = OpenAccess(is_everywhere=True)
    harness.fail_over()
    harness.user("ann").vanish()
    harness.turn()
    assert harness.store.connections() == []
    assert harness.user("bob").is_connected


NEXT = "ID:host-5001-1700000000000-1:2"
ELSEWHERE = "10.6.6.6"


@pytest.mark.parametrize("is_away", [False, True])
def test_another_user_cannot_take_the_next_id_of_a_program(harness: Secured, is_away: bool) -> None:
    ann = harness.user("ann")
    harness.turn()
    if is_away:
        ann.vanish()
    assert is_refused(harness.user("mallory", NEXT, ELSEWHERE))
    assert is_refused(harness.user("mallory", "ID:host-5001-1700000000000-1:77", ELSEWHERE))
    again = harness.user("ann", NEXT)
    harness.turn()
    assert again.is_connected


def test_a_program_that_connects_for_several_users_gets_numbers_for_each(harness: Secured) -> None:
    harness.user("ann")
    harness.turn()
    bob = harness.user("bob", NEXT)
    harness.turn()
    assert bob.is_connected
    for number, address in ((3, "10.0.0.1"), (4, "10.0.0.9")):
        again = harness.user("bob", f"ID:host-5001-1700000000000-1:{number}", address)
        harness.turn()
        assert again.is_connected
    assert is_refused(harness.user("mallory", "ID:host-5001-1700000000000-1:5", ELSEWHERE))


def test_after_a_failover_a_program_is_known_when_it_is_back(harness: Secured) -> None:
    ann = harness.user("ann")
    harness.turn()
    ann.vanish()
    harness.fail_over()
    assert is_refused(harness.user("mallory", ID, ELSEWHERE))
    harness.user("ann", address="10.0.0.7")
    assert is_refused(harness.user("mallory", NEXT, ELSEWHERE))
    bob = harness.user("bob", NEXT, "10.0.0.7")
    harness.turn()
    assert bob.is_connected


@pytest.mark.parametrize("id", ["ID:client:1", "ID:client:2", "worker-1", "ID:a-1-2:3"])
def test_ids_that_no_program_counts_are_free(harness: Secured, id: str) -> None:
    harness.user("ann", "ID:client:0")
    harness.turn()
    bob = harness.user("bob", id, ELSEWHERE)
    harness.turn()
    assert bob.is_connected


def test_a_program_is_remembered_as_long_as_an_id_of_it() -> None:
    ids = ConnectionIds([], limit=4)
    ids.take(ID, "ann", "10.0.0.1")
    assert ids.is_refused(NEXT, "bob", ELSEWHERE)
    for number in range(20):
        ids.take(f"ID:host-5001-1700000000000-2:{number}", "ann", "10.0.0.1")
    assert not ids.is_refused(NEXT, "bob", ELSEWHERE)
    assert len(ids._programs) == 1


# ---- JMSXUserID is what the broker knows of who sent a message, never what a client says of himself


def opened(message: Message) -> Message:
    """Return a Connect as a JMS client sends it."""
    return open_message(encode_message(message))


@pytest.mark.parametrize("is_opened", [False, True])
@pytest.mark.parametrize("transaction", [None, "t"])
@pytest.mark.parametrize(("is_populated", "expected"), [(False, None), (True, "bob")])
@pytest.mark.parametrize("wanted", [None, "ann"])
def test_no_client_can_send_in_the_name_of_another(
    wanted: str | None, is_populated: bool, expected: str | None, transaction: str | None, is_opened: bool
) -> None:
    harness = Secured(EngineSettings(populate_jmsx_user_id=is_populated))
    ann: Any = harness.user("ann", "ID:ann:1")
    ann.subscribe("s", ORDERS)
    bob: Any = harness.user("bob", "ID:bob:1")
    message = bob.message("x", ORDERS, user_id=wanted, persistent=True)
    if transaction:
        bob.begin(transaction)
    bob.handle(Send(opened(message) if is_opened else message, transaction))
    if transaction:
        bob.commit(transaction)
    harness.turn()
    (delivered,) = ann.session.delivered
    assert delivered.message.user_id == expected
    assert open_message(encode_message(delivered.message)).user_id == expected


def test_the_setting_reaches_the_engine() -> None:
    assert not engine_settings(load(None, {})).populate_jmsx_user_id
    assert engine_settings(load(None, {}, ["broker.populate_jmsx_user_id=true"])).populate_jmsx_user_id
