"""A task that sends slices, without Spark: killed, run twice, refused; each message is stored once."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: the extra spark")


from tandemmq.bench.peers.server import Server
from tandemmq.pipeline.sending.ledger import InUse, Ledger, LedgerError, Progress, Run, Slice
from tandemmq.pipeline.sending.slices import CHUNK_BYTES_MAX, CHUNK_MESSAGES_MAX, REFUSED_MAX, chunks, send_task
from tandemmq.store.settings import StoreSettings
from tests.support.pipeline.sending_plans import plan_of, row
from tests.support.pipeline.taken import taken as all_taken
from tests.support.services.pairs import TandemMQ, failover_url

PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with TandemMQ(tmp_path_factory.mktemp("broker")) as server:
        yield server


Prepared = Callable[..., Ledger]


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    """A plan of one slice of these rows, for one task."""

    def prepare(rows: list[dict[str, Any]], to: str, rate: float | None = None) -> Ledger:
        return plan_of(tmp_path / "state", rows, to, rate)

    return prepare


def taken(to: str, queue: str, quiet_seconds: float = 0.5) -> list[tuple[str, bytes]]:
    """Take all messages out of a queue; return original id and body of each."""
    found = all_taken(to, f"/queue/{queue}", quiet_seconds=quiet_seconds)
    return [(each["originalMessageId"], each["body"]) for each in found]


def duplicates(*servers: Server) -> int:
    return sum(int(server.status()["counts"]["duplicates_total"]) for server in servers)


def test_a_slice_is_sent_in_its_order_and_not_again(broker: Server, prepared: Prepared) -> None:
    ledger = prepared([row(number, "slices.order") for number in range(1, 1201)], failover_url(broker))
    assert send_task(str(ledger.directory), 0) == 1200
    assert send_task(str(ledger.directory), 0) == 0
    assert [body for _, body in taken(failover_url(broker), "slices.order")] == [b"body %d" % n for n in range(1, 1201)]
    assert ledger.progress(0).confirmed == 1200


@pytest.mark.thorough
def test_a_killed_sender_is_gone_on_from_though_consumers_were_quick(broker: Server, prepared: Prepared) -> None:
    """The sent messages are consumed immediately, so only the broker's memory of ids knows them."""
    rows = [row(number, "slices.killed") for number in range(1, 3001)]
    ledger = prepared(rows, failover_url(broker), rate=1500)
    context = multiprocessing.get_context("spawn")
    found: list[tuple[str, bytes]] = []
    kills = 0
    while kills < 3 and ledger.progress(0).confirmed < len(rows):
        sender = context.Process(target=send_task, args=(str(ledger.directory), 0))
        sender.start()
        before = len(found)
        until = time.monotonic() + PATIENCE_SECONDS
        while len(found) - before < 150 and sender.is_alive():
            assert time.monotonic() < until
            found += taken(failover_url(broker), "slices.killed", 0.02)
        assert sender.pid is not None
        if sender.is_alive():
            os.kill(sender.pid, signal.SIGKILL)
            kills += 1
        sender.join()
    assert kills, "the first one at least was in the middle of it"
    found += taken(failover_url(broker), "slices.killed")
    # The worst of all: everything of the last chunk is there, and none of it was noted.
    progress = ledger.progress(0)
    send_task(str(ledger.directory), 0)
    found += taken(failover_url(broker), "slices.killed")
    ledger.note(0, Progress(max(progress.confirmed, 3000 - CHUNK_MESSAGES_MAX)))
    before = duplicates(broker)
    send_task(str(ledger.directory), 0)
    found += taken(failover_url(broker), "slices.killed")
    assert duplicates(broker) - before == 3000 - max(progress.confirmed, 3000 - CHUNK_MESSAGES_MAX)
    assert sorted(number for number, _ in found) == sorted(each["message_id"] for each in rows)


def test_a_refused_message_is_reported_and_the_others_are_sent(broker: Server, prepared: Prepared) -> None:
    rows = [row(number, "slices.refused") for number in range(1, 11)]
    rows[3]["properties"] = [("long", "x" * 20_000)]  # longer than a line of a header may be
    rows[6]["body_kind"] = "object"
    ledger = prepared(rows, failover_url(broker))
    assert send_task(str(ledger.directory), 0) == 8
    progress = ledger.progress(0)
    assert set(progress.refused) == {4, 7}
    assert "header" in progress.refused[4]
    assert "object" in progress.refused[7]
    assert (progress.confirmed, progress.sent(ledger.run().slices[0])) == (10, 8)  # type: ignore[union-attr]
    assert len(taken(failover_url(broker), "slices.refused")) == 8
    assert send_task(str(ledger.directory), 0) == 0, "they are tried again, and nothing else is"
    assert taken(failover_url(broker), "slices.refused") == []


@pytest.mark.thorough
def test_a_broker_that_refuses_everything_ends_the_task(broker: Server, prepared: Prepared) -> None:
    rows = [row(number, "slices.all?refused=1") for number in range(1, REFUSED_MAX + 50)]
    ledger = prepared(rows, failover_url(broker))
    with pytest.raises(Exception, match="were refused") as raised:
        send_task(str(ledger.directory), 0)
    assert "options" in str(raised.value)
    assert ledger.progress(0).confirmed == 0


def test_of_two_tasks_with_one_slice_one_sends(
    broker: Server, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandemmq.pipeline.sending.ledger.LOCK_SECONDS_MAX", 0.3)
    ledger = prepared([row(1, "slices.alone")], failover_url(broker))

    async def hold() -> None:
        async with ledger.alone_with(0):
            await asyncio.to_thread(refused)

    def refused() -> None:
        with pytest.raises(InUse, match="another task"):
            send_task(str(ledger.directory), 0)

    asyncio.run(hold())
    assert send_task(str(ledger.directory), 0) == 1


def test_of_two_runs_in_one_directory_one_runs(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "state")
    with ledger.alone(), pytest.raises(InUse, match="another replay"), Ledger(tmp_path / "state").alone():
        pass


def test_a_plan_that_is_not_whole_is_told(broker: Server, prepared: Prepared) -> None:
    ledger = prepared([row(1, "slices.part"), row(2, "slices.part")], failover_url(broker))
    run = ledger.run()
    assert run is not None
    ledger.begin(Run(run.run_id, {}, run.addresses, (Slice(0, "queue", "slices.part", 1, 3, 0, "", ""),)))
    with pytest.raises(LedgerError, match="ends at 2, not at 3"):
        send_task(str(ledger.directory), 0)


def test_a_ledger_of_another_version_is_not_understood(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"version": 2}')
    with pytest.raises(LedgerError, match="version 1"):
        Ledger(tmp_path).run()


def test_a_chunk_is_bounded_by_messages_and_by_bytes() -> None:
    small = [{"body": b"x"} for _ in range(12)]
    assert [len(chunk) for chunk in chunks(small, 5)] == [5, 5, 2]
    large = [{"body": bytes(CHUNK_BYTES_MAX // 2)}, {"body": bytes(CHUNK_BYTES_MAX)}, {"body": b""}, {"body": b"y"}]
    assert [len(chunk) for chunk in chunks(large, 5)] == [1, 2, 1]
    assert StoreSettings().failover_producers_audit_depth > 2 * CHUNK_MESSAGES_MAX
