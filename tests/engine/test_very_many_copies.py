"""A message that goes to very many queues and durable subscriptions is copied, stored and shown in steps, as one."""

from __future__ import annotations

from typing import Any

import pytest

import broker.sender
from broker.core import slices
from broker.core.commands import Begin, Commit, Prepare
from broker.core.memory import Kind
from broker.core.policies import DestinationPolicy, Policies, PolicyEntry
from broker.core.queue import Queue
from store.operations import AddMessage
from store.records.message import Destination, DestinationKind
from store.records.transactions import XaTransactionId
from tests.engine.conftest import Client, House

MANY = 40
STEP = 8
NEWS = Destination(DestinationKind.TOPIC, "VirtualTopic.news")
PLAIN = Destination(DestinationKind.TOPIC, "news")


def reader(number: int) -> Destination:
    return Destination(DestinationKind.QUEUE, f"Consumer.{number}.VirtualTopic.news")


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[Destination]:
    """Where the copies went that were made so far."""
    made: list[Destination] = []
    alter = broker.sender.altered

    def altered(message: Any, **fields: Any) -> Any:
        made.append(fields["destination"])
        return alter(message, **fields)

    monkeypatch.setattr(broker.sender, "altered", altered)
    return made


@pytest.fixture
def house(house: House, monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.setattr(slices, "ITEMS", STEP)
    monkeypatch.setattr(broker.sender, "ITEMS", STEP)
    for number in range(MANY):
        house.engine._destinations.queue(reader(number))
    house.turn()
    return house


def queue(house: House, number: int) -> Queue:
    return house.engine._destinations.queue(reader(number))


def adds(house: House, monkeypatch: pytest.MonkeyPatch) -> list[AddMessage]:
    """What the sender has the store add from now on."""
    added: list[AddMessage] = []
    append = house.engine._sender._append

    def note(operation: Any) -> None:
        added.extend(each for each in getattr(operation, "operations", [operation]) if isinstance(each, AddMessage))
        append(operation)

    monkeypatch.setattr(house.engine._sender, "_append", note)
    return added


def counts(house: House) -> list[int]:
    return [queue(house, number).count for number in range(MANY)]


@pytest.mark.parametrize("is_stored", [True, False])
def test_it_is_copied_in_steps_and_what_its_sender_says_next_comes_behind_it(
    house: House, copies: list[Destination], is_stored: bool
) -> None:
    sender, other, consumer = house.client(), house.client(), house.client()
    sender.send("first", NEWS, receipt="1", persistent=is_stored)
    sender.send("second", reader(7), receipt="2", persistent=is_stored)
    most = before = 0
    while house._works:
        most = max(most, len(copies) - before)
        before = len(copies)
        other.send("aside", persistent=False)
        house._step()
    assert 0 < most <= STEP
    assert not other.errors
    house.turn()
    assert len(copies) == MANY
    assert sender.receipts == ["1", "2"]
    assert counts(house) == [2 if number == 7 else 1 for number in range(MANY)]
    consumer.subscribe("s", reader(7))
    house.turn()
    assert consumer.bodies == ["first", "second"]
    assert house.engine.memory.by_kind[Kind.TRANSACTIONS] == 0


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_queue_that_ends_meanwhile_gets_none(
    house: House, copies: list[Destination], monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    sender = house.client()
    added = adds(house, monkeypatch)
    sender.send("x", NEWS, receipt="r", persistent=is_stored)
    assert 0 < len(copies) < MANY
    gone = queue(house, 0), queue(house, MANY - 1)
    for each in gone:
        house.engine._destinations.remove(each)
    house.turn()
    assert sender.receipts == ["r"]
    assert not {each.owner for each in gone} & {add.owners[0] for add in added}
    assert not any(each.count for each in gone)
    names = {each.name for each in house.engine._destinations.names()}
    assert not {reader(0).name, reader(MANY - 1).name} & names
    assert [queue(house, number).count for number in range(1, MANY - 1)] == [1] * (MANY - 2)


def test_all_copies_are_stored_together_or_none(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = house.client()
    sender.send("x", NEWS, receipt="r")
    assert house.stored() == 0
    monkeypatch.setattr(type(house.store), "is_full", property(lambda store: True))
    while house._works:
        house._step()
    assert house.stored() == 0
    monkeypatch.undo()
    house.wait(3)
    assert sender.receipts == ["r"], "it waited for room"
    assert house.stored() == MANY
    assert counts(house) == [1] * MANY


def test_who_vanishes_meanwhile_has_sent_to_all_or_to_none(house: House) -> None:
    sender = house.client()
    sender.send("x", NEWS)
    sender.is_closed = True
    house.engine.closed(sender)
    house.turn()
    assert counts(house) in ([1] * MANY, [0] * MANY)
    assert house.engine.memory.by_kind[Kind.TRANSACTIONS] == 0


def test_copies_count_while_they_are_made_and_nobody_holds_more_than_is_left(house: House) -> None:
    sender = house.client()
    memory = house.engine.memory
    sender.send("x" * 1000, NEWS)
    while house._works and not memory.by_kind[Kind.TRANSACTIONS]:
        house._step()
    assert memory.by_kind[Kind.TRANSACTIONS] > STEP // 2 * 1000
    house.turn()
    assert memory.by_kind[Kind.TRANSACTIONS] == 0
    memory.limit = memory.used + 4 * STEP * 1000
    sender.send("y" * 10_000, NEWS, receipt="r")
    house.turn()
    assert sender.receipts == []
    assert "The copies of message" in sender.errors[0]
    assert sender.is_connected
    assert counts(house) == [1] * MANY
    assert memory.by_kind[Kind.TRANSACTIONS] == 0


@pytest.mark.parametrize("how", ["commit", "prepare"])
def test_in_a_transaction_it_is_made_ready_in_steps_and_in_its_place(
    house: House, copies: list[Destination], how: str
) -> None:
    sender, consumer = house.client(), house.client()
    xa = XaTransactionId(1, b"g", b"b")
    name = "t" if how == "commit" else xa.key
    sender.handle(Begin(name, xa=None if how == "commit" else xa))
    for number in range(3):
        sender.send(f"{number}", reader(7), transaction=name)
        sender.send(f"{number} for all", NEWS, transaction=name)
    if how == "commit":
        sender.commit(receipt="r")
    else:
        sender.session.prepared = lambda receipt, is_read_only: sender.receipts.append(receipt)  # type: ignore[attr-defined]
        sender.handle(Prepare(name, xa, "r"))
    before = len(copies)
    while house._works:
        house._step()
        assert len(copies) - before <= STEP
        before = len(copies)
    house.turn()
    assert sender.receipts == ["r"]
    if how == "prepare":
        sender.handle(Commit(name, "c", xa=xa, is_two_phase=True))
        house.turn()
    assert len(copies) == 3 * MANY, "none is made twice"
    assert counts(house) == [6 if number == 7 else 3 for number in range(MANY)]
    consumer.subscribe("s", reader(7))
    house.turn()
    assert consumer.bodies == ["0", "0 for all", "1", "1 for all", "2", "2 for all"]
    assert house.engine.memory.by_kind[Kind.TRANSACTIONS] == 0


def subscribers(house: House, first: int, behind: int) -> list[Client]:
    """Durable ones, half of whom want red."""
    clients = []
    for number in range(first, behind):
        client = house.client(f"c{number}")
        client.subscribe("s", PLAIN, durable_name="d", selector="colour = 'red'" if number % 2 else None)
        clients.append(client)
    house.turn()
    return clients


@pytest.mark.parametrize("is_stored", [True, False])
def test_very_many_durable_subscriptions_are_asked_in_steps(
    house: House, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    clients = subscribers(house, 0, MANY)
    asked = 0
    durable = type(next(iter(house.engine._destinations.topic(PLAIN).durables.values())))
    wants = durable.wants

    def counted(self: Any, *of: Any) -> bool:
        nonlocal asked
        asked += 1
        return wants(self, *of)

    monkeypatch.setattr(durable, "wants", counted)
    sender = house.client()
    sender.send("x", PLAIN, receipt="r", persistent=is_stored)
    before = asked
    assert before <= STEP
    while house._works:
        house._step()
        assert asked - before <= STEP
        before = asked
    house.turn()
    assert sender.receipts == ["r"]
    assert [client.bodies for client in clients] == [[] if number % 2 else ["x"] for number in range(MANY)]


def test_a_durable_subscription_that_begins_or_ends_meanwhile_has_it_or_is_passed_over(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay of the journal gives a message to each subscription that is not named with it."""
    clients = subscribers(house, 0, MANY)
    sender = house.client()
    sender.send("x", PLAIN, receipt="r")
    assert sender.receipts == []
    late = subscribers_now(house, MANY, MANY + 2)
    clients[0].unsubscribe("s", durable_name="d")
    added = adds(house, monkeypatch)
    house.turn()
    assert sender.receipts == ["r"]
    (add,) = added
    assert len(add.owners) + len(add.passed_over) == len(house.engine._destinations.topic(PLAIN).durables)
    assert len(set(add.owners)) == len(add.owners)
    assert late[0].bodies in ([], ["x"])
    assert late[1].bodies == []


def subscribers_now(house: House, first: int, behind: int) -> list[Client]:
    clients = []
    for number in range(first, behind):
        client = house.client(f"c{number}")
        client.subscribe("s", PLAIN, durable_name="d", selector="colour = 'red'" if number % 2 else None)
        clients.append(client)
    return clients


def test_a_policy_that_lets_no_more_in_has_none_of_it(make_house: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = DestinationPolicy(memory_limit=100, send_fail_if_no_space=True)
    house: House = make_house(Policies([PolicyEntry(DestinationKind.QUEUE, reader(5).name, policy)]))
    monkeypatch.setattr(slices, "ITEMS", STEP)
    monkeypatch.setattr(broker.sender, "ITEMS", STEP)
    for number in range(MANY):
        house.engine._destinations.queue(reader(number))
    sender = house.client()
    sender.send("x" * 200, reader(5), persistent=False)
    sender.send("y", NEWS, receipt="r", persistent=False)
    house.turn()
    assert sender.receipts == []
    assert len(sender.errors) == 1
    assert counts(house) == [int(number == 5) for number in range(MANY)]
