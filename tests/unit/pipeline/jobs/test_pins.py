"""Holders of each file: the answer of `store why`, from the journal alone, as tables."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.prove import SEED

pytest.importorskip("pyspark", reason="pyspark is not installed: the extra spark")

from click.testing import CliRunner

from tandemmq.cli import main
from tandemmq.journal.files import JournalFiles
from tandemmq.pipeline.columns import MARKS, RECORDS
from tandemmq.pipeline.jobs.effects import MARK_COLUMNS, RECORD_COLUMNS, Declared, spans
from tandemmq.pipeline.jobs.holding import Journal, journals
from tandemmq.pipeline.jobs.pins import Drained, Verdict, findings, judged, run
from tandemmq.pipeline.jobs.summary import Bars
from tandemmq.pipeline.jobs.tables import Sources
from tandemmq.pipeline.stores import journal_files
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.tools.why.explain import Place, copy_facts, explain
from tandemmq.store.tools.why.facts import Facts
from tandemmq.store.tools.why.offline import read_state
from tandemmq.store.tools.why.report import Why
from tests.interop import conftest as interop
from tests.support.pipeline.pipeline_histories import Life
from tests.support.pipeline.pipeline_scribbles import Scribble
from tests.support.store.store_harness import RESTLESS, Term

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.service

# The real ActiveMQ over a directory, in the Spark session of these tests.
activemq = interop.activemq

LIVES = 12 if os.environ.get("TANDEMMQ_THOROUGH") == "1" else 3
STEPS = 120
ORDERS = Destination(DestinationKind.QUEUE, "ORDERS")
BUSY = Destination(DestinationKind.QUEUE, "BUSY")


def of_the_broker(directory: Path) -> tuple[Facts, Why]:
    """Return the answer of `store why` for a store that is being written; with the index, if there is one."""
    with read_state(str(directory), is_live=False) as follower:
        files = JournalFiles(str(directory))
        sizes = {file: files.size(file) for file in files.list()}
        facts = copy_facts(lambda ask: ask(follower.state), follower.epoch_history, sizes, is_written=True)
        place = Place(files, 64 << 10, True)
        return facts, explain(lambda ask: ask(follower.state), place, follower.epoch_history, 0)


def of_the_journal(spark: SparkSession, *directories: Path) -> list[Journal]:
    sources = Sources(tuple(map(str, directories)), is_tail_wanted=True)
    records = sources.read(spark, RECORDS, RECORD_COLUMNS).persist()
    marks = sources.read(spark, MARKS, MARK_COLUMNS).persist()
    found = journals(records, marks, journal_files(sources.paths, is_tail_wanted=True))
    records.unpersist()
    marks.unpersist()
    return found


def told(facts: Facts) -> dict[int, Any]:
    """Return all facts of each file, with the names of owners in place of their numbers."""
    names = {number: (o.destination, o.client_id, o.subscription_name) for number, o in facts.owners.items()}
    return {
        file: {
            "size": known.size,
            "live": (known.live, known.live_bytes),
            "holders": {names[owner]: holder for owner, holder in known.holders.items()},
            "pins": known.pins,
            "records": sorted(str(names[number]) for number, owner in facts.owners.items() if file in owner.records),
            "transactions": {
                each.key: (each.is_prepared, each.operations.get(file, 0), each.prepared_in == file)
                for each in facts.transactions
                if file in each.files
            },
            "goes": file in facts.reclaimable,
        }
        for file, known in facts.files.items()
    }


def same_answer(journal: Journal, directory: Path, scratch: Path) -> None:
    """Check that the answer is that of `store why` from the journal alone, and contains at least the answer with the
    index."""
    scratch.mkdir()
    for path in directory.glob("db-*.log"):
        os.link(path, scratch / path.name)
    facts, why = of_the_broker(scratch)
    assert told(journal.facts) == told(facts), f"{directory}, TANDEMMQ_SEED={SEED}"
    pins, verdicts = judged(journal)
    assert [(v.file, v.state, v.bytes, v.live_messages, v.live_bytes) for v in verdicts] == [
        (f.file, f.state, f.bytes, f.live_messages, f.live_bytes) for f in why.files
    ]
    for file in why.files:
        mine = [pin for pin in pins if pin.file == file.file]
        assert {pin.ref_file for pin in mine if pin.reason == "acks_of"} == set(file.pins if mine else ())
        assert sum(pin.items or 0 for pin in mine if pin.reason == "message") == sum(h.count for h in file.holders)
    indexed, _ = of_the_broker(directory)
    for number, known in indexed.files.items():
        more = {"pins": facts.files[number].pins, "goes": number in facts.reclaimable}
        assert told(facts)[number] == told(indexed)[number] | more
        assert facts.files[number].pins <= known.pins
    assert indexed.reclaimable <= facts.reclaimable


@pytest.mark.timeout(600)
def test_the_journal_alone_gives_the_result_of_the_broker(spark: SparkSession, tmp_path: Path) -> None:
    print(f"TANDEMMQ_SEED={SEED}")
    chance = random.Random(SEED)
    directories = []
    for number in range(LIVES):
        directory = tmp_path / f"store-{number:02}"
        directory.mkdir()
        life = Life(str(directory), random.Random(chance.random()))
        life.run(STEPS)
        life.term.close()
        directories.append(directory)

    found = of_the_journal(spark, *directories)

    assert [journal.store for journal in found] == list(map(str, directories))
    for journal, directory in zip(found, directories, strict=True):
        same_answer(journal, directory, tmp_path / f"{directory.name}-alone")


@pytest.mark.timeout(600)
def test_every_link_between_files_is_found(spark: SparkSession, tmp_path: Path) -> None:
    """Random records in small files of which none was reclaimed: here a link that is missed is not hidden by others."""
    chance = random.Random(SEED)
    directories = [tmp_path / f"store-{number:02}" for number in range(4 * LIVES)]
    for directory in directories:
        directory.mkdir()
        Scribble(directory, random.Random(chance.random())).write(10, 18)

    found = of_the_journal(spark, *directories)

    for journal, directory in zip(found, directories, strict=True):
        facts, _ = of_the_broker(directory)
        assert told(journal.facts) == told(facts), f"{directory}, TANDEMMQ_SEED={SEED}"


@pytest.mark.prove
@pytest.mark.proof_only
@pytest.mark.timeout(600)
def test_a_directory_of_activemq_is_judged_as_the_broker_judges_it(
    spark: SparkSession, activemq: Callable[..., Any], tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    activemq("produce", directory)

    found = {journal.store: journal for journal in of_the_journal(spark, directory)}

    journal = found[str(directory)]
    assert journal.facts.transactions, "ActiveMQ left a prepared one"
    assert any(owner.subscription_name for owner in journal.facts.owners.values())
    same_answer(journal, directory, tmp_path / "alone")


@pytest.mark.prove
@pytest.mark.proof_only
@pytest.mark.timeout(600)
def test_files_kept_by_one_destination_alone_are_reported_with_their_size(spark: SparkSession, tmp_path: Path) -> None:
    """The store has two messages of a queue in old files; archived files belong to no destination."""
    directory = tmp_path / "store"
    directory.mkdir()
    term = Term(str(directory), settings=replace(RESTLESS, archive_data_logs=True))
    _churn(term)
    asked = term.store.compact()  # what nothing needs goes to the archive
    term.wait(asked.done, 20)
    kept = []
    for _ in range(2):
        kept += term.add_durably(1, ORDERS)
        _churn(term)
    held = sorted({added.location >> 32 for added in kept})
    _churn(term)
    term.close()
    assert list((directory / "data-archive").iterdir())
    out = tmp_path / "out"

    done = CliRunner().invoke(main, ["pipeline", "pins", str(directory), "--out", str(out), "--json"])

    assert done.exit_code == 0, done.output
    _, why = of_the_broker(directory)
    first, drain, *others = json.loads(done.stdout)["findings"]
    states = [file.state for file in why.files]
    assert first.startswith(f"{states.count('held') + states.count('tail')} of {len(states)} files are held")
    freed = [file for file in why.files if file.state == "held"]
    assert held == [file.file for file in freed]
    assert f"held by 2 messages of {ORDERS} (the oldest of 1970-01-01 00:00). If they are consumed" in drain
    assert f"{sum(file.bytes for file in freed) >> 10}.0 KiB can be removed" in drain
    assert any("archives were left out" in other for other in others)
    pins = {
        (row.file, row.destination, row.items)
        for row in spark.read.parquet(f"{out}/pins").where("reason = 'message'").collect()
    }
    assert {(file, "ORDERS", 1) for file in held} == pins
    verdicts = {row.file: row for row in spark.read.parquet(f"{out}/file_verdicts").collect()}
    assert [verdicts[file.file].state for file in why.files] == states
    assert "Bytes by file, and what holds it" in (out / "pins.html").read_text()


@pytest.mark.prove
@pytest.mark.proof_only
def test_of_several_stores_each_line_says_whose_it_is(spark: SparkSession, tmp_path: Path) -> None:
    stores = [tmp_path / name for name in ("east", "west")]
    for store in stores:
        with Term(str(store), settings=RESTLESS) as term:
            term.add_durably(1, ORDERS)
            term.store.rotate().result(10)

    summary = run(spark, Sources(tuple(map(str, stores))), str(tmp_path / "out"))

    for table in summary.tables:
        assert {row[table.columns.index("store")] for row in table.rows} == set(map(str, stores)), table.title
    bars = next(plot for plot in summary.plots if isinstance(plot, Bars))
    assert {label for label, _ in bars.bars} == {f"{store} {ORDERS}" for store in stores}


def _churn(term: Term) -> None:
    """Add and remove messages of more bytes than a file."""
    owner = term.store.queue(BUSY)
    term.take(term.add_durably(40, BUSY, body=b"x" * 2000), owner)


def test_bounds_of_files_are_refused_before_spark_starts(store: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["pipeline", "pins", str(store), "--out", str(tmp_path / "out"), "--to-file", "1"])
    assert done.exit_code == 1
    assert "this job must read all files" in done.output


def test_spans_begin_and_end_with_what_declares_them() -> None:
    def text(at: int, command: str, kind: str, name: str, subscription: str | None = None) -> Declared:
        return Declared("s", at, command, kind, name, subscription)

    topics = spans(
        [
            text(10, "SUBSCRIPTION", "topic", "news", "c:one"),
            text(20, "SUBSCRIPTION", "topic", "news", "c:one"),  # written anew
            text(30, "SUBSCRIPTION", "topic", "news", "c:two"),
            text(40, "UNSUBSCRIPTION", "topic", "news", "c:one"),
            text(50, "SUBSCRIPTION", "topic", "news", "c:one"),
            text(60, "REMOVE_DESTINATION", "queue", "orders"),
            text(70, "REMOVE_DESTINATION", "topic", "news"),
            text(80, "REMOVE_DESTINATION", "queue", "orders"),
            text(90, "UNSUBSCRIPTION", "topic", "news", "c:never"),
            text(95, "SUBSCRIPTION", "topic", "prices", "c:one"),
        ]
    )
    assert sorted(topics, key=lambda span: span[4]) == [
        ("s", "queue", "orders", None, 0, 60),
        ("s", "topic", "news", "c:one", 10, 40),
        ("s", "topic", "news", "c:two", 30, 70),
        ("s", "topic", "news", "c:one", 50, 70),
        ("s", "queue", "orders", None, 60, 80),
        ("s", "queue", "orders", None, 80, None),
        ("s", "topic", "prices", "c:one", 95, None),
    ]


def test_findings_name_ranges_of_files_and_what_is_not_known() -> None:
    verdicts = [
        Verdict("s", 7, 1024, "held", True, ["message"], 3, 100, 10.24, None),
        Verdict("s", 8, 1024, "held", True, ["acks_of"], 0, 0, None, 7),
        Verdict("s", 9, 1024, "reclaimable", False, [], 0, 0, None, None),
        Verdict("s", 12, 1024, "tail", True, ["current"], 0, 0, None, None),
    ]
    drain = Drained("s", "queue://orders", 3, datetime(2026, 11, 3, 9, tzinfo=UTC), (7, 8, 12), 3072)
    assert findings(verdicts, [drain], archived=5, damaged=10) == (
        "3 of 4 files are held, 3.0 KiB, for 100 B of live messages.",
        "db-7.log to db-8.log, db-12.log are held by 3 messages of queue://orders (the oldest of 2026-11-03 09:00). "
        "If they are consumed, 3.0 KiB can be removed.",
        "Nothing needs 1 files, 1.0 KiB: the next checkpoint of a broker removes them.",
        "10 B are damaged, and their references to other files are unknown: `tandemmq pipeline verify` shows where.",
        "5 files of archives were left out: no broker needs them.",
    )
