"""Pages of a store over HTTP: a real store on a loop, with a real admin server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tandemmq.broker.admin.server import AdminServer
from tandemmq.broker.admin.status import OTHERS, OWNERS_MAX, journal_figures
from tandemmq.broker.admin.store_pages import StorePages
from tandemmq.broker.core.slices import Work, at_once
from tandemmq.journal.files import JournalFiles
from tandemmq.store.operations import AddMessage, Operation, RemoveMessage
from tandemmq.store.records.commands import encode_add, encode_remove
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.settings import StoreSettings
from tandemmq.store.standby import Standby
from tandemmq.store.store import Store
from tandemmq.store.tools.check import check
from tandemmq.store.tools.why.explain import Place
from tests.support.store.store_harness import KIB, Q, Term

FILE_BYTES = 64 * KIB
STILL = StoreSettings(
    journal_max_file_length=FILE_BYTES, checkpoint_interval=3600.0, fence_check_interval=0.01, enable_compaction=False
)
BUSY = Destination(DestinationKind.QUEUE, "BUSY")


class Broker:
    """Parts of a broker that the pages need: a store on this loop, and a status."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.status: dict[str, Any] = {"role": "master", "epoch": 1, "name": "a", "store": directory}
        self._sent = 0
        loop = asyncio.get_running_loop()
        self.store: Store | None = Standby(directory, f"{directory}/index", "a", STILL).promote(
            has_proof=lambda: True,
            call_soon=loop.call_soon_threadsafe,
            call_later=loop.call_later,
            on_lost=lambda error: None,
        )
        self.store.start(self)

    def details(self) -> Work[dict[str, Any]]:
        yield
        return {"queues": [{"name": Q.name, "consumers": 2}]}

    def durable(self, operations: list[Operation]) -> None:
        pass

    def drained(self) -> None:
        pass

    async def add(self, destination: Destination, body: bytes) -> AddMessage:
        assert self.store is not None, "this broker is master"
        self._sent += 1
        message = Message(destination, f"ID:1-p:1:1:{self._sent}", body, BodyKind.BYTES, persistent=True, timestamp=1)
        owner = self.store.queue(destination)
        operation = AddMessage(message, (owner,), encode_add(message, encode_message(message)))
        self.store.append(operation)
        return operation

    async def fill_sparsely(self, files: int) -> list[AddMessage]:
        """Leave one message of Q in each file, and remove all others."""
        assert self.store is not None, "this broker is master"
        kept = []
        for _ in range(files):
            kept.append(await self.add(Q, b"kept"))
            await self.settle()
            passing = [await self.add(BUSY, b"x" * 2000) for _ in range(30)]
            await self.settle()
            owner = self.store.queue(BUSY)
            for added in passing:
                payload = encode_remove(BUSY, added.message.message_id, None, None)
                gone = RemoveMessage(
                    owner, added.order_key, added.location, added.message.message_id, payload, size=added.size
                )
                self.store.append(gone)
            await self.settle()
        return kept

    async def settle(self) -> None:
        while self.store is not None and self.store.has_pending:  # noqa: ASYNC110  the store has no event for it
            await asyncio.sleep(0.001)

    def let_go(self) -> None:
        store, self.store = self.store, None
        self.status["role"] = "standby"
        self.status["holder"] = {"name": "b", "admin": "http://127.0.0.1:1"}
        if store is not None:
            store.close()


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    directory = tmp_path / "data"
    directory.mkdir()
    broker = Broker(str(directory))
    yield broker
    broker.let_go()
    assert check(str(directory)).problems == []


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[aiohttp.ClientSession]:
    place = Place(JournalFiles(broker.directory), FILE_BYTES, True)
    pages = StorePages(lambda name: place, lambda: broker.store, lambda: broker.status, broker.details)
    server = AdminServer("127.0.0.1", 0, lambda: broker.status, pages.routes())
    await server.start()
    async with aiohttp.ClientSession(server.url, trust_env=False) as client:
        yield client
    await server.stop()


async def test_why_names_the_holders_of_each_file_and_their_consumers(
    broker: Broker, client: aiohttp.ClientSession
) -> None:
    kept = await broker.fill_sparsely(4)
    async with client.get("/store/why") as answer:
        assert answer.status == 200
        reply = await answer.json()
    by_file = {known["file"]: known for known in reply["files"]}
    held = by_file[kept[0].location >> 32]
    (holder,) = held["holders"]
    assert (holder["destination"], holder["count"], holder["consumers"]) == ("queue://Q.A", 1, 2)
    assert holder["oldest"]["message_id"] == kept[0].message.message_id
    assert "2 consumers" in held["action"]
    assert reply["is_bound_held"] is False
    assert sum(thing["bytes"] for thing in reply["things"]) >= reply["journal_bytes"]


