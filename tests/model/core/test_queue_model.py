"""A queue against a model, under any interleaving: nothing lost, nothing doubled, first deliveries in order.

Windows are tiny, so that the queue is paged most of the time. The channel between queue and store is kept in order
and moves only when hypothesis says so.
"""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tandemmq.broker.core.commands import AckMode
from tandemmq.broker.core.delivery import Entry, Subscription
from tandemmq.broker.core.memory import WINDOWS_PERCENT, Memory
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.share import Share
from tandemmq.broker.core.slices import Pace, at_once
from tandemmq.store.operations import Page, PagedMessage
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tests.support.core.outlet import Outlet

pytestmark = pytest.mark.promise("order-is-kept")

ORDERS = Destination(DestinationKind.QUEUE, "orders")
SIZE = 100


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        # Few bytes in all: about nine messages fit, so that scarcity happens too.
        self.limits = EngineSettings(window_messages=4, page_messages=3)
        self.stored: dict[int, PagedMessage] = {}
        self.channel: deque[Message | Page] = deque()
        self.number = 0
        self.location = 10
        self.visible: list[str] = []
        self.first_deliveries: list[str] = []
        self.open: list[Subscription] = []
        self.is_gone: set[str] = set()
        self.queue = self.new_queue()

    def new_queue(self) -> Queue:
        self.memory = Memory(9 * 800 * 100 // WINDOWS_PERCENT)
        return Queue(ORDERS, 1, self.limits, Share(self.memory), unread=len(self.stored))

    def message(self, persistent: bool) -> Message:
        self.number += 1
        return Message(ORDERS, f"m{self.number}", persistent=persistent)

    # ---- what happens outside

    @rule(count=st.integers(1, 6))
    def send(self, count: int) -> None:
        self.channel.extend(self.message(True) for _ in range(count))

    @rule()
    def send_volatile(self) -> None:
        message = self.message(False)
        self.visible.append(message.message_id)
        self.queue.add_volatile(message)

    @precondition(lambda self: self.channel)
    @rule(count=st.integers(1, 6))
    def durable(self, count: int) -> None:
        for _ in range(min(count, len(self.channel))):
            operation = self.channel.popleft()
            if isinstance(operation, Message):
                self.location += SIZE
                key = self.location << 32
                self.stored[key] = PagedMessage(key, self.location, SIZE, operation)
                self.visible.append(operation.message_id)
                self.queue.add(operation, key, self.location, SIZE)
                continue
            found = [self.stored[key] for key in sorted(self.stored) if key > operation.after]
            self.queue.page(found[: operation.count], len(found) <= operation.count)

    @rule()
    def page(self) -> None:
        if self.queue.wants_page:
            self.channel.append(self.queue.ask_page())

    @rule(prefetch=st.integers(1, 5), is_auto=st.booleans())
    def subscribe(self, prefetch: int, is_auto: bool) -> None:
        ack = AckMode.AUTO if is_auto else AckMode.INDIVIDUAL
        subscription = Subscription(f"s{self.number}", Outlet(), ack, prefetch)
        self.open.append(subscription)
        self.queue.open(subscription)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        subscription = data.draw(st.sampled_from(self.open))
        self.open.remove(subscription)
        self.queue.close(subscription)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def turn_writable(self, data: st.DataObject) -> None:
        outlet = data.draw(st.sampled_from(self.open)).outlet
        outlet.is_writable = not outlet.is_writable

    @rule()
    def dispatch(self) -> None:
        for subscription, _, entry in self.queue.dispatch(0):
            name = entry.message.message_id
            assert name not in self.is_gone, f"{name} was acknowledged and came again"
            if not entry.redeliveries:
                self.first_deliveries.append(name)
            if subscription.is_auto:
                self.remove(entry)

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        choices = [(each, tag) for each in self.open for tag in each.unacked]
        if choices:
            subscription, tag = data.draw(st.sampled_from(choices))
            ((_, entry),) = subscription.take(tag)
            self.queue.settle(entry)
            self.remove(entry)

    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        choices = [(each, tag) for each in self.open for tag in each.unacked]
        if choices:
            subscription, tag = data.draw(st.sampled_from(choices))
            entry = subscription.take_one(tag)
            assert entry is not None
            self.queue.give_back(entry)

    @rule()
    def evict(self) -> None:
        at_once(self.queue.evict(Pace()))

    def remove(self, entry: Entry) -> None:
        self.is_gone.add(entry.message.message_id)
        if entry.order_key:
            del self.stored[entry.order_key]

    # ---- what must hold

    @invariant()
    def first_deliveries_are_in_order(self) -> None:
        assert self.first_deliveries == self.visible[: len(self.first_deliveries)]

    @invariant()
    def everything_is_counted(self) -> None:
        assert self.queue.count == len(self.visible) - len(self.is_gone)

    @invariant()
    def the_window_is_bounded(self) -> None:
        assert sum(1 for entry in self.queue.ready if entry.order_key) <= 4 + 3

    def teardown(self) -> None:
        """Given time, everything comes out: once, and memory is given back."""
        for subscription in self.open:
            subscription.outlet.is_writable = True
        self.subscribe(3, False)
        for _ in range(2 * len(self.visible) + 2 * len(self.channel) + 10):
            self.dispatch()
            for subscription in self.open:
                for tag in list(subscription.unacked):
                    for _, entry in subscription.take(tag):
                        self.queue.settle(entry)
                        self.remove(entry)
            self.page()
            if self.channel:
                self.durable(1)
        assert self.first_deliveries == self.visible
        assert self.is_gone == set(self.visible)
        assert self.stored == {}
        assert self.queue.count == 0
        assert (self.memory.used, self.queue.share.used) == (0, 0)


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, print_blob=True)
