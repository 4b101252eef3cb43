"""Paused queues stay paused over terms; backups by the API."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest
from aiohttp import web

from tandemmq.broker.admin.api.destinations import Destinations
from tandemmq.broker.admin.api.endpoints import Call, Refused, Term
from tandemmq.broker.admin.api.parameters import Pausing
from tandemmq.broker.admin.api.pauses import PauseRecord, Pauses
from tandemmq.broker.admin.callers import TOKEN_HOLDER
from tandemmq.broker.admin.status import Report
from tandemmq.broker.core.commands import AddDestination, ClientError, RemoveDestination, Send
from tandemmq.broker.core.names import PAUSES
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.engine.in_process import BATCH_MAX, InProcessClient
from tandemmq.broker.engine.part import Loop
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tests.support.acceptance.broker_process import BrokerProcess, tandemmq
from tests.support.store.memory_store import MemoryStore
from tests.unit.broker.admin.api.conftest import Clients, Operator

ADMIN = TOKEN_HOLDER.principal


def queue(name: str) -> Destination:
    return Destination(DestinationKind.QUEUE, name)


class Terms:
    """Terms one after the other on the same store."""

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
    await terms.pause("c", consumers=True)  # after the records of the others
    await terms.pause("c", consumers=False)
    assert terms.engine.waiting_in(PAUSES) == 0
    await terms.again()
    assert terms.paused("a", "b") == [(False, False)] * 2


async def test_an_unreadable_record_is_reported_and_removed_with_the_next_change(
    terms: Terms, caplog: pytest.LogCaptureFixture
) -> None:
    await terms.pause("a", consumers=True)
    await terms.do(*(Send(Message(PAUSES, f"ID:x:1:1:{n}", b"[]", BodyKind.BYTES, persistent=True)) for n in range(2)))
    await terms.again()
    assert "b'[]' is not a record" in caplog.text
    assert terms.paused("a") == [(True, False)]
    await terms.pause("b", consumers=True)
    assert terms.engine.waiting_in(PAUSES) == 2


async def test_no_record_is_stored_if_nothing_was_paused(terms: Terms) -> None:
    with pytest.raises(ClientError, match="no destination queue://never"):
        await terms.pause("never", consumers=True)
    assert terms.engine.waiting_in(PAUSES) is None


async def test_a_queue_that_is_deleted_while_it_is_paused_by_the_api_is_a_404(terms: Terms) -> None:
    report = cast("Report", None)  # only a standby asks it
    destinations = Destinations(Term(report, lambda: terms.engine), terms.pauses)
    pause = next(each for each in destinations.endpoints() if each.path.endswith("/pause"))
    call = Call(TOKEN_HOLDER, {"name": "a"}, None, Pausing(), cast("web.Request", None))
    asked = asyncio.ensure_future(pause.handle(call))
    await asyncio.sleep(0)  # it is being written
    await terms.do(RemoveDestination(queue("a")))
    with pytest.raises(Refused, match="there is no queue://a"):
        await asked


async def test_clients_do_not_reach_it(terms: Terms) -> None:
    await terms.pause("a", consumers=True)
    stranger = InProcessClient(terms.engine, Principal("ann"), "ann", "ann")
    message = Message(PAUSES, "ID:ann:1:1:1", PauseRecord("b", True, True).encode(), BodyKind.BYTES, persistent=True)
    for command in (Send(message), RemoveDestination(PAUSES)):
        with pytest.raises(ClientError, match="reserved for the broker"):
            await stranger.do(command)


# ---- a backup by the API: into the directory of the settings, by a separate process


def test_a_backup_is_made_restored_and_served(tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    backups.mkdir()
    broker = BrokerProcess(tmp_path / "data", "a", "--set", f"admin.backup_directory={backups}").start()
    try:
        broker.wait_role("master")
        operator = Operator(broker)
        Clients(broker).send("orders", "a", "b")
        task = operator.change("POST", "backup", {"name": "monday", "wait": 30})
        assert (task["state"], task["counts"]["messages"]) == ("done", 2)
        status, again = operator.ask("POST", "backup", {"name": "monday", "wait": 30})
        assert (status, again["task"]["state"]) == (400, "failed")
        assert "is not empty" in again["error"]
    finally:
        broker.stop()
    done = tandemmq("restore", str(backups / "monday"), "--data", str(tmp_path / "again"))
    assert done.returncode == 0, done.stderr
    restored = BrokerProcess(tmp_path / "again", "b").start()
    try:
        restored.wait_role("master")
        assert Clients(restored).answer("orders", 2) == ["a", "b"]
    finally:
        restored.stop()


def test_no_queue_is_created_if_nothing_was_paused(broker: BrokerProcess, operator: Operator) -> None:
    status, answer = operator.ask("POST", "backup", {"name": "monday"})
    assert (status, "admin.backup_directory" in answer["error"]) == (409, True)


@pytest.mark.parametrize("name", ["", "..", "a/b", "/etc/x", ".hidden", "a\n"])
def test_it_goes_nowhere_else(operator: Operator, name: str) -> None:
    assert operator.ask("POST", "backup", {"name": name})[0] == 400
