"""What goes wrong with one receiver ends that one: who sent the message, and all others who get it, notice nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tandemmq.broker.core.access import Credentials, OpenAccess
from tandemmq.broker.core.commands import AckMode, Begin, Connect, Prepare, Pull, Recover
from tandemmq.broker.core.policies import AbortSlow, DestinationPolicy, Policies, PolicyEntry
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.slices import ITEMS
from tandemmq.broker.protocols.openwire.advisories import Advisories
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.transactions import XaTransactionId
from tests.support.compiled import REPLACES_A_METHOD
from tests.unit.broker.engine.conftest import Client, Harness, advisor
from tests.unit.broker.engine.test_stomp import Wire

pytestmark = [pytest.mark.contains_errors, pytest.mark.promise("others-are-served")]

PRICES = Destination(DestinationKind.TOPIC, "prices")
ORDERS = Destination(DestinationKind.QUEUE, "orders")


def fails(*arguments: Any) -> None:
    raise KeyError("a session has forgotten what it asked for")


@pytest.mark.parametrize("destination", [PRICES, ORDERS], ids=str)
def test_a_session_that_fails_is_hung_up_on_alone(harness: Any, destination: Destination) -> None:
    broken, good, sender = harness.client(), harness.client(), harness.client()
    for client in (broken, good):
        client.subscribe(destination=destination, ack=AckMode.AUTO if destination.is_topic else AckMode.INDIVIDUAL)
    broken.session.deliver = fails
    for number in range(4):
        sender.send(str(number), destination, receipt=f"r{number}")
        harness.turn()
        if broken.is_closed and broken.client is not None and broken.client.is_open:
            broken.vanish()  # as the transport tells it
            harness.turn()
    assert broken.is_closed
    assert sender.receipts == ["r0", "r1", "r2", "r3"]
    assert sorted(good.bodies) == ["0", "1", "2", "3"]
    harness.client()  # and logs in


def test_a_refused_deletion_has_closed_the_subscription_it_named(harness: Any) -> None:
    """The session forgets it with that frame: it must get nothing more."""
    wire, other = Wire(harness, 1), Wire(harness, 2)
    for each in (wire, other):
        each.say(f"CONNECT\naccept-version:1.2\nclient-id:c{id(each)}\n\n")
    wire.say("SUBSCRIBE\nid:1\ndestination:/topic/prices\n\n")
    heard = wire.say("UNSUBSCRIBE\nid:1\ndurable-subscription-name:nope\nreceipt:u\n\n")
    assert heard.startswith("ERROR\n")
    assert "No durable subscription exists" in heard
    assert "RECEIPT" in other.say("SEND\ndestination:/topic/prices\nreceipt:s\n\nnews")
    assert wire.heard() == ""
    third = Wire(harness, 3)
    assert third.say("CONNECT\naccept-version:1.2\n\n").startswith("CONNECTED")


# ---- what else is told: the session of ``broken`` fails on it, and ``good`` is told the same, or waits behind it


def broken_and_good(harness: Harness, *says: str) -> tuple[Any, Any]:
    broken, good = harness.client("broken"), harness.client("good")
    for say in says:
        setattr(broken.session, say, fails)
    return broken, good


def is_served(harness: Harness, *clients: Any) -> bool:
    """All there is to do for a client is done for these."""
    for client in clients:
        client.subscribe("served", Destination(DestinationKind.QUEUE, f"of {client.id}"), AckMode.AUTO)
        client.send("all is well", Destination(DestinationKind.QUEUE, f"of {client.id}"), receipt="served")
    harness.turn()
    return all(client.bodies[-1:] == ["all is well"] and client.receipts[-1:] == ["served"] for client in clients)


@pytest.mark.parametrize("is_atomic", [False, True])
def test_a_receipt_in_the_middle_of_a_write(harness: Harness, is_atomic: bool) -> None:
    """All messages of the write hold, and all others who wait hear of it."""
    broken, good = broken_and_good(harness, "receipt")
    consumer = harness.consumer()
    if is_atomic:
        broken.handle(Begin("t", None))
    broken.send("1", receipt=None if is_atomic else "r", transaction="t" if is_atomic else None)
    if is_atomic:
        broken.commit("t", receipt="r")
    good.send("2", receipt="r")
    harness.turn()
    assert broken.is_closed
    assert good.receipts == ["r"]
    assert consumer.bodies == ["1", "2"]
    assert is_served(harness, good)


def test_a_receipt_of_what_is_not_stored(harness: Harness) -> None:
    broken, good = broken_and_good(harness, "receipt")
    good.subscribe("s", PRICES, AckMode.AUTO)
    broken.send("1", PRICES, persistent=False, receipt="r")
    harness.turn()
    assert broken.is_closed
    assert good.bodies == ["1"]


def test_a_new_durable_subscription(harness: Harness) -> None:
    broken, good = broken_and_good(harness, "receipt")
    for each in (broken, good):
        each.subscribe("s", PRICES, durable_name="d", receipt="r")
    harness.turn()
    assert broken.is_closed
    assert good.receipts == ["r"]


def test_a_branch_that_is_prepared_and_those_that_are_recovered(harness: Harness) -> None:
    broken, good = broken_and_good(harness, "prepared", "recovered")
    heard: list[str] = []
    good.session.prepared = lambda receipt, is_read_only: heard.append(receipt)
    good.session.recovered = lambda receipt, branches: heard.append(receipt)
    for number, each in enumerate((broken, good)):
        branch = XaTransactionId(1, b"b%d" % number, b"g")
        each.handle(Begin(branch.key, xa=branch))
        each.send("1", transaction=branch.key)
        each.handle(Prepare(branch.key, branch, "prepared"))
        each.handle(Recover("recovered"))
    harness.turn()
    assert broken.is_closed
    assert sorted(heard) == ["prepared", "recovered"]


def test_one_of_very_many_who_get_a_message_in_slices(harness: Harness) -> None:
    broken, good = broken_and_good(harness, "deliver")
    for number in range(ITEMS):
        harness.client().subscribe("s", PRICES, AckMode.AUTO)
        if number == 3:
            broken.subscribe("s", PRICES, AckMode.AUTO)
    good.subscribe("s", PRICES, AckMode.AUTO)
    sender = harness.client()
    for body in "12":
        sender.send(body, PRICES, receipt=body)
    harness.turn()
    assert broken.is_closed
    assert good.bodies == ["1", "2"]
    assert sender.receipts == ["1", "2"]
    assert is_served(harness, good, sender)


def test_a_step_that_fails_does_not_keep_a_topic_from_going_on(harness: Harness) -> None:
    clients = [harness.client() for _ in range(2 * ITEMS)]
    for each in clients:
        each.subscribe("s", PRICES, AckMode.AUTO)
    sender = harness.client()
    deliver = harness.engine._dispatcher.fan_out._deliver
    harness.engine._dispatcher.fan_out._deliver = lambda deliveries: (
        fails() if deliveries[0][0].outlet is clients[0] else deliver(deliveries)
    )
    sender.send("1", PRICES, receipt="1")
    harness.turn()
    harness.engine._dispatcher.fan_out._deliver = deliver
    sender.send("2", PRICES, receipt="2")
    harness.turn()
    assert clients[-1].bodies == ["1", "2"]
    assert sender.receipts == ["1", "2"]


def test_a_scheduled_message_whose_time_has_come(harness: Harness) -> None:
    broken, good = broken_and_good(harness, "deliver")
    for each in (broken, good):
        each.subscribe("s", PRICES, AckMode.AUTO)
    good.send_all("12", PRICES, properties={"AMQ_SCHEDULED_DELAY": 1_000})
    harness.wait(3)
    assert broken.is_closed
    assert sorted(good.bodies) == ["1", "2"]


def advised(**fields: Any) -> Harness:
    return Harness(EngineSettings(), advisor=advisor(), **fields)


def test_an_advisory(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = advised()
    broken, good = broken_and_good(harness, "deliver")
    for each in (broken, good):
        each.subscribe("a", Destination(DestinationKind.TOPIC, "ActiveMQ.Advisory.Queue"), AckMode.AUTO)
    harness.turn()
    maker = harness.client()
    maker.send("1", receipt="1")
    harness.turn()
    assert broken.is_closed
    assert [each.message.destination.name for each in good.session.delivered] == ["ActiveMQ.Advisory.Queue"]
    monkeypatch.setattr(Advisories, "message", fails)
    maker.send("2", Destination(DestinationKind.QUEUE, "another"), receipt="2")
    harness.turn()
    assert maker.receipts == ["1", "2"]
    assert is_served(harness, good, maker)


def test_a_consumer_that_is_ended_for_being_slow() -> None:
    policy = DestinationPolicy(abort_slow=AbortSlow(max_slow_duration=1_000))
    harness = Harness(EngineSettings(), Policies((), policy))
    broken, good = broken_and_good(harness, "close_consumer", "fail")
    for each in (broken, good):
        each.subscribe("s", PRICES, AckMode.INDIVIDUAL, prefetch=1)
    sender = harness.consumer("all", PRICES, AckMode.AUTO)
    sender.send_all("123", PRICES)
    harness.wait(90)
    assert broken.is_closed
    assert ("closed", "s") in good.session.events
    assert is_served(harness, good, sender)


def test_who_is_told_that_there_is_nothing(harness: Harness) -> None:
    broken, good = broken_and_good(harness, "nothing")
    heard: list[str] = []
    good.session.nothing = heard.append
    for each in (broken, good):
        each.subscribe("s", ack=AckMode.INDIVIDUAL, prefetch=0)
        each.handle(Pull("s", 100))
        each.subscribe("b", Destination(DestinationKind.QUEUE, "looked at"), AckMode.AUTO, is_browser=True)
    harness.wait(2)
    assert broken.is_closed
    assert sorted(heard) == ["b", "s"]


def narrow(**fields: Any) -> Harness:
    policy = replace(DestinationPolicy(memory_limit=1_000), **fields)
    harness = Harness(EngineSettings(), Policies([PolicyEntry(DestinationKind.QUEUE, "orders", policy)]))
    harness.client().send("x" * 500, persistent=False)
    return harness


@pytest.mark.parametrize("is_late", [False, True])
def test_who_waited_for_room(is_late: bool) -> None:
    harness = narrow(send_fail_if_no_space_after_timeout=2_000)
    broken, good = broken_and_good(harness, "receipt", "fail")
    for each in (broken, good):
        each.send(each.client.id, receipt="r", persistent=False)
    harness.turn()
    consumer = harness.client()
    if is_late:
        harness.wait(5)
    consumer.subscribe("s", ORDERS, AckMode.AUTO)
    harness.wait(5)
    assert broken.is_closed
    assert len(good.errors if is_late else good.receipts) == 1
    assert consumer.bodies[-1:] == ["x" * 500 if is_late else "good"]
    assert is_served(harness, good, consumer)


def test_what_waits_for_room_and_cannot_be_carried_out() -> None:
    """It would stand before all others for ever."""
    harness = narrow()
    broken, good = broken_and_good(harness)
    carry_out = harness.engine.flow._carry_out
    harness.engine.flow._carry_out = lambda client, command: (
        fails() if client is broken.client else carry_out(client, command)
    )
    for each in (broken, good):
        each.send(each.client.id, receipt="r", persistent=False)
    harness.turn()
    harness.consumer("s", ORDERS, AckMode.AUTO)
    harness.wait(5)
    assert broken.is_closed
    assert good.receipts == ["r"]


@REPLACES_A_METHOD
def test_what_waited_too_long_and_cannot_be_given_up() -> None:
    harness = narrow(send_fail_if_no_space_after_timeout=2_000)
    broken, good = broken_and_good(harness)
    give_up = harness.engine._transactions.given_up
    harness.engine._transactions.given_up = lambda client, command, error: (
        fails() if client is broken.client else give_up(client, command, error)
    )
    for each in (broken, good):
        each.send(each.client.id, receipt="r", persistent=False)
    harness.wait(5)
    assert broken.is_closed
    assert len(good.errors) == 1


class Later(OpenAccess):
    """Nobody is known until ``answer``."""

    def __init__(self) -> None:
        super().__init__(is_everywhere=True)
        self.asked: list[Callable[[], None]] = []

    def connect(self, credentials: Credentials, then: Callable[[Any], None]) -> None:
        self.asked.append(lambda: then(Principal("x", is_proved=False)))


@pytest.mark.parametrize("says", ["connected", "receipt"])
def test_who_was_found_out_and_what_waited_for_that(harness: Harness, says: str) -> None:
    """Both are known by one answer: it is nobody's own turn."""
    later = Later()
    harness.access = later
    harness.begin_term()
    clients: list[Any] = [Client(harness, f"ID:test-9-{number}") for number in range(2)]
    broken, good = clients
    setattr(broken.session, says, fails)
    for each in clients:
        each.handle(Connect())
        each.send("1", PRICES, receipt="r", persistent=False)
    for answer in later.asked:
        answer()
    harness.turn()
    assert broken.is_closed
    assert good.receipts == ["r"]


