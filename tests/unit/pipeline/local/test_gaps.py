"""A job reports the data that it could not read, and the figures that are therefore uncertain. With DuckDB."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb", reason="duckdb is not installed: the extra local")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: the extra local")

from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import END_RECORD, encode_batch
from tandemmq.pipeline.columns import MESSAGES
from tandemmq.pipeline.jobs import JOBS, replay
from tandemmq.pipeline.jobs.summary import Summary
from tandemmq.pipeline.jobs.tables import Sources
from tandemmq.pipeline.local.session import LocalSession
from tandemmq.pipeline.sending.request import ReplayRequest
from tandemmq.store.maintenance.archive import Archive
from tandemmq.store.records.commands import encode_trace
from tandemmq.store.records.message import BodyKind
from tests.support.pipeline.pipeline_journals import NOW_MS, add, write_foreign

# By job the words in which it says what a missing file, and damage, make of its answer.
UNCERTAIN = {
    "latency": "are not counted: some waiting messages may no longer exist",
    "duplicates": "copies in them are not found",
    "dlq": "dead letters in them are not listed",
    "composition": "their content is not counted",
    "verify": "their content is lost",
    "pins": "their references to other files are unknown",
}
OWN: dict[str, dict[str, Any]] = {"replay": {"request": ReplayRequest()}, "at": {"file": 99, "offset": 0}}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Summary]]:
    with LocalSession(tmp_path / "session") as session:

        def run(job: str, store: Path, **bounds: Any) -> Summary:
            own = OWN.get(job, {})
            summary: Summary = import_module(JOBS[job]).run(
                session, Sources((str(store),), **bounds), str(tmp_path / "out" / job), **own
            )
            return summary

        yield run


@pytest.mark.parametrize("job", [*UNCERTAIN, "replay", "at"])
def test_a_missing_file_is_told(run: Callable[..., Summary], store: Path, job: str) -> None:
    assert "missing" not in " ".join(run(job, store).findings)
    (store / "db-2.log").unlink()
    summary = run(job, store)
    assert not summary.is_clean
    told = " ".join(summary.findings)
    if job == "replay":
        assert "Not sent: 1 files of the journal that are missing" in told
    elif job == "at":
        assert "1 files that existed then are missing here (db-2.log)" in told
    else:
        assert f"{store}: db-2.log is missing, and no broker removed it." in told
        assert UNCERTAIN[job] in told


@pytest.mark.parametrize("job", ["latency", "duplicates", "dlq"])
def test_a_damaged_batch_is_told(run: Callable[..., Summary], store: Path, job: str) -> None:
    content = bytearray((store / "db-2.log").read_bytes())
    content[9_000] ^= 1
    (store / "db-2.log").write_bytes(content)
    summary = run(job, store)
    assert not summary.is_clean
    told = " ".join(summary.findings)
    assert "Damaged: 1 place, " in told
    assert UNCERTAIN[job] in told


def test_files_that_were_excluded_are_not_missing(run: Callable[..., Summary], store: Path) -> None:
    for bounds in ({"first": 3}, {"is_tail_wanted": False}):
        assert run("latency", store, **bounds).is_clean, bounds
    assert run("latency", store / "db-2.log").is_clean


def test_of_a_journal_without_headers_a_hole_is_told_and_is_no_fault(
    run: Callable[..., Summary], tmp_path: Path
) -> None:
    for file in (2, 4):
        write_foreign(tmp_path / "foreign" / f"db-{file}.log", [[add(file, timestamp=NOW_MS + file)]])
    summary = run("latency", tmp_path / "foreign")
    assert summary.is_clean
    assert any("db-3.log is not there. ActiveMQ removes files" in each for each in summary.findings)


def test_a_lake_says_what_it_could_not_have(run: Callable[..., Summary], store: Path) -> None:
    (store / "db-2.log").unlink()
    told = " ".join(run("archive", store).findings)
    assert f"Missing, and not removed by a broker; the lake lacks their content: {store}: db-2.log." in told


def test_a_file_that_is_not_in_the_archive_may_be_in_the_store(run: Callable[..., Summary], store: Path) -> None:
    Archive(JournalFiles(str(store)), str(store / "data-archive")).remove([1, 3])
    summary = run("latency", store / "data-archive")
    assert summary.is_clean
    assert any("db-2.log is not among these archived files" in each for each in summary.findings)
    assert run("latency", store).is_clean


@pytest.mark.parametrize("has_own_file", [True, False])
def test_files_reclaimed_by_activemq_are_no_loss(run: Callable[..., Summary], store: Path, has_own_file: bool) -> None:
    """ActiveMQ continues with a journal that was handed back, and reclaims files that a header names."""
    (store / "db-1.log").unlink()
    newest = max(store.glob("db-?.log"))
    batch, _ = encode_batch([encode_trace("LOADED Sun Nov 29 05:00:00 UTC 2026")])
    if has_own_file:
        newest = newest.with_name(f"db-{int(newest.stem[3:]) + 1}.log")
        newest.write_bytes(batch)
    else:
        content = newest.read_bytes()
        end = content.index(END_RECORD)
        newest.write_bytes(content[:end] + batch + content[end + len(batch) :])
    for job, told in (("latency", "db-1.log is not there. ActiveMQ removes files"), ("at", "ActiveMQ removes files")):
        summary = run(job, store)
        assert summary.is_clean, summary.findings
        assert any(told in each for each in summary.findings)


def test_an_empty_body_is_sent_and_an_omitted_body_is_reported(tmp_path: Path) -> None:
    write_foreign(tmp_path / "store" / "db-1.log", [[add(1, b"", body_kind=BodyKind.BYTES), add(2, b"x")]])
    with LocalSession(tmp_path / "local") as session:
        messages = Sources((str(tmp_path / "store"),)).read(session, MESSAGES)  # type: ignore[arg-type]
        messages.write.mode("overwrite").parquet(str(tmp_path / "whole"))
        messages.drop("body").write.mode("overwrite").parquet(str(tmp_path / "bare"))
        for source, sent in (("store", 2), ("whole", 2), ("bare", 0)):
            out = str(tmp_path / f"of-{source}")
            summary = replay.run(session, Sources((str(tmp_path / source),)), out, request=ReplayRequest())  # type: ignore[arg-type]
            assert summary.findings[0].startswith(f"{sent} messages, "), summary.findings
            assert summary.is_clean is (source != "bare")
