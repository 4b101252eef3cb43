"""What a queue promises to consumers that are not alike, in single steps; see test_queue_routes_model."""

from __future__ import annotations

import pytest

from broker.core import routing
from broker.core.commands import AckMode
from broker.core.memory import ENTRY_OVERHEAD_BYTES, Memory, Share
from broker.core.queue import RUNS_PER_WINDOW, Queue
from broker.core.settings import EngineSettings
from broker.core.subscription import Entry, Subscription
from store.operations import Page, PagedMessage
from store.records.message import Destination, DestinationKind, Message
from tests.core.outlet import Outlet

ORDERS = Destination(DestinationKind.QUEUE, "orders")


class Colour:
    """Counts what it is asked."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.asked: list[str] = []

    def matches(self, message: Message) -> bool:
        self.asked.append(message.message_id)
        return message.type == self.text


class House:
    """A queue, the store behind it, and consumers by name."""

    def __init__(self, *, is_prioritized: bool = False, **settings: int) -> None:
        self.share = Share(Memory(1 << 30))
        self.queue = Queue(ORDERS, 1, EngineSettings(**settings), self.share, is_prioritized=is_prioritized)
        self.stored: dict[int, PagedMessage] = {}
        self.sent = 0
        self.pages = 0

    def open(self, name: str, prefetch: int = 1000, **options: object) -> Subscription:
        subscription = Subscription(name, Outlet(), AckMode.INDIVIDUAL, prefetch, **options)
        self.queue.open(subscription)
        return subscription

    def send(self, *messages: Message) -> None:
        for message in messages:
            self.sent += 1
            key = self.sent << 32
            self.stored[key] = PagedMessage(key, key >> 32, 10, message)
            self.queue.add(message, key, key >> 32, 10)

    def read(self, page: Page) -> tuple[list[PagedMessage], bool]:
        found = [self.stored[key] for key in sorted(self.stored) if key > page.after]
        return found[: page.count], len(found) <= page.count

    def out(self) -> list[tuple[str, str]]:
        """Who got what, until nothing moves."""
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


def message(name: str, kind: str | None = None, **fields: object) -> Message:
    return Message(ORDERS, name, type=kind, persistent=True, **fields)


def messages(count: int, kind: str | None = None, first: int = 1) -> list[Message]:
    return [message(f"m{number}", kind) for number in range(first, first + count)]


def test_a_slow_consumer_holds_back_nobody_else() -> None:
    house = House()
    house.open("slow", 1, selector=Colour("red"))
    house.open("quick", selector=Colour("blue"))
    house.send(message("r1", "red"), message("r2", "red"), message("b1", "blue"), message("b2", "blue"))

    assert house.out() == [("slow", "r1"), ("quick", "b1"), ("quick", "b2")]


def test_no_message_is_shown_to_a_selector_twice() -> None:
    house = House()
    red, blue = Colour("red"), Colour("blue")
    house.open("a", 1, selector=red)
    house.open("b", 1, selector=blue)
    house.send(*messages(5, "red"))

    for _ in range(3):
        house.out()

    assert red.asked == ["m1", "m2", "m3", "m4", "m5"]
    assert blue.asked == red.asked


def test_consumers_with_one_selector_ask_it_once() -> None:
    house = House()
    red = Colour("red")
    house.open("a", selector=red)
    house.open("b", selector=red)
    house.send(*messages(2, "red"))

    assert house.out() == [("a", "m1"), ("b", "m2")]
    assert red.asked == ["m1", "m2"]


def test_the_highest_priority_with_room_is_served_first() -> None:
    house = House()
    house.open("low", priority=0)
    house.open("high", 2, priority=7)
    house.send(*messages(4))

    assert house.out() == [("high", "m1"), ("high", "m2"), ("low", "m3"), ("low", "m4")]


def test_one_exclusive_consumer_gets_all_and_the_next_takes_over() -> None:
    house = House()
    plain = house.open("plain")
    first = house.open("first", is_exclusive=True)
    house.open("second", is_exclusive=True)
    house.send(*messages(2))
    assert house.out() == [("first", "m1"), ("first", "m2")]

    house.queue.close(first)
    assert house.out() == [("second", "m1"), ("second", "m2")]
    assert not plain.unacked


def test_an_exclusive_consumer_of_a_higher_priority_takes_over() -> None:
    house = House()
    house.open("first", is_exclusive=True)
    house.send(*messages(1))
    assert house.out() == [("first", "m1")]

    house.open("second", is_exclusive=True, priority=1)
    house.send(message("m2"))

    assert house.out() == [("second", "m2")]


def test_what_an_exclusive_consumer_passed_over_is_for_the_others_when_it_ends() -> None:
    house = House(window_messages=2, page_messages=2)
    house.open("plain")
    master = house.open("master", is_exclusive=True, selector=Colour("red"))
    house.send(*messages(20, "blue"))
    assert house.out() == []

    house.queue.close(master)

    assert house.out() == [("plain", f"m{number}") for number in range(1, 21)]


def test_a_selector_finds_its_message_behind_any_number_that_nobody_wants() -> None:
    house = House(window_messages=4, page_messages=3)
    house.open("a", selector=Colour("red"))
    house.send(*messages(1000, "blue"), message("needle", "red"))

    assert house.out() == [("a", "needle")]
    assert house.queue.passed_over == 1000
    assert house.queue.count == 1001
    # In memory: what nobody wants, as much as a window holds, and the needle.
    assert house.share.stored == 5 * (ENTRY_OVERHEAD_BYTES + 10)


def test_a_newcomer_gets_what_was_passed_over_in_order_and_nobody_waits_for_that() -> None:
    house = House(window_messages=4, page_messages=3)
    house.open("a", selector=Colour("red"))
    house.send(*messages(50, "blue"))
    assert house.out() == []
    house.send(message("volatile-like", "blue"), message("r1", "red"))

    house.open("b", selector=Colour("blue"))
    first = house.queue.dispatch(0)
    rest = house.out()

    assert ("a", "r1") in [(subscription.id, entry.message.message_id) for subscription, _, entry in first]
    got = [(s.id, e.message.message_id) for s, _, e in first if s.id == "b"] + [each for each in rest if each[0] == "b"]
    assert got == [("b", f"m{number}") for number in range(1, 51)] + [("b", "volatile-like")]


def test_a_selector_that_comes_or_goes_is_all_that_is_asked_anew() -> None:
    house = House()
    red, blue, green = Colour("red"), Colour("blue"), Colour("green")
    house.open("a", 0, selector=red)
    going = house.open("b", 0, selector=blue)
    house.send(message("m1", "red"), message("m2", "blue"), message("m3", "green"))
    assert house.out() == []

    house.open("c", 0, selector=green)
    late = house.open("d", selector=red)
    assert house.out() == [("d", "m1")]
    house.queue.close(going)
    house.open("e", selector=None)

    assert house.out() == [("e", "m2"), ("e", "m3")]
    assert red.asked == ["m1", "m2", "m3"]
    assert late.unacked


def test_many_lanes_come_and_go() -> None:
    house = House()
    consumers = [house.open(f"c{number}", 1, selector=Colour(f"kind-{number}")) for number in range(200)]
    house.send(*(message(f"m{number}", f"kind-{number % 200}") for number in range(400)))
    assert len(house.out()) == 200

    for consumer in consumers[:199]:
        house.queue.close(consumer)
    house.open("all")

    assert house.out() == [("all", f"m{number}") for number in range(400) if number != 199]


def test_a_backlog_that_fits_in_memory_is_not_read_again() -> None:
    house = House(window_messages=100)
    for number in range(10):
        consumer = house.open(f"reply-{number}", selector=Colour("red"))
        house.send(*messages(5, "blue", first=10 * number))
        assert house.out() == []
        house.queue.close(consumer)

    assert house.pages == 0


def test_runs_become_one_when_what_parted_them_is_gone() -> None:
    house = House(window_messages=4, page_messages=4)
    consumer = house.open("a", selector=Colour("red"))
    pairs = 20 * RUNS_PER_WINDOW * 4
    got = 0
    for number in range(pairs):
        house.send(message(f"b{number}", "blue"), message(f"r{number}", "red"))
        got += len(house.out())
        house.settle(consumer)

    assert got == pairs
    assert house.queue.passed_over == pairs
    house.open("b", 10**6, selector=Colour("blue"))
    assert house.out() == [("b", f"b{number}") for number in range(pairs)]


def test_with_too_many_runs_the_queue_waits_for_acknowledgements_and_goes_on() -> None:
    house = House(window_messages=4, page_messages=4)
    consumer = house.open("a", 10**6, selector=Colour("red"))
    pairs = 20 * RUNS_PER_WINDOW * 4
    for number in range(pairs):
        house.send(message(f"b{number}", "blue"), message(f"r{number}", "red"))
    before = len(house.out())
    assert before < pairs
    assert house.share.stored < (before + 20) * 710

    after = 0
    while before + after < pairs:
        house.settle(consumer)
        got = len(house.out())
        assert got, "the queue stopped for ever"
        after += got


def test_priorities_order_what_memory_holds() -> None:
    house = House(is_prioritized=True)
    house.send(message("a4"), message("b9", priority=9), message("c0", priority=0), message("d9", priority=9))
    house.open("one")

    assert [name for _, name in house.out()] == ["b9", "d9", "a4", "c0"]


def test_what_comes_back_has_its_old_place() -> None:
    house = House()
    red = house.open("red", 2, selector=Colour("red"))
    house.send(*messages(4, "red"))
    house.out()

    entry = red.take_one(1)
    assert isinstance(entry, Entry)
    house.queue.give_back(entry, is_seen=False)

    assert house.out() == [("red", "m1")]
    assert entry.redeliveries == 0


def test_consumers_that_become_alike_go_back_to_the_short_way() -> None:
    house = House()
    red = house.open("red", selector=Colour("red"))
    house.open("all")
    house.send(*messages(3, "blue"))
    assert house.queue.routes is not None

    house.queue.close(red)

    assert house.queue.routes is None
    assert house.out() == [("all", "m1"), ("all", "m2"), ("all", "m3")]


def test_what_has_expired_in_a_lane_is_met() -> None:
    house = House()
    house.open("red", 1, selector=Colour("red"))
    house.send(message("m1", "red"), message("m2", "red", expiration=5), message("m3", "blue", expiration=5))
    house.out()

    house.queue.sweep(5)

    assert [entry.message.message_id for entry in house.queue.expired] == ["m2", "m3"]
    assert house.queue.count == 1  # those that expired are the caller's


def test_a_pull_consumer_gets_one_message_for_each_pull() -> None:
    house = House()
    puller = house.open("puller", 0, selector=Colour("red"))
    house.send(*messages(3, "red"))
    assert house.out() == []

    puller.credit = 1
    assert house.out() == [("puller", "m1")]
    house.settle(puller)
    assert house.out() == []


def test_nothing_overtakes_what_waits_for_its_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a group's owner has waits elsewhere, and is not asked about again."""
    house = House()
    one = house.open("one", 0, selector=Colour("red"))
    house.send(message("m1", "red"), message("m2", "red"), message("m3", "red", group_id="g"))
    assert house.out() == []
    monkeypatch.setattr(routing, "PLACED_MAX", 1)
    house.open("two", 0, selector=Colour("blue"))
    one.set_prefetch(10)
    assert house.out() == [("one", "m1"), ("one", "m2"), ("one", "m3")]


def test_what_came_back_in_pieces_goes_out_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House()
    first = house.open("first", 4, selector=Colour("red"))
    house.send(*(message(f"m{number}", "red") for number in range(1, 7)))
    assert len(house.out()) == 4
    monkeypatch.setattr(routing, "TAKEN_MAX", 1)
    second = house.open("second", 0, selector=Colour("red"))
    house.queue.close(first)
    second.set_prefetch(10)
    assert [name for _, name in house.out()] == [f"m{number}" for number in range(1, 7)]
