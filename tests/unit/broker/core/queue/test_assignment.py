"""Assignment of messages to consumers with different selectors and priorities, in single steps; see
test_assignment_model."""

from __future__ import annotations

from random import Random

import pytest

from tandemmq.broker.core import slices
from tandemmq.broker.core.delivery import Entry, Subscription
from tandemmq.broker.core.memory import ENTRY_OVERHEAD_BYTES
from tandemmq.broker.core.queue import assignment, lanes, ordering
from tandemmq.broker.core.queue import queue as queue_module
from tandemmq.broker.core.queue.lanes import exclusive
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.queue.window import RUNS_PER_WINDOW
from tandemmq.broker.core.slices import Pace, at_once
from tandemmq.store.records.message import Message
from tests.support.core.queues import ORDERS, SIZE, Colour, StoredQueue, message


@pytest.fixture
def harness() -> StoredQueue:
    return StoredQueue()


def messages(count: int, kind: str | None = None, first: int = 1) -> list[Message]:
    return [message(f"m{number}", kind) for number in range(first, first + count)]


def not_wanted(queue: Queue) -> int:
    """Return the number of messages that none of the present consumers takes."""
    assert queue.assignment is not None
    return queue.skipped.count + len(queue.assignment.unwanted) + len(queue.assignment.stuck)


def test_no_message_is_shown_to_a_selector_twice(harness: StoredQueue) -> None:
    red, blue = Colour("red"), Colour("blue")
    for name, selector in (("a", red), ("b", red), ("c", blue)):
        harness.open(name, 1, selector=selector)
    harness.send(*messages(5, "red"))
    assert [harness.out() for _ in range(3)] == [[("a", "m1"), ("b", "m2")], [], []]
    assert red.asked == blue.asked == ["m1", "m2", "m3", "m4", "m5"]


def test_the_highest_priority_with_room_is_served_first(harness: StoredQueue) -> None:
    harness.open("low", priority=0)
    harness.open("high", 2, priority=7)
    harness.send(*messages(4))
    assert harness.out() == [("high", "m1"), ("high", "m2"), ("low", "m3"), ("low", "m4")]


def test_one_exclusive_consumer_gets_all_until_it_leaves(harness: StoredQueue) -> None:
    plain = harness.open("plain")
    first = harness.open("first", 1, is_exclusive=True)
    harness.open("second", is_exclusive=True)
    harness.send(*messages(2))
    assert harness.out() == [("first", "m1")], "others have room, and get nothing"
    harness.queue.close(first)
    assert harness.out() == [("second", "m1"), ("second", "m2")]
    harness.open("third", is_exclusive=True, priority=1)
    harness.send(message("m3"))
    assert harness.out() == [("third", "m3")]
    assert not plain.unacked


def test_a_selector_finds_its_message_after_any_number_of_others() -> None:
    harness = StoredQueue(window_messages=4, page_messages=3)
    harness.open("a", selector=Colour("red"))
    harness.send(*messages(1000, "blue"), message("needle", "red"))
    assert (harness.out(), not_wanted(harness.queue), harness.queue.count) == ([("a", "needle")], 1000, 1001)
    # In memory: a window of messages that no consumer wants, and the needle.
    assert harness.share.stored == 5 * (ENTRY_OVERHEAD_BYTES + SIZE)


def test_only_added_and_removed_selectors_are_tested_again(harness: StoredQueue) -> None:
    red, blue, green = Colour("red"), Colour("blue"), Colour("green")
    harness.open("a", 0, selector=red)
    going = harness.open("b", 0, selector=blue)
    harness.send(message("m1", "red"), message("m2", "blue"), message("m3", "green"))
    assert harness.out() == []
    harness.open("c", 0, selector=green)
    late = harness.open("d", selector=red)
    assert harness.out() == [("d", "m1")]
    harness.queue.close(going)
    harness.open("e", selector=None)
    assert (harness.out(), red.asked) == ([("e", "m2"), ("e", "m3")], ["m1", "m2", "m3"])
    assert late.unacked


def test_a_backlog_that_fits_in_memory_is_not_read_again() -> None:
    harness = StoredQueue(window_messages=100)
    for number in range(10):
        consumer = harness.open(f"reply-{number}", selector=Colour("red"))
        harness.send(*messages(5, "blue", first=10 * number))
        assert harness.out() == []
        harness.queue.close(consumer)
    assert harness.pages == 0


