"""Promises of a queue in single steps; test_queue_model tests all together."""

from __future__ import annotations

from tandemmq.broker.core.commands import AckMode
from tandemmq.broker.core.delivery import Subscription
from tandemmq.broker.core.memory import Memory
from tandemmq.broker.core.queue.queue import ROUND_MESSAGES, Queue
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.share import Share
from tandemmq.broker.core.slices import ITEMS
from tandemmq.store.operations import PagedMessage
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tests.support.core.outlet import Outlet

ORDERS = Destination(DestinationKind.QUEUE, "orders")


def queue(unread: int = 0, **settings: int) -> Queue:
    return Queue(ORDERS, 1, EngineSettings(**settings), Share(Memory(1 << 20)), unread=unread)


def subscription(prefetch: int = 1000) -> Subscription:
    return Subscription("s", Outlet(), AckMode.INDIVIDUAL, prefetch)


def add(target: Queue, *numbers: int) -> None:
    for number in numbers:
        target.add(Message(ORDERS, f"m{number}"), number << 32, number, 10)


def names(target: Queue) -> list[str]:
    return [entry.message.message_id for _, _, entry in target.dispatch(0)]


def test_a_queue_that_is_deleted_is_empty_at_once_and_gives_its_memory_back_in_steps() -> None:
    memory = Memory(1 << 20)
    target = Queue(ORDERS, 1, EngineSettings(window_messages=3), Share(memory))
    add(target, 1, 2, 3, 4)
    for number in range(3 * ITEMS):
        target.add_volatile(Message(ORDERS, f"n{number}"))
    held = memory.used
    work = target.drop()
    assert (target.count, memory.used) == (0, held)
    steps = sum(1 for _ in work)
    assert steps == 4, "so many at a time"
    assert memory.used == 0


def test_a_queue_without_consumers_reads_nothing_and_the_last_page_mends_a_wrong_count() -> None:
    target = queue(unread=7)
    assert not target.wants_page
    target.open(subscription())
    assert target.wants_page
    target.ask_page()
    target.page([PagedMessage(1 << 32, 1, 10, Message(ORDERS, "m1"))], is_end=True)
    assert target.count == 1


def test_a_window_is_bounded_in_bytes_too() -> None:
    target = queue(window_bytes=1_500)
    add(target, *range(1, 10))
    assert (len(target.ready), target.count) == (3, 9)


def test_one_round_of_dispatch_is_bounded_and_says_so() -> None:
    target = queue()
    add(target, *range(1, 200))
    target.open(subscription())
    assert len(names(target)) == ROUND_MESSAGES
    assert target.has_more
    assert len(names(target)) == 199 - ROUND_MESSAGES
    assert not target.has_more
