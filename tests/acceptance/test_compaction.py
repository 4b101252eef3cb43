"""Bounded disk under real load: a queue without a consumer, beside one with fast consumers, and kill -9 in between."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.acceptance.broker_process import BrokerProcess, serving, wait_until
from tests.support.acceptance.load import Books, consume, produce
from tests.support.acceptance.stomp_wire import Wire
from tests.support.prove import IS_THOROUGH, SEED, rounds

KILLS = max(1, rounds(15 if IS_THOROUGH else 5, 120) // 5)
NUMBERS = itertools.count()


def journal_bytes(data: Path) -> int:
    total = 0
    for path in data.glob("db-*.log"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # reclaimed meanwhile
            pass
    return total


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {
        "journal_max_file_length": "256kb",
        "checkpoint_interval": "100ms",
        "cleanup_interval": "50ms",
        "compaction_rate": "1mb",
    }
    options = [word for key, value in settings.items() for word in ("--set", f"store.{key}={value}")]
    with serving(BrokerProcess(tmp_path / "data", "a", *options)) as (broker,):
        yield broker


async def keep_one_in_a_while(port: int, kept: list[str], stop: asyncio.Event) -> None:
    """Send a message now and then, each with a receipt, to a queue without a consumer."""
    wire = await Wire.open(port)
    while not stop.is_set():
        body = f"kept {next(NUMBERS)}"  # never twice: one without a receipt may be there as well
        wire.send("SEND", {"destination": "/queue/kept", "persistent": "true", "receipt": body}, body.encode())
        await asyncio.wait_for(wire.read(), 20)
        kept.append(body)
        await asyncio.sleep(0.01)
    wire.close()


@pytest.mark.promise("disk-use-is-bounded")
@pytest.mark.prove
@pytest.mark.timeout(120 + 20 * KILLS)
async def test_the_disk_stays_bounded_whatever_nobody_reads_and_however_it_dies(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    print(f"seed {SEED}, {KILLS} kills (TANDEMMQ_SEED, TANDEMMQ_PROVE)")
    dice = random.Random(SEED)
    kept: list[str] = []
    books = Books()
    for _ in range(KILLS):
        stop = asyncio.Event()
        tasks = [
            asyncio.create_task(produce(books, [broker.stomp], "/queue/busy", f"p{len(kept)}", 20, stop)),
            asyncio.create_task(consume(books, [broker.stomp], "/queue/busy", stop)),
            asyncio.create_task(keep_one_in_a_while(broker.stomp, kept, stop)),
        ]
        await asyncio.sleep(dice.uniform(1.0, 2.5))
        broker.kill()
        stop.set()
        broker.start().wait_role("master")
        await asyncio.wait(tasks, timeout=30)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    status = broker.status()
    assert status is not None
    stop = asyncio.Event()
    drain = asyncio.create_task(consume(books, [broker.stomp], "/queue/busy", stop))
    await asyncio.to_thread(wait_until, lambda: not books.stored - set(books.received), "all of it was drained", 60)
    await asyncio.to_thread(
        wait_until,
        lambda: journal_bytes(tmp_path / "data") <= 4 * 256 * 1024 + 20 * len(kept) * 400,
        "the journal is within its bound",
        30,
    )
    stop.set()
    await drain
    assert books.problems() == []
    wire = await Wire.open(broker.stomp)
    wire.send("SUBSCRIBE", {"id": "0", "destination": "/queue/kept", "ack": "auto"})
    found: list[str] = []
    while not set(kept) <= set(found):
        found.append((await asyncio.wait_for(wire.read(), 10)).body.decode())
    wire.close()
    assert [body for body in found if body in set(kept)] == kept, "all that had a receipt, in their order, once"
