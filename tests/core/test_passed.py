"""Runs of messages that were passed over: what they remember, and what comes back."""

from __future__ import annotations

from broker.core.passed import Passed
from broker.core.subscription import Entry
from store.operations import PagedMessage
from store.records.message import Destination, DestinationKind, Message

ORDERS = Destination(DestinationKind.QUEUE, "orders")


def entry(place: int) -> Entry:
    """The message with that position; its order key is ten times that."""
    found = Entry(Message(ORDERS, f"m{place}"), place * 10, place, 10, 700)
    found.position = place
    return found


def paged(*places: int) -> list[PagedMessage]:
    return [PagedMessage(place * 10, place, 10, Message(ORDERS, f"m{place}")) for place in places]


def passed_over(*places: int) -> Passed:
    passed = Passed(runs_max=100)
    for place in places:
        passed.add(entry(place), place * 10)
    return passed


def again(passed: Passed, *places: int, after: int = 0, is_end: bool = True) -> list[tuple[str, int]]:
    return [(each.message.message_id, at) for each, at in passed.found(after, paged(*places), is_end)]


def test_only_what_was_passed_over_comes_back_at_its_place() -> None:
    passed = passed_over(1, 2, 5, 6, 9)
    passed.recall()

    assert again(passed, *range(1, 12)) == [("m1", 1), ("m2", 2), ("m5", 5), ("m6", 6), ("m9", 9)]
    assert (passed.count, passed.due) == (0, [])


def test_a_page_that_ends_within_a_run_leaves_the_rest_due() -> None:
    passed = passed_over(1, 2, 3, 4, 8)
    passed.recall()

    assert again(passed, 1, 2, is_end=False) == [("m1", 1), ("m2", 2)]
    assert passed.frontier == 3
    assert again(passed, 3, 4, 5, 8, after=passed.due[0].first_key - 1) == [("m3", 3), ("m4", 4), ("m8", 8)]


def test_what_became_due_before_a_page_that_is_under_way_stays_due() -> None:
    passed = passed_over(5)
    passed.recall()
    after = passed.due[0].first_key - 1
    passed.add(entry(2), 20)
    passed.recall()

    assert again(passed, 5, after=after) == [("m5", 5)]
    assert passed.frontier == 2
    assert passed.count == 1


def test_runs_are_joined_where_nothing_between_them_is_alive() -> None:
    passed = passed_over(1, 3, 5, 7)
    passed.join(alive={4}, floor=0)
    passed.recall()

    assert len(passed.due) == 2
    assert [name for name, _ in again(passed, 1, 3, 4, 5, 7)] == ["m1", "m3", "m5", "m7"]


def test_what_is_due_parts_runs_too() -> None:
    passed = passed_over(3)
    passed.recall()
    passed.add(entry(1), 10)
    passed.add(entry(5), 50)
    passed.join(alive=(), floor=0)
    passed.recall()

    assert len(passed.due) == 3


def test_runs_are_not_joined_where_it_is_not_known_what_is_alive() -> None:
    passed = passed_over(1, 3, 5, 7)
    passed.join(alive=(), floor=4)
    passed.recall()

    assert [run.first_key for run in passed.due] == [10, 30, 50]


def test_joining_waits_until_enough_has_gone() -> None:
    passed = passed_over(1)
    assert passed.may_join(0)
    assert not passed.may_join(5)
    assert passed.may_join(6)


def test_messages_that_vanished_from_the_store_are_not_counted_for_ever() -> None:
    passed = passed_over(1, 2, 3, 6)
    passed.recall()

    assert [name for name, _ in again(passed, 2)] == ["m2"]
    assert passed.count == 0
