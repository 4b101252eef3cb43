"""A browser is shown what a queue holds, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core.commands import AckMode
from tandemmq.broker.core.delivery import Subscription
from tandemmq.broker.core.memory import Kind
from tandemmq.broker.core.queue.browse import EXPECTED_BYTES, Browse
from tandemmq.broker.core.selector.compiling import compile_selector
from tandemmq.broker.core.slices import Pace, at_once
from tests.support.core.outlet import Outlet
from tests.support.core.queues import StoredQueue, message


def browser(prefetch: int = 1000) -> Subscription:
    return Subscription("s", Outlet(), AckMode.RANGE, prefetch, is_browser=True)


class Harness(StoredQueue):
    def __init__(self, owner: int = 1, *, is_prioritized: bool = False) -> None:
        super().__init__(owner, is_prioritized=is_prioritized, window_messages=3, page_messages=2)

    def add(self, *numbers: int, **fields: Any) -> None:
        self.send(*(message(f"m{number}", **fields) for number in numbers))

    def browse(self, browser: Subscription) -> Browse:
        return at_once(self.queue.browse(browser, Pace()))

    def show(self, browse: Browse) -> list[str]:
        """Show messages until nothing moves."""
        shown: list[str] = []
        while True:
            at_once(browse.search(Pace()))
            deliveries = browse.dispatch(10)
            shown += [entry.message.message_id for _, _, entry in deliveries]
            if browse.wants_page:
                browse.page(*self.read(browse.ask_page()))
            elif not deliveries and not browse.wants_search:
                return shown


def test_a_browser_is_shown_all_that_is_stored_delivered_or_not() -> None:
    harness = Harness()
    harness.add(*range(1, 8))
    harness.open("consumer", 2)
    harness.queue.dispatch(0)
    browse = harness.browse(browser())
    assert harness.show(browse) == [f"m{number}" for number in range(1, 8)]
    assert browse.is_over
    assert harness.queue.count == 7


def test_a_message_only_in_memory_is_shown_at_its_place() -> None:
    harness = Harness()
    harness.add(1, persistent=False)
    harness.add(2)
    harness.add(3, persistent=False)
    harness.add(4, 5)
    harness.add(6, persistent=False)
    harness.open("consumer", 1)
    harness.queue.dispatch(0)
    browse = harness.browse(browser())
    assert harness.show(browse) == ["m1", "m2", "m3", "m4", "m5", "m6"]


def test_a_queue_with_priorities_shows_the_highest_first() -> None:
    harness = Harness(is_prioritized=True)
    harness.add(1, 2, priority=0)
    harness.add(3, persistent=False, priority=9)
    harness.add(4, 5, 6)
    harness.add(7, persistent=False)
    harness.add(8, priority=9)
    harness.add(9, persistent=False, priority=0)
    browse = harness.browse(browser())
    assert harness.show(browse) == ["m3", "m8", "m4", "m5", "m6", "m7", "m1", "m2", "m9"]
    assert browse.is_over


def test_a_browser_waits_for_credit_and_reads_no_further_meanwhile() -> None:
    harness = Harness()
    harness.add(*range(1, 8))
    waiting = browser(3)
    browse = harness.browse(waiting)
    assert harness.show(browse) == ["m1", "m2", "m3"]
    assert not browse.wants_page
    assert not browse.is_over
    covered = waiting.take_range(1, 3)
    assert all(entry.queue is None for _, entry in covered)
    assert harness.show(browse) == ["m4", "m5", "m6"]


def test_a_browser_is_not_shown_more_than_there_was() -> None:
    harness = Harness()
    harness.add(1, 2, 3)
    browse = harness.browse(browser())
    harness.add(4, 5, 6)
    assert harness.show(browse) == ["m1", "m2", "m3"]
    assert browse.is_over


def test_a_queue_that_is_only_in_memory_needs_no_page() -> None:
    harness = Harness(owner=0)
    harness.add(1, persistent=False)
    browse = harness.browse(browser())
    assert not browse.wants_page
    assert (harness.show(browse), browse.is_over) == (["m1"], True)


def test_a_message_that_was_read_counts_until_the_client_acknowledges_it() -> None:
    harness = Harness()
    harness.add(1, 2, 3, body=bytes(5_000))
    for each in harness.stored.values():  # the store reads other objects than those of the queue
        each.message = message(each.message.message_id, body=bytes(5_000))
    client = browser(1)
    holder = client.outlet.holder
    browse = harness.browse(client)
    asked = browse.ask_page()
    assert holder.by_kind[Kind.BROWSED] == 2 * EXPECTED_BYTES
    browse.page(*harness.read(asked))
    assert holder.memory.used == holder.by_kind[Kind.BROWSED] > 2 * 5_000
    assert harness.show(browse) == ["m1"]
    assert holder.by_kind[Kind.BROWSED] > 5_000, "the second message waits for credit"
    assert 2 * 5_000 < holder.memory.used < 3 * 5_000
    client.take_range(1, 1)
    assert harness.show(browse) == ["m2"]
    client.take_range(2, 2)
    assert harness.show(browse) == ["m3"]
    client.take_range(3, 3)
    assert (browse.is_over, holder.memory.used) == (True, 0)


def test_messages_that_a_selector_refuses_do_not_count() -> None:
    harness = Harness()
    harness.add(1, 2)
    client = browser()
    client.selector = compile_selector("a = 1")
    browse = harness.browse(client)
    assert harness.show(browse) == []
    assert (browse.is_over, client.outlet.holder.memory.used) == (True, 0)


@pytest.mark.parametrize("is_released", [False, True], ids=["the client left", "released"])
def test_a_browser_that_ends_during_a_search_examines_no_further_message(is_released: bool) -> None:
    # proves: browsers-that-left-search-no-more
    harness = Harness()
    harness.add(1, 2, 3, body=bytes(5_000))
    client = browser()
    client.selector = compile_selector("REGEX('a', b) IS NULL")
    browse = harness.browse(client)
    browse.page(*harness.read(browse.ask_page()))
    search = browse.search(Pace(0.0))
    next(search)
    client.end()
    if is_released:
        at_once(browse.let_go(Pace()))
        assert not client.outlet.holder.memory.used
    assert list(search) == []


def test_a_page_that_comes_after_the_end_of_its_browser_is_dropped() -> None:
    # proves: browsers-that-left-hold-nothing
    harness = Harness()
    harness.add(1, 2)
    client = browser()
    browse = harness.browse(client)
    asked = browse.ask_page()
    client.end()
    at_once(browse.let_go(Pace()))
    assert client.outlet.holder.memory.used == 2 * EXPECTED_BYTES, "the store still reads it"
    browse.page(*harness.read(asked))
    assert not client.outlet.holder.memory.used


def test_the_browsers_of_a_client_read_as_much_as_is_free() -> None:
    # proves: browsers-wait-for-memory
    harness = Harness()
    harness.add(1, 2, body=bytes(2 << 20))
    first, second = browser(0), browser(0)
    second.outlet = first.outlet
    first.outlet.holder.memory.limit = 6 << 20
    browse, other = harness.browse(first), harness.browse(second)
    asked = browse.ask_page()
    assert asked.bytes_max == 4 << 20
    browse.page(*harness.read(asked))
    assert not other.has_room, "it would hold more than it leaves to others"
    at_once(browse.let_go(Pace()))
    assert other.has_room
