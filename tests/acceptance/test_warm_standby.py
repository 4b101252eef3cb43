"""A standby only reads the shared volume before it owns the lock. Its system calls show this."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemmq.store.tools.check import check
from tests.support.acceptance.broker_process import BrokerProcess, wait_until
from tests.support.acceptance.load import Books, consume, drain, produce
from tests.support.acceptance.traced_broker import Call, TracedBroker, why_not

# Small files and hasty upkeep: files come, go and are compacted while the standby looks.
HASTE = {
    "journal_max_file_length": "256kb",
    "checkpoint_interval": "100ms",
    "cleanup_interval": "50ms",
    "compaction_rate": "1mb",
}
OPTIONS = [word for key, value in HASTE.items() for word in ("--set", f"store.{key}={value}")]
SECONDS_OF_LOAD = 2.0


@pytest.fixture(params=["beside the journal", "elsewhere"])
def pair(
    request: pytest.FixtureRequest, tmp_path: Path, require_service: Callable[[object, str], None]
) -> Iterator[tuple[BrokerProcess, TracedBroker]]:
    reason = why_not(tmp_path)
    require_service(reason is None, reason or "")
    data = tmp_path / "data"
    own = [] if request.param == "beside the journal" else ["--set", f"store.index_directory={tmp_path / 'indexes'}"]
    master, standby = BrokerProcess(data, "a", *OPTIONS), TracedBroker(data, "b", *OPTIONS, *own)
    yield master, standby
    master.stop()
    standby.stop()
    report = check(str(data))
    assert report.is_clean, report.problems


def of_shared(calls: list[Call], data: Path) -> list[Call]:
    """Return the calls that name an object below ``data`` that does not belong only to the standby."""
    private = (f"{data}/index/b/", f"{data}/index/b.")

    def is_shared(path: str) -> bool:
        return path.startswith(f"{data}/") and not f"{path}/".startswith(private)

    return [call for call in calls if any(is_shared(path) for path in call.paths)]


def is_harmless(call: Call, data: Path) -> bool:
    """Return whether the call reads, opens the lock file to query the lock, or would make a directory that exists."""
    if call.is_reading or (call.name == "openat" and call.paths[-1] == f"{data}/lock"):
        return True
    return call.name == "mkdir" and "EEXIST" in call.line


def reclaimed(broker: BrokerProcess) -> int:
    return int((broker.status() or {})["counts"]["journal_files_reclaimed_total"])


async def load(ports: list[int], books: Books, seconds: float, until: Callable[[], bool] = lambda: True) -> None:
    """For so long at least, and on until that holds."""
    stop = asyncio.Event()
    tasks: list[asyncio.Task[Any]] = [
        asyncio.create_task(produce(books, ports, "/queue/busy", "p", 20, stop)),
        asyncio.create_task(consume(books, ports, "/queue/busy", stop)),
        asyncio.create_task(produce(books, ports, "/queue/kept", "q", 1, stop)),
    ]
    try:
        await asyncio.sleep(seconds)
        await asyncio.to_thread(wait_until, until, "the load has shown what it is for")
    finally:
        stop.set()
        await asyncio.gather(*tasks)


@pytest.mark.service
async def test_a_standby_changes_nothing_shared_before_it_owns_the_lock(
    pair: tuple[BrokerProcess, TracedBroker], tmp_path: Path
) -> None:
    master, standby = pair
    data = tmp_path / "data"
    books = Books()
    master.start().wait_role("master")
    await load([master.stomp], books, 0.5)  # so that there is an index to copy
    standby.start().wait_role("standby", 60)
    before = reclaimed(master)
    # Files go while the standby looks.
    await load([master.stomp], books, SECONDS_OF_LOAD, lambda: reclaimed(master) > before)
    await asyncio.to_thread(wait_until, lambda: (standby.status() or {})["standby"]["has_caught_up"], "it caught up")
    master.kill()
    standby.wait_role("master", 60)
    await asyncio.gather(drain(books, [standby.stomp], "/queue/busy"), drain(books, [standby.stomp], "/queue/kept"))
    assert books.problems() == []
    assert standby.terminate() == 0

    calls = standby.calls()
    owned_at = next(
        number for number, call in enumerate(calls) if call.has_taken_a_lock and f"{data}/lock" in call.paths
    )
    as_standby, after = of_shared(calls[:owned_at], data), of_shared(calls[owned_at:], data)
    assert [call.line for call in as_standby if not is_harmless(call, data)] == []
    assert len(as_standby) > 20, "it did look"
    own = [call for call in calls[:owned_at] if any(path.endswith("/b/db.data") for path in call.paths)]
    assert sum(call.name in ("pwrite64", "pwritev") for call in own) > 2, "it kept its own index up to date"
    changed = {call.name for call in after if not is_harmless(call, data)}
    assert {"link", "unlink", "pwrite64", "fsync"} <= changed, "the trace shows what a master does"
