"""The content of queues at a moment equals the content that a browser saw then."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.prove import SEED

pytest.importorskip("pyspark", reason="pyspark is not installed: the extra spark")

from click.testing import CliRunner

from tandemmq.cli import main
from tandemmq.pipeline.columns import MARKS, MESSAGES, RECORDS
from tandemmq.pipeline.jobs.at import ORDER_COLUMNS, Cut, contents, cuts, findings, in_order, run
from tandemmq.pipeline.jobs.effects import MARK_COLUMNS, RECORD_COLUMNS
from tandemmq.pipeline.jobs.gaps import missing
from tandemmq.pipeline.jobs.tables import Sources
from tandemmq.store.operations import AddMessage
from tandemmq.store.records.commands import Trace, decode, encode_add
from tandemmq.store.records.headers import Header, encode_header
from tandemmq.store.records.marks import encode_gone
from tandemmq.store.records.openwire import encode_message
from tests.support.pipeline.pipeline_histories import QUEUES, SETTINGS, Life
from tests.support.store.store_harness import Term

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.service

LIVES = 12 if os.environ.get("TANDEMMQ_THOROUGH") == "1" else 2
ARCHIVING = replace(SETTINGS, archive_data_logs=True)
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.mark.prove
@pytest.mark.proof_only
@pytest.mark.timeout(600)
def test_the_contents_at_a_place_are_those_of_that_moment(spark: SparkSession, tmp_path: Path) -> None:
    """Random lives. One is archived, and looked back at from its end; of the next, whose old files are gone, the end
    is asked for, where copies alone tell the order."""
    print(f"TANDEMMQ_SEED={SEED}")
    chance = random.Random(SEED)
    noted: dict[str, dict[tuple[str, str | None], list[str]]] = {}
    moments = []
    for number in range(LIVES):
        directory = tmp_path / f"store-{number:02}"
        directory.mkdir()
        is_archived = number % 2 == 0
        life = Life(str(directory), random.Random(chance.random()), ARCHIVING if is_archived else SETTINGS)
        life.run(80)
        file, offset = life.place()
        noted[str(directory)] = life.contents()
        moments.append(Cut(str(directory), file << 32 | offset, None, None, 0))
        if is_archived:
            life.run(40)
            assert life.contents() != noted[str(directory)]
        life.term.close()
    sources = Sources(tuple(noted), is_tail_wanted=True)

    found = contents(
        sources.read(spark, RECORDS, RECORD_COLUMNS).persist(),
        sources.read(spark, MARKS, (*MARK_COLUMNS, *ORDER_COLUMNS)),
        sources.read(spark, MESSAGES, ("store", "file", "offset", "priority", "expires")),
        moments,
    )

    told: dict[str, dict[tuple[str, str | None], list[str]]] = {store: {} for store in noted}
    for row in in_order(found).collect():
        holder = (f"{row.destination_type}://{row.destination}", row.subscription)
        told[row.store].setdefault(holder, []).append(row.message_id)
        assert row.priority == 4, "the message was found where it stands"
    assert told == noted, f"TANDEMMQ_SEED={SEED}"


def test_at_a_time_is_what_a_browser_saw(spark: SparkSession, tmp_path: Path) -> None:
    """Each batch of this store begins with a mark of the time, so each place has a clock before it and after it."""
    directory = tmp_path / "store"
    directory.mkdir()
    term = Term(str(directory), settings=replace(ARCHIVING, clock_mark_interval=0.0001))
    orders, prices, _ = QUEUES
    owner = term.store.queue(orders)
    sent = term.add_durably(8, orders, body=b"early")
    term.add_durably(1, prices)
    term.take(sent[:3], owner)
    browsed = [paged.message.message_id for paged in term.page(owner).messages]
    moment = _tick()
    term.take(sent[3:6], owner)
    term.add_durably(2, orders, body=b"late")
    term.close()

    out = tmp_path / "out"
    asked = ["--time", moment.isoformat(), "--destination", "orders", "--bodies", "--out", str(out), "--json"]
    done = CliRunner().invoke(main, ["pipeline", "at", str(directory), *asked])

    assert done.exit_code == 0, done.output
    rows = spark.read.parquet(str(out / "contents")).orderBy(*ORDER_COLUMNS).collect()
    assert [row.message_id for row in rows] == browsed == [added.message.message_id for added in sent[3:]]
    assert {(row.destination, bytes(row.body), row.is_expired, row.is_in_doubt) for row in rows} == {
        ("orders", b"early", False, False)
    }
    (total,) = spark.read.parquet(str(out / "totals")).collect()
    assert (total.destination, total.messages) == ("orders", 5)
    answer = json.loads(done.stdout)["findings"]
    assert "5 messages were in 1 queues and subscriptions" in answer[0]
    assert "removes and commits between them are assumed to be done" in answer[1]


def _tick() -> datetime:
    """A time that lies behind all clocks so far, and before all that come: they count milliseconds."""
    start = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 < start + 2:
        time.sleep(0.001)
    return datetime.fromtimestamp((start + 1) / 1000, UTC)


def test_a_time_lies_between_two_clocks_and_what_stands_between_them_is_counted(frame: Callable[..., Any]) -> None:
    def at(second: int) -> datetime:
        return NOON + timedelta(seconds=second)

    records = frame(
        "records",
        {"file": 1, "offset": 28, "command": "CLOCK", "broker_in": at(0)},
        {"file": 1, "offset": 90, "command": "REMOVE_MESSAGE"},
        {"file": 1, "offset": 140, "command": "ADD_MESSAGE", "broker_in": at(4)},
        {"file": 2, "offset": 28, "command": "REMOVE_MESSAGE"},
        {"file": 2, "offset": 90, "command": "COMMIT", "transaction": "TX:1"},
        {"file": 2, "offset": 140, "command": "COPY", "broker_in": at(-60)},
        {"file": 2, "offset": 190, "command": "ADD_MESSAGE", "broker_in": at(9)},
        {"file": 1, "offset": 28, "command": "ADD_MESSAGE", "broker_in": at(2), "store": "b"},
        {"file": 1, "offset": 90, "command": "REMOVE_MESSAGE", "store": "b"},
    )

    assert cuts(records, at(5)) == [Cut("a", 2 << 32 | 190, at(4), at(9), 2), Cut("b", None, at(2), None, 1)]
    first, _ = cuts(records, at=2 << 32 | 100)
    assert first == Cut("a", 2 << 32 | 140, at(4), at(9), 2)


@pytest.mark.prove
@pytest.mark.proof_only
def test_a_sender_whose_clock_is_wrong_moves_no_moment(spark: SparkSession, tmp_path: Path) -> None:
    directory = tmp_path / "store"
    directory.mkdir()
    with Term(str(directory), settings=replace(SETTINGS, clock_mark_interval=0.0)) as term:
        owner = term.store.queue(QUEUES[0])
        for number, ahead in enumerate((0, 3_600_000, 0)):
            message = term.message(QUEUES[0], f"{number}".encode())
            message.timestamp = time.time_ns() // 1_000_000 + ahead
            term.store.append(AddMessage(message, (owner,), encode_add(message, encode_message(message))))
            term.wait_durable(number + 1)
        moment = _tick()
    out = tmp_path / "out"
    run(spark, Sources((str(directory),)), str(out), time=moment)
    assert spark.read.parquet(f"{out}/contents").count() == 3


def text(payload: bytes) -> str:
    trace = decode(payload)
    assert isinstance(trace, Trace)
    return trace.message or ""


def test_files_that_were_there_and_are_not_at_hand_are_missing() -> None:
    first = text(encode_header(Header(1, "a", "promotion", {}, (1, 2, 3, 4, 5))))
    gone = text(encode_gone([2]))
    later = text(encode_header(Header(1, "a", "rotation", {4: 0}, (3, 4, 5, 6))))
    traces = [(5 << 32 | 28, first), (5 << 32 | 500, gone), (6 << 32 | 28, later)]
    assert missing(traces, (5, 6), 5 << 32 | 100) == [1, 2, 3, 4]
    assert missing(traces, (5, 6), 5 << 32 | 600) == [1, 3, 4]
    assert missing(traces, (5, 6), None) == [3], "nothing of db-4.log ever counted"
    assert missing([], (5, 6), None) == []


def test_findings_say_how_sure_the_answer_is() -> None:
    def output_text(cut: Cut, **others: Any) -> list[str]:
        return [*findings("then", 3, 2048, 2, [cut], others.pop("lost", {}), is_timed=True, **others)]

    known = Cut("a", 1, NOON, NOON + timedelta(seconds=2), 7)
    assert output_text(known) == [
        "At then 3 messages were in 2 queues and subscriptions, 2.0 KiB.",
        "the journal shows 2026-11-20 12:00:00.000 before that moment and 2026-11-20 12:00:02.000 after it; "
        "7 removes and commits between them are assumed to be done.",
    ]
    assert "is before that moment: all records count." in output_text(Cut("a", None, NOON, None, 0))[1]
    assert "the available journal begins later" in output_text(Cut("a", 28, None, NOON, 0))[1]
    assert (
        "3 files that existed then are missing here (db-1.log to db-3.log)"
        in output_text(known, lost={"a": [1, 2, 3]})[2]
    )
    assert "ActiveMQ" in output_text(known, unheaded=["a"])[2]
    assert "damaged" in output_text(known, damaged=9)[2]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "name the moment"),
        (["--time", "2026-11-20T02:14:00Z", "--file", "1"], "name the moment"),
        (["--time", "yesterday"], "no time such as"),
        (["--file", "1", "--from-file", "1"], "takes no --from-file"),
    ],
)
def test_an_invalid_moment_is_reported_before_spark_starts(
    store: Path, tmp_path: Path, options: list[str], told: str
) -> None:
    done = CliRunner().invoke(main, ["pipeline", "at", str(store), "--out", str(tmp_path / "out"), *options])
    assert done.exit_code in (1, 2)
    assert told in done.output
