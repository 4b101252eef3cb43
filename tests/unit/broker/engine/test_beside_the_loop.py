"""Long work runs on threads: deliveries are prepared in their consumer's order, and none is lost when a client leaves;
a selector that takes long to compile delays only its own client."""

# proves: long-texts-are-written-beside-the-loop, unsent-does-not-count, unsent-suspect-comes-again

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tandemmq.broker.core.commands import AckMode, Send
from tandemmq.broker.core.memory import Kind
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.engine.redelivery import POLL_SECONDS
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.utf import QUICK_WRITTEN_BYTES_MAX
from tests.unit.broker.engine.conftest import ORDERS, PRICES, Client, Harness, RecordingSession

LONG = "long"
LONG_SELECTOR = " OR ".join(f"colour = 'c{number}'" for number in range(60))
both_acks = pytest.mark.parametrize("ack", [AckMode.INDIVIDUAL, AckMode.AUTO])


class CarefulSession(RecordingSession):
    """Says nothing that is LONG before it was made ready."""

    def __init__(self) -> None:
        super().__init__()
        self.ready: set[str] = set()

    def deliver(  # type: ignore[override]
        self, subscription_id: str, tag: int, message: Message, redeliveries: int, ack_mode: AckMode
    ) -> Callable[[], None] | None:
        body = message.body.decode()
        if body.startswith(LONG) and body not in self.ready:

            def prepare() -> None:
                if "wrong" in body:
                    raise ValueError("of this message")
                self.ready.add(body)

            return prepare
        super().deliver(subscription_id, tag, message, redeliveries, ack_mode)
        return None


