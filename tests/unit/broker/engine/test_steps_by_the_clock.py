"""Selectors that take 2 ms for one message: each step of the loop evaluates only some, and the order is kept."""

# proves: sifted-page-has-no-end

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

import pytest

from tandemmq.broker.admin.api.message_work import takes
from tandemmq.broker.core import slices
from tandemmq.broker.core.charging import SELECTOR_BUDGET
from tandemmq.broker.core.commands import AckMode, AddDestination, Move
from tandemmq.broker.core.policies import DestinationPolicy, Policies, PolicyEntry
from tandemmq.broker.core.selector import compile_selector
from tandemmq.broker.core.selector.effort import Effort
from tandemmq.broker.core.slices import Pace
from tandemmq.broker.core.topics.recovery import Recovery, RecoveryKind
from tandemmq.broker.core.virtual_destinations import Composite, Forward, VirtualDestinations, VirtualTopic
from tandemmq.store.records.altered import altered
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tests.support.prove import rounds
from tests.unit.broker.engine.conftest import ORDERS, PRICES, XA, Client, Harness, MakeHarness, advisor, shorten_steps

#: Takes the time of a whole step, and what has the property a.
SLOW = "a LIKE '%x%' AND NOT REGEX('q', a)"
WANTED = {"a": "x"}
COUNT = 60
#: In one step: a step that has begun ends with the evaluation that is under way, and another may begin it.
AT_ONCE_MAX = 3
TEMPORARIES = Destination(DestinationKind.TOPIC, "ActiveMQ.Advisory.TempQueue")
TEMPORARY = Destination(DestinationKind.TEMP_QUEUE, "ID:test-1-1:1")
FED = Destination(DestinationKind.TOPIC, "VirtualTopic.V")


