"""A queue with different consumers, compared with a model: selectors, priorities, exclusive consumers and groups.

The order of events is random. The windows are very small, so that the queue often skips messages, keeps them as skipped
ranges, and reads them again. See test_queue_model for the channel between queue and store.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tandemmq.broker.core.commands import AckMode
from tandemmq.broker.core.delivery import Entry, Subscription
from tandemmq.broker.core.memory import WINDOWS_PERCENT, Kind, Memory
from tandemmq.broker.core.queue import assignment
from tandemmq.broker.core.queue.lanes import exclusive
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.share import Share
from tandemmq.broker.core.slices import Pace, at_once
from tandemmq.store.operations import Page, PagedMessage
from tandemmq.store.records.message import Message
from tests.support.core.outlet import Outlet
from tests.support.core.queues import ORDERS, Colour

pytestmark = pytest.mark.promise("order-is-kept", "selectors", "message-groups")

SIZE = 100
BOUNDS = assignment.PLACED_MAX, assignment.TAKEN_MAX


COLOURS = {text: Colour(text) for text in ("red", "blue")}


class AssignmentMachine(RuleBasedStateMachine):
    memory_bytes = 12 * 800

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory(self.memory_bytes * 100 // WINDOWS_PERCENT)
        self.limits = EngineSettings(window_messages=4, page_messages=3)
        self.stored: dict[int, PagedMessage] = {}
        self.channel: deque[Message | Page] = deque()
        self.number = 0
        self.location = 10
        self.visible: dict[str, tuple[int, Message]] = {}
        self.first: dict[Subscription, list[int]] = {}
        self.open: list[Subscription] = []
        self.in_flight: set[str] = set()
        self.is_gone: set[str] = set()
        self.queue = Queue(ORDERS, 1, self.limits, Share(self.memory))

    def show(self, message: Message) -> None:
        self.visible[message.message_id] = (len(self.visible), message)

    def message(self, persistent: bool, colour: str | None = None, **fields: Any) -> Message:
        self.number += 1
        return Message(ORDERS, f"m{self.number}", persistent=persistent, type=colour, **fields)

    @initialize(placed=st.sampled_from([1, 2, 3, 2000]), taken=st.sampled_from([1, 3, 2000]))
    def bound_steps(self, placed: int, taken: int) -> None:
        assignment.PLACED_MAX, assignment.TAKEN_MAX = placed, taken

    # ---- events

    @rule(
        colours=st.lists(st.sampled_from(["red", "blue", None]), min_size=1, max_size=8),
        group=st.sampled_from([None, None, None, "g", "h"]),
        sequence=st.sampled_from([1, 1, -1]),
    )
    def send(self, colours: list[str | None], group: str | None, sequence: int) -> None:
        self.channel.extend(self.message(True, colour, group_id=group, group_sequence=sequence) for colour in colours)

    @rule(colour=st.sampled_from(["red", "blue", None]))
    def send_volatile(self, colour: str | None) -> None:
        self.add_volatile(self.message(False, colour))

    def add_volatile(self, message: Message) -> None:
        self.show(message)
        self.queue.add_volatile(message)

    @precondition(lambda self: self.channel)
    @rule(count=st.integers(1, 8))
    def durable(self, count: int) -> None:
        for _ in range(min(count, len(self.channel))):
            operation = self.channel.popleft()
            if isinstance(operation, Message):
                self.location += SIZE
                key = self.location << 32
                self.stored[key] = PagedMessage(key, self.location, SIZE, operation)
                self.show(operation)
                self.queue.add(operation, key, self.location, SIZE)
                continue
            found = self.behind(operation)
            self.queue.page(found[: operation.count], len(found) <= operation.count)

    def behind(self, page: Page) -> list[PagedMessage]:
        """Return the messages that a store would read for ``page`` without its limit."""
        return [self.stored[key] for key in sorted(self.stored) if key > page.after]

    @rule()
    def page(self) -> None:
        if self.queue.wants_page:
            self.channel.append(self.queue.ask_page())

    @rule(
        prefetch=st.integers(1, 5),
        is_auto=st.sampled_from([False, False, True]),
        colour=st.sampled_from(["red", "blue", None]),
        priority=st.sampled_from([0, 0, 1]),
        is_exclusive=st.sampled_from([False, False, False, True]),
    )
    def subscribe(self, prefetch: int, is_auto: bool, colour: str | None, priority: int, is_exclusive: bool) -> None:
        selector = None if colour is None else COLOURS[colour]
        self.join(prefetch, is_auto, selector=selector, priority=priority, is_exclusive=is_exclusive)

    def join(self, prefetch: int, is_auto: bool = False, **options: Any) -> None:
        ack = AckMode.AUTO if is_auto else AckMode.INDIVIDUAL
        subscription = Subscription(f"s{self.number}", Outlet(), ack, prefetch, **options)
        self.open.append(subscription)
        self.first[subscription] = []
        self.queue.open(subscription)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(self.open)))

    def end(self, subscription: Subscription) -> None:
        self.open.remove(subscription)
        self.in_flight -= {entry.message.message_id for entry in subscription.unacked.values()}
        self.queue.close(subscription)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def turn_writable(self, data: st.DataObject) -> None:
        outlet = data.draw(st.sampled_from(self.open)).outlet
        outlet.is_writable = not outlet.is_writable

    @rule()
    def dispatch(self) -> None:
        takers = self.takers()
        for subscription, _, entry in self.queue.dispatch(0):
            name = entry.message.message_id
            assert name not in self.is_gone, f"{name} was acknowledged and came again"
            assert name not in self.in_flight, f"{name} is delivered twice at once"
            assert subscription in takers, f"{name} went to one that has to wait"
            assert subscription.selector is None or subscription.selector.matches(entry.message)
            self.is_in_its_turn(subscription, entry)
            if subscription.is_auto:
                self.remove(entry)
            else:
                self.in_flight.add(name)

    def is_in_its_turn(self, subscription: Subscription, entry: Entry) -> None:
        # Messages of a group that gets a new owner may be late. test_groups checks their order.
        if not entry.redeliveries and entry.message.group_id is None:
            self.first[subscription].append(self.visible[entry.message.message_id][0])

    def takers(self) -> list[Subscription]:
        master = exclusive(self.queue.consumers)
        return self.open if master is None else [master]

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        choices = [(each, tag) for each in self.open for tag in each.unacked]
        if choices:
            subscription, tag = data.draw(st.sampled_from(choices))
            self.settle(subscription, tag)

    def settle(self, subscription: Subscription, tag: int) -> None:
        for _, entry in subscription.take(tag):
            self.queue.settle(entry)
            self.in_flight.discard(entry.message.message_id)
            self.remove(entry)

    @rule(data=st.data(), is_seen=st.booleans())
    def refuse(self, data: st.DataObject, is_seen: bool) -> None:
        choices = [(each, tag) for each in self.open for tag in each.unacked]
        if choices:
            subscription, tag = data.draw(st.sampled_from(choices))
            entry = subscription.take_one(tag)
            assert entry is not None
            entry.redeliveries += not is_seen  # the order is checked only for first deliveries
            self.in_flight.discard(entry.message.message_id)
            self.queue.give_back(entry, is_seen=is_seen)

    @rule()
    def evict(self) -> None:
        at_once(self.queue.evict(Pace()))

    @rule()
    def come_to_rest(self) -> None:
        """Check that no consumer with credit waits for a message that the queue has."""
        for _ in range(4 * len(self.visible) + 2 * len(self.channel) + 20):
            self.dispatch()
            self.page()
            if not self.channel and not self.queue.has_more:
                break
            self.durable(8)
        queue = self.queue
        in_memory = set()
        if queue.assignment is not None:
            in_memory = {entry.message.message_id for entry in queue.assignment.entries()}
        # If the window is full of messages for consumers without credit, the queue reads no more messages.
        routed = 0 if queue.assignment is None else queue.assignment.count
        is_full = routed >= 2 or (routed and not queue.share.has_space)
        for name, (_, message) in self.visible.items():
            if name in self.is_gone or name in self.in_flight:
                continue
            if is_full and (name not in in_memory or self.is_held(message)):
                continue
            takers = [e for e in self.takers() if e.selector is None or e.selector.matches(message)]
            with_space = [each for each in takers if each.credit > 0 and each.outlet.is_writable]
            if is_full and queue.assignment is not None and queue.skipped.due:
                with_space = [each for each in with_space if each not in queue.assignment.newcomers]
            if message.group_id is not None and with_space != takers:
                continue  # the owner of the group may have no credit
            assert not with_space, f"{name} waits, and {with_space} have room for it"

    def is_held(self, message: Message) -> bool:
        """Return whether the consumer must wait for messages that are not in memory."""
        return False

    def remove(self, entry: Entry) -> None:
        self.is_gone.add(entry.message.message_id)
        if entry.order_key:
            del self.stored[entry.order_key]

    # ---- invariants

    @invariant()
    def each_gets_the_queues_order(self) -> None:
        for places in self.first.values():
            assert places == sorted(places)

    @invariant()
    def everything_is_counted(self) -> None:
        assert self.queue.count == len(self.visible) - len(self.is_gone)

    @invariant()
    def memory_is_bounded(self) -> None:
        """Check the limit: the window, messages that were read again, unwanted messages, and messages in flight or
        returned."""
        held = sum(1 for key in self.stored if key <= self.queue.levels.all[0].cursor) - self.queue.skipped.count
        came_back = sum(each.prefetch for each in self.first)
        assert held <= 3 * (4 + 3) + 4 + came_back

    def teardown(self) -> None:
        """Check that each message is delivered in the end, and that all memory is free then."""
        try:
            self.end_all()
        finally:
            assignment.PLACED_MAX, assignment.TAKEN_MAX = BOUNDS

    def end_all(self) -> None:
        for subscription in list(self.open):
            subscription.outlet.is_writable = True
            if subscription.is_exclusive or subscription.selector is not None:
                self.end(subscription)
        self.join(3)
        for _ in range(4 * len(self.visible) + 2 * len(self.channel) + 20):
            if self.is_gone == set(self.visible) and not self.channel:
                break
            self.dispatch()
            for subscription in self.open:
                for tag in list(subscription.unacked):
                    self.settle(subscription, tag)
            self.page()
            if self.channel:
                self.durable(1)
        assert (self.is_gone, self.stored, self.queue.count) == (set(self.visible), {}, 0)
        assignment = self.queue.assignment
        # Groups keep their owners until the queue is deleted.
        messages = self.memory.used - self.memory.by_kind[Kind.STATE]
        assert (self.queue.skipped.count, messages, self.queue.share.used) == (0, 0, 0)
        assert assignment is None or (assignment.count, assignment.weight, assignment._out) == (0, 0, set())
        assert self.queue.ready_weight == 0
        at_once(self.queue.drop())
        assert self.memory.used == 0


class PlentyMachine(AssignmentMachine):
    """Model with memory for all messages: only the window makes the queue skip messages."""

    memory_bytes = 1 << 20


TestAssignment = AssignmentMachine.TestCase
TestAssignment.settings = settings(max_examples=40, stateful_step_count=40, deadline=None, print_blob=True)
TestPlenty = PlentyMachine.TestCase
TestPlenty.settings = TestAssignment.settings
