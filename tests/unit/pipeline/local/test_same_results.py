"""Each job has the same results with DuckDB in this process as with Spark."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("duckdb", reason="duckdb is not installed: the extra local")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: the extra local")

import pyarrow as pa
import pyarrow.parquet as pq

from tandemmq.pipeline.jobs import JOBS, archive
from tandemmq.pipeline.jobs.summary import Summary
from tandemmq.pipeline.jobs.tables import Sources
from tandemmq.pipeline.lake import TABLES, Layout
from tandemmq.pipeline.local.session import LocalSession
from tandemmq.pipeline.sending.request import UNACKNOWLEDGED, ReplayRequest
from tests.support.pipeline.pipeline_journals import NOW_MS
from tests.support.pipeline.pipeline_stores import write_stores
from tests.support.prove import SEED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Jobs that CI runs by both engines; a proof runs all.
SAMPLE = ("composition", "duplicates", "verify")
LEFT = [pytest.mark.prove, pytest.mark.proof_only]
MOMENT = datetime.fromtimestamp((NOW_MS + 120_000_000) / 1000, UTC)
OPTIONS: dict[str, dict[str, Any]] = {
    "at": {"time": MOMENT, "with_bodies": True},
    "latency": {"window_seconds": 7200},
    "archive": {"layout": Layout(raw=True)},
    "replay": {"request": ReplayRequest(only=UNACKNOWLEDGED, since=MOMENT, where="priority = 4"), "rate": 7.0},
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    print(f"TANDEMMQ_SEED={SEED}")
    return write_stores(tmp_path_factory.mktemp("stores"), random.Random(SEED))


@pytest.mark.service
@pytest.mark.parametrize("job", [pytest.param(job, marks=[] if job in SAMPLE else LEFT) for job in JOBS])
def test_a_job_says_the_same_by_both_engines(
    job: str, stores: tuple[str, ...], spark: SparkSession, tmp_path: Path
) -> None:
    run: Callable[..., Summary] = import_module(JOBS[job]).run
    options = OPTIONS.get(job, {})
    if job == "archive":  # it refuses files that differ from their manifests
        stores = tuple(each for each in stores if not each.endswith("/handed"))
    by_spark = run(spark, Sources(stores), str(tmp_path / "spark"), **options)
    with LocalSession(tmp_path / "local") as session:
        by_local = run(session, Sources(stores), str(tmp_path / "local"), **options)
    assert by_local.written.keys() == by_spark.written.keys()
    for name in by_spark.written:
        assert table(by_local.written[name]) == table(by_spark.written[name]), name
        assert directories(by_local.written[name]) == directories(by_spark.written[name]), name
    assert (by_local.findings, by_local.plots) == (by_spark.findings, by_spark.plots)
    for ours, theirs in zip(by_local.tables, by_spark.tables, strict=True):
        assert replace(ours, rows=[list(row) for row in ours.rows]) == theirs
    assert (by_local.is_clean, by_local.reached) == (by_spark.is_clean, by_spark.reached)
    assert not list((tmp_path / "local").glob(".local-*")), "what a session kept is gone"


def table(path: str) -> tuple[dict[str, str], list[Any]]:
    """The types of the columns, and the rows in some order."""
    found = pq.read_table(path)
    kinds = {field.name: _kind(field.type) for field in found.schema}
    return kinds, sorted(map(_row, found.to_pylist()), key=repr)


def directories(path: str) -> set[str]:
    return {str(each.parent.relative_to(path)) for each in Path(path).rglob("[!._]*.parquet")}


def _kind(kind: pa.DataType) -> str:
    """Spark writes times in nanoseconds, and without a zone; how the elements of a list are called says nothing."""
    if pa.types.is_list(kind):
        return f"list of {_kind(kind.value_type)}"
    return "timestamp" if pa.types.is_timestamp(kind) else str(kind)


def _row(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _utc(value) if isinstance(value, datetime) else value for name, value in row.items()}


def _utc(time: datetime) -> datetime:
    return time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo is not None else time


@pytest.mark.service
def test_a_lake_of_either_engine_is_added_to_and_read_by_both(
    stores: tuple[str, ...], spark: SparkSession, tmp_path: Path
) -> None:
    one, other = (Sources(tuple(each for each in stores if each.endswith(name))) for name in ("/life", "/timed"))
    lakes = str(tmp_path / "one"), str(tmp_path / "other")
    with LocalSession(tmp_path / "session") as session:
        archive.run(session, one, lakes[0])  # type: ignore[arg-type]
    archive.run(spark, other, lakes[0])
    archive.run(spark, one, lakes[1])
    with LocalSession(tmp_path / "session") as session:
        archive.run(session, other, lakes[1])  # type: ignore[arg-type]
        for name in TABLES:
            wanted = _rows(archive.read(spark, lakes[0], name))
            assert wanted
            assert _rows(archive.read(spark, lakes[1], name)) == wanted
            for lake in lakes:
                assert _rows(archive.read(session, lake, name)) == wanted  # type: ignore[arg-type]


def _rows(frame: Any) -> list[str]:
    return sorted(map(_plain, frame.select(*sorted(frame.columns)).collect()))


def _plain(row: Any) -> str:
    """Return one form for both drivers: one gives a map as a dict, the other as pairs."""
    return repr(
        [sorted(dict(value).items()) if isinstance(value, dict | list) else _bytes(value) for value in map(_naive, row)]
    )


def _bytes(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


def _naive(value: Any) -> Any:
    return _utc(value) if isinstance(value, datetime) else value
