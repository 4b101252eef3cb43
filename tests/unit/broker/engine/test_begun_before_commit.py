"""A durable subscription gets all messages of a transaction that was committed after it began, in this term and in the
next ones; and it never holds a persistent message that the store has not."""

# proves: no-durable-in-memory-alone, prepared-for-later-subscriptions, topic-of-a-branch-is-known

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tandemmq.broker.core.selector import compile_selector
from tandemmq.store.operations import RemoveMessage
from tandemmq.store.records.message import Destination, DestinationKind
from tests.support.broker.engine_term import EngineTerm
from tests.unit.broker.engine.conftest import PRICES, XA, come

pytestmark = pytest.mark.promise("confirmed-survives", "xa-branches")

PATTERN = Destination(DestinationKind.TOPIC, ">")
Following = Callable[[EngineTerm], EngineTerm]


@pytest.fixture(params=[True, False], ids=["crash", "end"])
def following(request: pytest.FixtureRequest, directory: str) -> Following:
    """The next term."""

    def follow(term: EngineTerm) -> EngineTerm:
        term.crash() if request.param else term.close()
        return EngineTerm(directory)

    return follow


def wait(term: EngineTerm, client: Any, receipt: str) -> None:
    term.wait(lambda: receipt in client.receipts)


def subscribed(term: EngineTerm, name: str, destination: Destination = PRICES, **options: Any) -> Any:
    client = come(term, name)
    client.subscribe("s", destination, durable_name="d", receipt="subscribed", **options)
    wait(term, client, "subscribed")
    return client


def prepared(term: EngineTerm) -> Any:
    sender = come(term, "sender").begin_branch()
    sender.send("a", PRICES, transaction=XA.key).send("b", PRICES, transaction=XA.key, persistent=False)
    sender.prepare()
    wait(term, sender, "p")
    return sender


@pytest.mark.parametrize("destination", [PRICES, PATTERN], ids=str)
def test_one_that_began_after_the_prepare_keeps_what_is_committed(
    directory: str, following: Following, destination: Destination
) -> None:
    term = EngineTerm(directory)
    sender = prepared(term)
    plain = come(term, "plain").subscribe("s", PRICES)
    durable = subscribed(term, "one", destination)
    sender.commit_branch()
    wait(term, sender, "c")
    assert (sorted(durable.bodies), sorted(plain.bodies)) == (["a", "b"], ["a", "b"])
    term = following(term)
    durable = subscribed(term, "one", destination)
    term.wait(lambda: durable.bodies == ["a"])
    term.close()


def test_the_next_master_commits_for_it(directory: str, following: Following) -> None:
    term = EngineTerm(directory)
    prepared(term)
    subscribed(term, "one")
    term = following(term)
    one, two = subscribed(term, "one"), subscribed(term, "two", PATTERN)
    sender = come(term, "sender").commit_branch()
    wait(term, sender, "c")
    term.wait(lambda: one.bodies == two.bodies == ["a"])
    term.close()


def test_the_next_master_commits_for_one_of_a_pattern_alone(directory: str, following: Following) -> None:
    term = EngineTerm(directory)
    prepared(term)
    term = following(term)
    client = subscribed(term, "one", PATTERN)
    wait(term, come(term, "sender").commit_branch(), "c")
    term.wait(lambda: client.bodies == ["a"])
    term.close()


@pytest.mark.parametrize("is_wide", [True, False])
def test_a_transaction_keeps_its_messages_beside_subscriptions_that_take_none(
    directory: str, following: Following, is_wide: bool
) -> None:
    """``is_wide``: the selector is expensive, and the messages of the topic take steps."""
    selector = " OR ".join(f"colour LIKE '%{number}%'" for number in range(100)) if is_wide else "colour = 'red'"
    assert compile_selector(selector).is_cheap is not is_wide
    term = EngineTerm(directory)
    subscribed(term, "none", selector=selector).disconnect()
    sender = prepared(term)
    subscribed(term, "neither", selector=selector).disconnect()
    subscribed(term, "all")
    sender.commit_branch()
    wait(term, sender, "c")
    term.wait(lambda: any(isinstance(each, RemoveMessage) for each in term.durable_operations))
    term = following(term)
    assert {each.client_id: each.count for each in term.owners} == {"none": 0, "neither": 0, "all": 1}
    term.close()


def test_a_rollback_leaves_nothing(directory: str, following: Following) -> None:
    term = EngineTerm(directory)
    sender = prepared(term)
    subscribed(term, "one")
    sender.abort_branch()
    wait(term, sender, "r")
    term = following(term)
    assert [each.count for each in term.owners] == [0]
    term.close()


@pytest.mark.parametrize("is_branch", [True, False])
def test_one_that_begins_while_a_commit_is_stored_begins_after_it(
    directory: str, following: Following, is_branch: bool
) -> None:
    term = EngineTerm(directory)
    sender, plain = come(term, "sender"), come(term, "plain").subscribe("s", PRICES)
    key = XA.key if is_branch else "t"
    sender.begin_branch() if is_branch else sender.begin()
    sender.send("a", transaction=key).send("b", PRICES, transaction=key)
    sender.commit_branch(is_two_phase=False) if is_branch else sender.commit(receipt="c")
    durable = come(term, "one").subscribe("s", PRICES, durable_name="d", receipt="subscribed")
    wait(term, durable, "subscribed")
    assert (sender.receipts, plain.bodies, durable.bodies) == (["c"], ["b"], [])
    sender.send("c", PRICES, receipt="sent")
    wait(term, sender, "sent")
    assert durable.bodies == ["c"]
    term = following(term)
    durable = subscribed(term, "one")
    term.wait(lambda: durable.bodies == ["c"])
    term.close()
