"""Backups of a broker at work: what was confirmed is in each of them, what was acknowledged does not come back."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tandemmq.client import Client
from tests.support import forked
from tests.support.acceptance.broker_process import BrokerProcess, wait_until
from tests.support.prove import IS_THOROUGH, rounds
from tests.support.tree import ROOT

BACKUPS = rounds(2 if IS_THOROUGH else 1, 60)
SETTINGS = {
    "journal_max_file_length": "128kb",
    "checkpoint_interval": "50ms",
    "cleanup_interval": "20ms",
    "compaction_rate": "10mb",
}
SEVERAL = """
[[store.filtered_persistence_adapters]]
per_destination = true
"""
BUSY, KEPT = "/queue/busy", "/queue/kept"
PADDING = "." * 4_000
#: So far a producer may be ahead of its consumer: else all files are held by what waits.
AHEAD_MAX = 200


class Work:
    """Facts that clients know: bodies that have a receipt, whose acknowledgement began, and whose acknowledgement is
    confirmed."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.acknowledging: set[str] = set()
        self.acknowledged: set[str] = set()
        self.may_send = asyncio.Semaphore(AHEAD_MAX)


async def produce(url: str, work: Work) -> None:
    async with Client(url) as client:
        number = 0
        while True:
            bodies = [f"{number + each} {PADDING}" for each in range(40)]
            for each, body in enumerate(bodies):
                is_kept = each == number % 400
                if not is_kept:
                    await work.may_send.acquire()
                await client.send(KEPT if is_kept else BUSY, body.encode())
            await client.flush()
            work.sent.update(bodies)
            number += len(bodies)


async def consume(url: str, work: Work) -> None:
    async with Client(url) as client:
        async for message in await client.subscribe(BUSY):
            body = message.body.decode()
            work.acknowledging.add(body)
            if await client.acknowledge(message, is_confirmed=True):
                work.acknowledged.add(body)
                work.may_send.release()


async def tandemmq(*words: str) -> str:
    done = await asyncio.to_thread(forked.run, [sys.executable, "-m", "tandemmq", *words], cwd=ROOT)
    assert done.returncode == 0, done.stdout
    return done.stdout


async def held(url: str) -> list[str]:
    found: list[str] = []
    async with Client(url) as client:
        for queue in (BUSY, KEPT):
            messages = aiter(await client.subscribe(queue, prefetch=10_000))
            with suppress(TimeoutError):
                while True:
                    found.append((await asyncio.wait_for(anext(messages), 1)).body.decode())
    return found


@pytest.mark.parametrize(
    "stores",
    [
        pytest.param("", id="one-store", marks=pytest.mark.promise("backup-is-consistent")),
        pytest.param(SEVERAL, id="several-stores"),
    ],
)
async def test_each_backup_of_a_broker_at_work_keeps_what_was_promised(tmp_path: Path, stores: str) -> None:
    config = tmp_path / "tandemmq.toml"
    config.write_text(stores)
    options = ["--config", str(config)]
    options += [word for key, value in SETTINGS.items() for word in ("--set", f"store.{key}={value}")]
    data = tmp_path / "data"
    broker = BrokerProcess(data, "a", *options).start()
    broker.wait_role("master")
    work = Work()
    tasks = [asyncio.create_task(produce(broker.url, work)), asyncio.create_task(consume(broker.url, work))]
    asked: list[tuple[Path, set[str], set[str]]] = []
    seen: set[Path] = set()
    try:
        for number in range(BACKUPS):
            seen.update(data.rglob("db-*.log"))
            before = len(work.acknowledged)
            await asyncio.to_thread(wait_until, lambda before=before: len(work.acknowledged) > before, "work goes on")
            if number == BACKUPS - 1:
                reclaimed = "a file was reclaimed meanwhile"
                await asyncio.to_thread(wait_until, lambda: seen - set(data.rglob("db-*.log")), reclaimed)
            sent, acknowledged = set(work.sent), set(work.acknowledged)
            target = tmp_path / f"backup-{number}"
            told = json.loads(await tandemmq("backup", str(target), "--data", str(data), "--json"))
            assert told["messages"] > 0
            asked.append((target, sent - work.acknowledging, acknowledged))
            assert not any(task.done() for task in tasks), "clients took no notice"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        broker.stop()
    for target, there, gone in asked:
        assert there
        assert gone
        directory = tmp_path / f"restored-{target.name}"
        await tandemmq("restore", str(target), "--data", str(directory))
        restored = BrokerProcess(directory, "b", *options).start()
        try:
            restored.wait_role("master")
            found = await held(restored.url)
        finally:
            restored.stop()
        assert len(found) == len(set(found)), "nothing occurs twice"
        assert not there - set(found), "what was confirmed is there"
        assert not gone & set(found), "what was acknowledged does not come back"
