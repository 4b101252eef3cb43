"""A browser is shown what a queue holds, and changes nothing."""

from __future__ import annotations

from typing import Any

from tandemmq.broker.core.commands import AckMode
from tandemmq.broker.core.delivery import Subscription
from tandemmq.broker.core.memory import Memory
from tandemmq.broker.core.queue.browse import Browse
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.share import Share
from tandemmq.broker.core.slices import Pace, at_once
from tandemmq.store.operations import PagedMessage
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tests.support.core.outlet import Outlet

ORDERS = Destination(DestinationKind.QUEUE, "orders")


def subscription(prefetch: int = 1000, **options: Any) -> Subscription:
    return Subscription("s", Outlet(), AckMode.RANGE, prefetch, **options)


class Harness:
    def __init__(self, owner: int = 1, *, is_prioritized: bool = False) -> None:
        settings = EngineSettings(window_messages=3, page_messages=2)
        share = Share(Memory(1 << 30))
        self.queue = Queue(ORDERS, owner, settings, share, is_prioritized=is_prioritized)
        self.stored: dict[int, PagedMessage] = {}

    def add(self, *numbers: int, priority: int = 4) -> None:
        for number in numbers:
            message = Message(ORDERS, f"m{number}", persistent=True, priority=priority)
            location = 3 << 32 | number
            self.stored[location << 32] = PagedMessage(location << 32, location, 10, message)
            self.queue.add(message, location << 32, location, 10)

    def add_volatile(self, number: int, **fields: Any) -> None:
        self.queue.add_volatile(Message(ORDERS, f"m{number}", **fields))

    def browse(self, browser: Subscription) -> Browse:
        return at_once(self.queue.browse(browser, Pace()))

    def show(self, browse: Browse) -> list[str]:
        """Until nothing moves."""
        shown: list[str] = []
        while True:
            at_once(browse.look(Pace()))
            deliveries = browse.dispatch(10)
            shown += [entry.message.message_id for _, _, entry in deliveries]
            if browse.wants_page:
                page = browse.ask_page()
                found = [self.stored[key] for key in sorted(self.stored) if key > page.after]
                if page.priority is not None:
                    found = [each for each in found if each.message.priority == page.priority]
                browse.page(found[: page.count], len(found) <= page.count)
            elif not deliveries and not browse.wants_look:
                return shown


def test_a_browser_is_shown_all_that_is_stored_delivered_or_not() -> None:
    harness = Harness()
    harness.add(*range(1, 8))
    harness.queue.open(subscription(2))
    harness.queue.dispatch(0)
    browse = harness.browse(subscription(is_browser=True))
    assert harness.show(browse) == [f"m{number}" for number in range(1, 8)]
    assert browse.is_over
    assert harness.queue.count == 7


def test_what_is_only_in_memory_is_shown_at_its_place() -> None:
    harness = Harness()
    harness.add_volatile(1)
    harness.add(2)
    harness.add_volatile(3)
    harness.add(4, 5)
    harness.add_volatile(6)
    consumer = subscription(1)
    harness.queue.open(consumer)
    harness.queue.dispatch(0)
    browse = harness.browse(subscription(is_browser=True))
    assert harness.show(browse) == ["m1", "m2", "m3", "m4", "m5", "m6"]


def test_where_priorities_count_the_highest_are_shown_first() -> None:
    harness = Harness(is_prioritized=True)
    harness.add(1, 2, priority=0)
    harness.add_volatile(3, priority=9)
    harness.add(4, 5, 6)
    harness.add_volatile(7)
    harness.add(8, priority=9)
    harness.add_volatile(9, priority=0)
    browse = harness.browse(subscription(is_browser=True))
    assert harness.show(browse) == ["m3", "m8", "m4", "m5", "m6", "m7", "m1", "m2", "m9"]
    assert browse.is_over


def test_a_browser_waits_for_credit_and_reads_no_further_meanwhile() -> None:
    harness = Harness()
    harness.add(*range(1, 8))
    browser = subscription(3, is_browser=True)
    browse = harness.browse(browser)
    assert harness.show(browse) == ["m1", "m2", "m3"]
    assert not browse.wants_page
    assert not browse.is_over
    covered = browser.take_range(1, 3)
    assert all(entry.queue is None for _, entry in covered)
    assert harness.show(browse) == ["m4", "m5", "m6"]


def test_a_browser_is_not_shown_more_than_there_was() -> None:
    harness = Harness()
    harness.add(1, 2, 3)
    browse = harness.browse(subscription(is_browser=True))
    harness.add(4, 5, 6)
    assert harness.show(browse) == ["m1", "m2", "m3"]
    assert browse.is_over