@pytest.mark.parametrize("spelled", ["db-1.log", "db-1", "1"])
async def test_one_file_may_be_asked_for_however_it_is_spelled(
    broker: Broker, client: aiohttp.ClientSession, spelled: str
) -> None:
    await broker.fill_sparsely(1)
    async with client.get("/store/why", params={"file": spelled}) as answer:
        assert answer.status == 200
        (known,) = (await answer.json())["files"]
    assert known["name"] == "db-1.log"


async def test_a_missing_or_invalid_file_is_reported(broker: Broker, client: aiohttp.ClientSession) -> None:
    async with client.get("/store/why?file=db-99") as answer:
        assert answer.status == 404
        assert "db-99.log" in (await answer.json())["error"]
    for name in ("../lock", "9" * 5_000):
        async with client.get(f"/store/why?file={name}") as answer:
            assert answer.status == 400


async def test_why_can_be_requested_while_messages_arrive_and_leave(
    broker: Broker, client: aiohttp.ClientSession
) -> None:
    async def ask() -> int:
        answers = 0
        while not work.done():
            async with client.get("/store/why") as answer:
                assert answer.status == 200, await answer.text()
                answers += 1
        return answers

    work = asyncio.create_task(broker.fill_sparsely(10))
    asked = await asyncio.gather(ask(), ask())
    await work
    assert min(asked) >= 1


async def test_more_than_a_few_questions_at_once_are_put_off(broker: Broker, client: aiohttp.ClientSession) -> None:
    await broker.fill_sparsely(2)

    async def ask() -> int:
        async with client.get("/store/why") as answer:
            await answer.read()
            return answer.status

    codes = await asyncio.gather(*(ask() for _ in range(20)))
    assert set(codes) == {200, 503}
    assert await ask() == 200


async def test_compaction_answers_when_the_files_are_gone(broker: Broker, client: aiohttp.ClientSession) -> None:
    await broker.fill_sparsely(8)
    async with client.post("/store/compact", json={}) as answer:
        assert answer.status == 200, await answer.text()
        report = await answer.json()
    assert report["messages"] >= 5
    async with client.get("/store/why") as answer:
        reply = await answer.json()
    assert reply["is_bound_held"] is True
    assert not {known["file"] for known in reply["files"]} & set(report["files"])
    assert reply["live_messages"] == 8


async def test_two_who_ask_for_a_compaction_get_one(broker: Broker, client: aiohttp.ClientSession) -> None:
    await broker.fill_sparsely(8)

    async def ask() -> dict[str, Any]:
        async with client.post("/store/compact", json={}) as answer:
            assert answer.status == 200, await answer.text()
            found = await answer.json()
            assert isinstance(found, dict)
            return found

    one, other = await asyncio.gather(ask(), ask())
    assert one == other
    assert broker.store is not None
    assert broker.store.figures.compactions == 1


async def test_a_page_of_a_foreign_site_cannot_begin_one(broker: Broker, client: aiohttp.ClientSession) -> None:
    for asked, status in (client.post("/store/compact", data={"a": "form"}), 415), (client.get("/store/compact"), 405):
        async with asked as answer:
            assert answer.status == status


async def test_a_standby_names_itself_and_the_master(broker: Broker, client: aiohttp.ClientSession) -> None:
    broker.let_go()
    for ask in (client.get("/store/why"), client.post("/store/compact", json={})):
        async with ask as answer:
            assert answer.status == 409
            reply = await answer.json()
        assert reply["role"] == "standby"
        assert reply["holder"]["admin"] == "http://127.0.0.1:1"


# ---- bytes of each holder in the journal, with names up to the limit


def test_the_largest_owners_are_named_and_the_rest_is_one(tmp_path: Path) -> None:
    term = Term(str(tmp_path))
    empty = {"files": 1, "files_without_messages": 1, "live_bytes": 0, "owner_bytes": {OTHERS: 0}}
    assert at_once(journal_figures(term.store)) == empty
    queues = [Destination(DestinationKind.QUEUE, f"Q.{number}") for number in range(OWNERS_MAX + 3)]
    for number, queue in enumerate(queues):
        term.add(queue, b"x" * 100 * (number + 1))
    term.wait_durable(len(queues))
    found = at_once(journal_figures(term.store))
    owned = found["owner_bytes"]
    assert list(owned) == [f"queue://Q.{number}" for number in range(OWNERS_MAX + 2, 2, -1)] + [OTHERS]
    assert owned["queue://Q.12"] > owned["queue://Q.3"] > 400
    assert owned[OTHERS] > 600
    assert sum(owned.values()) == found["live_bytes"]
    assert (found["files"], found["files_without_messages"]) == (1, 0)
    term.close()
