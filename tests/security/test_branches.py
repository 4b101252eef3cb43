"""Who may end a prepared branch of a distributed transaction, in the term of its prepare and after a promotion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.core.access import Credentials, OpenAccess, Operation, Principal
from broker.core.commands import XAER_RMFAIL, Abort, Begin, ClientError, Command, Commit, Connect, Prepare, Recover
from broker.core.settings import EngineSettings
from broker.engine import Engine
from broker.security.rights import Grant, Rights
from store.records.message import Destination, DestinationKind
from store.records.transactions import XaTransactionId
from tests.engine.conftest import ORDERS, Client, House

XA = XaTransactionId(1, b"global", b"branch")
BILLS = Destination(DestinationKind.QUEUE, "bills")
ADMINS, SHOPS, READERS = (frozenset({group}) for group in ("admins", "shops", "readers"))
RIGHTS = [
    Grant(DestinationKind.QUEUE, "orders", SHOPS | READERS, SHOPS, ADMINS | SHOPS),
    Grant(DestinationKind.QUEUE, "bills", frozenset(), SHOPS | READERS, ADMINS | SHOPS),
]
GROUPS = {"alice": SHOPS, "rita": READERS, "bob": SHOPS, "root": ADMINS, "eve": frozenset[str]()}


class SmallAccess(OpenAccess):
    """Everybody is who he says, and may do what RIGHTS say, once they hold."""

    def __init__(self) -> None:
        super().__init__(is_everywhere=True)
        self.rights = Rights(RIGHTS)

    def connect(self, credentials: Credentials, then: Callable[[Principal | ClientError], None]) -> None:
        assert credentials.login is not None
        then(Principal(credentials.login, GROUPS[credentials.login]))

    def check(self, principal: Principal, operation: Operation, destination: Destination) -> None:
        self.rights.check(principal, operation, destination)


class SecuredHouse(House):
    def __init__(self) -> None:
        self.access = SmallAccess()
        super().__init__(EngineSettings())

    def _new_engine(self) -> Engine:
        engine = Engine(self.store, self.settings, lambda: self.now, access=self.access)
        self.store.start(engine)
        return engine

    def user(self, name: str) -> Any:
        self.clients += 1
        client: Any = Client(self, f"ID:test-1-{self.clients}")
        client.session.prepared = lambda receipt, is_read_only: client.session.receipt(receipt)
        client.session.recovered = lambda receipt, branches: client.session.told.append(branches)
        client.handle(Connect(login=name))
        return client


@pytest.fixture(params=["same term", "after a promotion"])
def house(request: Any) -> SecuredHouse:
    """alice prepared a branch that takes a message from orders and adds one to bills."""
    house = SecuredHouse()
    alice = house.user("alice")
    alice.send("order")
    alice.subscribe()
    house.turn()
    alice.handle(Begin(XA.key, xa=XA))
    alice.ack("order", transaction=XA.key)
    alice.send("bill", BILLS, transaction=XA.key)
    alice.handle(Prepare(XA.key, XA, "p"))
    house.turn()
    assert alice.receipts == ["p"]
    alice.vanish()
    if request.param == "after a promotion":
        house.fail_over()
    return house


def commit() -> Command:
    return Commit(XA.key, "r", xa=XA, is_two_phase=True)


def rollback() -> Command:
    return Abort(XA.key, "r", xa=XA)


def ended(house: SecuredHouse, client: Any, command: Command) -> bool:
    client.handle(Recover("all"))
    recovered = client.session.told[-1]
    client.handle(command)
    house.turn()
    has_ended = client.receipts == ["r"]
    assert recovered == ([XA] if has_ended else []), "what may be ended is what is shown"
    return has_ended


@pytest.mark.parametrize("how", [commit, rollback])
@pytest.mark.parametrize("name", ["alice", "bob", "root", "rita"])
def test_it_is_ended_by_its_user_and_by_who_may_do_the_same_or_has_admin(
    house: SecuredHouse, name: str, how: Callable[[], Command]
) -> None:
    assert ended(house, house.user(name), how())
    assert house.figures("orders")["messages"] == (0 if how is commit else 1)
    assert house.figures("bills")["messages"] == (1 if how is commit else 0)


@pytest.mark.parametrize("how", [commit, rollback])
def test_nobody_else_ends_it_or_learns_of_it(house: SecuredHouse, how: Callable[[], Command]) -> None:
    eve = house.user("eve")
    assert not ended(house, eve, how())
    (refused,) = eve.session.errors
    # The code on which a transaction manager tries again later: no outcome is told.
    assert (refused.xa_code, refused.is_fatal, refused.receipt) == (XAER_RMFAIL, False, "r")
    assert ended(house, house.user("alice"), how())


@pytest.mark.parametrize("lacking", ["orders", "bills"])
def test_a_right_on_one_of_its_destinations_is_not_enough(house: SecuredHouse, lacking: str) -> None:
    house.access.rights = Rights([grant for grant in RIGHTS if grant.pattern != lacking])
    assert not ended(house, house.user("bob"), commit())
    house.access.rights = Rights(RIGHTS)
    assert ended(house, house.user("bob"), commit())


def test_without_rights_whoever_may_connect_ends_it(house: SecuredHouse) -> None:
    house.access.rights = Rights()
    assert ended(house, house.user("eve"), commit())
    assert house.figures(ORDERS.name)["messages"] == 0
