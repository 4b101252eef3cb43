"""Message groups: one consumer for all messages of a group, as long as the consumer is open."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.core.commands import AckMode
from tandemmq.broker.core.delivery import Subscription, volatile_entry
from tandemmq.broker.core.queue.groups import Groups
from tandemmq.broker.core.slices import at_once
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tests.support.core.groups import owned
from tests.support.core.outlet import Outlet
from tests.support.core.queues import Colour, StoredQueue, message

pytestmark = pytest.mark.promise("message-groups")


class Harness(StoredQueue):
    """A queue in memory; the messages of a group are numbered over all groups."""

    def send_to(self, *groups: str | None, **fields: Any) -> None:
        for group in groups:
            self.sent += 1
            self.send(message(f"{group}{self.sent}", persistent=False, group_id=group, **fields))


@pytest.fixture
def harness() -> Harness:
    return Harness(0)


def test_a_group_waits_for_its_owner_and_other_messages_do_not(harness: Harness) -> None:
    owner = harness.open("owner", 1)
    harness.send_to("a", "a")
    assert harness.out() == [("owner", "a1")]
    harness.open("other")
    harness.send_to(None, "a")
    assert harness.out() == [("other", "None3")]
    for _, entry in owner.take(1):
        harness.queue.settle(entry)
    assert harness.out() == [("owner", "a2")]


def test_the_owner_of_a_new_group_has_the_highest_priority(harness: Harness) -> None:
    harness.open("low", priority=0)
    harness.open("high", priority=1)
    harness.send_to("a", "b", "c")
    assert harness.out() == [("high", "a1"), ("high", "b2"), ("high", "c3")]


def test_a_group_moves_to_a_consumer_that_takes_a_message_its_owner_refuses(harness: Harness) -> None:
    harness.open("red", selector=Colour("red"))
    harness.send_to("a", kind="red")
    assert harness.out() == [("red", "a1")]
    harness.open("blue", selector=Colour("blue"))
    harness.send_to("a", kind="blue")
    assert harness.out() == [("blue", "a2")]


def test_a_returned_message_goes_to_its_owner_again(harness: Harness) -> None:
    one = harness.open("one")
    two = harness.open("two")
    harness.send_to("a")
    ((name, _),) = harness.out()
    owner = one if name == "one" else two
    entry = owner.take_one(1)
    assert entry is not None
    harness.queue.give_back(entry)
    assert harness.out() == [(name, "a1")]


def subscriptions(count: int) -> list[Subscription]:
    return [Subscription(f"s{number}", Outlet(), AckMode.RANGE, 10) for number in range(count)]


def test_of_too_many_groups_the_one_unused_for_longest_is_forgotten() -> None:
    groups = Groups(groups_max=3)
    takers = subscriptions(1)
    for name in ("a", "b", "c"):
        groups.owner(name, 0, takers, takers)
    groups.done("b")
    groups.done("c")
    groups.owner("b", 0, takers, takers)
    groups.done("b")
    groups.owner("d", 0, takers, takers)
    assert owned(groups) == {"a", "b", "d"}, "a is in use, and b was used after c"


def test_a_group_is_free_once_its_owner_is_gone() -> None:
    groups = Groups()
    one, other = takers = subscriptions(2)
    for name in ("a", "b"):
        groups.owner(name, 0, [one], [one])
    groups.owner("c", 0, [other], [other])
    waited = volatile_entry(Message(Destination(DestinationKind.QUEUE, "q"), "m", group_id="a"))
    forgets = groups.leave(one, [waited])
    assert owned(groups) == {"c"}
    assert groups.owner("a", 0, takers[1:], takers[1:]) is other
    assert owned(groups) == {"a", "c"}
    at_once(forgets)
    assert (owned(groups), len(groups)) == ({"a", "c"}, 2)
    assert groups._groups["a"].pending == 1, "what waited for one is placed anew"


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=200))
def test_the_map_is_bounded_by_what_is_in_use(steps: list[tuple[int, bool]]) -> None:
    groups = Groups(groups_max=5)
    takers = subscriptions(3)
    pending: dict[str, int] = {}
    for number, is_done in steps:
        name = f"g{number}"
        if is_done and pending.get(name):
            groups.done(name)
            pending[name] -= 1
        else:
            groups.owner(name, 0, takers, takers)
            pending[name] = pending.get(name, 0) + 1
        in_use = {name for name, count in pending.items() if count}
        assert in_use <= owned(groups)
        assert len(groups) <= 5 + len(in_use)


def test_a_closed_group_goes_to_the_idle_consumer(harness: Harness) -> None:
    """The rule is ActiveMQ's: its consumers take turns."""
    harness.open("one")
    harness.send_to("g")
    assert {who for who, _ in harness.out()} == {"one"}
    harness.open("two")
    harness.send_to("g")
    assert {who for who, _ in harness.out()} == {"one"}
    harness.send_to("g", group_sequence=-1)
    assert {who for who, _ in harness.out()} == {"one"}
    harness.send_to("g")
    assert {who for who, _ in harness.out()} == {"two"}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.sampled_from(["one", "end", "come", "go"]))))
def test_a_new_group_goes_to_the_consumer_with_the_fewest_then_to_the_longest_waiting(
    steps: list[tuple[int, int, str]],
) -> None:
    groups = Groups(groups_max=8)
    rows = [subscriptions(3), subscriptions(2), [], []]
    rows[2] = rows[0] + rows[1]
    rows[3] = rows[2][::-1]
    got: dict[Subscription, int] = {}
    for turn, (number, row, what) in enumerate(steps, 1):
        takers = rows[row]
        if what == "come":
            groups.forget_best()
            takers += subscriptions(1)
            continue
        if what == "go":
            if len(takers) > 1:
                gone = takers[0]
                got.pop(gone, None)
                at_once(groups.leave(gone))
                for each in rows:
                    if gone in each and len(each) > 1:
                        each.remove(gone)
            continue
        name = f"g{number}"
        group = groups._groups.get(name)
        has_owner = group is not None and group.owner in takers
        fewest = min(takers, key=lambda each: (len(groups._owned.get(each, ())), got.get(each, 0)))
        owner = groups.owner(name, -1 if what == "end" else 0, takers, takers)
        groups.done(name)
        if has_owner:
            assert owner is group.owner, "it stays there"
        else:
            assert owner is fewest
            got[owner] = turn


def test_not_all_of_very_many_consumers_are_looked_at_for_each_group() -> None:
    groups = Groups(groups_max=3000)
    takers = subscriptions(1000)
    among = dict.fromkeys(takers)
    for number in range(1000):
        groups.owner(str(number), 0, among, takers)
        groups.done(str(number))
    before = groups.looked_at
    for number in range(1000, 10_000):
        groups.owner(str(number), -1, among, takers)
        groups.done(str(number))
    assert groups.looked_at - before < 10 * 9000
    assert len(groups._line) <= 5 * 1000
