"""Users who may end a prepared branch of a distributed transaction, in the term of its prepare and after a
promotion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tandemmq.broker.core.commands import XAER_RMFAIL, Abort, Begin, Command, Commit, Prepare, Recover
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.security.rights import Grant, Rights
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.transactions import XaTransactionId
from tests.unit.broker.engine.conftest import ORDERS
from tests.unit.broker.security.conftest import RuledAccess
from tests.unit.broker.security.test_connection_ids import Secured

pytestmark = pytest.mark.promise("xa-branches")

XA = XaTransactionId(1, b"global", b"branch")
BILLS = Destination(DestinationKind.QUEUE, "bills")
ADMINS, SHOPS, READERS = (frozenset({group}) for group in ("admins", "shops", "readers"))
RIGHTS = [
    Grant(DestinationKind.QUEUE, "orders", SHOPS | READERS, SHOPS, ADMINS | SHOPS),
    Grant(DestinationKind.QUEUE, "bills", frozenset(), SHOPS | READERS, ADMINS | SHOPS),
]
GROUPS = {"alice": SHOPS, "rita": READERS, "bob": SHOPS, "root": ADMINS, "eve": frozenset[str]()}


class SecuredHarness(Secured):
    def __init__(self) -> None:
        self.access = RuledAccess(GROUPS, RIGHTS)
        super().__init__(EngineSettings())

    def come(self, name: str) -> Any:
        client = self.user(name, None)
        client.session.prepared = lambda receipt, is_read_only: client.session.receipt(receipt)
        client.session.recovered = lambda receipt, branches: client.session.events.append(branches)
        return client


@pytest.fixture(params=["same term", "after a promotion"])
def harness(request: Any) -> SecuredHarness:
    """alice prepared a branch that takes a message from orders and adds one to bills."""
    harness = SecuredHarness()
    alice = harness.come("alice")
    alice.send("order")
    alice.subscribe()
    harness.turn()
    alice.handle(Begin(XA.key, xa=XA))
    alice.ack("order", transaction=XA.key)
    alice.send("bill", BILLS, transaction=XA.key)
    alice.handle(Prepare(XA.key, XA, "p"))
    harness.turn()
    assert alice.receipts == ["p"]
    alice.vanish()
    if request.param == "after a promotion":
        harness.fail_over()
    return harness


def commit() -> Command:
    return Commit(XA.key, "r", xa=XA, is_two_phase=True)


def rollback() -> Command:
    return Abort(XA.key, "r", xa=XA)


def ended(harness: SecuredHarness, client: Any, command: Command) -> bool:
    client.handle(Recover("all"))
    recovered = client.session.events[-1]
    client.handle(command)
    harness.turn()
    has_ended = client.receipts == ["r"]
    assert recovered == ([XA] if has_ended else []), "what may be ended is what is shown"
    return has_ended


@pytest.mark.parametrize("how", [commit, rollback])
@pytest.mark.parametrize("name", ["alice", "bob", "root", "rita"])
def test_it_is_ended_by_its_user_and_by_who_may_do_the_same_or_has_admin(
    harness: SecuredHarness, name: str, how: Callable[[], Command]
) -> None:
    assert ended(harness, harness.come(name), how())
    assert harness.figures("orders")["messages"] == (0 if how is commit else 1)
    assert harness.figures("bills")["messages"] == (1 if how is commit else 0)


@pytest.mark.parametrize("how", [commit, rollback])
def test_another_user_can_neither_end_a_branch_nor_learn_of_it(
    harness: SecuredHarness, how: Callable[[], Command]
) -> None:
    eve = harness.come("eve")
    assert not ended(harness, eve, how())
    (refused,) = eve.session.errors
    # The code on which a transaction manager tries again later: it gives no outcome.
    assert (refused.xa_code, refused.is_fatal, refused.receipt) == (XAER_RMFAIL, False, "r")
    assert ended(harness, harness.come("alice"), how())


@pytest.mark.parametrize("lacking", ["orders", "bills"])
def test_a_right_on_one_of_its_destinations_is_not_enough(harness: SecuredHarness, lacking: str) -> None:
    harness.access.rights = Rights([grant for grant in RIGHTS if grant.pattern != lacking])
    assert not ended(harness, harness.come("bob"), commit())
    harness.access.rights = Rights(RIGHTS)
    assert ended(harness, harness.come("bob"), commit())


def test_without_rights_whoever_may_connect_ends_it(harness: SecuredHarness) -> None:
    harness.access.rights = Rights()
    assert ended(harness, harness.come("eve"), commit())
    assert harness.figures(ORDERS.name)["messages"] == 0
