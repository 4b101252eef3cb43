"""Branches of distributed transactions: what becomes of them when something goes wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core.commands import XA_RBROLLBACK, XAER_PROTO, Abort, Begin, Commit, Prepare, Recover
from tandemmq.store.operations import EndTransaction, Operation, PrepareTransaction
from tandemmq.store.records.commands import encode_prepare, encode_rollback
from tandemmq.store.records.transactions import XaTransactionId

pytestmark = pytest.mark.promise("xa-branches")

XA = XaTransactionId(1, b"global", b"branch")


class Deaf:
    """An engine that hears nothing: what the store does for it nobody else knows."""

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
    """Somebody with a branch that acknowledges one message and sends another. The store still holds a prepared
    transaction of that id, which the engine has ended, or never knew."""
    client = harness.client()
    client.session.prepared = lambda receipt, is_read_only: client.session.receipt(receipt)
    client.session.recovered = lambda receipt, branches: client.session.events.append(("recovered", branches))
    client.send("first")
    client.subscribe()
    harness.turn()
    client.handle(Begin(XA.key, xa=XA))
    client.ack("first", transaction=XA.key)
    client.send("second", transaction=XA.key)
    unheard(harness, PrepareTransaction(XA, (), encode_prepare(XA)))
    return client


def test_a_branch_whose_prepare_is_refused_is_not_prepared_and_can_be_rolled_back(harness: Any, client: Any) -> None:
    client.handle(Prepare(XA.key, XA, "p"))
    harness.turn()
    (refused,) = client.session.errors
    assert (refused.xa_code, refused.receipt, refused.is_fatal) == (XAER_PROTO, "p", False)
    client.handle(Recover("all"))
    assert client.session.events[-1] == ("recovered", [])

    client.handle(Abort(XA.key, "r", xa=XA))
    harness.turn()

    assert client.receipts == ["r"]
    assert client.bodies == ["first"]
    client.ack("first", receipt="a")  # it waits for an acknowledgement again
    harness.turn()
    assert client.receipts == ["r", "a"]
    assert harness.stored() == 0


def test_it_goes_on_and_is_prepared_once_the_other_one_is_ended(harness: Any, client: Any) -> None:
    client.handle(Prepare(XA.key, XA, "p"))
    harness.turn()
    client.send("third", transaction=XA.key)
    unheard(harness, EndTransaction(XA, False, encode_rollback(XA)))
    client.handle(Prepare(XA.key, XA, "q"))
    client.handle(Commit(XA.key, "early", xa=XA, is_two_phase=True))
    harness.turn()
    client.handle(Commit(XA.key, "c", xa=XA, is_two_phase=True))
    harness.turn()

    assert client.receipts == ["q", "c"]
    assert client.bodies == ["first", "second", "third"]


def test_a_branch_that_acknowledged_what_is_gone_is_not_prepared(harness: Any) -> None:
    client = harness.consumer()
    client.store("a")
    client.handle(Begin(XA.key, xa=XA))
    client.ack("a")
    client.ack("a", transaction=XA.key)
    client.handle(Prepare(XA.key, XA, "p"))
    harness.turn()
    refused = client.session.errors[-1]
    assert (refused.xa_code, refused.receipt, client.receipts) == (XA_RBROLLBACK, "p", [])


def test_what_is_refused_after_its_client_left_is_rolled_back(harness: Any, client: Any) -> None:
    client.handle(Prepare(XA.key, XA, "p"))
    client.vanish()
    harness.turn()

    other = harness.consumer()
    harness.turn()
    assert other.bodies == ["first"]
    other.handle(Abort(XA.key, "r", xa=XA))
    assert "there is no transaction" in other.errors[0]


@pytest.mark.parametrize("others", [0, 2])
def test_a_rolled_back_branch_releases_messages_of_an_unnamed_queue(harness: Any, others: int) -> None:
    client = harness.client()
    client.session.prepared = lambda receipt, is_read_only: client.session.receipt(receipt)
    bodies = [f"m{number}" for number in range(1 + others)]
    client.send_all(bodies)
    client.subscribe()
    harness.turn()
    client.handle(Begin(XA.key, xa=XA))
    client.ack("m0", transaction=XA.key)
    client.handle(Prepare(XA.key, XA, "p"))
    harness.turn()
    client.vanish()
    harness.fail_over()

    client = harness.client()
    client.handle(Abort(XA.key, "r", xa=XA))
    harness.turn()

    client.subscribe()
    harness.turn()
    assert client.bodies == bodies
    assert harness.figures()["messages"] == len(bodies)
