"""A message that goes to very many queues and durable subscriptions is copied, stored and shown in steps, as one."""

from __future__ import annotations

import pytest

from tandemmq.broker.core.memory import Kind
from tandemmq.broker.core.policies import DestinationPolicy, Policies, PolicyEntry
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.engine import routing
from tandemmq.store.operations import AddMessage
from tandemmq.store.records.message import Destination, DestinationKind
from tests.support.compiled import REPLACES_A_METHOD
from tests.unit.broker.engine.conftest import XA, Client, Harness, MakeHarness, shorten_steps

MANY = 40
STEP = 8
NEWS = Destination(DestinationKind.TOPIC, "VirtualTopic.news")
PLAIN = Destination(DestinationKind.TOPIC, "news")


def reader(number: int) -> Destination:
    return Destination(DestinationKind.QUEUE, f"Consumer.{number}.VirtualTopic.news")


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_steps(monkeypatch, STEP)


@pytest.fixture
def harness(harness: Harness) -> Harness:
    for number in range(MANY):
        harness.destinations.begin_queue(reader(number), None)
    harness.turn()
    return harness


def queue(harness: Harness, number: int) -> Queue:
    return harness.destinations.begin_queue(reader(number), None)


def adds(harness: Harness) -> list[AddMessage]:
    """Return the messages that the store was to add since the test requested it."""
    assert harness.store.appended is not None
    parts = [part for each in harness.store.appended for part in getattr(each, "operations", [each])]
    return [part for part in parts if isinstance(part, AddMessage)]


def counts(harness: Harness) -> list[int]:
    return [queue(harness, number).count for number in range(MANY)]


@pytest.mark.parametrize("is_stored", [True, False])
@REPLACES_A_METHOD
def test_a_message_is_copied_in_steps_and_later_commands_of_its_sender_wait(harness: Harness, is_stored: bool) -> None:
    copies = harness.count(routing, "altered")
    sender, other, consumer = harness.client(), harness.client(), harness.client()
    sender.send("first", NEWS, receipt="1", persistent=is_stored)
    sender.send("second", reader(7), receipt="2", persistent=is_stored)
    other.send("aside", persistent=False, receipt="aside")
    assert other.receipts == ["aside"], "others do not wait"
    assert 0 < copies.count <= STEP
    assert harness.most(lambda: copies.count) <= STEP
    harness.turn()
    assert (copies.count, sender.receipts) == (MANY, ["1", "2"])
    assert counts(harness) == [2 if number == 7 else 1 for number in range(MANY)]
    consumer.subscribe("s", reader(7)).turn()
    assert (consumer.bodies, harness.engine.memory.by_kind[Kind.TRANSACTIONS]) == (["first", "second"], 0)


@pytest.mark.parametrize("is_stored", [True, False])
@REPLACES_A_METHOD
def test_a_queue_that_ends_meanwhile_gets_none(harness: Harness, is_stored: bool) -> None:
    copies = harness.count(routing, "altered")
    sender = harness.client()
    harness.store.appended = []
    sender.send("x", NEWS, receipt="r", persistent=is_stored)
    assert 0 < copies.count < MANY
    gone = queue(harness, 0), queue(harness, MANY - 1)
    for each in gone:
        harness.destinations.remove(each)
    harness.turn()
    assert sender.receipts == ["r"]
    assert not {each.owner for each in gone} & {add.owners[0] for add in adds(harness)}
    assert not any(each.count for each in gone)
    names = {each.name for each in harness.destinations.names()}
    assert not {reader(0).name, reader(MANY - 1).name} & names
    assert [queue(harness, number).count for number in range(1, MANY - 1)] == [1] * (MANY - 2)


def test_all_copies_are_stored_together_or_none(harness: Harness) -> None:
    sender = harness.client().send("x", NEWS, receipt="r")
    assert harness.stored() == 0
    harness.patch.setattr(type(harness.store), "is_full", property(lambda store: True))
    harness.make_steps()
    assert harness.stored() == 0
    harness.patch.undo()
    harness.wait(3)
    assert sender.receipts == ["r"], "it waited for room"
    assert (harness.stored(), counts(harness)) == (MANY, [1] * MANY)


