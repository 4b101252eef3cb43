"""A queue that serves by priority, compared with a model: strictly by priority, and in order within each priority.

Windows and pages are very small, so that each priority has messages in the store, in memory and in flight at the same
time. The invariants of test_assignment_model for a queue with different consumers hold here, too.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from tandemmq.broker.core.delivery import Entry, Subscription
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.share import Share
from tandemmq.broker.core.slices import at_once
from tandemmq.store.operations import Page, PagedMessage
from tandemmq.store.records.message import Message
from tandemmq.store.state.keys import rank_of
from tests.model.core.test_assignment_model import AssignmentMachine
from tests.support.core.queues import ORDERS

pytestmark = pytest.mark.promise("priorities-hold")

PRIORITIES = st.sampled_from([4, 4, 9, 0, 7])


class PrioritiesMachine(AssignmentMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue = self.new_queue()

    def new_queue(self) -> Queue:
        return Queue(ORDERS, 1, self.limits, Share(self.memory), unread=len(self.stored), is_prioritized=True)

    # ---- what happens outside

    @rule(colours=st.lists(st.tuples(st.sampled_from(["red", "blue", None]), PRIORITIES), min_size=1, max_size=8))
    def send(self, colours: list[tuple[str | None, int]]) -> None:
        self.channel.extend(self.message(True, colour, priority=priority) for colour, priority in colours)

    @rule(colour=st.sampled_from(["red", "blue", None]), priority=PRIORITIES)
    def send_volatile(self, colour: str | None, priority: int) -> None:
        self.add_volatile(self.message(False, colour, priority=priority))

    def behind(self, page: Page) -> list[PagedMessage]:
        assert page.priority is not None, "each priority is read by itself"
        return [paged for paged in super().behind(page) if paged.message.priority == page.priority]

    @precondition(lambda self: not self.channel and not self.queue.is_page_asked)
    @rule()
    def restart(self) -> None:
        """Let another master begin with the stored messages."""
        for subscription in list(self.open):
            self.end(subscription)
        lost = [name for name, (_, message) in self.visible.items() if not message.persistent]
        self.is_gone.update(lost)
        at_once(self.queue.drop())
        assert self.memory.used == 0
        self.queue = self.new_queue()

    @rule()
    def dispatch(self) -> None:
        self.is_strict = self.queue.assignment is not None and not self.queue.assignment.stuck
        super().dispatch()

    def is_held(self, message: Message) -> bool:
        return rank_of(message.priority) > self.queue.levels.first_behind

    def is_in_its_turn(self, subscription: Subscription, entry: Entry) -> None:
        if not self.is_strict:
            return
        name = entry.message.message_id
        for other, (_, message) in self.visible.items():
            if other in self.is_gone or other in self.in_flight:
                continue
            if subscription.selector is None or subscription.selector.matches(message):
                assert self.place(name) <= self.place(other), f"{name} came before {other}"

    def place(self, name: str) -> tuple[int, int]:
        number, message = self.visible[name]
        return rank_of(message.priority), number

    # ---- what must hold

    @invariant()
    def memory_is_bounded(self) -> None:
        """Check the bound: two windows and a page, messages that were read again, unwanted ones, and those in flight or
        returned."""
        waiting = [*self.queue.ready, *(() if self.queue.assignment is None else self.queue.assignment.entries())]
        came_back = sum(each.prefetch for each in self.first)
        assert sum(entry.order_key > 0 for entry in waiting) <= 2 * 4 + 2 * (4 + 3) + 4 + came_back


def test_what_was_read_again_does_not_wait_for_what_became_due_before_it() -> None:
    machine = PrioritiesMachine()
    machine.subscribe(1, False, "blue", 0, False)
    machine.send([("red", 4)] * 8 + [("blue", 4)])
    machine.come_to_rest()
    machine.send([("red", 4)] * 4 + [(None, 9)])
    machine.subscribe(3, False, "red", 0, False)
    machine.come_to_rest()
    machine.teardown()


class PlentyMachine(PrioritiesMachine):
    """With memory for all: what waits in the store does so because of the window."""

    memory_bytes = 1 << 20


TestPriorities = PrioritiesMachine.TestCase
TestPriorities.settings = settings(max_examples=40, stateful_step_count=40, deadline=None, print_blob=True)
TestPlenty = PlentyMachine.TestCase
TestPlenty.settings = TestPriorities.settings