class Threads:
    """Work on threads, which ends when the test requests it."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], object], Callable[[], None]]] = []

    def __call__(self, work: Callable[[], object], then: Callable[[], None]) -> None:
        self.waiting.append((work, then))

    def do(self) -> None:
        work, then = self.waiting.pop(0)
        work()
        then()


@pytest.fixture
def threads() -> Threads:
    return Threads()


@pytest.fixture
def harness(threads: Threads) -> Harness:
    harness = Harness(EngineSettings())
    harness.prepare_in_thread = harness.in_thread = threads
    harness.begin_term()
    return harness


def client(harness: Harness, ack: AckMode = AckMode.INDIVIDUAL, destination: Any = ORDERS, **options: Any) -> Client:
    made = harness.client()
    made.session = made.client.session = CarefulSession()
    made.subscribe(ack=ack, destination=destination, **options)
    return made


@pytest.mark.parametrize("destination", [ORDERS, PRICES])
@both_acks
def test_each_consumer_has_its_order_and_others_do_not_wait(
    harness: Harness, threads: Threads, ack: AckMode, destination: Any
) -> None:
    one, other, sender = client(harness, ack, destination), client(harness, ack, PRICES), harness.client()
    sender.send_all(("a", "long 1", "b", "long 2", "c"), destination).store("aside", destination=PRICES)
    assert one.bodies == ["a"]
    assert one.is_held
    assert harness.engine.memory.by_kind[Kind.OUTPUT] > 0
    assert other.bodies[-1:] == (["aside"] if destination == ORDERS else ["a"])
    while threads.waiting:
        threads.do()
        one.engine.writable(one)
    assert one.bodies[:5] == ["a", "long 1", "b", "long 2", "c"]
    assert not one.is_held
    assert harness.engine.memory.by_kind[Kind.OUTPUT] == 0
    harness.turn()
    assert harness.stored() == (5 if ack is AckMode.INDIVIDUAL and destination == ORDERS else 0)


@both_acks
@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("how", ["unsubscribe", "vanish", "disconnect"])
def test_if_a_client_leaves_the_message_goes_to_the_next(
    harness: Harness, threads: Threads, ack: AckMode, persistent: bool, how: str
) -> None:
    one, sender = client(harness, ack), harness.client()
    sender.store("long 1", "b", persistent=persistent)
    getattr(one, how)()
    harness.turn()
    other = client(harness, ack)
    threads.do()
    assert one.session.events[-1] == ("dropped", None), "it keeps nothing of what was made ready"
    harness.turn()
    threads.do()
    harness.turn()
    assert one.bodies == []
    assert other.bodies in (["long 1", "b"], ["b", "long 1"])
    assert [each.redeliveries for each in other.session.delivered] == [0, 0]
    if ack is AckMode.INDIVIDUAL:
        other.ack("b").ack("long 1")
    harness.turn()
    assert (harness.stored(), harness.figures()["messages"], harness.engine.memory.used) == (0, 0, 0)


def leave(one: Client, how: str) -> None:
    """``hang_up``: the broker ends the connection, as after missing heart-beats; ``seen``: RemoveInfo of a client that
    names a delivery which it cannot have."""
    if how == "hang_up":
        one.engine.hang_up(one.id)
        one.vanish()
    elif how == "seen":
        one.unsubscribe(seen=2)
    else:
        getattr(one, how)()


def given(one: Client) -> list[tuple[str, int]]:
    return [(each.body, each.redeliveries) for each in one.session.delivered]


@pytest.fixture
def strict(make_harness: Any, threads: Threads) -> Harness:
    """Two redeliveries to lost consumers make a suspect."""
    harness: Harness = make_harness(maximum_redeliveries=2)
    harness.prepare_in_thread = threads
    harness.begin_term()
    return harness


@pytest.mark.parametrize("mode", [AckMode.INDIVIDUAL, AckMode.CLIENT, AckMode.RANGE])
@pytest.mark.parametrize("how", ["vanish", "hang_up", "unsubscribe", "seen", "disconnect"])
def test_a_delivery_that_no_client_got_does_not_count(
    strict: Harness, threads: Threads, how: str, mode: AckMode
) -> None:
    strict.client().store("long 1", "b")
    for _ in range(6):
        leave(client(strict, mode), how)
        strict.turn()
        threads.do()
        strict.wait(1)
    last = client(strict, mode)
    threads.do()
    assert given(last) == [("long 1", 0), ("b", 0)]


@pytest.mark.parametrize("how", ["vanish", "hang_up", "unsubscribe"])
def test_earlier_messages_of_the_client_count(strict: Harness, threads: Threads, how: str) -> None:
    strict.client().store("a", "long 1", "long 2", "b")
    one = client(strict)
    threads.do()
    assert one.bodies == ["a", "long 1"]
    leave(one, how)
    strict.turn()
    threads.do()
    other = client(strict)
    threads.do()
    threads.do()
    assert given(other) == [("a", 1), ("long 1", 1), ("long 2", 0), ("b", 0)]


def test_a_suspect_that_its_consumer_never_got_comes_alone_again(strict: Harness, threads: Threads) -> None:
    strict.client().store("long 1")

    def consumer(*, is_sent: bool) -> list[tuple[str, int]]:
        one = client(strict)
        strict.wait(2 * POLL_SECONDS)
        if is_sent:
            threads.do()
        strict.wait(2 * POLL_SECONDS)
        one.vanish()
        strict.turn()
        if not is_sent:
            threads.do()
        return given(one)

    assert [consumer(is_sent=True) for _ in range(2)] == [[("long 1", 0)], [("long 1", 1)]]
    assert [consumer(is_sent=False) for _ in range(3)] == [[], [], []]
    strict.fail_over()  # the next master reads its count from the store: the deliveries that failed are not in it
    assert consumer(is_sent=True) == [("long 1", 2)]
    dead = strict.consumer("d", Destination(DestinationKind.QUEUE, "ActiveMQ.DLQ.Queue.orders")).turn()
    assert dead.bodies == ["long 1"]


def translated(one: Client, body: str, **options: Any) -> Send:
    message = one.message("not yet")

    def translate() -> None:
        message.body = body.encode()

    return Send(message, receipt="r", translate=translate, **options)


def test_a_long_read_delays_only_its_own_client(harness: Harness, threads: Threads) -> None:
    one, other, consumer = harness.client(), harness.client(), harness.consumer()
    one.handle(translated(one, "first"))
    one.send("second")
    before = harness.engine.memory.by_kind[Kind.WAITING_SENDS]
    other.store("of another")
    assert consumer.bodies == ["of another"]
    assert one.receipts == []
    assert before > 0, "it counts while it waits"
    threads.do()
    harness.turn()
    assert consumer.bodies == ["of another", "first", "second"]
    assert one.receipts == ["r"]
    assert harness.engine.memory.by_kind[Kind.WAITING_SENDS] == 0


@pytest.mark.parametrize("how", ["vanish", "disconnect"])
def test_a_client_that_leaves_during_the_read(harness: Harness, threads: Threads, how: str) -> None:
    """A message of a client that vanished is not sent; what comes before its DISCONNECT is."""
    one, consumer = harness.client(), harness.consumer()
    one.handle(translated(one, "first"))
    getattr(one, how)()
    threads.do()
    harness.turn()
    assert consumer.bodies == (["first"] if how == "disconnect" else [])
    assert harness.engine.memory.by_kind[Kind.WAITING_SENDS] == 0


def test_a_message_read_in_a_transaction_is_sent_with_it(harness: Harness, threads: Threads) -> None:
    one, consumer = harness.client(), harness.consumer()
    one.begin().handle(translated(one, "first", transaction="t")).commit(receipt="c")
    threads.do()
    harness.turn()
    assert consumer.bodies == ["first"]
    assert one.receipts[-1] == "c"


def test_a_failed_preparation_ends_only_its_connection(harness: Harness, threads: Threads) -> None:
    one, sender = client(harness), harness.client()
    sender.store("long and wrong")
    threads.do()
    assert one.is_closed
    one.vanish()
    assert harness.consumer().bodies == ["long and wrong"]


def test_a_browser_hears_the_end_behind_the_last(harness: Harness, threads: Threads) -> None:
    harness.client().send("long 1", persistent=False)
    one = harness.client()
    one.session = one.client.session = CarefulSession()
    one.subscribe(is_browser=True).turn()
    assert one.session.events == []
    threads.do()
    harness.turn()
    assert one.session.events == [("message", "long 1"), ("nothing", "s")]


def test_after_the_term_nobody_is_told(harness: Harness, threads: Threads) -> None:
    one, sender = client(harness), harness.client()
    sender.store("long 1")
    harness.engine.end()
    threads.do()
    assert one.bodies == []


@both_acks
def test_waiting_messages_continue_one_by_one_with_room(harness: Harness, threads: Threads, ack: AckMode) -> None:
    """A body that was inflated fills a client's socket for a while: were the next ones written meanwhile, the broker
    would hold all of them, and hang up on who reads slowly."""
    one, sender = client(harness, ack), harness.client()
    sender.store("long 1", "long 2", "b", "long 3")
    one.has_space = False  # the first output fills it
    threads.do()
    assert (one.bodies, threads.waiting) == (["long 1"], [])
    harness.turn()
    assert one.bodies == ["long 1"]
    one.regain_space()
    one.has_space = False
    threads.do()
    assert one.bodies == ["long 1", "long 2"]
    sender.send("later")  # what comes meanwhile overtakes nothing
    harness.turn()
    one.regain_space()
    threads.do()
    harness.turn()
    assert one.bodies == ["long 1", "long 2", "b", "long 3", "later"]
    assert not one.is_held


@both_acks
def test_a_client_that_leaves_without_room_leaves_the_rest_to_the_next(
    harness: Harness, threads: Threads, ack: AckMode
) -> None:
    one, sender = client(harness, ack), harness.client()
    sender.store("long 1", "long 2", "b")
    one.has_space = False
    threads.do()
    assert one.bodies == ["long 1"]
    one.vanish().turn()
    other = harness.consumer()
    assert sorted(other.bodies) == (["b", "long 1", "long 2"] if ack is AckMode.INDIVIDUAL else ["b", "long 2"])


# ---- selectors


def test_later_commands_of_the_client_wait_and_other_clients_do_not(harness: Harness, threads: Threads) -> None:
    client, other = harness.consumer(selector=LONG_SELECTOR, receipt="subscribed"), harness.client()
    client.send("mine", receipt="sent").unsubscribe(receipt="unsubscribed")
    assert not client.is_reading
    other.send("other", receipt="other").turn()
    assert (client.receipts, other.receipts) == ([], ["other"])
    threads.do()
    harness.turn()
    assert client.is_reading
    assert client.receipts == ["subscribed", "unsubscribed", "sent"]


def test_a_mistake_in_it_is_told_as_ever(harness: Harness, threads: Threads) -> None:
    client = harness.consumer(selector=f"{LONG_SELECTOR} OR", receipt="r")
    threads.do()
    (error,) = client.session.errors
    assert "it ends where a value is expected" in error.message
    assert (error.receipt, client.send("after", receipt="sent").turn().receipts) == ("r", ["sent"])


def test_a_short_one_waits_for_nobody(harness: Harness, threads: Threads) -> None:
    assert (harness.consumer(selector="colour = 'red'", receipt="r").receipts, threads.waiting) == (["r"], [])


# ---- long texts

FACES = "\U0001f600" * (QUICK_WRITTEN_BYTES_MAX // 4 + 1)


def test_a_long_text_is_written_beside_the_loop_and_its_client_waits(harness: Harness, threads: Threads) -> None:
    reader, sender, other = harness.consumer(), harness.client(), harness.client()
    sender.send(FACES, body_kind=BodyKind.TEXT, receipt="long").send("behind", receipt="behind")
    assert not sender.is_reading
    other.send("other", receipt="other").turn()
    assert (sender.receipts, other.receipts, reader.bodies) == ([], ["other"], ["other"])
    assert harness.engine.memory.by_kind[Kind.WAITING_SENDS] > len(FACES), "it counts while it waits"
    threads.do()
    harness.turn()
    assert sender.is_reading
    assert sender.receipts == ["long", "behind"]
    assert reader.bodies == ["other", FACES, "behind"]
    (message,) = [each.message for each in reader.session.delivered if each.message.raw is not None]
    assert message.body_kind is BodyKind.TEXT, "it is the frame that a JMS client gets"
    assert harness.engine.memory.by_kind[Kind.WAITING_SENDS] == 0
    harness.turn()
    assert threads.waiting == []


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (FACES[:-1], BodyKind.TEXT),
        (FACES, BodyKind.BYTES),
        ("x" * QUICK_WRITTEN_BYTES_MAX * 2, BodyKind.TEXT),
        ("gr\u00fcn " * QUICK_WRITTEN_BYTES_MAX + FACES[1:], BodyKind.TEXT),
    ],
    ids=["short", "bytes", "ascii", "with few characters that take long"],
)
def test_a_quick_message_waits_for_no_thread(harness: Harness, threads: Threads, body: str, kind: BodyKind) -> None:
    assert harness.client().send(body, body_kind=kind, receipt="r").turn().receipts == ["r"]
    assert threads.waiting == []


def test_a_long_text_that_is_none_arrives_as_the_bytes_it_is(harness: Harness, threads: Threads) -> None:
    sender, body = harness.client(), FACES.encode() + b"\xff"
    command = Send(Message(ORDERS, "ID:x:1:1:1", body, BodyKind.TEXT, persistent=True), None, "r")
    sender.handle(command)
    threads.do()
    harness.turn()
    assert sender.receipts == ["r"]
    assert (command.message.body_kind, command.message.body) == (BodyKind.BYTES, body)


def test_a_long_text_is_freed_with_its_message(harness: Harness, threads: Threads) -> None:
    body = FACES.encode() + b"\xff"
    sender, others = harness.client(), sys.getrefcount(body)
    gc.disable()
    try:
        sender.handle(Send(Message(PRICES, "ID:x:1:1:1", body, BodyKind.TEXT, persistent=False), None, "r"))
        assert sys.getrefcount(body) > others
        threads.do()
        harness.turn()
        assert (sender.receipts, sys.getrefcount(body)) == (["r"], others), "the collector may come minutes later"
    finally:
        gc.enable()


def test_a_long_text_that_cannot_be_written_is_refused(harness: Harness, threads: Threads) -> None:
    sender = harness.client().begin()
    sender.send(FACES, body_kind=BodyKind.TEXT, priority=1_000, transaction="t").send("after", transaction="t")
    threads.do()
    assert "cannot be stored" in sender.errors[0]
    assert sender.commit().turn().errors[1:], "its transaction can only be rolled back"


def test_a_client_that_leaves_meanwhile_has_sent_nothing(harness: Harness, threads: Threads) -> None:
    sender = harness.client().send(FACES, body_kind=BodyKind.TEXT, receipt="r")
    assert harness.engine.memory.by_kind[Kind.WAITING_SENDS] >= 3 * len(FACES.encode())
    sender.vanish()
    threads.do()
    harness.turn()
    assert (sender.receipts, harness.stored(), harness.engine.memory.used) == ([], 0, 0)
