"""What takes in very many destinations, messages or clients is done in steps: its client waits, others do not, and who
leaves in the middle leaves nothing behind."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

import broker.acknowledger
import broker.core.browse
import broker.core.queue
import broker.core.routing
import broker.dispatcher
import broker.engine
import broker.fan_out
import broker.sender
import broker.transactions
from broker.core import slices
from broker.core.commands import (
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
from broker.core.groups import Groups
from broker.core.memory import Kind
from broker.core.policies import DestinationPolicy, Policies
from broker.core.queue import Queue
from broker.engine import Engine, destinations_of
from broker.protocols.openwire.advisories import Advisories
from store.operations import Owner
from store.records.message import Destination, DestinationKind
from store.records.transactions import XaTransactionId
from tests.engine.conftest import ORDERS, Client, House

MANY = 40
STEP = 8
EVERY_QUEUE = Destination(DestinationKind.QUEUE, "many.>")
PRICES_QUEUE = Destination(DestinationKind.QUEUE, "prices")
EVERY_TOPIC = Destination(DestinationKind.TOPIC, "many.>")


def queue(number: int) -> Destination:
    return Destination(DestinationKind.QUEUE, f"many.{number}")


def topic(number: int) -> Destination:
    return Destination(DestinationKind.TOPIC, f"many.{number}")


@pytest.fixture
def house(house: House, monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.setattr(slices, "ITEMS", STEP)
    monkeypatch.setattr(broker.acknowledger, "ITEMS", STEP)
    monkeypatch.setattr(broker.engine, "OPERATIONS_MAX", STEP)
    monkeypatch.setattr(broker.fan_out, "ITEMS", STEP)
    monkeypatch.setattr(broker.sender, "ITEMS", STEP)
    monkeypatch.setattr(broker.core.queue, "ROUND_MESSAGES", 2)
    monkeypatch.setattr(broker.dispatcher, "ROUND_MESSAGES", 2)
    monkeypatch.setattr(broker.core.browse, "_ROUND_MESSAGES", 2)
    monkeypatch.setattr(broker.core.routing, "PLACED_MAX", STEP)
    for number in range(MANY):
        house.client().send(str(number), queue(number))
        house.engine._destinations.topic(topic(number))
    house.turn()
    return house


def steps(house: House) -> int:
    """Makes all that was begun; in so many steps."""
    count = 0
    while house._works:
        house._step()
        count += 1
    return count


def consumers(house: House) -> int:
    return sum(len(each.consumers) for each in house.engine._destinations.queues())


def test_a_pattern_of_queues_is_opened_in_steps_and_what_its_client_says_next_waits(house: House) -> None:
    client = house.client()
    client.subscribe(destination=EVERY_QUEUE, receipt="opened")
    while not consumers(house):
        house._step()
    assert consumers(house) <= STEP
    client.unsubscribe(receipt="closed")
    client.send("last", receipt="sent", persistent=False)
    assert not client.is_reading
    assert client.receipts == []
    other = house.client()
    other.send("aside", receipt="r", persistent=False)
    assert other.receipts == ["r"], "others are served meanwhile"
    assert steps(house) > 3 * MANY // STEP
    assert client.receipts == ["opened", "closed", "sent"]
    assert sorted(client.bodies, key=int) == [str(number) for number in range(MANY)]
    assert client.is_reading
    assert consumers(house) == 0


def test_nothing_is_delivered_before_the_receipt(house: House) -> None:
    client, sender = house.client(), house.client()
    client.subscribe(destination=EVERY_QUEUE, receipt="opened")
    while not consumers(house):
        house._step()
    for number in range(MANY):
        sender.send("x", queue(number), persistent=False)
    assert client.session.told == [("connected", client.client.connection.id)]
    steps(house)
    assert client.session.told[1] == ("receipt", "opened")
    assert len(client.bodies) == 2 * MANY


def test_who_vanishes_while_a_pattern_is_opened_takes_part_nowhere(house: House) -> None:
    client = house.client()
    client.subscribe(destination=EVERY_QUEUE)
    while not consumers(house):
        house._step()
    opened = consumers(house)
    client.is_closed = True
    house.engine.closed(client)
    while house._works:
        house._step()
        assert consumers(house) <= opened, "what nobody waits for is not gone on with"
    assert consumers(house) == 0
    assert not house.engine._destinations._watched
    assert not house.engine._leavers


def test_a_queue_that_begins_or_ends_meanwhile_is_found_or_not(house: House) -> None:
    client, other = house.client(), house.client()
    client.subscribe(destination=EVERY_QUEUE)
    other.send("new", queue(MANY), persistent=False)
    house.engine._destinations.remove(house.engine._destinations.queue(queue(MANY - 1)))
    house.turn()
    assert consumers(house) == MANY
    assert "new" in client.bodies


def test_room_is_looked_for_in_steps(house: House) -> None:
    client, sender = house.client(), house.client()
    client.subscribe(destination=EVERY_QUEUE, prefetch=1)
    house.turn()
    for number in range(MANY):
        assert len(client.bodies) == number + 1
        client.ack(client.bodies[-1])
        assert len(house._works) <= 1
        house.turn()
    sender.send("late", queue(MANY - 1), persistent=False)
    assert client.bodies[-1] == "late"


def test_what_was_not_acknowledged_comes_back_at_once_and_in_order(house: House) -> None:
    one, other, sender = house.client(), house.client(), house.client()
    one.subscribe(prefetch=MANY)
    for number in range(2 * MANY):
        sender.send(str(number), persistent=False)
    assert len(one.bodies) == MANY
    one.unsubscribe()
    other.subscribe(prefetch=1)
    sender.send("behind", persistent=False)
    assert other.bodies == [str(MANY)], "what waits is not kept back by what is on its way back"
    house.turn()
    for number in range(MANY):
        other.ack(other.bodies[-1])
        assert other.bodies[-1] == str(number)
    other.ack(other.bodies[-1])
    assert other.bodies[-1] == str(MANY + 1)


def test_a_client_that_leaves_gets_nothing_more_and_all_it_had_ends_in_steps(house: House) -> None:
    client, other = house.client(), house.client()
    for number in range(MANY):
        client.subscribe(str(number), ack=AckMode.AUTO)
        client.handle(AddProducer(f"p{number}", ORDERS))
        client.handle(AddDestination(Destination(DestinationKind.TEMP_QUEUE, f"t{number}")))
    client.begin()
    house.turn()
    client.is_closed = True
    house.engine.closed(client)
    assert consumers(house) == MANY, "nothing of it is done in the turn in which the socket was lost"
    other.send("a", persistent=False)
    house._step()
    assert 0 < consumers(house) < MANY
    house.make_steps()
    assert consumers(house) == 0
    other.subscribe()
    assert other.bodies == ["a"]
    assert not house.engine._declarations.producing
    assert not any(each.kind is DestinationKind.TEMP_QUEUE for each in house.engine._by_name)


def test_the_receipt_of_a_farewell_comes_when_all_is_over(house: House) -> None:
    client = house.client()
    for number in range(MANY):
        client.subscribe(str(number))
    client.disconnect("bye")
    house._step()
    assert client.receipts == []
    house.turn()
    assert client.receipts == ["bye"]
    assert client.is_closed
    assert consumers(house) == 0


def test_who_comes_back_waits_for_the_end_of_what_it_was(house: House) -> None:
    client = house.client("me")
    client.subscribe(destination=EVERY_TOPIC, durable_name="d", receipt="r")
    house.turn()
    assert client.receipts == ["r"]
    client.is_closed = True
    house.engine.closed(client)
    again = Client(house, "ID:again")
    again.handle(Connect("me"))
    again.subscribe(destination=EVERY_TOPIC, durable_name="d", receipt="again")
    assert again.session.told == []
    house.turn()
    assert again.receipts == ["again"]
    assert again.errors == []
    house.client().send("x", topic(MANY - 1))
    house.turn()
    assert again.bodies == ["x"]


def parts(house: House) -> list[Queue]:
    return [*house.engine._destinations.parts()]


def test_a_durable_pattern_begins_and_ends_in_steps(house: House) -> None:
    client = house.client("me")
    client.subscribe(destination=EVERY_TOPIC, durable_name="d", receipt="opened")
    assert len(parts(house)) < STEP
    house.engine._destinations.topic(topic(MANY))  # begins meanwhile
    client.unsubscribe("s", durable_name="d", receipt="ended")
    house._step()
    assert client.receipts == []
    house.turn()
    assert client.receipts == ["opened", "ended"] or client.receipts == ["ended"]
    assert parts(house) == []
    assert all(not each.durables for each in house.engine._destinations.topics())
    assert [owner for owner in house.store.owners() if owner.subscription_name] == []


def test_who_vanishes_while_a_durable_pattern_is_deleted_finds_it_gone(house: House) -> None:
    client = house.client("me")
    client.subscribe(destination=EVERY_TOPIC, durable_name="d")
    house.turn()
    client.unsubscribe("s", durable_name="d")
    house._step()
    client.is_closed = True
    house.engine.closed(client)
    again = Client(house, "ID:again")
    again.handle(Connect("me"))
    again.subscribe(destination=topic(0), durable_name="d", receipt="again")
    house.turn()
    assert again.receipts == ["again"]
    assert [part.destination for part in parts(house)] == [topic(0)]


@pytest.mark.contains_errors
def test_an_error_of_ours_in_the_middle_ends_that_client_alone(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    client, other = house.client(), house.client()
    opened = Queue.open
    count = 0

    def fail(queue: Queue, *of: Any) -> None:
        nonlocal count
        count += 1
        if count == STEP + 1:
            raise RuntimeError("of this client")
        opened(queue, *of)

    monkeypatch.setattr(Queue, "open", fail)
    client.subscribe(destination=EVERY_QUEUE)
    steps(house)
    assert client.is_closed
    house.engine.closed(client)
    house.make_steps()
    other.send("x", receipt="r", persistent=False)
    assert other.receipts == ["r"]
    assert consumers(house) == 0


def test_of_a_leaver_in_a_transaction_nothing_is_overtaken(house: House) -> None:
    client, other, sender = house.client(), house.client(), house.client()
    client.handle(Subscribe("s", ORDERS, AckMode.RANGE, prefetch=MANY))
    orders = house.engine._destinations.queue(ORDERS)
    for number in range(MANY):
        sender.send(str(number), persistent=False)
    client.begin()
    client.handle(Ack("s", MANY, "t", None, first=MANY // 2))
    other.subscribe(prefetch=2 * MANY)
    client.is_closed = True
    house.engine.closed(client)
    while house._works:
        house._step()
        house.engine._dispatcher.dispatch(orders)
    assert other.bodies == [str(number) for number in range(MANY)]


def test_what_the_store_reports_is_taken_in_by_steps_and_in_order(house: House) -> None:
    sender, consumer = house.client(), house.client()
    consumer.subscribe(prefetch=2 * MANY)
    for number in range(MANY):
        sender.send(str(number), receipt=str(number))
    house._soon.popleft()()  # the store reports all of it
    assert len(sender.receipts) == len(consumer.bodies) == STEP
    for number in range(MANY, 2 * MANY):
        sender.send(str(number), receipt=str(number))
    while len(sender.receipts) < 2 * MANY:
        before = len(sender.receipts)
        house._soon.popleft()()
        assert len(sender.receipts) <= before + STEP
    assert sender.receipts == consumer.bodies == [str(number) for number in range(2 * MANY)]
    house.turn()
    assert not house.engine._is_taking_in


def test_producers_wait_while_more_is_reported_than_taken_in(house: House) -> None:
    sender = house.client()
    for batch in range(3):
        for number in range(MANY):
            sender.send(f"{batch}.{number}")
        house._soon.popleft()() if batch == 0 else house.store._report()
    assert house.engine.is_congested
    drained = house.drained
    house.turn()
    assert not house.engine.is_congested
    assert house.drained > drained
    assert house.figures()["messages"] == 3 * MANY


@pytest.mark.parametrize("is_stored", [True, False])
def test_what_is_committed_for_a_topic_goes_out_in_steps_and_its_sender_waits(house: House, is_stored: bool) -> None:
    subscriber, sender = house.client(), house.client()
    prices = Destination(DestinationKind.TOPIC, "prices")
    for number in range(STEP):
        subscriber.subscribe(str(number), prices, AckMode.AUTO)
    if is_stored:
        house.client("me").subscribe("d", prices, durable_name="d")
        house.turn()
    sender.begin()
    for number in range(MANY):
        sender.send(str(number), prices, transaction="t", persistent=is_stored)
    sender.commit(receipt="r")
    if is_stored:
        house._soon.popleft()()
    sender.send("behind", prices, persistent=False)
    before = len(subscriber.bodies)
    assert before <= 2 * STEP
    while len(subscriber.bodies) < (MANY + 1) * STEP:
        house._soon.popleft()()
        assert len(subscriber.bodies) <= before + 2 * STEP
        before = len(subscriber.bodies)
    if not is_stored:
        assert subscriber.bodies[::STEP] == [*map(str, range(MANY)), "behind"]
    house.turn()
    assert sender.receipts == ["r"]
    assert sender.is_reading


def test_a_large_backlog_is_given_out_in_steps(house: House) -> None:
    sender, consumer = house.client(), house.client()
    for number in range(2 * MANY):
        sender.send(str(number), persistent=False)
    consumer.subscribe(prefetch=2 * MANY)
    most = 2 * broker.dispatcher.ROUNDS_MAX
    assert len(consumer.bodies) == most
    while house._works:
        before = len(consumer.bodies)
        house._step()
        assert len(consumer.bodies) <= before + most
    assert consumer.bodies == [str(number) for number in range(2 * MANY)]


def test_what_is_placed_for_selectors_or_groups_takes_steps_and_keeps_its_order(house: House) -> None:
    sender, consumer, other = house.client(), house.client(), house.client()
    for number in range(2 * MANY):
        sender.send(str(number), persistent=False, group_id=f"g{number % 4}")
    orders = house.engine._destinations.queue(ORDERS)
    consumer.subscribe(prefetch=2 * MANY)
    assert orders.routes is not None
    backlog = orders.routes._lanes.backlog
    assert backlog.count == 2 * MANY - STEP
    other.subscribe(prefetch=2 * MANY, selector="a is not null")
    while house._works:
        before = backlog.count
        house._step()
        assert backlog.count >= before - 2 * STEP
    assert consumer.bodies == [str(number) for number in range(2 * MANY)]
    assert other.bodies == []


def test_what_has_expired_is_cleared_away_in_steps(make_house: Any, house: House) -> None:
    house = make_house(DestinationPolicy(expire_messages_period=1))
    sender, consumer = house.client(), house.client()
    for number in range(2 * MANY):
        sender.send(str(number), expiration=5_000)
    sender.send("alive")
    house.turn()
    house.now = 6_000
    consumer.subscribe()
    assert 0 < house.counts["expired_total"] < STEP
    while house._works:
        before = house.counts["expired_total"]
        house._step()
        assert house.counts["expired_total"] <= before + 2 * broker.dispatcher.ROUNDS_MAX
    house.turn()
    assert house.counts["expired_total"] == 2 * MANY
    assert consumer.bodies == ["alive"]


def test_the_look_of_each_second_takes_steps_and_is_not_begun_twice(make_house: Any, house: House) -> None:
    house = make_house(
        DestinationPolicy(
            gc_inactive_destinations=True, inactive_timeout_before_gc=1_000, advisory_for_slow_consumers=True
        )
    )
    for number in range(MANY):
        house.engine._destinations.topic(topic(number))
    house.engine.tick(1_000)
    assert steps(house) >= MANY // STEP
    house.engine.tick(3_000)
    house.engine.tick(4_000)
    assert len(house._works) == 1
    steps(house)
    assert house.engine._idle_destinations.removed == MANY


@pytest.mark.parametrize("persistent", [True, False])
def test_a_range_is_acknowledged_in_steps_and_its_receipt_comes_last(house: House, persistent: bool) -> None:
    client, sender = house.client(), house.client()
    client.handle(Subscribe("s", ORDERS, AckMode.RANGE, prefetch=MANY))
    for number in range(MANY):
        sender.send(str(number), persistent=persistent)
    house.turn()
    client.handle(Ack("s", MANY, None, "acknowledged", first=0))
    client.unsubscribe(receipt="closed")
    assert house.figures()["messages"] > MANY - STEP
    client.is_closed = True
    house.engine.closed(client)
    house.turn()
    assert house.figures()["messages"] == 0
    assert house.stored() == MANY, "what the other queues hold"
    assert client.receipts == []


def test_a_range_is_given_up_in_steps(house: House) -> None:
    client, sender = house.client(), house.client()
    client.session.survives_errors = True
    client.handle(Subscribe("s", ORDERS, AckMode.RANGE, prefetch=MANY))
    for number in range(MANY):
        sender.send(str(number))
    house.turn()
    client.handle(GiveUp("s", 0, MANY, "poison", receipt="r"))
    assert house.counts["dead_letters_total"] <= STEP
    client.unsubscribe(receipt="closed")
    house.turn()
    assert house.counts["dead_letters_total"] == MANY
    assert client.receipts[0] == "closed" or client.receipts == ["r", "closed"]


def test_who_listens_to_what_there_is_hears_it_in_steps(make_house: Any, house: House) -> None:
    house = make_house(
        advisor=Advisories("ID:a", lambda: 1, count(1), broker_id="ID:b", broker_name="b", broker_url="")
    )
    for number in range(MANY):
        house.engine._destinations.topic(topic(number))
    listener, other = house.client(), house.client()
    everything = Destination(DestinationKind.TOPIC, "ActiveMQ.Advisory.Topic")
    listener.subscribe(destination=everything, ack=AckMode.AUTO)
    assert len(listener.bodies) < STEP
    other.send("aside", receipt="r", persistent=False)
    assert other.receipts == ["r"]
    listener.unsubscribe(receipt="heard")
    house.turn()
    assert len(listener.bodies) == MANY
    assert listener.receipts == ["heard"]


def test_what_follows_a_long_commit_waits_and_nothing_of_it_is_lost(house: House) -> None:
    sender, subscriber = house.client(), house.client()
    prices = Destination(DestinationKind.TOPIC, "prices")
    for number in range(STEP):
        subscriber.subscribe(str(number), prices, AckMode.AUTO)
    sender.begin()
    for number in range(MANY):
        sender.send(str(number), prices, transaction="t", persistent=False)
    sender.commit(receipt="committed")
    for body in "abc":
        sender.send(body, prices, persistent=False, receipt=body)
    assert sender.receipts == []
    house.turn()
    assert sender.receipts == ["committed", "a", "b", "c"]
    assert subscriber.bodies[::STEP] == [*map(str, range(MANY)), "a", "b", "c"]
    assert sender.is_reading


@pytest.mark.parametrize("how", ["commit", "prepare"])
def test_a_large_transaction_is_made_ready_in_steps_and_ends_as_one(
    house: House, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    made = 0

    def counted(make: Any) -> Any:
        def count(*of: Any) -> Any:
            nonlocal made
            made += 1
            return make(*of)

        return count

    monkeypatch.setattr(broker.sender, "encode_payload", counted(broker.sender.encode_payload))
    monkeypatch.setattr(broker.transactions, "removal", counted(broker.transactions.removal))
    sender, consumer = house.client(), house.client()
    for number in range(MANY):
        sender.send(str(number), PRICES_QUEUE)
    sender.subscribe("own", PRICES_QUEUE, prefetch=MANY)
    house.turn()
    consumer.subscribe(prefetch=MANY)
    xa = XaTransactionId(1, b"g", b"b")
    name = "t" if how == "commit" else xa.key
    sender.handle(Begin(name, xa=None if how == "commit" else xa))
    for number in range(MANY):
        sender.send(str(number), transaction=name)
        sender.ack(str(number), transaction=name)
    made = 0
    if how == "commit":
        sender.commit(receipt="r")
    else:
        sender.session.prepared = lambda receipt, is_read_only: sender.receipts.append(receipt)  # type: ignore[attr-defined]
        sender.handle(Prepare(name, xa, "r"))
    branches = house.engine._transactions._branches
    transaction = sender.client.transactions.get(name) or branches[name].transaction
    assert transaction is not None
    assert 0 < made <= STEP
    assert house.stored() == 2 * MANY, "nothing of it is stored yet"
    while made < 2 * MANY:
        before = made
        house._step()
        assert made <= before + STEP
    sender.is_closed = how == "commit"
    if sender.is_closed:
        house.engine.closed(sender)
    house.turn()
    assert transaction.made is transaction.removals is None
    assert made == 2 * MANY, "none is made twice"
    if how == "prepare":
        assert sender.receipts == ["r"]
        sender.handle(Commit(name, "c", xa=xa, is_two_phase=True))
        orders = house.engine._destinations.queue(ORDERS)
        while house._soon:
            before = orders.count
            house._soon.popleft()()
            assert orders.count - before <= STEP
        assert sender.receipts == ["r", "c"]
    assert consumer.bodies == [str(number) for number in range(MANY)]


def test_nothing_waits_for_a_subscriber_who_is_gone(house: House) -> None:
    client, sender = house.client(), house.client()
    prices = Destination(DestinationKind.TOPIC, "prices")
    for number in range(STEP // 2):
        client.subscribe(str(number), prices)
    subscriptions: list[Any] = list(client.client.subscriptions.values())
    client.is_closed = True
    house.engine.closed(client)
    sender.send("a", prices, persistent=False)
    assert not any(each.pending for each in subscriptions)


def test_a_wait_that_follows_a_wait_goes_on(house: House) -> None:
    """A long selector is compiled, then very many queues are opened."""
    house.engine._in_thread = lambda work, then: house._soon.append(lambda: (work(), then())[0])
    client = house.client()
    client.subscribe(destination=EVERY_QUEUE, selector=" or ".join(["a is null"] * 100), receipt="opened")
    client.send("behind", receipt="sent", persistent=False)
    house._soon.popleft()()
    assert not client.is_reading
    assert client.receipts == []
    house.turn()
    assert client.receipts == ["opened", "sent"]
    assert client.is_reading


def test_who_is_busy_is_not_taken_for_slow(make_house: Any, house: House) -> None:
    house = make_house(DestinationPolicy(advisory_for_slow_consumers=True))
    client, sender = house.client(), house.client()
    client.subscribe(prefetch=1)
    for body in "ab":
        sender.send(body, persistent=False)
    for is_busy in (True, False):
        client.client.is_busy = is_busy
        for second in range(1, 4):
            house.engine.tick(second * 1_000)
            house.turn()
        assert house.counts["slow_consumers"] == (not is_busy)


def test_a_queue_that_ends_gives_back_the_memory_of_what_had_expired(make_house: Any, house: House) -> None:
    house = make_house(DestinationPolicy())
    sender, consumer = house.client(), house.client()
    for number in range(2 * MANY):
        sender.send(str(number), persistent=False, expiration=5_000)
    house.now = 6_000
    consumer.subscribe()
    orders = house.engine._destinations.queue(ORDERS)
    orders.dispatch(house.now)
    assert orders.expired
    house.engine._destinations.remove(orders)
    house.turn()
    assert house.engine.memory.used == 0
    assert not orders.expired


def browse(client: Client, told: list[str], selector: str | None = None) -> None:
    client.session.nothing = told.append  # type: ignore[attr-defined]
    client.handle(Subscribe("b", ORDERS, AckMode.AUTO, prefetch=4 * MANY, selector=selector, is_browser=True))


@pytest.mark.parametrize("selector", [None, "a is null", "a is not null"])
@pytest.mark.parametrize("shape", ["plain", "grouped", "out of order", "out"])
def test_a_browser_looks_at_very_many_messages_in_steps_and_as_they_were(
    house: House, monkeypatch: pytest.MonkeyPatch, shape: str, selector: str | None
) -> None:
    sender, browser = house.client(), house.client()
    for number in range(2 * MANY):
        group = f"g{number}" if shape == "grouped" else None
        sender.send(str(number), persistent=False, group_id=group, expiration=900 if number % 8 > 3 else 0)
    orders = house.engine._destinations.queue(ORDERS)
    if shape == "out of order":
        orders.ready.reverse()
    consumer = house.client()
    if shape in ("out", "grouped"):
        consumer.subscribe(prefetch=MANY)
        house.turn()
    there = 2 * MANY - house.counts["expired_total"]
    keys = 0
    key_of = Queue._key_of

    def counted(self: Queue, entry: Any) -> int:
        nonlocal keys
        keys += 1
        return key_of(self, entry)

    monkeypatch.setattr(Queue, "_key_of", counted)
    ended: list[str] = []
    browse(browser, ended, selector)
    orders.drop()  # what the browser is shown was taken at once
    sender.send("behind", persistent=False)
    browser.send("aside", Destination(DestinationKind.QUEUE, "aside"), receipt="r", persistent=False)
    assert browser.receipts == [], "what its client says next waits"
    count = 0
    while house._soon:
        before = keys, len(browser.bodies)
        house._soon.popleft()()
        count += 1
        assert keys <= before[0] + STEP
        assert len(browser.bodies) <= before[1] + STEP
    assert keys == there
    assert count >= 3 * there // STEP
    assert browser.receipts == ["r"]
    alive = [str(number) for number in range(2 * MANY) if number % 8 <= 3]
    assert browser.bodies == ([] if selector == "a is not null" else alive)
    assert ended == ["b"]


def test_a_browser_that_leaves_meanwhile_is_forgotten(house: House) -> None:
    sender = house.client()
    for number in range(2 * MANY):
        sender.send(str(number), persistent=False)
    for leaves_after in range(60):
        browser = house.client()
        browse(browser, [])
        for _ in range(leaves_after):
            house._step()
        browser.is_closed = True
        house.engine.closed(browser)
        house.turn()
        assert not house.engine._dispatcher._browses
        assert not house.engine._dispatcher._shows._asked


class CountedGroups(OrderedDict[str, Any]):
    changes = 0

    def __delitem__(self, name: str) -> None:
        self.changes += 1
        super().__delitem__(name)

    def popitem(self, last: bool = True) -> tuple[str, Any]:
        self.changes += 1
        return super().popitem(last)


@pytest.mark.parametrize("is_last", [True, False])
def test_who_leaves_with_very_many_groups_gives_them_up_in_steps(
    house: House, monkeypatch: pytest.MonkeyPatch, is_last: bool
) -> None:
    one, other, sender = house.client(), house.client(), house.client()
    for number in range(4 * MANY):
        sender.send(str(number), persistent=False, group_id=f"g{number}")
    one.subscribe(prefetch=1)
    house.turn()
    if not is_last:
        other.subscribe(prefetch=1)
        sender.send("last", persistent=False, group_id="other's")
        house.turn()
        assert other.bodies == ["last"]
    routes = house.engine._destinations.queue(ORDERS).routes
    assert routes is not None
    groups = routes._lanes.groups
    counted = groups._groups = CountedGroups(groups._groups)
    done = 0
    groups_done = Groups.done

    def count_done(self: Groups, name: str) -> None:
        nonlocal done
        done += 1
        groups_done(self, name)

    monkeypatch.setattr(Groups, "done", count_done)
    one.is_closed = True
    house.engine.closed(one)
    while counted.changes < 4 * MANY:
        before = counted.changes, done
        house._step()
        assert counted.changes <= before[0] + STEP
        assert done <= before[1] + STEP + 1, "and the one that came back"
    assert groups.names() == (set() if is_last else {"other's"})
    house.turn()
    if is_last:
        other.subscribe(prefetch=1)
        house.turn()
    else:
        other.ack("last")
    for number in range(4 * MANY):
        assert other.bodies[-1] == str(number), "what it left is in order"
        other.ack(str(number))
    house.turn()
    assert len(groups) == 4 * MANY + (not is_last)
    assert not any(each.pending for each in groups._groups.values())


def test_what_came_back_to_a_queue_with_selectors_is_not_out_any_more(house: House) -> None:
    one, other, sender = house.client(), house.client(), house.client()
    one.subscribe(prefetch=MANY, selector="a is null")
    other.subscribe(prefetch=MANY, selector="a = 1")
    for number in range(MANY):
        sender.send(str(number), persistent=False, group_id=f"g{number % 4}")
    house.turn()
    routes = house.engine._destinations.queue(ORDERS).routes
    assert routes is not None
    assert len(routes._out) == MANY
    one.vanish()
    assert routes._out == set()


def test_what_a_store_has_is_taken_over_in_steps_and_looked_through_once(house: House) -> None:
    subscriber = house.client("me")
    for number in range(MANY):
        subscriber.subscribe(f"d{number}", topic(0), durable_name=f"d{number}")
    house.turn()
    owners, looked = house.store.owners(), 0

    def look() -> Iterator[Owner]:
        nonlocal looked
        for owner in owners:
            looked += 1
            yield owner

    house.store.owners = look  # type: ignore[assignment, method-assign]
    taking_over = destinations_of(house.store, house.settings, Policies(()), house._start)
    most = 0
    while True:
        before = looked
        try:
            next(taking_over)
        except StopIteration as done:
            destinations = done.value
            break
        most = max(most, looked - before)
    assert most == STEP
    assert looked == 2 * MANY, "queues and durable subscriptions"
    house.store.prepared = lambda: []  # type: ignore[method-assign]
    engine = Engine(house.store, house.settings, lambda: 0, destinations=destinations)
    assert looked == 2 * MANY
    assert engine._destinations is destinations
    assert engine.memory is destinations.memory
    assert len(destinations.asleep()) == len(destinations.parts()) == MANY


@pytest.mark.parametrize("is_stored", [True, False])
def test_what_is_committed_for_a_queue_becomes_visible_in_steps(house: House, is_stored: bool) -> None:
    sender, consumer = house.client(), house.client()
    orders = house.engine._destinations.queue(ORDERS)
    sender.begin()
    for number in range(MANY):
        sender.send(str(number), transaction="t", persistent=is_stored)
    sender.commit(receipt="r")
    if not is_stored:
        sender.send("behind", persistent=False)
    most = 0
    while house._soon:
        before = orders.count
        assert sender.receipts == [] or before >= MANY
        house._soon.popleft()()
        most = max(most, orders.count - before)
    assert 0 < most <= STEP + 1
    assert sender.receipts == ["r"]
    assert sender.is_reading
    consumer.subscribe(prefetch=2 * MANY)
    house.turn()
    assert consumer.bodies == [*map(str, range(MANY)), *([] if is_stored else ["behind"])]


def test_what_only_memory_holds_goes_to_many_durable_subscriptions_in_steps(house: House) -> None:
    sender, subscriber = house.client(), house.client("me")
    for number in range(STEP):
        subscriber.subscribe(f"d{number}", topic(0), durable_name=f"d{number}")
    house.turn()
    sender.begin()
    for number in range(MANY):
        sender.send(str(number), topic(0), transaction="t", persistent=False)
    sender.commit(receipt="r")
    while house._soon:
        before = len(subscriber.bodies)
        house._soon.popleft()()
        assert len(subscriber.bodies) <= before + STEP
    assert len(subscriber.bodies) == MANY * STEP
    assert sender.receipts == ["r"]


def test_who_vanishes_while_what_it_committed_becomes_visible_has_committed_all_of_it(house: House) -> None:
    sender = house.client()
    orders = house.engine._destinations.queue(ORDERS)
    sender.begin()
    for number in range(MANY):
        sender.send(str(number), transaction="t", persistent=False)
    sender.commit(receipt="r")
    while not orders.count:
        house._step()
    assert orders.count <= STEP
    assert house.engine.memory.by_kind[Kind.TRANSACTIONS] > 0, "what is not visible yet takes memory all the same"
    sender.is_closed = True
    house.engine.closed(sender)
    house.turn()
    assert orders.count == MANY
    assert house.engine.memory.by_kind[Kind.TRANSACTIONS] == 0


@pytest.mark.parametrize(("name", "asked"), [("prices", 0), ("VirtualTopic.prices", MANY)])
def test_where_messages_of_a_known_topic_go_is_not_asked_for_each(
    house: House, monkeypatch: pytest.MonkeyPatch, name: str, asked: int
) -> None:
    sender, consumer = house.client(), house.client()
    there = Destination(DestinationKind.TOPIC, name)
    consumer.subscribe("t", there, AckMode.AUTO)
    sender.send("first", there, persistent=False)
    consumer.subscribe("q", Destination(DestinationKind.QUEUE, f"Consumer.c.{name}"), AckMode.AUTO)
    routes, count = house.engine._sender._routes, 0

    def counted(*of: Any) -> Any:
        nonlocal count
        count += 1
        return routes(*of)

    monkeypatch.setattr(house.engine._sender, "_routes", counted)
    sender.begin()
    for number in range(MANY):
        sender.send(str(number), there, transaction="t")
    sender.commit()
    house.turn()
    assert count == asked
    assert len(consumer.bodies) == 1 + MANY + asked, "each queue of a virtual topic has its copy"


def test_each_report_of_the_store_lets_those_go_on_who_gave_it_much(house: House) -> None:
    sender = house.client()
    for number in range(3):
        drained, reports, handed_over = house.drained, house.engine.reports, house.engine.handed_over
        sender.send(str(number))
        sender.send(str(number))
        assert house.engine.handed_over == handed_over + 2
        house.turn()
        assert house.engine.reports == reports + 1
        assert house.drained > drained


def test_who_can_be_told_again_is_told_in_steps(house: House) -> None:
    client, sender = house.client(), house.client()
    for number in range(3):
        client.subscribe(str(number), topic(0), AckMode.AUTO)
    house.turn()
    client.has_room = False
    for number in range(MANY):
        sender.send(str(number), topic(0), persistent=False)
    house.turn()
    assert client.bodies == []
    client.has_room = True
    house.engine.writable(client)
    most = told = len(client.bodies)
    while house._works:
        house._step()
        most, told = max(most, len(client.bodies) - told), len(client.bodies)
    assert told == 3 * MANY
    assert most < 3 * MANY