# ---- errors of our own, wherever they are


@REPLACES_A_METHOD
def test_an_operation_that_cannot_be_completed(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, good = broken_and_good(harness)
    monkeypatch.setattr(harness.engine._arrivals, "published", fails)
    harness.client("c").subscribe("s", PRICES, durable_name="d")
    harness.turn()
    broken.send("1", PRICES, receipt="r")
    good.send("2", receipt="r")
    harness.turn()
    assert broken.is_closed
    assert good.receipts == ["r"]
    assert is_served(harness, good)


def cannot_give_out(harness: Harness, destination: Destination) -> None:
    dispatcher = harness.engine._dispatcher
    give_out = dispatcher._give_out
    dispatcher._give_out = lambda queue: fails() if queue.destination == destination else give_out(queue)


@REPLACES_A_METHOD
def test_a_queue_that_cannot_give_out_what_somebody_leaves_in_it(harness: Harness) -> None:
    """He is served, and the other queues give out what he leaves in them."""
    leaver, other = harness.client(), harness.client()
    names = [Destination(DestinationKind.QUEUE, name) for name in ("many.a", "many.b")]
    leaver.subscribe("all", Destination(DestinationKind.QUEUE, "many.>"))
    for each in names:
        other.send("1", each)
    harness.turn()
    for each in names:
        other.subscribe(each.name, each)
    cannot_give_out(harness, names[0])
    leaver.unsubscribe("all")
    harness.turn()
    assert not leaver.is_closed
    assert other.bodies == ["1"]


@REPLACES_A_METHOD
def test_a_queue_that_cannot_give_out(harness: Harness) -> None:
    consumer, sender = harness.client(), harness.client()
    other = Destination(DestinationKind.QUEUE, "other")
    for destination in (ORDERS, other):
        consumer.subscribe(str(destination), destination)
    cannot_give_out(harness, ORDERS)
    for destination in (ORDERS, other):
        sender.send("1", destination, receipt=str(destination))
    harness.turn()
    assert len(sender.receipts) == 2
    assert consumer.bodies == ["1"]


def test_the_end_of_a_client(harness: Harness) -> None:
    """What else it had ends all the same."""
    broken, good = broken_and_good(harness)
    broken.subscribe()
    good.store("1")
    endings = harness.engine._clients.endings
    harness.engine._clients.endings = (fails, *endings, fails)
    broken.vanish()
    harness.engine._clients.endings = endings
    good.subscribe()
    harness.turn()
    assert good.bodies == ["1"]


def test_the_end_of_a_subscription(harness: Harness) -> None:
    """The others of the client end all the same."""
    broken, good = broken_and_good(harness)
    broken.subscribe("first", Destination(DestinationKind.QUEUE, "another"))
    broken.subscribe("second")
    good.store("1")
    close = harness.engine._subscriber.close
    first = broken.client.subscriptions["first"]
    harness.engine._subscriber.close = lambda each, *seen, **how: (
        fails() if each is first else close(each, *seen, **how)
    )
    broken.vanish()
    good.subscribe()
    harness.turn()
    assert good.bodies == ["1"]


def test_what_is_due_once_a_second(harness: Harness) -> None:
    (_, *rest) = harness.engine._ticking
    harness.engine._ticking = (fails, *rest)
    good = harness.consumer("s", PRICES, AckMode.AUTO)
    good.send("1", PRICES, properties={"AMQ_SCHEDULED_DELAY": 1_500})
    harness.wait(4)
    assert good.bodies == ["1"]
