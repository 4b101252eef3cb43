"""Waiting times of messages: figures with known answers, and those of a real broker's journal for a known delay."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from tandemmq.bench.peers.server import HOST, Server
from tandemmq.cli import main
from tandemmq.client import Client
from tandemmq.pipeline.engine import F
from tandemmq.pipeline.jobs import latency
from tandemmq.pipeline.jobs.latency import (
    Point,
    destination_stats,
    duration,
    findings,
    is_growing,
    plots,
    remarks,
    totals,
    window_of,
)
from tandemmq.pipeline.jobs.summary import Lines
from tandemmq.pipeline.jobs.tables import Sources
from tandemmq.pipeline.table import Table
from tandemmq.store.records.commands import encode_remove
from tests.support.pipeline.pipeline_journals import QUEUE, add, write_foreign
from tests.support.services.pairs import TandemMQ

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NINE = datetime(2026, 11, 3, 9, tzinfo=UTC)
LIFE = (
    "store STRING, destination_type STRING, destination STRING, subscription STRING, message_id STRING, "
    "added_lo TIMESTAMP, added_hi TIMESTAMP, ack_lo TIMESTAMP, ack_hi TIMESTAMP, state STRING"
)


def at(seconds: float | None) -> datetime | None:
    return None if seconds is None else NINE + timedelta(seconds=seconds)


def life(
    added: float | None, ack: float | None = None, latest: float | None = None, state: str = "acked", **others: Any
) -> list[Any]:
    """A message of the queue orders, added when it was and acknowledged between ``ack`` and ``latest``."""
    options = {"store": "a", "destination": "orders", **others}
    times = (at(added), at(added), at(ack), at(latest))
    return [options["store"], "queue", options["destination"], None, "m", *times, state]


@pytest.fixture
def lives(engine: Any) -> DataFrame:
    slow = [life(number, number + 2, number + 4) for number in range(100)]
    return engine.createDataFrame(
        [
            *slow,  # each waits 2 to 4 s
            life(200, 210, 210),
            life(300, 4000, 4000),  # an hour later
            life(3700, state="live"),
            life(3800, state="live"),
            life(3900, 7300, 7300, state="expired"),
            life(4100, 4200, None),  # the time is unknown
            life(None, 50, 60, state="unmatched_ack"),
            life(10, state="live", destination="other"),
            life(10, 3610, 3610, store="b"),
        ],
        LIFE,
    )


def test_each_window_has_its_added_acknowledged_and_waiting_messages(lives: DataFrame) -> None:
    stats = destination_stats(lives).where("store = 'a' and destination = 'orders'").orderBy("window_start")
    hour = (F.unix_seconds("window_start") - int(NINE.timestamp())) / 3600
    names = ("enqueued", "acked", "gone", "backlog_end", "unbounded")
    assert [tuple(row) for row in stats.select(hour, *names).collect()] == [
        (0, 102, 101, 0, 1, 0),
        (1, 4, 2, 0, 3, 1),
        (2, 0, 0, 1, 2, 0),
    ]
    measured = ("p50_ms", "p95_ms", "p99_ms", "max_ms", "interval_error_ms")
    assert [tuple(row) for row in stats.select(*measured).collect()] == [
        (3000, 3000, 3000, 10_000, 1000),
        (3_700_000, 3_700_000, 3_700_000, 3_700_000, 0),
        (None, None, None, None, None),
    ]


def test_windows_are_as_long_as_one_wishes(lives: DataFrame) -> None:
    stats = destination_stats(lives, 10).where("store = 'a' and destination = 'orders'").orderBy("window_start")
    first, second = stats.select("enqueued", "acked", "backlog_end").take(2)
    assert (tuple(first), tuple(second)) == ((10, 8, 2), (10, 10, 2))


def test_a_window_is_as_long_as_the_time_asks_for(lives: DataFrame) -> None:
    spans = [(lives.where("destination = 'other'"), 1), (lives.where("store = 'b'"), 60), (lives, 120)]
    assert [window_of(each) for each, _ in spans] == [seconds for _, seconds in spans]
    assert window_of(lives.where("state = 'unmatched_ack'")) == 1, "of nothing"


def test_a_destination_is_summed_up(lives: DataFrame) -> None:
    names = ("store", "destination", "enqueued", "acked", "gone", "backlog", "p99_ms", "unbounded", "unmatched")
    oldest = F.unix_seconds("oldest") - int(NINE.timestamp())
    assert [tuple(row) for row in totals(lives).select(*names, oldest).collect()] == [
        ("a", "orders", 106, 103, 1, 2, 10_000, 1, 1, 3700),
        ("a", "other", 1, 0, 0, 1, None, 0, 0, 10),
        ("b", "orders", 1, 1, 0, 0, 3_600_000, 0, 0, None),
    ]


# ---- without Spark


KEY = ("a", "queue", "orders")


def points(*backlogs: int) -> list[Point]:
    return [
        Point(NINE + timedelta(hours=number), backlog, 1, 2, 3 if backlog else None)
        for number, backlog in enumerate(backlogs)
    ]


def test_findings_tell_the_latency_with_its_error_and_the_backlog() -> None:
    columns = ("store", "destination_type", "destination", "p99_ms", "interval_error_ms", "backlog")
    rows = [(*KEY, 2300, 500, 12_000), ("a", "queue", "quiet", None, None, 3), ("a", "queue", "done", 7, 0, 0)]
    assert findings(Table("", columns, rows), {KEY: points(10, 500, 12_000)}) == (
        "orders: p99 2.3 s ±500 ms, backlog 12,000 at the end and growing.",
        "done: p99 7 ms ±0 ms, nothing is left.",
        "quiet: no latency is known, backlog 3 at the end.",
    )
    assert findings(Table("", columns, []), {}) == ("No message was stored in the files read.",)


@pytest.mark.parametrize(
    ("backlogs", "grows"), [((), False), ((5,), False), ((5, 5), False), ((9, 3, 5), True), ((0, 9, 9, 2), False)]
)
def test_a_backlog_grows_that_is_longer_than_half_way(backlogs: Sequence[int], grows: bool) -> None:
    assert is_growing(points(*backlogs)) is grows


def test_remarks_say_what_the_figures_do_not_hold() -> None:
    assert remarks(0, 0, has_marks=True, is_tail_read=True) == ()
    text = remarks(1200, 3, has_marks=False, is_tail_read=False)
    assert [sentence[:20] for sentence in text] == [
        "1,200 acknowledgemen",
        "3 acknowledgements h",
        "No clock is marked i",
        "The newest file of e",
    ]


def test_a_duration_is_told_in_the_unit_of_its_size() -> None:
    told = [duration(milliseconds) for milliseconds in (0, 999, 2300, 90_000, 5_400_000, 259_200_000)]
    assert told == ["0 ms", "999 ms", "2.3 s", "1.5 min", "1.5 h", "3.0 d"]


def test_a_backlog_stays_as_it_was_while_nothing_happens() -> None:
    hours = points(4, 0)
    later = [hours[0], Point(NINE + timedelta(hours=3), 7, 10, 20, 30)]
    backlog, waited = plots({KEY: later, ("a", "queue", "late"): hours[1:]}, timedelta(hours=1))
    assert isinstance(backlog, Lines)
    assert backlog.xs == ["2026-11-03 09:00", "2026-11-03 10:00", "2026-11-03 11:00", "2026-11-03 12:00"]
    assert backlog.lines == [("orders", [4, 4, 4, 7]), ("late", [None, 0, 0, 0])]
    assert isinstance(waited, Lines)
    assert waited.lines == [("p50", [1, None, None, 10]), ("p95", [2, None, None, 20]), ("p99", [3, None, None, 30])]


# ---- journals


def test_activemqs_acknowledgements_are_timed_by_the_messages_around(engine: Any, tmp_path: Path) -> None:
    def message(number: int, seconds: int) -> bytes:
        return add(number, timestamp=int(NINE.timestamp() * 1000) + 1000 * seconds)

    def acknowledged(number: int) -> bytes:
        return encode_remove(QUEUE, f"ID:tests-1:1:1:{number}")

    write_foreign(tmp_path / "store" / "db-1.log", [[message(1, 0)], [message(2, 10)], [acknowledged(1)]])
    write_foreign(tmp_path / "store" / "db-2.log", [[message(3, 14)], [acknowledged(2), acknowledged(77)]])
    summary = latency.run(engine, Sources((str(tmp_path / "store"),), is_tail_wanted=True), str(tmp_path / "out"))
    [row] = [dict(zip(summary.tables[0].columns, cells, strict=True)) for cells in summary.tables[0].rows]
    assert row["destination"] == "orders"
    assert [row[name] for name in ("enqueued", "acked", "backlog", "unbounded", "unmatched")] == [3, 2, 1, 1, 1]
    assert (row["p99_ms"], row["interval_error_ms"]) == (12_000, 2000), "between 10 and 14 s"
    assert row["oldest"] == "2026-11-03 09:00:14"
    assert summary.findings[0] == "orders: p99 12.0 s ±2.0 s, backlog 1 at the end."
    assert any(sentence.startswith("No clock is marked") for sentence in summary.findings)


class Told:
    """Times of a message that a client knows: (before, after) of its storing and of its acknowledgement."""

    def __init__(self) -> None:
        self.stored: dict[str, tuple[float, float]] = {}
        self.acknowledged: dict[str, tuple[float, float]] = {}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Server]:
    with TandemMQ(tmp_path / "broker", data=tmp_path / "data", settings=("store.clock_mark_interval=200ms",)) as server:
        yield server


async def work(server: Server, delays: Sequence[float]) -> Told:
    told = Told()
    async with Client(f"failover:(stomp://{HOST}:{server.port})") as client:
        subscription = await client.subscribe("/queue/orders")
        for number, delay in enumerate(delays):
            before = time.time()
            # A sender whose clock is wrong by days
            headers = {"timestamp": str(int((before - 86_400 * number) * 1000))} if number % 2 else {}
            await client.send_confirmed("/queue/orders", b"x", headers)
            stored = before, time.time()
            message = await subscription.receive(10)
            assert message is not None
            await asyncio.sleep(delay)
            before = time.time()
            assert await client.acknowledge(message, is_confirmed=True)
            told.stored[message.headers["message-id"]] = stored
            told.acknowledged[message.headers["message-id"]] = before, time.time()
    return told


@pytest.mark.service
def test_a_brokers_journal_says_when_its_clients_acknowledged(
    spark: SparkSession, broker: Server, tmp_path: Path
) -> None:
    told = asyncio.run(work(broker, (0.0, 0.5, 0.05, 0.3, 0.02, 0.1)))
    broker.stop()
    out = tmp_path / "out"
    options = ["--out", str(out), "--tail", "--json", "--window", "10m", "--mark-interval", "200ms"]
    done = CliRunner().invoke(main, ["pipeline", "latency", str(tmp_path / "data"), *options])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    [row] = figures["tables"]["By destination"]
    assert [row[name] for name in ("destination", "enqueued", "acked", "unbounded")] == ["orders", 6, 6, 0]

    times = [F.unix_millis(name) / 1000 for name in ("added_lo", "added_hi", "ack_lo", "ack_hi")]
    found = spark.read.parquet(figures["written"]["lifecycle"]).select("message_id", *times).collect()
    assert len(found) == len(told.stored)
    for message_id, added_lo, added_hi, ack_lo, ack_hi in found:
        (stored_after, stored_by), (acknowledged_after, acknowledged_by) = (
            next(span for key, span in known.items() if message_id in key) for known in (told.stored, told.acknowledged)
        )
        # A mark has whole milliseconds.
        assert added_lo <= stored_by
        assert added_hi >= stored_after - 0.001
        assert ack_lo <= acknowledged_by
        assert ack_hi >= acknowledged_after - 0.001
        assert round(ack_hi - ack_lo, 3) <= 0.201
    assert (out / "latency.html").read_text().count("<svg") == 2


def test_a_window_is_of_whole_seconds() -> None:
    for window in ("500ms", "1500ms", "0", "soon"):
        done = CliRunner().invoke(main, ["pipeline", "latency", ".", "--out", "/nowhere", "--window", window])
        assert done.exit_code == 2
        assert "--window" in done.output
