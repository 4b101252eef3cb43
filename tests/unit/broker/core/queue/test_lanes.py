"""Lanes in which messages of a queue wait, runs of returned messages, and skipped runs."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.core.commands import AckMode
from tandemmq.broker.core.delivery import Entry, Subscription, volatile_entry
from tandemmq.broker.core.queue.lanes import Lane, Lanes
from tandemmq.broker.core.queue.returned import Returned
from tandemmq.broker.core.queue.skipped_ranges import SkippedRanges
from tandemmq.store.operations import PagedMessage
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tests.support.core.outlet import Outlet


class Divides:
    is_cheap = True

    def __init__(self, divisor: int) -> None:
        self.divisor = divisor
        self.text = str(divisor)

    def matches(self, message: Message) -> bool:
        return int(message.message_id) % self.divisor == 0


SELECTORS = (None, Divides(2), Divides(3), Divides(5))


def subscription(selector: Any, priority: int) -> Subscription:
    return Subscription("s", Outlet(), AckMode.RANGE, 1, selector=selector, priority=priority)


def lanes_of(*consumers: Subscription) -> Lanes:
    lanes = Lanes()
    lanes.set_consumers(consumers)
    for number in range(30):
        entry = volatile_entry(Message(Destination(DestinationKind.QUEUE, "q"), str(number)))
        entry.position = number
        lanes.place(entry)
    return lanes


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans(), st.integers(0, 99)), max_size=20))
def test_lanes_after_single_changes_equal_lanes_built_at_once(steps: list[Any]) -> None:
    lanes = lanes_of(*(subscription(each, 1) for each in SELECTORS))
    for choice, priority, is_leaving, who in steps:
        if is_leaving and len(lanes.consumers) > 1:
            lanes.leave(lanes.consumers[who % len(lanes.consumers)])
        else:
            lanes.join(subscription(SELECTORS[choice], priority))
        for key, lane in lanes._lanes.items():
            anew = Lane(lanes._takers(key))
            assert (lane.takers, lane.tiers, lane._turns) == (anew.takers, anew.tiers, anew._turns)


def test_one_more_consumer_of_a_known_choice_causes_no_search_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = lanes_of(*(subscription(each, 1) for each in SELECTORS))
    assert len(lanes._lanes) == 8

    def fail(self: Lanes, matching: tuple[int, ...]) -> list[Subscription]:
        raise AssertionError("each lane would look through all consumers")

    monkeypatch.setattr(Lanes, "_takers", fail)
    one = subscription(None, 1)
    lanes.join(one)
    lanes.leave(one)


# ---- messages that came back


STEPS = st.lists(st.tuples(st.sampled_from(["add", "run", "take", "take run", "keep"]), st.integers(1, 9)), max_size=30)


def entry_at(position: int) -> Entry:
    entry = volatile_entry(Message(Destination(DestinationKind.QUEUE, "orders"), "1"))
    entry.position = position
    return entry


@given(STEPS, st.randoms(use_true_random=False))
def test_it_is_what_a_sorted_list_would_be(steps: list[tuple[str, int]], random: object) -> None:
    free = list(range(300))
    random.shuffle(free)  # type: ignore[attr-defined]
    returned = Returned()
    model: list[int] = []
    for what, number in steps:
        if what == "add":
            position = free.pop()
            returned.add(entry_at(position))
            model.append(position)
        elif what == "run":
            positions = sorted(free.pop() for _ in range(number))
            returned.add_run(deque(map(entry_at, positions)))
            model += positions
        elif what == "take" and model:
            assert returned.take().position == min(model)
            model.remove(min(model))
        elif what == "take run" and model:
            run = [entry.position for entry in returned.take_run(number)]
            assert run == sorted(run)
            assert run[0] == min(model)
            assert len(run) <= number
            model = [position for position in model if position not in run]
        elif what == "keep":
            model = [position for position in model if position % 2]
            returned.keep([entry for entry in returned.entries() if entry.position % 2])
        assert sorted(entry.position for entry in returned.entries()) == sorted(model)
        assert (returned.total, bool(returned.heap)) == (len(model), bool(model))
        assert not model or returned.heap[0][0] == min(model)
    assert [returned.take().position for _ in range(len(model))] == sorted(model)


# ---- runs of messages that were passed over


ORDERS = Destination(DestinationKind.QUEUE, "orders")


def entry(place: int) -> Entry:
    """The message with that position; its order key is ten times that."""
    found = Entry(Message(ORDERS, f"m{place}"), place * 10, place, 10, 700)
    found.position = place
    return found


def paged(*places: int) -> list[PagedMessage]:
    return [PagedMessage(place * 10, place, 10, Message(ORDERS, f"m{place}")) for place in places]


def skipped_over(*places: int) -> SkippedRanges:
    skipped = SkippedRanges(runs_max=100)
    for place in places:
        skipped.add(entry(place), place * 10)
    return skipped


def again(skipped: SkippedRanges, *places: int, after: int = 0, is_end: bool = True) -> list[tuple[str, int]]:
    return [(each.message.message_id, at) for each, at in skipped.found(after, paged(*places), is_end)]


def test_only_what_was_passed_over_comes_back_at_its_place_also_over_several_pages() -> None:
    skipped = skipped_over(1, 2, 3, 4, 8)
    skipped.recall()
    assert (again(skipped, 1, 2, is_end=False), skipped.frontier) == ([("m1", 1), ("m2", 2)], 3)
    assert again(skipped, 3, 4, 5, 8, after=skipped.due[0].first_key - 1) == [("m3", 3), ("m4", 4), ("m8", 8)]
    assert (skipped.count, skipped.due) == (0, [])


def test_messages_due_before_a_page_in_progress_stay_due() -> None:
    skipped = skipped_over(5)
    skipped.recall()
    after = skipped.due[0].first_key - 1
    skipped.add(entry(2), 20)
    skipped.recall()
    assert (again(skipped, 5, after=after), skipped.frontier, skipped.count) == ([("m5", 5)], 2, 1)


@pytest.mark.parametrize(
    ("alive", "floor", "due", "runs"),
    [({4}, 0, (), [10, 50]), ((), 4, (), [10, 30, 50]), ((), 0, (4,), [40, 10, 50])],
    ids=["alive between", "not known what is alive", "due between"],
)
def test_runs_are_joined_where_nothing_stands_between_them(alive: Any, floor: int, due: Any, runs: list[int]) -> None:
    skipped = skipped_over(*due)
    skipped.recall()
    for place in (1, 3, 5, 7):
        skipped.add(entry(place), place * 10)
    skipped.join(alive=alive, floor=floor)
    skipped.recall()
    assert sorted(run.first_key for run in skipped.due) == sorted(runs)


def test_joining_waits_until_enough_has_gone() -> None:
    skipped = skipped_over(1)
    assert skipped.may_join(0)
    assert not skipped.may_join(5)
    assert skipped.may_join(6)


def test_messages_that_vanished_from_the_store_are_not_counted_for_ever() -> None:
    skipped = skipped_over(1, 2, 3, 6)
    skipped.recall()
    assert [name for name, _ in again(skipped, 2)] == ["m2"]
    assert skipped.count == 0
