"""A queue with equal consumers, compared with a model: nothing lost, nothing doubled, first deliveries in order.

test_assignment_model describes the other invariants, and the channel between queue and store.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tandemmq.broker.core.delivery import Entry, Subscription
from tests.model.core.test_assignment_model import AssignmentMachine

pytestmark = pytest.mark.promise("order-is-kept")


class QueueMachine(AssignmentMachine):
    # About nine messages fit, so that scarcity happens too.
    memory_bytes = 9 * 800

    def __init__(self) -> None:
        super().__init__()
        self.first_deliveries: list[str] = []

    @rule(count=st.integers(1, 6))
    def send(self, count: int) -> None:
        self.channel.extend(self.message(True) for _ in range(count))

    @rule()
    def send_volatile(self) -> None:
        self.add_volatile(self.message(False))

    @rule(prefetch=st.integers(1, 5), is_auto=st.booleans())
    def subscribe(self, prefetch: int, is_auto: bool) -> None:
        self.join(prefetch, is_auto)

    def is_in_its_turn(self, subscription: Subscription, entry: Entry) -> None:
        if not entry.redeliveries:
            self.first_deliveries.append(entry.message.message_id)

    @invariant()
    def first_deliveries_are_in_order(self) -> None:
        assert self.first_deliveries == [*self.visible][: len(self.first_deliveries)]

    @invariant()
    def the_window_is_bounded(self) -> None:
        assert sum(1 for entry in self.queue.ready if entry.order_key) <= 4 + 3


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, print_blob=True)