def test_a_consumer_with_a_selector_that_was_tried_causes_no_reread() -> None:
    harness = StoredQueue(window_messages=4, page_messages=3)
    red = Colour("red")
    first = harness.open("a", selector=red)
    harness.send(*messages(50, "blue"))
    assert harness.out() == []
    pages, asked = harness.pages, len(red.asked)
    harness.queue.close(first)
    harness.open("b", selector=red)
    harness.open("c", selector=red)
    assert (harness.out(), harness.pages) == ([], pages)
    assert len(red.asked) - asked < 10, "what memory holds, and nothing of the rest"
    harness.send(*messages(10, "blue", first=51))
    assert harness.out() == []
    pages = harness.pages
    green = Colour("green")
    joined = harness.open("d", selector=green)
    assert harness.out() == []
    assert harness.pages > pages
    pages = harness.pages
    harness.queue.close(joined)
    harness.open("e", selector=green)
    assert (harness.out(), harness.pages) == ([], pages)
    harness.open("f", selector=Colour("blue"))
    assert harness.out() == [("f", f"m{number}") for number in range(1, 61)]


@pytest.mark.parametrize("seed", range(100))
def test_no_consumer_misses_messages_that_others_refused(seed: int) -> None:
    """Consumers of few selectors come and go, one may be exclusive, and messages leave memory: all that any of them
    takes is out in the end."""
    dice = Random(seed)
    harness = StoredQueue(window_messages=4, page_messages=3)
    colours = [Colour("red"), Colour("blue"), Colour("green"), None]
    consumers: list[Subscription] = []
    for step in range(60):
        act = dice.randrange(10)
        if act < 4 and len(consumers) < 4:
            is_exclusive = dice.randrange(6) == 0
            consumers.append(harness.open(str(step), selector=dice.choice(colours), is_exclusive=is_exclusive))
        elif act < 7 and consumers:
            harness.queue.close(consumers.pop(dice.randrange(len(consumers))))
        elif act < 9:
            kind = dice.choice(["red", "blue", "green", "grey"])
            harness.send(*messages(dice.randrange(1, 15), kind, first=harness.sent))
        elif consumers:
            harness.settle(dice.choice(consumers))
        else:
            at_once(harness.queue.evict(Pace()))
        harness.out()
        out = {entry.order_key for each in consumers for entry in each.unacked.values()}
        left = [paged.message for key, paged in harness.stored.items() if key not in out]
        master = exclusive(consumers)
        for each in consumers if master is None else [master]:
            assert not [left_out for left_out in left if each.selector is None or each.selector.matches(left_out)]
    assert harness.queue.count == len(harness.stored)


def test_runs_become_one_when_what_parted_them_is_gone() -> None:
    harness = StoredQueue(window_messages=4, page_messages=4)
    consumer = harness.open("a", selector=Colour("red"))
    pairs = 20 * RUNS_PER_WINDOW * 4
    got = 0
    for number in range(pairs):
        harness.send(message(f"b{number}", "blue"), message(f"r{number}", "red"))
        got += len(harness.out())
        harness.settle(consumer)
    assert got == pairs
    assert not_wanted(harness.queue) == pairs
    harness.open("b", 10**6, selector=Colour("blue"))
    assert harness.out() == [("b", f"b{number}") for number in range(pairs)]


def test_with_too_many_runs_the_queue_waits_for_acknowledgements_and_goes_on() -> None:
    harness = StoredQueue(window_messages=4, page_messages=4)
    consumer = harness.open("a", 10**6, selector=Colour("red"))
    pairs = 20 * RUNS_PER_WINDOW * 4
    for number in range(pairs):
        harness.send(message(f"b{number}", "blue"), message(f"r{number}", "red"))
    before = len(harness.out())
    assert before < pairs
    assert harness.share.stored < (before + 20) * 710
    after = 0
    while before + after < pairs:
        harness.settle(consumer)
        got = len(harness.out())
        assert got, "the queue stopped for ever"
        after += got


@pytest.mark.parametrize("place", ["ready", "backlog", "lanes"])
@pytest.mark.parametrize("step", range(60))
def test_messages_that_moved_meanwhile_are_searched_again(
    monkeypatch: pytest.MonkeyPatch, step: int, place: str
) -> None:
    """All consumers leave after that step: the messages that waited for them are in one row again."""
    monkeypatch.setattr(slices, "ITEMS", 2)
    monkeypatch.setattr(ordering, "PIECE_MAX", 2)
    monkeypatch.setattr(lanes, "LATE_MAX", 2)
    harness = StoredQueue()
    consumers = [harness.open(colour, 0, selector=Colour(colour)) for colour in ("red", "blue", "green")]
    colours = ("red", "blue", "green", "none")
    harness.send(*[message(f"m{number}", colours[number % 4], expiration=5) for number in range(24)])
    if place == "backlog":
        monkeypatch.setattr(assignment, "PLACED_MAX", 4)
        harness.queue.dispatch(0)
    elif place == "lanes":
        harness.out()
    work = harness.queue.sweep(5, Pace())
    for number, _ in enumerate(work):
        if number == step:
            for each in consumers:
                at_once(harness.queue.close(each))
    assert len(harness.queue.expired) == 24 or harness.queue.expiring_at == 5
    at_once(harness.queue.sweep(5, Pace()))
    assert len({entry.message.message_id for entry in harness.queue.expired}) == len(harness.queue.expired)
    assert (len(harness.queue.expired), harness.queue.held, harness.queue.ready_weight) == (24, 0, 0)


