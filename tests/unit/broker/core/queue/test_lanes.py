"""Consumers come to lanes and leave them, one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.core.commands import AckMode
from tandemmq.broker.core.delivery import Subscription, volatile_entry
from tandemmq.broker.core.queue.lanes import Lane, Lanes
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tests.support.core.outlet import Outlet


class Divides:
    def __init__(self, divisor: int) -> None:
        self.divisor = divisor
        self.text = str(divisor)

    def matches(self, message: Message) -> bool:
        return int(message.message_id) % self.divisor == 0


SELECTORS = (None, Divides(2), Divides(3), Divides(5))


def subscription(selector: Any, priority: int) -> Subscription:
    return Subscription("s", Outlet(), AckMode.RANGE, 1, selector=selector, priority=priority)


def lanes_of(*consumers: Subscription) -> Lanes:
    lanes = Lanes()
    lanes.set_consumers(consumers)
    for number in range(30):
        entry = volatile_entry(Message(Destination(DestinationKind.QUEUE, "q"), str(number)))
        entry.position = number
        lanes.place(entry)
    return lanes


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans(), st.integers(0, 99)), max_size=20))
def test_who_came_and_who_left_makes_the_lanes_that_all_at_once_would_have(steps: list[Any]) -> None:
    lanes = lanes_of(*(subscription(each, 1) for each in SELECTORS))
    for choice, priority, is_leaving, who in steps:
        if is_leaving and len(lanes.consumers) > 1:
            lanes.leave(lanes.consumers[who % len(lanes.consumers)])
        else:
            lanes.join(subscription(SELECTORS[choice], priority))
        for key, lane in lanes._lanes.items():
            anew = Lane(lanes._takers(key))
            assert (lane.takers, lane.tiers, lane._turns) == (anew.takers, anew.tiers, anew._turns)


def test_one_more_of_a_known_choice_has_nobody_look_through_all_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = lanes_of(*(subscription(each, 1) for each in SELECTORS))
    assert len(lanes._lanes) == 8

    def fail(self: Lanes, matching: tuple[int, ...]) -> list[Subscription]:
        raise AssertionError("each lane would look through all consumers")

    monkeypatch.setattr(Lanes, "_takers", fail)
    one = subscription(None, 1)
    lanes.join(one)
    lanes.leave(one)
