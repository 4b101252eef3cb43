"""An error in one receiver ends that one: the sender of the message and all other receivers notice nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tandemmq.broker.core.access import Credentials, OpenAccess
from tandemmq.broker.core.commands import AckMode, Begin, Connect, Prepare, Pull, Recover
from tandemmq.broker.core.policies import AbortSlow, DestinationPolicy, Policies, PolicyEntry
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.slices import ITEMS
from tandemmq.broker.protocols.openwire.advisories import Advisories
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.transactions import XaTransactionId
from tests.support.compiled import REPLACES_A_METHOD
from tests.unit.broker.engine.conftest import ORDERS, PRICES, Client, Harness, MakeHarness, advisor
from tests.unit.broker.engine.test_stomp import Wire

pytestmark = [pytest.mark.contains_errors, pytest.mark.promise("others-are-served")]


def fails(*arguments: Any) -> None:
    raise KeyError("a session has forgotten what it asked for")


@pytest.mark.parametrize("destination", [PRICES, ORDERS], ids=str)
def test_a_session_that_fails_is_hung_up_on_alone(harness: Any, destination: Destination) -> None:
    broken, good, sender = harness.client(), harness.client(), harness.client()
    for client in (broken, good):
        client.subscribe(destination=destination, ack=AckMode.AUTO if destination.is_topic else AckMode.INDIVIDUAL)
    broken.session.deliver = fails
    for number in range(4):
        sender.send(str(number), destination, receipt=f"r{number}").turn()
        if broken.is_closed and broken.client is not None and broken.client.is_open:
            broken.vanish()  # as the transport tells it
            harness.turn()
    assert broken.is_closed
    assert (sender.receipts, sorted(good.bodies)) == (["r0", "r1", "r2", "r3"], ["0", "1", "2", "3"])
    harness.client()  # and logs in


def test_a_refused_deletion_has_closed_the_subscription_it_named(harness: Any) -> None:
    """The session forgets it with that frame: it must get nothing more."""
    wire, other = Wire(harness, 1).connect("me"), Wire(harness, 2).connect()
    wire.say("SUBSCRIBE\nid:1\ndestination:/topic/prices\n\n")
    heard = wire.say("UNSUBSCRIBE\nid:1\ndurable-subscription-name:nope\nreceipt:u\n\n")
    assert heard.startswith("ERROR\n")
    assert "No durable subscription exists" in heard
    assert "RECEIPT" in other.say("SEND\ndestination:/topic/prices\nreceipt:s\n\nnews")
    assert wire.heard() == ""
    Wire(harness, 3).connect()


# ---- calls of the session of ``broken``, which fail; all other clients get the same as without the failure


def is_served(harness: Harness, *clients: Any) -> bool:
    """Return whether these clients can subscribe, send and receive."""
    for client in clients:
        client.subscribe("served", Destination(DestinationKind.QUEUE, f"of {client.id}"), AckMode.AUTO)
        client.send("all is well", Destination(DestinationKind.QUEUE, f"of {client.id}"), receipt="served")
    harness.turn()
    return all(client.bodies[-1:] == ["all is well"] and client.receipts[-1:] == ["served"] for client in clients)


Story = Callable[[Harness, Client, Client], "list[Client] | None"]
STORIES: list[Any] = []


def told(*says: str, **options: Any) -> Callable[[Story], Story]:
    """Marks what happens to ``broken``, ``good`` and the clients that it returns: ``broken`` fails where it is told
    ``says``. ``options``: of the harness."""

    def mark(story: Story) -> Story:
        STORIES.append(pytest.param(story, says, options, id=story.__name__))
        return story

    return mark


@told("receipt")
def a_receipt_in_the_middle_of_a_write(harness: Harness, broken: Client, good: Client) -> list[Client]:
    """All messages of the write hold, and all others who wait hear of it."""
    consumer = harness.consumer()
    broken.send("1", receipt="r")
    good.send("2", receipt="r")
    return [consumer]


@told("receipt")
def a_receipt_of_a_commit(harness: Harness, broken: Client, good: Client) -> list[Client]:
    consumer = harness.consumer()
    broken.begin().send("1", transaction="t").commit(receipt="r")
    good.send("2", receipt="r")
    return [consumer]


@told("receipt")
def a_receipt_of_what_is_not_stored(harness: Harness, broken: Client, good: Client) -> None:
    good.subscribe("s", PRICES, AckMode.AUTO)
    broken.send("1", PRICES, persistent=False, receipt="r")


@told("receipt")
def a_new_durable_subscription(harness: Harness, broken: Client, good: Client) -> None:
    for each in (broken, good):
        each.subscribe("s", PRICES, durable_name="d", receipt="r")


@told("prepared")
def a_branch_that_is_prepared(harness: Harness, broken: Client, good: Client) -> None:
    for number, each in enumerate((broken, good)):
        branch = XaTransactionId(1, b"b%d" % number, b"g")
        each.handle(Begin(branch.key, xa=branch)).send("1", transaction=branch.key)
        each.handle(Prepare(branch.key, branch, "prepared"))


@told("recovered")
def branches_that_are_recovered(harness: Harness, broken: Client, good: Client) -> None:
    for each in (broken, good):
        each.handle(Recover("recovered"))


@told("deliver")
def one_of_very_many_who_get_a_message_in_slices(harness: Harness, broken: Client, good: Client) -> list[Client]:
    crowd = [harness.client() for _ in range(ITEMS)]
    for each in (*crowd[:4], broken, *crowd[4:], good):
        each.subscribe("s", PRICES, AckMode.AUTO)
    return [harness.client().send("1", PRICES, receipt="1").send("2", PRICES, receipt="2")]


@told("deliver")
def a_scheduled_message_whose_time_has_come(harness: Harness, broken: Client, good: Client) -> None:
    for each in (broken, good):
        each.subscribe("s", PRICES, AckMode.AUTO)
    good.send_all("12", PRICES, properties={"AMQ_SCHEDULED_DELAY": 1_000})


@told("deliver", advisor=advisor())
def an_advisory(harness: Harness, broken: Client, good: Client) -> list[Client]:
    for each in (broken, good):
        each.subscribe("a", Destination(DestinationKind.TOPIC, "ActiveMQ.Advisory.Queue"), AckMode.AUTO).turn()
    return [harness.client().send("1", receipt="1")]


@told("close_consumer", "fail", policy=DestinationPolicy(abort_slow=AbortSlow(max_slow_duration=1_000)))
def a_consumer_that_is_ended_for_being_slow(harness: Harness, broken: Client, good: Client) -> list[Client]:
    for each in (broken, good):
        each.subscribe("s", PRICES, AckMode.INDIVIDUAL, prefetch=1)
    return [harness.consumer("all", PRICES, AckMode.AUTO).send_all("123", PRICES)]


@told("nothing")
def that_there_is_nothing(harness: Harness, broken: Client, good: Client) -> None:
    for each in (broken, good):
        each.subscribe("s", ack=AckMode.INDIVIDUAL, prefetch=0).handle(Pull("s", 100))
        each.subscribe("b", Destination(DestinationKind.QUEUE, "looked at"), AckMode.AUTO, is_browser=True)


def narrow(**fields: Any) -> Policies:
    policy = replace(DestinationPolicy(memory_limit=1_000), **fields)
    return Policies([PolicyEntry(DestinationKind.QUEUE, "orders", policy)])


def fill(harness: Harness, *waiting: Client) -> None:
    harness.client().send("x" * 500, persistent=False)
    for each in waiting:
        each.send("y", receipt="r", persistent=False)
    harness.turn()


@told("receipt", policy=narrow())
def that_there_is_room(harness: Harness, broken: Client, good: Client) -> list[Client]:
    fill(harness, broken, good)
    return [harness.consumer("s", ORDERS, AckMode.AUTO)]


@told("fail", policy=narrow(send_fail_if_no_space_after_timeout=2_000))
def that_there_was_no_room_for_too_long(harness: Harness, broken: Client, good: Client) -> None:
    fill(harness, broken, good)


@pytest.mark.parametrize(("story", "says", "options"), STORIES)
def test_other_clients_get_the_same_output_as_without_the_error(
    make_harness: MakeHarness, story: Story, says: tuple[str, ...], options: dict[str, Any]
) -> None:
    heard: list[list[list[Any]]] = []
    for is_broken in (False, True):
        harness = make_harness(**options)
        broken, good = harness.client("broken"), harness.client("good")
        for each in says if is_broken else ():
            setattr(broken.session, each, fails)
        others = [good, *(story(harness, broken, good) or ())]
        harness.turn()
        harness.wait(90)
        assert broken.is_closed is is_broken
        heard.append([list(each.session.events) for each in others])
        assert is_served(harness, *others)
    assert heard[0] == heard[1]
    assert all(len(events) > 1 for events in heard[0]), "else it shows nothing"


# ---- errors of our own, wherever they are


def broken_and_good(harness: Harness) -> tuple[Any, Any]:
    return harness.client("broken"), harness.client("good")


def test_an_advisory_that_cannot_be_made(make_harness: MakeHarness) -> None:
    harness = make_harness(advisor=advisor())
    good = harness.consumer("a", Destination(DestinationKind.TOPIC, "ActiveMQ.Advisory.Queue"), AckMode.AUTO)
    harness.patch.setattr(Advisories, "message", fails)
    maker = harness.client().send("2", receipt="2").turn()
    assert maker.receipts == ["2"]
    assert is_served(harness, good, maker)


def test_a_step_that_fails_does_not_keep_a_topic_from_going_on(harness: Harness) -> None:
    clients = [harness.consumer("s", PRICES, AckMode.AUTO) for _ in range(2 * ITEMS)]
    fan_out: Any = harness.engine._dispatcher.fan_out
    deliver = fan_out._deliver
    fan_out._deliver = lambda deliveries: fails() if deliveries[0][0].outlet is clients[0] else deliver(deliveries)
    sender = harness.client().send("1", PRICES, receipt="1").turn()
    fan_out._deliver = deliver
    sender.send("2", PRICES, receipt="2").turn()
    assert (clients[-1].bodies, sender.receipts) == (["1", "2"], ["1", "2"])


def test_a_command_that_waited_for_room_and_fails(make_harness: MakeHarness) -> None:
    """Otherwise the command would block all others for ever."""
    harness = make_harness(narrow())
    broken, good = broken_and_good(harness)
    carry_out = harness.engine.flow._carry_out
    harness.engine.flow._carry_out = lambda client, command: (
        fails() if client is broken.client else carry_out(client, command)
    )
    fill(harness, broken, good)
    harness.consumer("s", ORDERS, AckMode.AUTO)
    harness.wait(5)
    assert broken.is_closed
    assert good.receipts == ["r"]


@REPLACES_A_METHOD
def test_a_command_that_waited_too_long_and_fails(make_harness: MakeHarness) -> None:
    harness = make_harness(narrow(send_fail_if_no_space_after_timeout=2_000))
    broken, good = broken_and_good(harness)
    give_up = harness.engine._transactions.given_up
    harness.engine._transactions.given_up = lambda client, command, error: (
        fails() if client is broken.client else give_up(client, command, error)
    )
    fill(harness, broken, good)
    harness.wait(5)
    assert broken.is_closed
    assert len(good.errors) == 1


class Later(OpenAccess):
    """Access that decides no login before ``answer``."""

    def __init__(self) -> None:
        super().__init__(is_everywhere=True)
        self.asked: list[Callable[[], None]] = []

    def connect(self, credentials: Credentials, then: Callable[[Any], None]) -> None:
        self.asked.append(lambda: then(Principal("x", is_proved=False)))


@pytest.mark.parametrize("says", ["connected", "receipt"])
def test_an_error_at_the_answer_about_a_user(harness: Harness, says: str) -> None:
    """One answer decides about both clients, outside the turn of a client."""
    later = Later()
    harness.access = later
    harness.begin_term()
    clients: list[Any] = [Client(harness, f"ID:test-9-{number}") for number in range(2)]
    broken, good = clients
    setattr(broken.session, says, fails)
    for each in clients:
        each.handle(Connect()).send("1", PRICES, receipt="r", persistent=False)
    for answer in later.asked:
        answer()
    harness.turn()
    assert broken.is_closed
    assert good.receipts == ["r"]


@REPLACES_A_METHOD
def test_an_operation_that_cannot_be_completed(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, good = broken_and_good(harness)
    monkeypatch.setattr(harness.engine._arrivals, "published", fails)
    harness.client("c").subscribe("s", PRICES, durable_name="d").turn()
    broken.send("1", PRICES, receipt="r")
    good.send("2", receipt="r").turn()
    assert broken.is_closed
    assert good.receipts == ["r"]
    assert is_served(harness, good)


def cannot_give_out(harness: Harness, destination: Destination) -> None:
    dispatcher = harness.engine._dispatcher
    give_out = dispatcher._give_out
    dispatcher._give_out = lambda queue: fails() if queue.destination == destination else give_out(queue)


@REPLACES_A_METHOD
def test_a_queue_that_fails_to_deliver_returned_messages(harness: Harness) -> None:
    """The client that leaves messages in the queue is served, and the other queues deliver the messages that it leaves
    in them."""
    leaver, other = harness.client(), harness.client()
    names = [Destination(DestinationKind.QUEUE, name) for name in ("many.a", "many.b")]
    leaver.subscribe("all", Destination(DestinationKind.QUEUE, "many.>"))
    for each in names:
        other.send("1", each)
    harness.turn()
    for each in names:
        other.subscribe(each.name, each)
    cannot_give_out(harness, names[0])
    leaver.unsubscribe("all").turn()
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
    assert (len(sender.receipts), consumer.bodies) == (2, ["1"])


def test_the_end_of_a_client(harness: Harness) -> None:
    """The rest of the client's state ends despite the error."""
    broken, good = broken_and_good(harness)
    broken.subscribe()
    good.store("1")
    endings = harness.engine._clients.endings
    harness.engine._clients.endings = (fails, *endings, fails)
    broken.vanish()
    harness.engine._clients.endings = endings
    good.subscribe().turn()
    assert good.bodies == ["1"]


def test_the_end_of_a_subscription(harness: Harness) -> None:
    """The others of the client end all the same."""
    broken, good = broken_and_good(harness)
    broken.subscribe("first", Destination(DestinationKind.QUEUE, "another")).subscribe("second")
    good.store("1")
    close = harness.engine._subscriber.close
    first = broken.client.subscriptions["first"]
    harness.engine._subscriber.close = lambda each, *seen, **how: (
        fails() if each is first else close(each, *seen, **how)
    )
    broken.vanish()
    good.subscribe().turn()
    assert good.bodies == ["1"]


def test_an_error_in_a_task_of_once_a_second(harness: Harness) -> None:
    (_, *rest) = harness.engine._ticking
    harness.engine._ticking = (fails, *rest)
    good = harness.consumer("s", PRICES, AckMode.AUTO)
    good.send("1", PRICES, properties={"AMQ_SCHEDULED_DELAY": 1_500})
    harness.wait(4)
    assert good.bodies == ["1"]
