"""What operators paused stays paused over terms, and over the death of a broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tandemmq.broker.admin.api.pauses import PauseRecord, Pauses
from tandemmq.broker.admin.roles import TOKEN_HOLDER
from tandemmq.broker.core.commands import AddDestination, ClientError, RemoveDestination, Send
from tandemmq.broker.core.names import PAUSES
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.engine.in_process import BATCH_MAX, InProcessClient
from tandemmq.broker.engine.shared import Loop
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tests.support.acceptance.broker_process import BrokerProcess
from tests.support.store.memory_store import MemoryStore
from tests.unit.broker.admin.api.conftest import Clients, Operator

ADMIN = TOKEN_HOLDER.principal


def queue(name: str) -> Destination:
    return Destination(DestinationKind.QUEUE, name)


class Terms:
    """One term after the other on the same store."""

    def __init__(self) -> None:
        self.store = MemoryStore(asyncio.get_running_loop().call_soon)
        self.pauses = Pauses("broker")

    async def begin(self) -> Engine:
        self.engine = Engine(self.store, EngineSettings(), Loop(lambda: 1))
        self.store.start(self.engine)
        await self.pauses.begin(self.engine)
        return self.engine

    async def again(self) -> Engine:
        self.pauses.end()
        self.engine.end()
        return await self.begin()

    async def do(self, *commands: AddDestination | RemoveDestination | Send) -> None:
        client = InProcessClient(self.engine, ADMIN, "test", "test")
        for command in commands:
            await client.do(command)
        self.engine.closed(client)

    async def pause(self, name: str, *, consumers: bool | None = None, producers: bool | None = None) -> None:
        await self.pauses.pause(self.engine, ADMIN, name, consumers=consumers, producers=producers)

    def paused(self, *names: str) -> list[tuple[bool, bool]]:
        return [self.engine.paused(queue(name)) for name in names]


@pytest.fixture
async def terms() -> Terms:
    terms = Terms()
    await terms.begin()
    await terms.do(*(AddDestination(queue(name)) for name in "abc"))
    return terms


async def test_the_next_term_pauses_what_the_former_one_had_paused(terms: Terms) -> None:
    await terms.pause("a", consumers=True)
    await terms.pause("b", consumers=True, producers=True)
    await terms.pause("c", producers=True)
    await terms.pause("b", consumers=False)
    await terms.pause("c", producers=False)
    await terms.again()
    assert terms.paused("a", "b", "c") == [(True, False), (False, True), (False, False)]
    assert terms.engine.waiting_in(PAUSES) == 2


async def test_very_many_are_paused_again(terms: Terms) -> None:
    names = [f"many.{number}" for number in range(BATCH_MAX + 5)]
    await terms.do(*(AddDestination(queue(name)) for name in names))
    for name in names:
        await terms.pause(name, consumers=True)
    await terms.again()
    assert terms.paused(*names) == [(True, False)] * len(names)
    await asyncio.gather(*(terms.pause(name, consumers=False) for name in names))
    assert terms.engine.waiting_in(PAUSES) == 0


async def test_a_queue_that_begins_under_the_name_of_a_deleted_one_is_not_paused(terms: Terms) -> None:
    await terms.pause("a", consumers=True)
    await terms.pause("b", producers=True)
    await terms.do(*(each for name in "ab" for each in (RemoveDestination(queue(name)), AddDestination(queue(name)))))
    await terms.pause("c", consumers=True)  # behind what is told of the others
    await terms.pause("c", consumers=False)
    assert terms.engine.waiting_in(PAUSES) == 0
    await terms.again()
    assert terms.paused("a", "b") == [(False, False)] * 2


async def test_what_it_cannot_read_is_told_and_goes_with_the_next_change(
    terms: Terms, caplog: pytest.LogCaptureFixture
) -> None:
    await terms.pause("a", consumers=True)
    await terms.do(*(Send(Message(PAUSES, f"ID:x:1:1:{n}", b"[]", BodyKind.BYTES, persistent=True)) for n in range(2)))
    await terms.again()
    assert "b'[]' is no record" in caplog.text
    assert terms.paused("a") == [(True, False)]
    await terms.pause("b", consumers=True)
    assert terms.engine.waiting_in(PAUSES) == 2


async def test_nothing_is_kept_where_nothing_was_paused(terms: Terms) -> None:
    with pytest.raises(ClientError, match="no destination queue://never"):
        await terms.pause("never", consumers=True)
    assert terms.engine.waiting_in(PAUSES) is None


async def test_clients_do_not_reach_it(terms: Terms) -> None:
    await terms.pause("a", consumers=True)
    stranger = InProcessClient(terms.engine, Principal("ann"), "ann", "ann")
    message = Message(PAUSES, "ID:ann:1:1:1", PauseRecord("b", True, True).encode(), BodyKind.BYTES, persistent=True)
    for command in (Send(message), RemoveDestination(PAUSES)):
        with pytest.raises(ClientError, match="the broker's own"):
            await stranger.do(command)


def test_a_pause_survives_kill_9(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", "a").start()
    broker.wait_role("master")
    try:
        clients = Clients(broker)
        clients.send("orders", "1")
        clients.send("others", "1")
        Operator(broker).change("POST", "destinations", {"kind": "queue", "name": "empty"})
        Operator(broker).change("POST", "destinations/queue/empty/pause", {"consumers": True, "producers": False})
        Operator(broker).change("POST", "destinations/queue/orders/pause", {"consumers": True, "producers": True})
        broker.kill()
        broker.start()
        broker.wait_role("master")
        row = Operator(broker).queue("orders")
        assert (row["consumers_paused"], row["producers_paused"]) == (True, True)
        row = Operator(broker).queue("empty")
        assert (row["consumers_paused"], row["producers_paused"]) == (True, False)
        assert clients.answer("others", 1) == ["1"]
        Operator(broker).change("POST", "destinations/queue/orders/resume", {"consumers": True, "producers": True})
        broker.kill()
        broker.start()
        broker.wait_role("master")
        assert clients.answer("orders", 1) == ["1"]
    finally:
        broker.stop()