@pytest.mark.parametrize("place", ["lane, in order", "lane, late", "backlog", "ready"])
def test_expired_messages_in_one_place_are_removed_in_pieces(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setattr(slices, "ITEMS", 2)
    monkeypatch.setattr(ordering, "PIECE_MAX", 100)
    monkeypatch.setattr(lanes, "LATE_MAX", 100)
    harness = StoredQueue(is_prioritized=place != "ready")
    queue = harness.queue
    consumer = harness.open("consumer", 0)
    for number in range(1000):
        priority = number % 10 if place == "lane, late" else 4
        expiration = 0 if number % 100 < 10 else 5
        queue.add_volatile(Message(ORDERS, str(number), priority=priority, expiration=expiration))
        if place != "ready":
            queue.dispatch(0)
    if place == "backlog":
        queue.close(consumer)
    before = most = 0
    for _ in queue.sweep(5, Pace()):
        most, before = max(most, len(queue.expired) - before), len(queue.expired)
    assert most <= 100
    assert len(queue.expired) == 900
    if place == "backlog":
        consumer = harness.open("consumer", 0)
    consumer.credit = 1000
    alive = [number for number in range(1000) if number % 100 < 10]
    if place == "lane, late":
        alive.sort(key=lambda number: -(number % 10))
    assert [int(name) for _, name in harness.out()] == alive
    assert (queue.held, queue.ready_weight) == (0, 0)


@pytest.mark.parametrize("is_last", [True, False])
def test_many_in_lanes_stay_there_when_the_selectors_go(monkeypatch: pytest.MonkeyPatch, is_last: bool) -> None:
    monkeypatch.setattr(queue_module, "GATHERED_MAX", 10)
    monkeypatch.setattr(queue_module, "ROUND_MESSAGES", 5)
    harness = StoredQueue()
    queue = harness.queue
    red = harness.open("red", 0, selector=Colour("red"))
    other = None if is_last else harness.open("other", 0)
    for number in range(200):
        queue.add_volatile(message(str(number), "red" if number % 2 else "blue"))
    harness.out()
    looked_at = 0
    position = Entry.position  # type: ignore[attr-defined]

    def counted(entry: Entry) -> int:
        nonlocal looked_at
        looked_at += 1
        found: int = position.__get__(entry)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Entry, "position", property(counted, position.__set__))
        queue.close(red)
    assert looked_at < (150 if is_last else 10), "what nobody took is put in order, and nothing else"
    other = other or harness.open("other", 0)
    other.credit = 1000
    assert harness.out() == [("other", str(number)) for number in range(200)]
    assert queue.assignment is None, "the short way again, once they are few"
    assert (queue.held, queue.ready_weight) == (0, 0)


def test_no_message_overtakes_one_that_waits_for_its_lane(
    monkeypatch: pytest.MonkeyPatch, harness: StoredQueue
) -> None:
    """The messages of a group's owner wait elsewhere, and are not tested again."""
    one = harness.open("one", 0, selector=Colour("red"))
    harness.send(message("m1", "red"), message("m2", "red"), message("m3", "red", group_id="g"))
    assert harness.out() == []
    monkeypatch.setattr(assignment, "PLACED_MAX", 1)
    harness.open("two", 0, selector=Colour("blue"))
    one.set_prefetch(10)
    assert harness.out() == [("one", "m1"), ("one", "m2"), ("one", "m3")]


def test_messages_returned_in_pieces_are_delivered_in_order(
    monkeypatch: pytest.MonkeyPatch, harness: StoredQueue
) -> None:
    first = harness.open("first", 4, selector=Colour("red"))
    harness.send(*(message(f"m{number}", "red") for number in range(1, 7)))
    assert len(harness.out()) == 4
    monkeypatch.setattr(assignment, "TAKEN_MAX", 1)
    second = harness.open("second", 0, selector=Colour("red"))
    harness.queue.close(first)
    second.set_prefetch(10)
    assert [name for _, name in harness.out()] == [f"m{number}" for number in range(1, 7)]
