"""A delivery that takes long is made ready beside the loop: in its consumer's order, and lost for nobody who leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.core.commands import AckMode
from broker.core.settings import EngineSettings
from store.records.message import Message
from tests.engine.conftest import ORDERS, PRICES, Client, House, RecordingSession

LONG = "long"


class CarefulSession(RecordingSession):
    """Says nothing that is LONG before it was made ready."""

    def __init__(self) -> None:
        super().__init__()
        self.ready: set[str] = set()

    def deliver(  # type: ignore[override]
        self, subscription_id: str, tag: int, message: Message, redeliveries: int, ack_mode: AckMode
    ) -> Callable[[], None] | None:
        body = message.body.decode()
        if body.startswith(LONG) and body not in self.ready:

            def prepare() -> None:
                if "wrong" in body:
                    raise ValueError("of this message")
                self.ready.add(body)

            return prepare
        super().deliver(subscription_id, tag, message, redeliveries, ack_mode)
        return None


class Threads:
    """What is done beside the loop, when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], object], Callable[[], None]]] = []

    def __call__(self, work: Callable[[], object], then: Callable[[], None]) -> None:
        self.waiting.append((work, then))

    def do(self) -> None:
        work, then = self.waiting.pop(0)
        work()
        then()


@pytest.fixture
def threads() -> Threads:
    return Threads()


@pytest.fixture
def house(threads: Threads) -> House:
    house = House(EngineSettings())
    house.engine._dispatcher.preparing._in_thread = threads
    return house


def client(house: House, ack: AckMode = AckMode.INDIVIDUAL, destination: Any = ORDERS, **options: Any) -> Client:
    made = house.client()
    made.session = made.client.session = CarefulSession()
    made.subscribe(ack=ack, destination=destination, **options)
    return made


@pytest.mark.parametrize("destination", [ORDERS, PRICES])
@pytest.mark.parametrize("ack", [AckMode.INDIVIDUAL, AckMode.AUTO])
def test_each_consumer_has_its_order_and_others_do_not_wait(
    house: House, threads: Threads, ack: AckMode, destination: Any
) -> None:
    one, other, sender = client(house, ack, destination), client(house, ack, PRICES), house.client()
    for body in ("a", "long 1", "b", "long 2", "c"):
        sender.send(body, destination)
    sender.send("aside", PRICES)
    house.turn()
    assert one.bodies == ["a"]
    assert one.is_held
    assert other.bodies[-1:] == (["aside"] if destination == ORDERS else ["a"])
    while threads.waiting:
        threads.do()
        one.engine.writable(one)
    assert one.bodies[:5] == ["a", "long 1", "b", "long 2", "c"]
    assert not one.is_held
    house.turn()
    assert house.stored() == (5 if ack is AckMode.INDIVIDUAL and destination == ORDERS else 0)


@pytest.mark.parametrize("ack", [AckMode.INDIVIDUAL, AckMode.AUTO])
@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("how", ["unsubscribe", "vanish", "disconnect"])
def test_who_leaves_meanwhile_leaves_it_to_the_next(
    house: House, threads: Threads, ack: AckMode, persistent: bool, how: str
) -> None:
    one, sender = client(house, ack), house.client()
    for body in ("long 1", "b"):
        sender.send(body, persistent=persistent)
    house.turn()
    getattr(one, how)()
    house.turn()
    other = client(house, ack)
    threads.do()
    house.turn()
    threads.do()
    house.turn()
    assert one.bodies == []
    assert other.bodies in (["long 1", "b"], ["b", "long 1"])
    assert [each.redelivered for each in other.session.delivered] == [ack is AckMode.INDIVIDUAL] * 2
    if ack is AckMode.INDIVIDUAL:
        other.ack("b")
        other.ack("long 1")
    house.turn()
    assert house.stored() == 0
    assert house.figures()["messages"] == 0
    assert house.engine.memory.used == 0


def test_what_cannot_be_made_ready_ends_one_connection(house: House, threads: Threads) -> None:
    one, sender = client(house), house.client()
    sender.send("long and wrong")
    house.turn()
    threads.do()
    assert one.is_closed
    one.vanish()
    other = house.client()
    other.subscribe()
    assert other.bodies == ["long and wrong"]


def test_a_browser_hears_the_end_behind_the_last(house: House, threads: Threads) -> None:
    sender = house.client()
    sender.send("long 1", persistent=False)
    one = house.client()
    one.session = one.client.session = CarefulSession()
    one.session.nothing = lambda id: one.session.told.append("end")  # type: ignore[attr-defined]
    one.subscribe(is_browser=True)
    house.turn()
    assert one.session.told == []
    threads.do()
    assert one.session.told == [("message", "long 1"), "end"]


def test_after_the_term_nobody_is_told(house: House, threads: Threads) -> None:
    one, sender = client(house), house.client()
    sender.send("long 1")
    house.turn()
    house.engine.end()
    threads.do()
    assert one.bodies == []
