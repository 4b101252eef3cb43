"""A queue without an engine, with a store in memory, and consumers by name."""

from __future__ import annotations

from typing import Any

from tandemmq.broker.core.commands import AckMode
from tandemmq.broker.core.delivery import Subscription
from tandemmq.broker.core.memory import Memory
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.share import Share
from tandemmq.store.operations import Page, PagedMessage
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tests.support.core.outlet import Outlet

ORDERS = Destination(DestinationKind.QUEUE, "orders")
SIZE = 10  # size of each message for the store


class Colour:
    """A selector of messages by type, which counts its calls."""

    is_cheap = True

    def __init__(self, text: str) -> None:
        self.text = text
        self.asked: list[str] = []

    def matches(self, message: Message) -> bool:
        self.asked.append(message.message_id)
        return message.type == self.text


def message(name: str, kind: str | None = None, *, persistent: bool = True, **fields: Any) -> Message:
    return Message(ORDERS, name, type=kind, persistent=persistent, **fields)


class StoredQueue:
    """``owner`` 0: a queue only in memory. Its store has the messages that are sent and not settled, by key."""

    def __init__(self, owner: int = 1, *, is_prioritized: bool = False, **settings: int) -> None:
        self.share = Share(Memory(1 << 30))
        self.queue = Queue(ORDERS, owner, EngineSettings(**settings), self.share, is_prioritized=is_prioritized)
        self.stored: dict[int, PagedMessage] = {}
        self.sent = 0
        self.pages = 0

    def open(self, name: str, prefetch: int = 1000, **options: Any) -> Subscription:
        subscription = Subscription(name, Outlet(), AckMode.INDIVIDUAL, prefetch, **options)
        self.queue.open(subscription)
        return subscription

    def send(self, *messages: Message) -> None:
        for each in messages:
            if not each.persistent:
                self.queue.add_volatile(each)
                continue
            self.sent += 1
            key = self.sent << 32
            self.stored[key] = PagedMessage(key, key >> 32, SIZE, each)
            self.queue.add(each, key, key >> 32, SIZE)

    def read(self, page: Page) -> tuple[list[PagedMessage], bool]:
        """Return the page that a store would read, and whether it is the last one."""
        found = [self.stored[key] for key in sorted(self.stored) if key > page.after]
        if page.priority is not None:
            found = [each for each in found if each.message.priority == page.priority]
        return found[: page.count], len(found) <= page.count

    def out(self) -> list[tuple[str, str]]:
        """Deliver until nothing changes; return the pairs of consumer and message."""
        got: list[tuple[str, str]] = []
        while True:
            deliveries = self.queue.dispatch(0)
            got += [(subscription.id, entry.message.message_id) for subscription, _, entry in deliveries]
            if self.queue.wants_page:
                self.pages += 1
                self.queue.page(*self.read(self.queue.ask_page()))
            elif not deliveries and not self.queue.has_more:
                return got

    def settle(self, subscription: Subscription) -> None:
        for tag in list(subscription.unacked):
            for _, entry in subscription.take(tag):
                self.queue.settle(entry)
                if entry.order_key:
                    del self.stored[entry.order_key]
