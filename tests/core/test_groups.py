"""Message groups: one consumer for all messages of a group, as long as it is there."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.core.commands import AckMode
from broker.core.groups import Groups
from broker.core.memory import Memory, Share
from broker.core.queue import Queue
from broker.core.settings import EngineSettings
from broker.core.slices import at_once
from broker.core.subscription import Subscription, volatile_entry
from store.records.message import Destination, DestinationKind, Message
from tests.core.outlet import Outlet

ORDERS = Destination(DestinationKind.QUEUE, "orders")


class Kind:
    def __init__(self, text: str) -> None:
        self.text = text

    def matches(self, message: Message) -> bool:
        return message.type == self.text


class House:
    def __init__(self) -> None:
        self.queue = Queue(ORDERS, 0, EngineSettings(), Share(Memory(1 << 30)))
        self.number = 0

    def open(self, name: str, prefetch: int = 1000, **options: Any) -> Subscription:
        subscription = Subscription(name, Outlet(), AckMode.INDIVIDUAL, prefetch, **options)
        self.queue.open(subscription)
        return subscription

    def send(self, *groups: str | None, sequence: int = 0, kind: str | None = None) -> None:
        for group in groups:
            self.number += 1
            self.queue.add_volatile(
                Message(ORDERS, f"{group}{self.number}", group_id=group, group_sequence=sequence, type=kind)
            )

    def out(self) -> dict[str, list[str]]:
        """What each consumer got."""
        got: dict[str, list[str]] = {}
        for subscription, _, entry in self.queue.dispatch(0):
            got.setdefault(subscription.id, []).append(entry.message.message_id)
        return got


def test_groups_are_shared_out_and_stay_with_their_owners() -> None:
    house = House()
    house.open("one")
    house.open("two")
    house.send("a", "b", "c", "d")
    first = house.out()
    house.send("a", "b", "c", "d")
    second = house.out()

    assert sorted(map(len, first.values())) == [2, 2]
    assert {name: [each[0] for each in got] for name, got in first.items()} == {
        name: [each[0] for each in got] for name, got in second.items()
    }


def test_a_group_waits_for_its_owner_and_other_messages_do_not() -> None:
    house = House()
    owner = house.open("owner", 1)
    house.send("a", "a")
    assert house.out() == {"owner": ["a1"]}

    house.open("other")
    house.send(None, "a")

    assert house.out() == {"other": ["None3"]}
    for _, entry in owner.take(1):
        house.queue.settle(entry)
    assert house.out() == {"owner": ["a2"]}


def test_an_owner_that_leaves_frees_its_groups_and_they_go_on_in_order() -> None:
    house = House()
    owner = house.open("owner", 2)
    house.send("a", "a", "a")
    house.out()
    house.open("heir")

    house.queue.close(owner)

    assert house.out() == {"heir": ["a1", "a2", "a3"]}


def test_a_negative_sequence_closes_its_group() -> None:
    house = House()
    house.open("first")
    house.send("a", "b")
    house.out()
    house.open("second")

    house.send("a", sequence=-1)
    house.send("a")

    assert house.out() == {"first": ["a3"], "second": ["a4"]}


def test_the_owner_of_a_new_group_has_the_highest_priority() -> None:
    house = House()
    house.open("low", priority=0)
    house.open("high", priority=1)
    house.send("a", "b", "c")

    assert house.out() == {"high": ["a1", "b2", "c3"]}


def test_a_group_moves_to_a_consumer_that_takes_what_its_owner_does_not() -> None:
    house = House()
    house.open("red", selector=Kind("red"))
    house.send("a", kind="red")
    assert house.out() == {"red": ["a1"]}
    house.open("blue", selector=Kind("blue"))

    house.send("a", kind="blue")

    assert house.out() == {"blue": ["a2"]}


def test_a_message_that_comes_back_goes_to_its_owner_again() -> None:
    house = House()
    one = house.open("one")
    two = house.open("two")
    house.send("a")
    ((name, _),) = house.out().items()
    owner = one if name == "one" else two

    entry = owner.take_one(1)
    assert entry is not None
    house.queue.give_back(entry)

    assert house.out() == {name: ["a1"]}


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

    assert groups.names() == {"a", "b", "d"}, "a is in use, and b was used after c"


def test_a_group_of_who_is_gone_is_free_before_it_is_forgotten_and_belongs_to_who_has_it_then() -> None:
    groups = Groups()
    one, other = takers = subscriptions(2)
    for name in ("a", "b"):
        groups.owner(name, 0, [one], [one])
    groups.owner("c", 0, [other], [other])

    waited = volatile_entry(Message(Destination(DestinationKind.QUEUE, "q"), "m", group_id="a"))
    forgets = groups.leave(one, [waited])
    assert groups.names() == {"c"}
    assert groups.owner("a", 0, takers[1:], takers[1:]) is other
    assert groups.names() == {"a", "c"}
    at_once(forgets)

    assert groups.names() == {"a", "c"}
    assert len(groups) == 2
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
        assert in_use <= groups.names()
        assert len(groups) <= 5 + len(in_use)


def test_a_group_that_was_closed_goes_to_who_is_idle() -> None:
    """As in ActiveMQ, where consumers take turns."""
    house = House()
    house.open("one")
    house.send("g")
    assert list(house.out()) == ["one"]
    house.open("two")
    house.send("g")
    assert list(house.out()) == ["one"]
    house.send("g", sequence=-1)
    assert list(house.out()) == ["one"]
    house.send("g")
    assert list(house.out()) == ["two"]