def test_copies_in_progress_count_and_are_bounded_by_the_free_memory(harness: Harness) -> None:
    sender = harness.client()
    memory = harness.engine.memory
    sender.send("x" * 1000, NEWS)
    while harness.works and not memory.by_kind[Kind.TRANSACTIONS]:
        harness.step()
    assert memory.by_kind[Kind.TRANSACTIONS] > STEP // 2 * 1000
    harness.turn()
    assert memory.by_kind[Kind.TRANSACTIONS] == 0
    memory.limit = memory.used + 4 * STEP * 1000
    sender.send("y" * 10_000, NEWS, receipt="r").turn()
    assert sender.receipts == []
    assert "The copies of message" in sender.errors[0]
    assert sender.is_connected
    assert (counts(harness), memory.by_kind[Kind.TRANSACTIONS]) == ([1] * MANY, 0)


@REPLACES_A_METHOD
def test_in_a_branch_it_is_made_ready_in_steps_and_in_its_place(harness: Harness) -> None:
    copies = harness.count(routing, "altered")
    sender = harness.client().begin_branch()
    for number in range(3):
        sender.send(str(number), reader(7), transaction=XA.key)
        sender.send(f"{number} for all", NEWS, transaction=XA.key)
    sender.prepare()
    assert harness.most(lambda: copies.count) <= STEP
    sender.turn().commit_branch().turn()
    assert (sender.receipts, copies.count) == (["p", "c"], 3 * MANY), "none is made twice"
    assert counts(harness) == [6 if number == 7 else 3 for number in range(MANY)]
    consumer = harness.consumer("s", reader(7)).turn()
    assert consumer.bodies == ["0", "0 for all", "1", "1 for all", "2", "2 for all"]
    assert harness.engine.memory.by_kind[Kind.TRANSACTIONS] == 0


def subscribers(harness: Harness, first: int, behind: int) -> list[Client]:
    """Durable ones, half of whom want red, who have not been served yet."""
    clients = []
    for number in range(first, behind):
        client = harness.client(f"c{number}")
        client.subscribe("s", PLAIN, durable_name="d", selector="colour = 'red'" if number % 2 else None)
        clients.append(client)
    return clients


@pytest.mark.parametrize("is_stored", [True, False])
def test_very_many_durable_subscriptions_are_asked_in_steps(harness: Harness, is_stored: bool) -> None:
    clients = subscribers(harness, 0, MANY)
    harness.turn()
    asked = harness.count(type(next(iter(harness.destinations.topic(PLAIN, None).durables.values()))), "wants")
    sender = harness.client().send("x", PLAIN, receipt="r", persistent=is_stored)
    assert asked.count <= STEP
    assert harness.most(lambda: asked.count) <= STEP
    harness.turn()
    assert sender.receipts == ["r"]
    assert [client.bodies for client in clients] == [[] if number % 2 else ["x"] for number in range(MANY)]


def test_a_durable_subscription_that_begins_or_ends_meanwhile(harness: Harness) -> None:
    """A replay of the journal gives a message to each subscription that is not named with it."""
    clients = subscribers(harness, 0, MANY)
    harness.turn()
    sender = harness.client().send("x", PLAIN, receipt="r")
    assert sender.receipts == []
    late = subscribers(harness, MANY, MANY + 2)
    clients[0].unsubscribe("s", durable_name="d")
    harness.store.appended = []
    harness.turn()
    assert sender.receipts == ["r"]
    (add,) = adds(harness)
    assert len(add.owners) + len(add.unmatched_acks) == len(harness.destinations.topic(PLAIN, None).durables)
    assert len(set(add.owners)) == len(add.owners)
    assert late[0].bodies in ([], ["x"])
    assert late[1].bodies == []


def test_a_policy_that_refuses_the_message_stores_no_copy(make_harness: MakeHarness) -> None:
    policy = DestinationPolicy(memory_limit=100, send_fail_if_no_space=True)
    harness = make_harness(Policies([PolicyEntry(DestinationKind.QUEUE, reader(5).name, policy)]))
    for number in range(MANY):
        harness.destinations.begin_queue(reader(number), None)
    sender = harness.client().send("x" * 200, reader(5), persistent=False)
    sender.send("y", NEWS, receipt="r", persistent=False).turn()
    assert (sender.receipts, len(sender.errors)) == ([], 1)
    assert counts(harness) == [int(number == 5) for number in range(MANY)]
