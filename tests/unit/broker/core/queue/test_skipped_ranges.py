"""Runs of messages that were passed over: what they remember, and what comes back."""

from __future__ import annotations

from tandemmq.broker.core.delivery import Entry
from tandemmq.broker.core.queue.skipped_ranges import SkippedRanges
from tandemmq.store.operations import PagedMessage
from tandemmq.store.records.message import Destination, DestinationKind, Message

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


def test_only_what_was_passed_over_comes_back_at_its_place() -> None:
    skipped = skipped_over(1, 2, 5, 6, 9)
    skipped.recall()

    assert again(skipped, *range(1, 12)) == [("m1", 1), ("m2", 2), ("m5", 5), ("m6", 6), ("m9", 9)]
    assert (skipped.count, skipped.due) == (0, [])


def test_a_page_that_ends_within_a_run_leaves_the_rest_due() -> None:
    skipped = skipped_over(1, 2, 3, 4, 8)
    skipped.recall()

    assert again(skipped, 1, 2, is_end=False) == [("m1", 1), ("m2", 2)]
    assert skipped.frontier == 3
    assert again(skipped, 3, 4, 5, 8, after=skipped.due[0].first_key - 1) == [("m3", 3), ("m4", 4), ("m8", 8)]


def test_what_became_due_before_a_page_that_is_under_way_stays_due() -> None:
    skipped = skipped_over(5)
    skipped.recall()
    after = skipped.due[0].first_key - 1
    skipped.add(entry(2), 20)
    skipped.recall()

    assert again(skipped, 5, after=after) == [("m5", 5)]
    assert skipped.frontier == 2
    assert skipped.count == 1


def test_runs_are_joined_where_nothing_between_them_is_alive() -> None:
    skipped = skipped_over(1, 3, 5, 7)
    skipped.join(alive={4}, floor=0)
    skipped.recall()

    assert len(skipped.due) == 2
    assert [name for name, _ in again(skipped, 1, 3, 4, 5, 7)] == ["m1", "m3", "m5", "m7"]


def test_what_is_due_parts_runs_too() -> None:
    skipped = skipped_over(3)
    skipped.recall()
    skipped.add(entry(1), 10)
    skipped.add(entry(5), 50)
    skipped.join(alive=(), floor=0)
    skipped.recall()

    assert len(skipped.due) == 3


def test_runs_are_not_joined_where_it_is_not_known_what_is_alive() -> None:
    skipped = skipped_over(1, 3, 5, 7)
    skipped.join(alive=(), floor=4)
    skipped.recall()

    assert [run.first_key for run in skipped.due] == [10, 30, 50]


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
