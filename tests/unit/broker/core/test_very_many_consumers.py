"""Very many consumers of one queue: the cost of a message, or of one more consumer, does not grow with their number."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.core.commands import AckMode
from tandemmq.broker.core.delivery import Subscription
from tandemmq.broker.core.memory import Memory
from tandemmq.broker.core.queue import assignment
from tandemmq.broker.core.queue.consumers import ConsumerCounts
from tandemmq.broker.core.queue.lanes import LOOKED_AT_MAX, exclusive
from tandemmq.broker.core.queue.queue import ROUND_MESSAGES, Queue
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.share import Share
from tandemmq.broker.core.slices import at_once
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tests.support.core.outlet import Outlet

ORDERS = Destination(DestinationKind.QUEUE, "orders")
MANY = 10 * LOOKED_AT_MAX
CHOOSY = 100  # consumers, each with a different selector


class Counting(Outlet):
    """Counts the requests for its room."""

    asked = 0
    has_space = False

    @property
    def is_writable(self) -> bool:
        Counting.asked += 1
        return self.has_space

    @is_writable.setter
    def is_writable(self, value: bool) -> None: ...


class Any_:
    text = "any"
    is_cheap = True

    def matches(self, message: Message) -> bool:
        return True


def consumer(outlet: Outlet | None = None, **options: Any) -> Subscription:
    return Subscription("s", outlet or Outlet(), AckMode.INDIVIDUAL, 1000, **options)


def send(queue: Queue, count: int, **fields: Any) -> None:
    for number in range(count):
        queue.add_volatile(Message(ORDERS, str(number), **fields))


@pytest.fixture
def queue() -> Queue:
    return Queue(ORDERS, 0, EngineSettings(), Share(Memory(1 << 30)))


@pytest.mark.parametrize("selector", [None, Any_()])
def test_consumers_with_room_are_searched_once_a_round_among_very_many(queue: Queue, selector: Any) -> None:
    consumers = [consumer(Counting(), selector=selector) for _ in range(MANY)]
    queue.open(consumer(Counting(), priority=1 if selector else 0))  # with a selector: not all are alike
    for each in consumers:
        queue.open(each)
    fast = consumers[MANY // 2], consumers[MANY // 2 + 1]
    for each in fast:
        each.outlet.has_space = True  # type: ignore[attr-defined]
    send(queue, ROUND_MESSAGES)
    before = Counting.asked
    deliveries = queue.dispatch(0)
    assert Counting.asked - before < 3 * MANY + 3 * ROUND_MESSAGES, "and not for each message once more"
    assert [each for each, _, _ in deliveries] == [*fast] * (ROUND_MESSAGES // 2)
    # The turn is that of who comes behind them, and all who have room by now have theirs.
    for each in consumers:
        each.outlet.has_space = True  # type: ignore[attr-defined]
    send(queue, 2)
    deliveries = queue.dispatch(0)
    assert [each for each, _, _ in deliveries] == consumers[MANY // 2 + 2 : MANY // 2 + 4]


class Among:
    """Selector that takes the messages of some numbers, and counts its evaluations."""

    asked = 0
    text = "among"
    is_cheap = True

    def __init__(self, number: int) -> None:
        self.number = number

    def matches(self, message: Message) -> bool:
        Among.asked += 1
        return int(message.message_id) % self.number == 0


@pytest.mark.parametrize("meanwhile", ["nothing", "one comes", "one leaves"])
def test_very_many_selectors_are_asked_about_one_message_in_steps(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    monkeypatch.setattr(assignment, "TESTED_MAX", 8)
    there = [consumer(selector=Among(2 + number)) for number in range(CHOOSY)]
    for each in there:
        queue.open(each)
    send(queue, CHOOSY)
    got: dict[str, Subscription] = {}
    Among.asked = calls = 0
    while queue.has_more or not calls:
        before = Among.asked
        for taker, _, entry in queue.dispatch(0):
            got[entry.message.message_id] = taker
        assert Among.asked - before <= 8
        calls += 1
        if calls == 3 and meanwhile == "one comes":
            there.append(consumer(selector=Among(1)))
            queue.open(there[-1])
        elif calls == 3 and meanwhile == "one leaves":
            at_once(queue.close(there.pop(1)))
    more = {"nothing": 0, "one comes": CHOOSY, "one leaves": 1 - CHOOSY}[meanwhile]
    assert Among.asked == CHOOSY * CHOOSY + more, "each is asked once about each"
    assert all(int(id) % taker.selector.number == 0 for id, taker in got.items())  # type: ignore[union-attr]
    assert set(got.values()) <= set(there)
    nobody_takes = {"nothing": {"1"}, "one comes": set(), "one leaves": {"1", "3"}}[meanwhile]
    assert {str(number) for number in range(CHOOSY)} - got.keys() == nobody_takes
    assert queue.held == len(nobody_takes)
    assert len(set(got.values())) > 10


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 2), st.integers(0, 99)), max_size=30))
def test_the_counts_over_all_consumers_equal_a_search_of_each(steps: list[tuple[bool, bool, int, int]]) -> None:
    counts = ConsumerCounts()
    there: list[Subscription] = []
    for is_choosy, is_exclusive, priority, who in steps:
        if who < 40 and there:
            counts.left(there.pop(who % len(there)))
        else:
            there.append(consumer(selector=Any_() if is_choosy else None, is_exclusive=is_exclusive, priority=priority))
            counts.joined(there[-1])
        assert bool(counts.exclusive) == (exclusive(there) is not None)
        assert counts.are_alike == (
            all(each.selector is None and not each.is_exclusive for each in there)
            and len({each.priority for each in there}) <= 1
        )