class Slow:
    """A clock that evaluations move, and how many there were."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        begin = Effort.begin

        def evaluate(effort: Effort) -> None:
            self.count += 1
            begin(effort)

        patch.setattr(Effort, "begin", evaluate)
        patch.setattr(SELECTOR_BUDGET, "_spent", 0.0)
        patch.setattr(slices.CLOCK, "now", lambda: 1.0 + self.count * slices.STEP_SECONDS)

    def most(self, harness: Harness, act: Callable[[], object]) -> int:
        """Return the greatest number of evaluations in the command ``act``, or in a call of the loop after it."""
        before = self.count
        act()
        return max(self.count - before, harness.most(lambda: self.count, are_calls=True))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    return Slow(monkeypatch)


def listeners(harness: Harness, destination: Destination, count: int = COUNT, **options: object) -> Client:
    client = harness.client()
    for number in range(count):
        client.subscribe(f"{number}", destination, AckMode.AUTO, selector=SLOW, **options)
    harness.turn()
    return client


def test_advisories(make_harness: MakeHarness, slow: Slow) -> None:
    harness = make_harness(advisor=advisor())
    client, other = listeners(harness, TEMPORARIES, 315), harness.client()
    assert slow.most(harness, lambda: other.handle(AddDestination(TEMPORARY))) <= AT_ONCE_MAX
    assert slow.count == 315
    assert client.bodies == []
    assert client.holder.busy >= 314 * slices.STEP_SECONDS, "whose selectors they are, that client has the time counted"
    assert other.holder.busy <= AT_ONCE_MAX * slices.STEP_SECONDS


def test_an_advisory_to_very_many_counts_for_the_client_that_causes_it(
    make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = count()
    shorten_steps(monkeypatch, 1)
    monkeypatch.setattr(slices.CLOCK, "now", lambda: next(ticks) * 0.001)
    harness = make_harness(advisor=advisor())
    listener = harness.client()
    for number in range(COUNT):
        listener.subscribe(f"{number}", TEMPORARIES, AckMode.AUTO)
    harness.turn()
    other = harness.client()
    busy = listener.holder.busy
    other.handle(AddDestination(TEMPORARY))
    harness.turn()
    assert len(listener.bodies) == COUNT
    assert other.holder.busy >= COUNT * 0.001
    assert listener.holder.busy == busy


@pytest.mark.parametrize("persistent", [False, True])
def test_a_message_to_a_topic(harness: Harness, slow: Slow, persistent: bool) -> None:
    client, sender = listeners(harness, PRICES), harness.client()
    other = harness.consumer("o", PRICES)

    def send(body: str) -> None:
        sender.send(body, PRICES, persistent=persistent, properties=WANTED, receipt=body)

    assert slow.most(harness, lambda: send("1")) <= AT_ONCE_MAX
    assert client.bodies == ["1"] * COUNT
    send("2")
    harness.turn(1 + persistent)
    assert sender.receipts == ["1", "2"], "who sends does not wait for selectors of others"
    assert other.bodies == ["1", "2"]
    assert sender.is_reading
    harness.turn()


def test_a_burst_of_messages_for_one_selector(harness: Harness, slow: Slow) -> None:
    client, sender = listeners(harness, PRICES, 1), harness.client()

    def burst() -> None:
        for number in range(COUNT):
            sender.send(f"{number}", PRICES, persistent=False, properties=WANTED)

    assert slow.most(harness, burst) <= AT_ONCE_MAX
    assert client.bodies == [f"{number}" for number in range(COUNT)]


@pytest.mark.parametrize("wanted", [WANTED, {"a": "nothing"}])
def test_a_burst_is_no_backlog_of_a_client_that_keeps_up(
    make_harness: MakeHarness, slow: Slow, wanted: dict[str, Any]
) -> None:
    harness = make_harness(DestinationPolicy(pending_message_limit=1))
    client = listeners(harness, PRICES, 1)
    harness.client().send_all("abcdef", PRICES, properties=wanted).turn()
    assert client.bodies == (list("abcdef") if wanted is WANTED else [])
    assert harness.counts["dead_letters_total"] == 0


def test_a_message_that_expires_before_its_selector_is_tested_is_not_delivered(harness: Harness, slow: Slow) -> None:
    client, sender = listeners(harness, PRICES, 1), harness.client()
    for body in "abc":
        sender.send(body, PRICES, persistent=False, properties=WANTED, expiration=harness.now + 10)
    harness.now += 1_000
    harness.turn()
    assert client.bodies == ["a"]


@pytest.mark.parametrize("is_in_transaction", [False, True])
def test_a_message_does_not_wait_for_a_forward_that_does_not_take_it(
    make_harness: MakeHarness, is_in_transaction: bool
) -> None:
    closed, every = Destination(DestinationKind.QUEUE, "f0"), Destination(DestinationKind.QUEUE, "all")
    forwards = (Forward(closed, compile_selector(SLOW)), Forward(Destination(DestinationKind.QUEUE, "f1")))
    virtual = VirtualDestinations((Composite(DestinationKind.QUEUE, every.name, forwards),))
    harness = make_harness(virtual_destinations=virtual)
    harness.destinations.closed_to_producers.add(closed)
    harness.client().send("waits", closed).turn()
    sender = harness.client()
    for name, wanted in (("1", {"a": "nothing"}), ("2", WANTED)):
        if is_in_transaction:
            sender.begin("t").send(name, every, transaction="t", properties=wanted).commit("t", name)
        else:
            sender.send(name, every, properties=wanted, receipt=name)
        harness.turn()
    assert sender.receipts == ["1"], "and what the forward takes waits for it"


@pytest.mark.parametrize(
    "how", [{}, {"is_browser": True}, {"ack": AckMode.RANGE}], ids=["consumer", "browser", "operator"]
)
def test_one_selector_over_many_messages(harness: Harness, slow: Slow, how: dict[str, Any]) -> None:
    harness.client().store(*range(COUNT), properties=WANTED)
    client = harness.client()
    options = {"selector": SLOW, "prefetch": COUNT, **how}
    assert slow.most(harness, lambda: client.subscribe(**options)) <= AT_ONCE_MAX
    assert client.bodies == [str(number) for number in range(COUNT)]


def test_many_selectors_over_one_message(harness: Harness, slow: Slow) -> None:
    client = harness.client()
    for number in range(COUNT):
        client.subscribe(f"{number}", ORDERS, selector=f"{SLOW} AND n = {number}")
    harness.turn()
    properties = {**WANTED, "n": COUNT - 1}
    assert slow.most(harness, lambda: client.send("1", properties=properties)) <= AT_ONCE_MAX
    assert slow.most(harness, lambda: client.send("2", properties=properties)) <= AT_ONCE_MAX
    assert [(each.body, each.subscription) for each in client.session.delivered] == [("1", "59"), ("2", "59")]


def test_a_shared_subscription_counts_for_a_consumer_of_it(harness: Harness, slow: Slow) -> None:
    # proves: shared-selectors-are-charged
    client = harness.client("me").subscribe("s", PRICES, share="#s", has_terms=True, selector=SLOW).turn()
    busy, sender = client.holder.busy, harness.client()
    sender.send("1", PRICES, properties=WANTED).turn()
    assert client.bodies == ["1"]
    assert client.holder.busy - busy >= slices.STEP_SECONDS / 2
    assert sender.holder.busy == pytest.approx(0)


def test_durable_subscriptions(harness: Harness, slow: Slow) -> None:
    for number in range(COUNT):
        client = harness.client(f"c{number}").subscribe("d", PRICES, durable_name="d", selector=SLOW)
        client.vanish()
    sender = harness.client()
    for number, transaction in enumerate((None, None, "t")):
        if transaction:
            sender.begin("t")
        send = {"properties": WANTED, "receipt": f"{number}", "transaction": transaction}
        assert slow.most(harness, lambda: sender.send(f"{number}", PRICES, **send)) <= AT_ONCE_MAX  # noqa: B023
    assert slow.most(harness, lambda: sender.commit("t", "end")) <= AT_ONCE_MAX
    assert sender.receipts[-1] == "end"
    assert sender.holder.busy == pytest.approx(0), "selectors of others count for them"
    harness.fail_over()
    client = harness.client("c7")
    assert slow.most(harness, lambda: client.subscribe("d", PRICES, durable_name="d", selector=SLOW)) <= AT_ONCE_MAX
    assert client.bodies == ["0", "1", "2"]


@pytest.mark.parametrize("items", [1, 300])
def test_a_durable_subscription_reads_all_missed_messages_in_steps(
    make_harness: MakeHarness, slow: Slow, items: int
) -> None:
    harness = make_harness()
    harness.client("c").subscribe("d", PRICES, durable_name="d", selector=SLOW).vanish()
    sender = harness.client()
    for number in range(15):
        sender.store(number, destination=PRICES, properties=WANTED)
    harness.fail_over()
    sender = harness.client()
    client = harness.client("c").subscribe("d", PRICES, durable_name="d", selector=SLOW, prefetch=COUNT)
    for number in range(15, COUNT):
        sender.send(f"{number}", PRICES, properties=WANTED)
        harness.turn(items)
    assert harness.most(lambda: slow.count, are_calls=True) <= AT_ONCE_MAX
    assert client.bodies == [str(number) for number in range(COUNT)]


def test_queues_of_virtual_topics_and_forwards(make_harness: MakeHarness, slow: Slow) -> None:
    forwards = tuple(
        Forward(Destination(DestinationKind.QUEUE, f"f{number}"), compile_selector(SLOW)) for number in range(COUNT)
    )
    virtual = VirtualDestinations(
        (Composite(DestinationKind.QUEUE, ORDERS.name, forwards),),
        (VirtualTopic(is_selector_aware=True),),
    )
    harness = make_harness(virtual_destinations=virtual)
    client, sender = harness.client(), harness.client()
    for number in range(COUNT):
        queue = Destination(DestinationKind.QUEUE, f"Consumer.{number}.{FED.name}")
        client.subscribe(f"{number}", queue, selector=f"{SLOW} AND n = {number}")
    harness.turn()
    properties = {**WANTED, "n": 7}
    assert slow.most(harness, lambda: sender.send("1", FED, properties=properties)) <= AT_ONCE_MAX
    assert client.bodies == ["1"]
    assert slow.most(harness, lambda: sender.send("2", properties=properties, receipt="2")) <= AT_ONCE_MAX
    assert sender.receipts == ["2"]
    assert all(harness.figures(each.destination.name)["enqueued"] == 1 for each in forwards)


def test_a_forward_while_another_sender_waits_for_room(make_harness: MakeHarness, slow: Slow) -> None:
    narrow = Policies([PolicyEntry(DestinationKind.QUEUE, ORDERS.name, DestinationPolicy(memory_limit=1_000))])
    every = Destination(DestinationKind.QUEUE, "all")
    forwards = tuple(
        Forward(Destination(DestinationKind.QUEUE, f"f{number}"), compile_selector(SLOW)) for number in range(COUNT)
    )
    virtual = VirtualDestinations((Composite(DestinationKind.QUEUE, every.name, forwards),))
    harness = make_harness(narrow, virtual_destinations=virtual)
    for _ in range(2):
        harness.client().send("x" * 500, persistent=False).turn()
    sender = harness.client()
    send = {"persistent": False, "properties": WANTED, "receipt": "r"}
    assert slow.most(harness, lambda: sender.send("1", every, **send)) <= AT_ONCE_MAX
    assert sender.receipts == ["r"]
    assert slow.count == COUNT, "and none is asked twice"


@pytest.mark.parametrize("act", [Client.unsubscribe, Client.lose_socket])
def test_returned_messages_take_steps(harness: Harness, slow: Slow, act: Callable[[Client], object]) -> None:
    harness.client().store(*range(COUNT), properties=WANTED)
    first = harness.client().subscribe(selector=SLOW, prefetch=COUNT)
    harness.turn()
    client = harness.client().subscribe(selector=f"{SLOW} AND TRUE", prefetch=COUNT)
    harness.turn()
    assert (len(first.bodies), client.bodies) == (COUNT, [])
    assert slow.most(harness, lambda: act(first)) <= AT_ONCE_MAX
    assert client.bodies == first.bodies


def test_moves_and_retries_by_an_operator_take_steps(harness: Harness, slow: Slow) -> None:
    dead = Destination(DestinationKind.QUEUE, "dead")
    harness.client().store(*range(10), destination=dead, properties=WANTED)
    client = harness.client()
    for number in range(COUNT):
        client.subscribe(f"{number}", ORDERS, selector=f"{SLOW} AND n = {number} OR a = '{number}'")
    operator = harness.client().subscribe(destination=dead, ack=AckMode.RANGE, selector=f"NOT ({SLOW}) OR TRUE")
    harness.turn()

    def act() -> None:
        for each in list(operator.session.delivered):
            message = altered(each.message, destination=ORDERS)
            operator.handle(Move(each.subscription, each.tag, message, each.body))

    assert slow.most(harness, act) <= AT_ONCE_MAX
    assert len(operator.receipts) == 10
    assert slow.count == 10 + 10 * COUNT


def test_lists_and_copies_by_the_api_take_steps(slow: Slow) -> None:
    most = before = 0

    async def choose() -> list[bool]:
        def turn() -> None:
            nonlocal most, before
            most, before = max(most, slow.count - before), slow.count
            loop.call_soon(turn)

        loop, pace, selector = asyncio.get_running_loop(), Pace(), compile_selector(SLOW)
        turn()
        messages = [Message(ORDERS, f"ID:{number}", properties=WANTED) for number in range(COUNT)]
        return [await takes(selector, message, pace) for message in messages]

    assert asyncio.run(choose()) == [True] * COUNT
    assert most <= AT_ONCE_MAX


def test_kept_messages_for_a_late_subscriber_precede_later_ones(make_harness: MakeHarness, slow: Slow) -> None:
    kept = DestinationPolicy(recovery=Recovery(RecoveryKind.FIXED_COUNT), always_retroactive=True)
    harness = make_harness(kept)
    sender = harness.client()
    for number in range(COUNT):
        sender.store(number, destination=PRICES, persistent=False, properties=WANTED)
    client = harness.client().subscribe("s", PRICES, selector=SLOW, is_retroactive=True, prefetch=1000)
    sender.send("last", PRICES, persistent=False, properties=WANTED)
    assert harness.most(lambda: slow.count, are_calls=True) <= AT_ONCE_MAX
    assert client.bodies == [*(str(number) for number in range(COUNT)), "last"]


def test_a_message_sent_during_a_recovery_is_delivered_once(make_harness: MakeHarness, slow: Slow) -> None:
    kept = DestinationPolicy(recovery=Recovery(RecoveryKind.FIXED_COUNT), always_retroactive=True)
    harness = make_harness(kept)
    sender = harness.client()
    topics = [Destination(DestinationKind.TOPIC, f"kept.{number}") for number in range(COUNT)]
    for topic in topics:
        sender.store("early", destination=topic, persistent=False, properties=WANTED)
    every = Destination(DestinationKind.TOPIC, "kept.*")
    client = harness.client().subscribe("s", every, selector=SLOW, is_retroactive=True, prefetch=1000)
    for topic in (topics[0], topics[-1]):
        sender.send("late", topic, persistent=False, properties=WANTED)
    harness.turn()
    assert client.bodies == ["early"] * COUNT + ["late"] * 2


def test_a_prepared_branch(harness: Harness, slow: Slow) -> None:
    harness.client("c").subscribe("d", PRICES, durable_name="d", selector=SLOW).vanish()
    sender = harness.client().begin_branch()
    sender.send_all(range(COUNT), PRICES, properties=WANTED, transaction=XA.key)
    harness.turn()
    assert slow.most(harness, sender.prepare) <= AT_ONCE_MAX
    harness.fail_over()
    assert slow.most(harness, harness.client().commit_branch) <= AT_ONCE_MAX


@pytest.mark.parametrize("seed", range(rounds(6, 200)))
def test_order_for_each_subscription_and_nothing_for_those_that_ended(harness: Harness, slow: Slow, seed: int) -> None:
    """Subscriptions with slow, quick and no selectors come and go between messages and steps."""
    random = Random(seed)
    persistent = bool(seed % 2)
    takes: dict[str | None, Callable[[int], bool]] = {
        None: lambda n: True,
        "n < 5": lambda n: n < 5,
        f"{SLOW} AND n > 2": lambda n: n > 2,
        f"{SLOW} AND n = 4": lambda n: n == 4,
    }
    sender = harness.client()
    subscribed: dict[Client, tuple[str | None, int]] = {}
    ended: dict[Client, int] = {}
    sent: list[int] = []
    for _ in range(150):
        act = random.randrange(10)
        if act < 2 and len(subscribed) < 10:
            selector = random.choice(list(takes))
            client = harness.client().subscribe("s", PRICES, AckMode.AUTO, selector=selector)
            subscribed[client] = selector, len(sent)
        elif act == 2 and (left := [client for client in subscribed if client not in ended]):
            client = random.choice(left)
            client.unsubscribe() if random.random() < 0.5 else client.lose_socket()
            ended[client] = len(client.bodies)
        elif act < 8:
            sent.append(random.randrange(8))
            properties = {"n": sent[-1], **WANTED}
            sender.send(f"{len(sent) - 1}", PRICES, persistent=persistent, properties=properties)
        else:
            harness.turn(random.randrange(6))
    harness.turn()
    for client, (selector, first) in subscribed.items():
        got = [int(body) for body in client.bodies]
        assert got == sorted(set(got)), "in order, and each once"
        assert all(takes[selector](sent[number]) for number in got)
        if client in ended:
            assert len(got) == ended[client]
        else:
            assert {number for number in range(first, len(sent)) if takes[selector](sent[number])} <= set(got)
