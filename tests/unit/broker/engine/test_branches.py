"""Branches of distributed transactions: their state after failures."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core.commands import XA_RBROLLBACK, XAER_PROTO, Begin, Prepare, Recover
from tandemmq.store.operations import EndTransaction, Operation, PrepareTransaction
from tandemmq.store.records.commands import encode_prepare, encode_rollback
from tests.unit.broker.engine.conftest import XA

pytestmark = pytest.mark.promise("xa-branches")


class Deaf:
    """Engine that receives no reports of the store."""

    def durable(self, operations: list[Operation]) -> None: ...

    def drained(self) -> None: ...


def unheard(harness: Any, operation: Operation) -> None:
    harness.turn()
    harness.store.start(Deaf())
    harness.store.append(operation)
    harness.turn()
    harness.store.start(harness.engine)


@pytest.fixture
def client(harness: Any) -> Any:
    """Return a client with a branch that acknowledges one message and sends another. The store still holds a prepared
    transaction of that id, which the engine has ended, or never knew."""
    client = harness.client().send("first").subscribe().turn().begin_branch()
    client.ack("first", transaction=XA.key).send("second", transaction=XA.key)
    unheard(harness, PrepareTransaction(XA, (), encode_prepare(XA)))
    return client


def test_a_branch_whose_prepare_is_refused_is_not_prepared_and_can_be_rolled_back(harness: Any, client: Any) -> None:
    client.prepare().turn()
    (refused,) = client.session.errors
    assert (refused.xa_code, refused.receipt, refused.is_fatal) == (XAER_PROTO, "p", False)
    client.handle(Recover("all"))
    assert client.session.events[-1] == ("recovered", [])
    client.abort_branch().turn()
    assert (client.receipts, client.bodies) == (["r"], ["first"])
    client.ack("first", receipt="a")  # it waits for an acknowledgement again
    harness.turn()
    assert (client.receipts, harness.stored()) == (["r", "a"], 0)


def test_it_goes_on_and_is_prepared_once_the_other_one_is_ended(harness: Any, client: Any) -> None:
    client.prepare().turn().send("third", transaction=XA.key)
    unheard(harness, EndTransaction(XA, False, encode_rollback(XA)))
    client.prepare("q")
    client.commit_branch("early").turn()
    client.commit_branch().turn()
    assert (client.receipts, client.bodies) == (["q", "c"], ["first", "second", "third"])


def test_a_branch_with_acknowledgements_of_missing_deliveries_is_not_prepared(harness: Any) -> None:
    client = harness.consumer()
    client.store("a")
    client.handle(Begin(XA.key, xa=XA))
    client.ack("a")
    client.ack("a", transaction=XA.key)
    client.handle(Prepare(XA.key, XA, "p"))
    harness.turn()
    refused = client.session.errors[-1]
    assert (refused.xa_code, refused.receipt, client.receipts) == (XA_RBROLLBACK, "p", [])


def test_a_refused_prepare_is_rolled_back_after_its_client_left(harness: Any, client: Any) -> None:
    client.prepare().vanish().turn()
    other = harness.consumer().turn()
    assert other.bodies == ["first"]
    other.abort_branch()
    assert "there is no transaction" in other.errors[0]


@pytest.mark.parametrize("others", [0, 2])
def test_a_rolled_back_branch_releases_messages_of_an_unnamed_queue(harness: Any, others: int) -> None:
    client = harness.client()
    bodies = [f"m{number}" for number in range(1 + others)]
    client.send_all(bodies).subscribe().turn().begin_branch()
    client.ack("m0", transaction=XA.key).prepare().turn().vanish()
    harness.fail_over()
    client = harness.client().abort_branch().turn().subscribe().turn()
    assert (client.bodies, harness.figures()["messages"]) == (bodies, len(bodies))
