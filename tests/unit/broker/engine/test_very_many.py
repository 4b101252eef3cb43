"""Work on very many destinations, messages or clients is divided into steps: its client waits, others do not, and a
client that leaves in the middle leaves nothing behind."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest

from tandemmq.broker.core.commands import (
    Ack,
    AckMode,
    AddDestination,
    AddProducer,
    Begin,
    Commit,
    Connect,
    GiveUp,
    Prepare,
    Subscribe,
)
from tandemmq.broker.core.delivery import Entry
from tandemmq.broker.core.destinations import Destinations
from tandemmq.broker.core.memory import Kind
from tandemmq.broker.core.open_transaction import Transaction
from tandemmq.broker.core.policies import DestinationPolicy, Policies
from tandemmq.broker.core.queue import browse as browsing
from tandemmq.broker.core.queue.groups import Groups
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.queue.window import Window
from tandemmq.broker.core.slices import CLOCK_ITEMS, Work
from tandemmq.broker.engine import dead_letters, dispatch, publish, transaction_end
from tandemmq.broker.engine.engine import Engine, destinations_of
from tandemmq.broker.engine.part import Loop
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tests.support.compiled import REPLACES_A_METHOD
from tests.support.core.counting import Times
from tests.support.core.groups import owned
from tests.unit.broker.engine.conftest import (
    DLQ,
    ORDERS,
    PRICES,
    XA,
    Client,
    Harness,
    MakeHarness,
    advisor,
    shorten_steps,
)

pytestmark = pytest.mark.promise("others-are-served")

MANY = 40
STEP = 8
EVERY_QUEUE = Destination(DestinationKind.QUEUE, "many.>")
PRICES_QUEUE = Destination(DestinationKind.QUEUE, "prices")
EVERY_TOPIC = Destination(DestinationKind.TOPIC, "many.>")


def queue(number: int) -> Destination:
    return Destination(DestinationKind.QUEUE, f"many.{number}")


def topic(number: int) -> Destination:
    return Destination(DestinationKind.TOPIC, f"many.{number}")


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_steps(monkeypatch, STEP)


@pytest.fixture
def harness(harness: Harness) -> Harness:
    for number in range(MANY):
        harness.client().send(str(number), queue(number))
        harness.destinations.topic(topic(number), None)
    harness.turn()
    return harness


def steps(harness: Harness) -> int:
    """Makes all that was begun; in so many steps."""
    count = 0
    while harness.works:
        harness.step()
        count += 1
    return count


def step_until_joined(harness: Harness) -> None:
    while not consumers(harness):
        harness.step()


def consumers(harness: Harness) -> int:
    return sum(len(each.consumers) for each in harness.destinations.queues())


def test_a_pattern_of_queues_is_opened_in_steps_and_what_its_client_says_next_waits(harness: Harness) -> None:
    client = harness.consumer(destination=EVERY_QUEUE, receipt="opened")
    step_until_joined(harness)
    assert consumers(harness) <= STEP
    client.unsubscribe(receipt="closed").send("last", receipt="sent", persistent=False)
    assert not client.is_reading
    other = harness.client()
    for number in range(MANY):
        other.send("x", queue(number), receipt="r", persistent=False)
    assert other.receipts == ["r"] * MANY, "others are served meanwhile"
    assert client.session.events == [("connected", client.client.connection.id)], "the receipt comes first"
    assert steps(harness) > 3 * MANY // STEP
    assert (client.session.events[1], client.receipts) == (("receipt", "opened"), ["opened", "closed", "sent"])
    assert sorted(client.bodies) == sorted([*map(str, range(MANY)), *["x"] * MANY])
    assert client.is_reading
    assert consumers(harness) == 0


def test_a_queue_that_begins_or_ends_meanwhile_is_found_or_not(harness: Harness) -> None:
    client, other = harness.consumer(destination=EVERY_QUEUE), harness.client()
    other.send("new", queue(MANY), persistent=False)
    harness.destinations.remove(harness.destinations.queue(queue(MANY - 1)))
    harness.turn()
    assert consumers(harness) == MANY
    assert "new" in client.bodies


def test_room_is_looked_for_in_steps(harness: Harness) -> None:
    client, sender = harness.consumer(destination=EVERY_QUEUE, prefetch=1), harness.client()
    harness.turn()
    for number in range(MANY):
        assert len(client.bodies) == number + 1
        client.ack(client.bodies[-1])
        assert len(harness.works) <= 1
        harness.turn()
    sender.send("late", queue(MANY - 1), persistent=False)
    assert client.bodies[-1] == "late"


def test_unacknowledged_messages_return_at_once_and_in_order(harness: Harness) -> None:
    one, other, sender = harness.consumer(prefetch=MANY), harness.client(), harness.client()
    sender.send_all(range(2 * MANY), persistent=False)
    assert len(one.bodies) == MANY
    one.unsubscribe()
    other.subscribe(prefetch=1)
    sender.send("behind", persistent=False)
    assert other.bodies == [str(MANY)], "what waits is not kept back by what is on its way back"
    harness.turn()
    for number in range(MANY):
        other.ack(other.bodies[-1])
        assert other.bodies[-1] == str(number)
    other.ack(other.bodies[-1])
    assert other.bodies[-1] == str(MANY + 1)


def test_a_client_that_leaves_gets_nothing_more_and_its_state_ends_in_steps(harness: Harness) -> None:
    client, other = harness.client(), harness.client()
    for number in range(MANY):
        client.subscribe(str(number), ack=AckMode.AUTO).handle(AddProducer(f"p{number}", ORDERS))
        client.handle(AddDestination(Destination(DestinationKind.TEMP_QUEUE, f"t{number}")))
    client.begin().turn().lose_socket()
    assert consumers(harness) == MANY, "nothing of it is done in the turn in which the socket was lost"
    other.send("a", persistent=False)
    harness.step()
    assert 0 < consumers(harness) < MANY
    harness.make_steps()
    assert consumers(harness) == 0
    other.subscribe()
    assert other.bodies == ["a"]
    assert not harness.engine._declarations.producing
    assert not any(each.kind is DestinationKind.TEMP_QUEUE for each in harness.destinations.by_name)


def test_a_reconnecting_client_waits_for_the_end_of_its_former_connection(harness: Harness) -> None:
    terms = {"destination": EVERY_TOPIC, "durable_name": "d"}
    harness.consumer(**terms, client_id="me").turn().lose_socket()
    again = Client(harness, "ID:again").handle(Connect("me")).subscribe(**terms, receipt="again")
    assert again.session.events == []
    again.turn()
    assert (again.receipts, again.errors) == (["again"], [])
    harness.client().send("x", topic(MANY - 1)).turn()
    assert again.bodies == ["x"]


def test_no_message_waits_for_a_subscriber_that_left(harness: Harness) -> None:
    client = harness.client()
    for number in range(STEP // 2):
        client.subscribe(str(number), PRICES)
    subscriptions: list[Any] = list(client.client.subscriptions.values())
    client.lose_socket()
    harness.client().send("a", PRICES, persistent=False)
    assert not any(each.pending for each in subscriptions)


def parts(harness: Harness) -> list[Queue]:
    return [*harness.destinations.parts()]


def test_a_durable_pattern_begins_and_ends_in_steps(harness: Harness) -> None:
    client = harness.consumer(destination=EVERY_TOPIC, durable_name="d", receipt="opened", client_id="me")
    assert len(parts(harness)) < STEP
    harness.destinations.topic(topic(MANY), None)  # begins meanwhile
    client.unsubscribe("s", durable_name="d", receipt="ended")
    harness.step()
    assert client.receipts == []
    harness.turn()
    assert client.receipts == ["opened", "ended"] or client.receipts == ["ended"]
    assert parts(harness) == []
    assert all(not each.durables for each in harness.destinations.topics())
    assert [owner for owner in harness.store.owners() if owner.subscription_name] == []


def test_a_client_that_vanishes_during_the_deletion_of_its_durable_pattern_finds_it_deleted(harness: Harness) -> None:
    client = harness.consumer(destination=EVERY_TOPIC, durable_name="d", client_id="me").turn()
    client.unsubscribe("s", durable_name="d")
    harness.step()
    client.lose_socket()
    again = Client(harness, "ID:again")
    again.handle(Connect("me")).subscribe(destination=topic(0), durable_name="d", receipt="again").turn()
    assert again.receipts == ["again"]
    assert [part.destination for part in parts(harness)] == [topic(0)]


@pytest.mark.contains_errors
def test_an_error_of_ours_in_the_middle_ends_that_client_alone(harness: Harness) -> None:
    client, other = harness.client(), harness.client()
    opened, failures = Queue.open, iter([False] * STEP + [True])

    def fail(queue: Queue, *of: Any) -> None:
        if next(failures, False):
            raise RuntimeError("of this client")
        opened(queue, *of)

    harness.patch.setattr(Queue, "open", fail)
    client.subscribe(destination=EVERY_QUEUE)
    steps(harness)
    assert client.is_closed
    harness.engine.closed(client)
    harness.make_steps()
    other.send("x", receipt="r", persistent=False)
    assert (other.receipts, consumers(harness)) == (["r"], 0)


def test_of_a_leaver_in_a_transaction_nothing_is_overtaken(harness: Harness) -> None:
    client, other, sender = harness.client(), harness.client(), harness.client()
    client.handle(Subscribe("s", ORDERS, AckMode.RANGE, prefetch=MANY))
    orders = harness.destinations.queue(ORDERS)
    sender.send_all(range(MANY), persistent=False)
    client.begin().handle(Ack("s", MANY, "t", None, first=MANY // 2))
    other.subscribe(prefetch=2 * MANY)
    client.lose_socket()
    while harness.works:
        harness.step()
        harness.engine._dispatcher.dispatch(orders)
    assert other.bodies == [str(number) for number in range(MANY)]


def test_reports_of_the_store_are_processed_in_steps_and_in_order(harness: Harness) -> None:
    sender, consumer = harness.client(), harness.consumer(prefetch=2 * MANY)
    for number in range(MANY):
        sender.send(str(number), receipt=str(number))
    harness.turn(1)  # the store reports all of it
    assert len(sender.receipts) == len(consumer.bodies) == STEP
    for number in range(MANY, 2 * MANY):
        sender.send(str(number), receipt=str(number))
    while len(sender.receipts) < 2 * MANY:
        before = len(sender.receipts)
        harness.turn(1)
        assert len(sender.receipts) <= before + STEP
    assert sender.receipts == consumer.bodies == [str(number) for number in range(2 * MANY)]
    harness.turn()
    assert not harness.engine._is_taking_in


def test_producers_wait_while_more_is_reported_than_taken_in(harness: Harness) -> None:
    sender = harness.client()
    for batch in range(3):
        for number in range(MANY):
            sender.send(f"{batch}.{number}")
        harness.turn(1) if batch == 0 else harness.store._report()
    assert harness.engine.is_congested
    drained = harness.drained
    harness.turn()
    assert not harness.engine.is_congested
    assert harness.drained > drained
    assert harness.figures()["messages"] == 3 * MANY


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_commit_to_a_topic_is_delivered_in_steps_and_its_sender_waits(harness: Harness, is_stored: bool) -> None:
    subscriber, sender = harness.client(), harness.client()
    for number in range(STEP):
        subscriber.subscribe(str(number), PRICES, AckMode.AUTO)
    if is_stored:
        harness.client("me").subscribe("d", PRICES, durable_name="d").turn()
    sender.begin().send_all(range(MANY), PRICES, transaction="t", persistent=is_stored).commit(receipt="r")
    if is_stored:
        harness.turn(1)
    sender.send("behind", PRICES, persistent=False, receipt="behind")
    assert len(subscriber.bodies) <= 2 * STEP
    assert sender.receipts == []
    assert harness.most(lambda: len(subscriber.bodies), are_calls=True) <= 2 * STEP
    assert len(subscriber.bodies) == (MANY + 1) * STEP
    if is_stored:
        assert sorted(sender.receipts) == ["behind", "r"]
    else:
        assert subscriber.bodies[::STEP] == [*map(str, range(MANY)), "behind"]
        assert sender.receipts == ["r", "behind"]
    assert sender.is_reading


def test_a_large_backlog_is_given_out_in_steps(harness: Harness) -> None:
    sender, consumer = harness.client(), harness.client()
    sender.send_all(range(2 * MANY), persistent=False)
    consumer.subscribe(prefetch=2 * MANY)
    most = 2 * dispatch.ROUNDS_MAX
    assert len(consumer.bodies) == most
    assert harness.most(lambda: len(consumer.bodies)) <= most
    assert consumer.bodies == [str(number) for number in range(2 * MANY)]


def test_placing_for_selectors_or_groups_takes_steps_and_keeps_the_order(harness: Harness) -> None:
    sender, consumer, other = harness.client(), harness.client(), harness.client()
    for number in range(2 * MANY):
        sender.send(str(number), persistent=False, group_id=f"g{number % 4}")
    orders = harness.destinations.queue(ORDERS)
    consumer.subscribe(prefetch=2 * MANY)
    assert orders.assignment is not None
    backlog = orders.assignment._lanes.backlog
    assert backlog.count == 2 * MANY - STEP
    other.subscribe(prefetch=2 * MANY, selector="a is not null")
    assert harness.most(lambda: backlog.count) <= 2 * STEP
    assert consumer.bodies == [str(number) for number in range(2 * MANY)]
    assert other.bodies == []


def test_expired_messages_are_removed_in_steps_with_a_bounded_round(make_harness: MakeHarness) -> None:
    harness = make_harness(DestinationPolicy(expire_messages_period=1))
    sender, consumer = harness.client(), harness.client()
    sender.send_all(range(2 * MANY), expiration=5_000).store("alive")
    harness.now = 6_000
    consumer.subscribe()
    assert 0 < harness.counts["expired_total"] < STEP
    assert harness.most(lambda: harness.counts["expired_total"]) <= dead_letters.STEP_MAX
    gone = harness.counts["expired_total"]
    assert gone == dead_letters.ROUND_MAX, "the store has its turn before the next round"
    assert consumer.bodies == ["alive"], "nobody waits behind what has expired"
    harness.turn()
    assert harness.counts["expired_total"] == 2 * MANY
    assert harness.figures("ActiveMQ.DLQ.Queue.orders")["messages"] == 2 * MANY


@pytest.mark.parametrize("meanwhile", ["nothing", "one comes", "all leave"])
@pytest.mark.parametrize("kind", ["plain", "priorities", "groups", "selectors"])
def test_expired_messages_are_found_in_steps_while_the_queue_continues(
    make_harness: MakeHarness, kind: str, meanwhile: str
) -> None:
    many = 10 * MANY
    harness = make_harness(DestinationPolicy(prioritized_messages=kind == "priorities", expire_messages_period=1))
    sender, consumer, other = harness.client(), harness.client(), harness.client()
    consumer.subscribe(prefetch=2, selector="a = 1" if kind == "selectors" else None)
    for number in range(many):
        sender.send(
            str(number),
            persistent=False,
            priority=number % 10,
            expiration=0 if number % 40 == 7 else 5_000,
            group_id=f"g{number % 7}" if kind == "groups" else None,
        )
    harness.turn()
    seen = len(consumer.bodies)
    harness.now = 6_000
    looks = harness.count_reads(Message, "expiration")
    harness.engine.tick(6_000)
    is_first = True
    while harness.works:
        assert looks.count <= 8 * STEP
        looks.count = 0
        harness.step()
        if is_first and meanwhile == "one comes":
            other.subscribe("o", ack=AckMode.AUTO, selector="a = 2")
        elif is_first and meanwhile == "all leave":
            consumer.unsubscribe()
        is_first = False
    harness.patch.undo()
    harness.turn()
    harness.wait(2)
    consumer.vanish()
    other.vanish()
    last = harness.consumer(ack=AckMode.AUTO, prefetch=many).turn()
    alive = [str(number) for number in range(7, many, 40)]
    assert sorted(last.bodies, key=int) == alive
    assert kind == "priorities" or last.bodies == alive
    assert harness.counts["expired_total"] == many - len(alive), f"{seen} were given out before, and came back"
    assert harness.figures()["messages"] == 0
    harness.wait(1)
    queue = harness.destinations.queue(ORDERS)
    assert (queue.held, queue.ready_weight, queue.in_flight, queue.expiring_at) == (0, 0, 0, 0)
    assert queue.share.used == 0


@pytest.mark.parametrize("meanwhile", ["nothing", "one comes"])
@pytest.mark.parametrize("kind", ["plain", "priorities", "groups", "returned"])
def test_a_queue_leaves_what_it_holds_to_the_store_in_steps(
    make_harness: MakeHarness, kind: str, meanwhile: str
) -> None:
    many = 10 * MANY
    harness = make_harness(DestinationPolicy(prioritized_messages=kind == "priorities"), memory_limit=650_000)
    harness.patch.setattr("tandemmq.broker.core.queue.ordering.PIECE_MAX", STEP)
    harness.patch.setattr("tandemmq.broker.core.queue.window._EXAMINED", 1)
    sender, consumer, other = harness.client(), harness.client(), harness.client()
    if kind == "returned":
        consumer.subscribe(prefetch=MANY)
    for number in range(many):
        group = f"g{number % 7}" if kind == "groups" else None
        sender.send(str(number), persistent=number % 2 == 0, priority=number % 10, group_id=group)
    harness.turn()
    consumer.vanish().turn()
    queue = harness.destinations.queue(ORDERS)
    assert queue.held == queue.count == many
    looks = harness.count(Window, "_may_leave")
    harness.engine.tick(1_000)
    count = 0
    while harness.works:
        assert looks.count <= 2 * STEP + (MANY if kind == "returned" else 0)
        looks.count = 0
        harness.step()
        count += 1
        if count == 10 and meanwhile == "one comes":
            assert many // 2 < queue.held < many
            other.subscribe(prefetch=1)
    assert count > (many // STEP if meanwhile == "nothing" else 10)
    assert queue.count == many
    if meanwhile == "nothing":
        assert queue.held == many // 2, "what is not stored stays"
    other.vanish()
    last = harness.consumer(ack=AckMode.AUTO, prefetch=many).turn()
    assert sorted(last.bodies, key=int) == [str(number) for number in range(many)]
    for priority in range(10):
        alike = [each for each in last.bodies if int(each) % 10 == priority]
        assert alike == sorted(alike, key=int)


@pytest.mark.contains_errors
def test_an_error_of_the_broker_during_expiry_does_not_keep_the_other_messages(make_harness: MakeHarness) -> None:
    harness = make_harness(DestinationPolicy(expire_messages_period=1))
    sender = harness.client()
    for number in range(MANY):
        sender.send(str(number), expiration=5_000).send(str(number), PRICES_QUEUE, expiration=5_000)
    harness.turn()
    dead_letter = dead_letters.dead_letter
    failures = iter([True])

    def fails_once(*arguments: Any) -> Any:
        if next(failures, False):
            raise RuntimeError("ours")
        return dead_letter(*arguments)

    harness.patch.setattr(dead_letters, "dead_letter", fails_once)
    harness.tick(6_000)
    assert (harness.counts["expired_total"], harness.counts["dead_letters_total"]) == (2 * MANY, 2 * MANY)


def test_the_look_of_each_second_takes_steps_and_is_not_begun_twice(make_harness: MakeHarness) -> None:
    harness = make_harness(
        DestinationPolicy(
            gc_inactive_destinations=True, inactive_timeout_before_gc=1_000, advisory_for_slow_consumers=True
        )
    )
    for number in range(MANY):
        harness.destinations.topic(topic(number), None)
    harness.engine.tick(1_000)
    assert steps(harness) >= MANY // STEP
    harness.engine.tick(3_000)
    harness.engine.tick(4_000)
    assert len(harness.works) == 1
    steps(harness)
    assert harness.counts["destinations_gone_idle_total"] == MANY


@pytest.mark.parametrize("persistent", [True, False])
def test_a_range_is_acknowledged_in_steps_and_its_receipt_comes_last(harness: Harness, persistent: bool) -> None:
    count = 3 * CLOCK_ITEMS
    client, sender = harness.client(), harness.client()
    client.handle(Subscribe("s", ORDERS, AckMode.RANGE, prefetch=count))
    sender.store(*range(count), persistent=persistent)
    client.handle(Ack("s", count, None, "acknowledged", first=0)).unsubscribe(receipt="closed")
    assert harness.figures()["messages"] >= count - CLOCK_ITEMS
    client.lose_socket().turn()
    assert harness.figures()["messages"] == 0
    assert harness.stored() == MANY, "what the other queues hold"
    assert client.receipts == []


def test_a_range_is_given_up_in_steps(harness: Harness) -> None:
    client, sender = harness.client(), harness.client()
    client.session.survives_errors = True
    client.handle(Subscribe("s", ORDERS, AckMode.RANGE, prefetch=MANY))
    sender.store(*range(MANY))
    client.handle(GiveUp("s", 0, MANY, "poison", receipt="r"))
    assert harness.counts["dead_letters_total"] <= STEP
    client.unsubscribe(receipt="closed").turn()
    assert harness.counts["dead_letters_total"] == MANY
    assert client.receipts[0] == "closed" or client.receipts == ["r", "closed"]


def test_a_listener_to_the_present_state_gets_it_in_steps(make_harness: MakeHarness) -> None:
    harness = make_harness(advisor=advisor())
    for number in range(MANY):
        harness.destinations.topic(topic(number), None)
    listener, other = harness.client(), harness.client()
    everything = Destination(DestinationKind.TOPIC, "ActiveMQ.Advisory.Topic")
    listener.subscribe(destination=everything, ack=AckMode.AUTO)
    assert len(listener.bodies) < STEP
    other.send("aside", receipt="r", persistent=False)
    assert other.receipts == ["r"]
    listener.unsubscribe(receipt="heard").turn()
    assert (len(listener.bodies), listener.receipts) == (MANY, ["heard"])


@pytest.mark.parametrize("how", ["commit", "prepare"])
@REPLACES_A_METHOD
def test_a_large_transaction_is_made_ready_in_steps_and_ends_as_one(harness: Harness, how: str) -> None:
    encoded = harness.count(publish, "encode_payload")
    removed = harness.count(transaction_end, "removal")
    sender, consumer = harness.client(), harness.client()
    sender.send_all(range(MANY), PRICES_QUEUE).subscribe("own", PRICES_QUEUE, prefetch=MANY).turn()
    consumer.subscribe(prefetch=MANY)
    name = "t" if how == "commit" else XA.key
    sender.handle(Begin(name, xa=None if how == "commit" else XA))
    for number in range(MANY):
        sender.send(str(number), transaction=name).ack(str(number), transaction=name)
    encoded.count = removed.count = 0
    if how == "commit":
        sender.commit(receipt="r")
    else:
        sender.handle(Prepare(name, XA, "r"))
    branches = harness.engine._transactions.branches.by_key
    transaction = sender.client.transactions.get(name) or branches[name].transaction
    assert transaction is not None
    assert 0 < encoded.count + removed.count <= STEP
    assert harness.stored() == 2 * MANY, "nothing of it is stored yet"
    if how == "commit":
        sender.lose_socket()
    assert harness.most(lambda: encoded.count + removed.count, are_calls=True) <= STEP
    assert transaction.copies is transaction.removals is None
    assert encoded.count == removed.count == MANY, "none is made twice"
    if how == "prepare":
        assert sender.receipts == ["r"]
        sender.handle(Commit(name, "c", xa=XA, is_two_phase=True))
        orders = harness.destinations.queue(ORDERS)
        assert harness.most(lambda: orders.count, are_calls=True) <= STEP
        assert sender.receipts == ["r", "c"]
    assert consumer.bodies == [str(number) for number in range(MANY)]


@pytest.mark.parametrize("how", ["goes on", "leaves", "rolls back", "acknowledges more"])
@REPLACES_A_METHOD
def test_a_large_commit_that_waited_for_room_is_made_ready_in_steps(harness: Harness, how: str) -> None:
    """If the client rolls it back meanwhile, none of it is done."""
    made = harness.count(publish, "encode_payload")
    sender = harness.client()
    for number in range(2 * STEP + 1):
        sender.send(f"taken {number}", PRICES_QUEUE)
    sender.subscribe("own", PRICES_QUEUE, prefetch=MANY).turn()
    sender.begin_branch().send_all(range(MANY), transaction=XA.key)
    for number in range(2 * STEP):
        sender.ack(f"taken {number}", transaction=XA.key)
    before = harness.stored()
    bytes_max, harness.store.bytes_max = harness.store.bytes_max, 0
    sender.commit_branch("r", is_two_phase=False)
    harness.make_steps()
    harness.store.bytes_max = bytes_max
    made.count = 0
    harness.engine.flow.retry(harness.now)
    assert 0 < made.count <= STEP
    acknowledged = 0
    if how == "leaves":
        sender.lose_socket()
    elif how == "rolls back":
        sender.abort_branch("a")
    while harness.works:
        last = made.count
        harness.step()
        assert made.count - last <= STEP
        if made.count == MANY and how == "acknowledges more" and not acknowledged:
            assert harness.works, "what was acknowledged before is looked at in the middle"
            sender.ack(f"taken {2 * STEP}", transaction=XA.key)
            acknowledged = 1
    harness.turn()
    kept = 0 if how in ("leaves", "rolls back") else MANY - 2 * STEP - acknowledged
    assert harness.stored() - before == kept
    assert sorted(sender.receipts) == ([] if how == "leaves" else ["a", "r"] if how == "rolls back" else ["r"])
    assert not sender.errors
    assert (harness.counts["sends_waiting"], harness.counts["memory_transactions_bytes"]) == (0, 0)
    assert made.count == MANY, "none is made twice"


def test_a_wait_that_follows_a_wait_goes_on(harness: Harness) -> None:
    """A long selector is compiled, then very many queues are opened."""
    harness.in_thread = lambda work, then: harness.soon(lambda: (work(), then())[0])
    harness.begin_term()
    client = harness.consumer(destination=EVERY_QUEUE, selector=" or ".join(["a is null"] * 100), receipt="opened")
    client.send("behind", receipt="sent", persistent=False)
    harness.turn(1)
    assert not client.is_reading
    assert client.receipts == []
    harness.turn()
    assert client.receipts == ["opened", "sent"]
    assert client.is_reading


@pytest.mark.parametrize("selector", [None, "a is null"])
def test_very_many_unacknowledged_come_back_at_once_and_take_steps(harness: Harness, selector: str | None) -> None:
    """A step examines each entry a limited number of times. Then one subscription gets all messages again."""
    many = 10 * MANY
    client, other, sender = harness.client(), harness.client(), harness.client()
    for number in range(3):
        client.subscribe(str(number), ack=AckMode.CLIENT, prefetch=many, selector=selector)
    sender.store(*range(3 * many), persistent=False)
    assert len(client.bodies) == 3 * many
    queue = harness.destinations.queue(ORDERS)
    looks = harness.count_reads(Entry, "position")
    client.lose_socket()
    in_flight = [3 * many]
    while harness.works:
        before = looks.count
        harness.step()
        # Where consumers are not all alike, what was handed out is forgotten with one set of places.
        assert looks.count - before <= 6 * STEP + (many if selector and queue.in_flight != in_flight[-1] else 0)
        if queue.in_flight != in_flight[-1]:
            in_flight.append(queue.in_flight)
    assert in_flight == [3 * many, 2 * many, many, 0]
    other.subscribe(ack=AckMode.AUTO).turn()
    assert other.bodies == [str(number) for number in range(3 * many)]


def test_an_ended_queue_releases_the_memory_of_expired_messages(make_harness: MakeHarness) -> None:
    harness = make_harness(DestinationPolicy())
    sender, consumer = harness.client(), harness.client()
    sender.send_all(range(2 * MANY), persistent=False, expiration=5_000)
    harness.now = 6_000
    consumer.subscribe()
    orders = harness.destinations.queue(ORDERS)
    orders.dispatch(harness.now)
    assert orders.expired
    harness.destinations.remove(orders)
    harness.turn()
    assert harness.engine.memory.used == 0
    assert not orders.expired


def test_a_browser_that_acknowledges_one_by_one_is_shown_more_once_for_all(harness: Harness) -> None:
    sender, browser = harness.client(), harness.client()
    sender.send_all(range(MANY), persistent=False)
    browser.handle(Subscribe("b", ORDERS, AckMode.INDIVIDUAL, prefetch=STEP, is_browser=True)).turn()
    shown = harness.count(harness.engine._dispatcher.browsing._rounds, "_make")
    for body in browser.bodies[:STEP]:
        browser.ack(body)
    assert len(browser.bodies) == STEP
    harness.turn()
    assert browser.bodies == [str(number) for number in range(2 * STEP)]
    assert shown.count == 1


def browse(client: Client, selector: str | None = None) -> None:
    client.handle(Subscribe("b", ORDERS, AckMode.AUTO, prefetch=4 * MANY, selector=selector, is_browser=True))


@pytest.mark.parametrize("selector", [None, "a is null", "a is not null"])
@pytest.mark.parametrize("shape", ["plain", "grouped", "out of order", "out"])
def test_a_browser_looks_at_very_many_messages_in_steps_and_as_they_were(
    harness: Harness, shape: str, selector: str | None
) -> None:
    sender, browser = harness.client(), harness.client()
    for number in range(2 * MANY):
        group = f"g{number}" if shape == "grouped" else None
        sender.send(str(number), persistent=False, group_id=group, expiration=900 if number % 8 > 3 else 0)
    orders = harness.destinations.queue(ORDERS)
    if shape == "out of order":
        orders.ready.reverse()
    consumer = harness.client()
    if shape in ("out", "grouped"):
        consumer.subscribe(prefetch=MANY).turn()
    there = 2 * MANY - harness.counts["expired_total"]
    keys = harness.count(browsing, "key_of")
    browse(browser, selector)
    orders.drop()  # what the browser is shown was taken at once
    sender.send("behind", persistent=False)
    browser.send("aside", Destination(DestinationKind.QUEUE, "aside"), receipt="r", persistent=False)
    assert browser.receipts == [], "what its client says next waits"
    count = 0
    while harness.calls:
        before = keys.count, len(browser.bodies)
        harness.turn(1)
        count += 1
        assert keys.count <= before[0] + STEP
        assert len(browser.bodies) <= before[1] + STEP
    assert keys.count == there
    assert count >= 3 * there // STEP
    assert browser.receipts == ["r"]
    alive = [str(number) for number in range(2 * MANY) if number % 8 <= 3]
    assert browser.bodies == ([] if selector == "a is not null" else alive)
    assert browser.session.nothings == ["b"]


class CountedGroups(OrderedDict[str, Any]):
    changes = 0

    def __delitem__(self, name: str) -> None:
        self.changes += 1
        super().__delitem__(name)

    def popitem(self, last: bool = True) -> tuple[str, Any]:
        self.changes += 1
        return super().popitem(last)


@pytest.mark.parametrize("is_last", [True, False])
def test_a_client_with_very_many_groups_frees_them_in_steps(harness: Harness, is_last: bool) -> None:
    one, other, sender = harness.client(), harness.client(), harness.client()
    for number in range(4 * MANY):
        sender.send(str(number), persistent=False, group_id=f"g{number}")
    one.subscribe(prefetch=1).turn()
    if not is_last:
        other.subscribe(prefetch=1)
        sender.send("last", persistent=False, group_id="other's").turn()
        assert other.bodies == ["last"]
    assignment = harness.destinations.queue(ORDERS).assignment
    assert assignment is not None
    groups = assignment._lanes.groups
    counted = groups._groups = CountedGroups(groups._groups)
    done = harness.count(Groups, "done")
    one.lose_socket()
    while counted.changes < 4 * MANY:
        before = counted.changes, done.count
        harness.step()
        assert counted.changes <= before[0] + STEP
        assert done.count <= before[1] + STEP + 1, "and the one that came back"
    assert owned(groups) == (set() if is_last else {"other's"})
    harness.turn()
    if is_last:
        other.subscribe(prefetch=1).turn()
    else:
        other.ack("last")
    for number in range(4 * MANY):
        assert other.bodies[-1] == str(number), "what it left is in order"
        other.ack(str(number))
    harness.turn()
    assert len(groups) == 4 * MANY + (not is_last)
    assert not any(each.pending for each in groups._groups.values())


def test_the_content_of_a_store_is_taken_over_in_steps_and_searched_once(harness: Harness) -> None:
    subscriber = harness.client("me")
    for number in range(MANY):
        subscriber.subscribe(f"d{number}", topic(0), durable_name=f"d{number}")
    harness.turn()
    owners, looked = harness.store.owners(), []
    harness.store.owners = lambda: (looked.append(each) or each for each in owners)  # type: ignore[assignment, func-returns-value]
    harness.store.prepared = lambda: []  # type: ignore[method-assign]  # it looks through the owners
    taken: list[Destinations] = []

    def take_over() -> Work[None]:
        taken.append((yield from destinations_of(harness.store, harness.settings, Policies(()), harness.start)))

    harness.works.append(take_over())
    assert harness.most(lambda: len(looked)) == STEP
    assert len(looked) == 2 * MANY, "queues and durable subscriptions"
    (destinations,) = taken
    engine = Engine(harness.store, harness.settings, Loop(lambda: 0), destinations=destinations)
    assert (len(looked), engine._destinations, engine.memory) == (2 * MANY, destinations, destinations.memory)
    assert len(destinations.asleep()) == len(list(destinations.parts())) == MANY


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_commit_to_a_queue_becomes_visible_in_steps(harness: Harness, is_stored: bool) -> None:
    sender, consumer = harness.client(), harness.client()
    orders = harness.destinations.begin_queue(ORDERS, None)
    sender.begin().send_all(range(MANY), transaction="t", persistent=is_stored).commit(receipt="r")
    if not is_stored:
        sender.send("behind", persistent=False)
    most = 0
    while harness.calls:
        before = orders.count
        assert sender.receipts == [] or before >= MANY
        harness.turn(1)
        most = max(most, orders.count - before)
    assert 0 < most <= STEP + 1
    assert sender.receipts == ["r"]
    assert sender.is_reading
    consumer.subscribe(prefetch=2 * MANY).turn()
    assert consumer.bodies == [*map(str, range(MANY)), *([] if is_stored else ["behind"])]


@pytest.mark.parametrize(("name", "asked"), [("prices", 0), ("VirtualTopic.prices", MANY)])
@REPLACES_A_METHOD
def test_the_targets_of_a_known_topic_are_cached(harness: Harness, name: str, asked: int) -> None:
    sender, consumer = harness.client(), harness.client()
    there = Destination(DestinationKind.TOPIC, name)
    consumer.subscribe("t", there, AckMode.AUTO)
    sender.send("first", there, persistent=False)
    consumer.subscribe("q", Destination(DestinationKind.QUEUE, f"Consumer.c.{name}"), AckMode.AUTO)
    routed = harness.count(harness.engine._router, "routes")
    sender.begin().send_all(range(MANY), there, transaction="t").commit().turn()
    assert routed.count == asked
    assert len(consumer.bodies) == 1 + MANY + asked, "each queue of a virtual topic has its copy"


def test_very_many_clients_get_messages_again_in_steps(harness: Harness) -> None:
    client, sender = harness.client(), harness.client()
    for number in range(3):
        client.subscribe(str(number), topic(0), AckMode.AUTO)
    harness.turn()
    client.has_space = False
    sender.store(*range(MANY), destination=topic(0), persistent=False)
    assert client.bodies == []
    client.regain_space()
    assert len(client.bodies) < 3 * MANY
    assert harness.most(lambda: len(client.bodies)) < 3 * MANY
    assert len(client.bodies) == 3 * MANY


def test_a_queue_that_begins_is_joined_by_very_many_with_wildcards_in_steps(harness: Harness) -> None:
    pattern = Destination(DestinationKind.QUEUE, "new.>")
    listeners = [harness.client() for _ in range(MANY)]
    for each in listeners:
        each.subscribe(destination=pattern, prefetch=1)
    harness.turn()
    sender = harness.client()
    new = Destination(DestinationKind.QUEUE, "new.one")
    for number in range(2 * MANY):
        sender.send(str(number), new, receipt=str(number), persistent=False)
    assert len(sender.receipts) == 2 * MANY, "nobody waits for that"
    assert consumers(harness) == STEP
    listeners[-1].is_closed = True
    harness.engine.closed(listeners[-1])
    listeners[-2].unsubscribe()
    assert harness.most(lambda: consumers(harness)) <= STEP
    assert consumers(harness) == MANY - 2
    assert [each.bodies for each in listeners] == [[str(number)] for number in range(MANY - 2)] + [[], []]


def test_a_queue_that_ends_while_very_many_join_it_is_left_alone(harness: Harness) -> None:
    listeners = [harness.client() for _ in range(MANY)]
    for each in listeners:
        each.subscribe(destination=Destination(DestinationKind.QUEUE, "new.>"))
    harness.turn()
    new = harness.destinations.begin_queue(Destination(DestinationKind.QUEUE, "new.one"), None)
    harness.destinations.remove(new)
    harness.turn()
    assert new.consumers == []
    assert not any(subscription.queues for each in listeners for subscription in each.client.subscriptions.values())


def limited(make_harness: MakeHarness, **of: Any) -> tuple[Harness, Client, Times]:
    """Fill each of the queues with one message, and let one more wait for each; return how often a waiting one was
    tried."""
    harness: Harness = make_harness(DestinationPolicy(memory_limit=1, **of))
    sender = harness.client()
    for number in range(MANY):
        sender.send("first", queue(number), persistent=False)
        sender.send(f"second {number}", queue(number), receipt=str(number), persistent=False)
    return harness, sender, harness.count(harness.engine.flow, "_carry_out")


def test_commands_that_wait_at_very_many_limits_are_checked_in_steps(make_harness: MakeHarness) -> None:
    harness, sender, tried = limited(make_harness)
    harness.engine.flow.retry(harness.now)
    before = tried.count
    assert before <= STEP
    harness.engine.flow.retry(harness.now)
    assert tried.count == before, "one look at a time"
    assert harness.most(lambda: tried.count) <= STEP
    assert tried.count == MANY
    consumer = harness.consumer(destination=EVERY_QUEUE, ack=AckMode.AUTO)
    harness.wait(1)
    assert sender.receipts == [str(number) for number in range(MANY)]
    assert sorted(consumer.bodies) == sorted(["first"] * MANY + [f"second {number}" for number in range(MANY)])
    assert harness.counts["sends_waiting"] == 0


def test_commands_that_waited_too_long_at_very_many_limits_fail_in_steps(make_harness: MakeHarness) -> None:
    harness, sender, _ = limited(make_harness, send_fail_if_no_space_after_timeout=100)
    harness.now += 100
    harness.engine.flow.retry(harness.now)
    assert len(sender.errors) <= STEP
    assert harness.most(lambda: len(sender.errors)) <= STEP
    assert len(sender.errors) == MANY
    harness.turn()
    assert harness.counts["sends_waiting"] == 0


def listeners_of_a_pattern(harness: Harness) -> list[Client]:
    clients = [harness.client(f"c{number}") for number in range(MANY)]
    for each in clients:
        each.subscribe(destination=Destination(DestinationKind.TOPIC, "new.>"), durable_name="d")
    harness.turn()
    return clients


@pytest.mark.parametrize("how", ["one", "transaction", "composite"])
def test_a_topic_begins_in_steps_for_very_many_durable_patterns(harness: Harness, how: str) -> None:
    listeners = listeners_of_a_pattern(harness)
    sender, other = harness.client(), harness.client()
    new = Destination(DestinationKind.TOPIC, "new.one")
    if how == "transaction":
        sender.begin().send("x", new, transaction="t").commit(receipt="r")
    else:
        sender.send("x", new if how == "one" else new._replace(name="new.one,other.one"), receipt="r")
    assert len(parts(harness)) <= STEP
    sender.send("behind", new, receipt="b")
    other.send("aside", new, receipt="r")
    assert harness.most(lambda: len(parts(harness))) <= STEP
    harness.turn()
    assert all(sorted(each.bodies) == ["aside", "behind", "x"] for each in listeners)
    assert all(each.bodies.index("x") < each.bodies.index("behind") for each in listeners)
    assert (sender.receipts, other.receipts) == (["r", "b"], ["r"])
    assert harness.destinations.topic(new, None).beginning is None


def test_an_earlier_sender_waits_too_after_the_destination_was_created_again(harness: Harness) -> None:
    new = Destination(DestinationKind.TOPIC, "new.one")
    sender = harness.client().send("x", new, persistent=False)
    harness.destinations.remove(harness.destinations.topic(new, None))
    listeners = listeners_of_a_pattern(harness)
    harness.destinations.topic(new, None)
    assert len(parts(harness)) <= STEP
    sender.send("y", new, receipt="r", persistent=False).turn()
    assert [each.bodies for each in listeners] == [["y"]] * MANY


def test_a_durable_pattern_or_topic_that_ends_meanwhile_is_left_alone(harness: Harness) -> None:
    listeners = listeners_of_a_pattern(harness)
    new = harness.destinations.topic(Destination(DestinationKind.TOPIC, "new.one"), None)
    listeners[-1].unsubscribe("s", durable_name="d").turn()
    assert len(new.durables) == len(parts(harness)) == MANY - 1
    other = harness.destinations.topic(Destination(DestinationKind.TOPIC, "new.two"), None)
    harness.destinations.remove(other)
    harness.turn()
    assert len(other.durables) < STEP
    assert other.destination not in harness.destinations.by_name


@REPLACES_A_METHOD
def test_open_transactions_with_very_many_messages_end_one_by_one(harness: Harness) -> None:
    client = harness.client()
    for number in range(5):
        client.begin(str(number))
        for _ in range(64 * STEP):
            client.send("x", transaction=str(number))
    undone = harness.count(Transaction, "undo")
    client.lose_socket()
    assert harness.most(lambda: undone.count) == 1
    assert (undone.count, harness.engine.memory.by_kind[Kind.TRANSACTIONS]) == (5, 0)


@pytest.mark.parametrize("habit", ["dlq", "requeue"])
def test_very_many_refused_at_once_are_refused_in_steps(make_harness: MakeHarness, habit: str) -> None:
    harness: Harness = make_harness(stomp_nack=habit)
    client, other = harness.consumer(ack=AckMode.CLIENT), harness.client()
    other.store(*range(MANY))
    asked = harness.count(harness.policies, "of")
    client.nack(str(MANY - 1), receipt="r").unsubscribe()
    assert asked.count <= 2 * STEP
    assert harness.most(lambda: asked.count) <= 2 * STEP
    harness.turn()
    assert client.receipts == ["r"]
    other.subscribe(destination=ORDERS if habit == "requeue" else DLQ, ack=AckMode.AUTO).turn()
    assert other.bodies == [str(number) for number in range(MANY)]


@REPLACES_A_METHOD
@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("how", ["one", "transaction"])
def test_a_message_is_given_to_very_many_durable_ones_in_steps(harness: Harness, how: str, is_stored: bool) -> None:
    listeners = [harness.client(f"c{number}") for number in range(MANY)]
    for each in listeners:
        each.subscribe(destination=topic(0), durable_name="d")
    listeners[0].subscribe("plain", topic(0)).turn()
    sender = harness.client().begin()
    given = harness.count(Queue, "add" if is_stored else "add_volatile")
    sender.send_all(range(3), topic(0), transaction="t" if how == "transaction" else None, persistent=is_stored)
    sender.commit(receipt="r")
    assert given.count <= STEP
    assert harness.most(lambda: given.count, are_calls=True) <= STEP
    assert (given.count, sender.receipts) == (3 * MANY, ["r"])
    assert [sorted(each.bodies) for each in listeners] == [["0", "0", "1", "1", "2", "2"]] + [["0", "1", "2"]] * (
        MANY - 1
    )
