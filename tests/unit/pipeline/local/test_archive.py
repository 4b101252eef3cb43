"""The message lake without Spark: each file once, whatever is killed, as long as the job runs."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("duckdb", reason="duckdb is not installed: the extra local")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: the extra local")

import pyarrow.parquet as pq

from tandemmq.pipeline.jobs import archive
from tandemmq.pipeline.jobs.tables import Sources
from tandemmq.pipeline.lake import LEDGER, TABLES, LakeError, Layout, committed
from tandemmq.pipeline.local.session import LocalSession
from tandemmq.pipeline.rows import rows
from tandemmq.pipeline.stopping import Stopped
from tandemmq.pipeline.stores import journal_files
from tests.support.acceptance.broker_process import wait_until
from tests.support.pipeline.pipeline_journals import add, write_foreign, write_store
from tests.support.prove import IS_PROOF, SEED
from tests.support.tree import ROOT

SPARK = ["--master", "local[2]"]
for setting in ("spark.sql.shuffle.partitions=2", "spark.sql.adaptive.enabled=false"):
    SPARK += ["--conf", setting]
SECONDS_MAX = 300.0


def in_journals(store: Path, table: str) -> Counter[tuple[int, int]]:
    """(file, offset) of each row of closed files, as the decoder alone finds them."""
    return Counter((row[1], row[2]) for file in journal_files([str(store)]) for row in rows(file, table))


def in_lake(lake: Path, table: str) -> Counter[tuple[int, int]]:
    found: Counter[tuple[int, int]] = Counter()
    for path in (lake / table).rglob("*.parquet"):
        read = pq.ParquetFile(path).read(columns=["file", "offset"])
        found.update(zip(read["file"].to_pylist(), read["offset"].to_pylist(), strict=True))
    return found


def has_begun(process: subprocess.Popen[bytes], staging: Path) -> bool:
    return process.poll() is not None or (staging.is_dir() and any(staging.iterdir()))


def is_ready(process: subprocess.Popen[bytes]) -> bool:
    """Return whether the job has ended, or ends in order on SIGTERM."""
    if process.poll() is not None:
        return True
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def test_an_endless_run_adds_new_files_and_keeps_nothing_of_its_rounds(tmp_path: Path) -> None:
    store, lake = tmp_path / "store", tmp_path / "lake"
    there: list[int] = []
    lines: list[str] = []
    with LocalSession(tmp_path / "session") as session:

        def wait(seconds: float) -> None:
            there.append(session.rows("SELECT count(*) FROM duckdb_views() WHERE NOT internal")[0][0])
            if len(there) == 4:
                raise Stopped
            for file in (2 * len(there) - 1, 2 * len(there)):
                write_foreign(store / f"db-{file}.log", [[add(10 * file, b"x")]])

        sources = Sources((str(store),))
        summary = archive.run(session, sources, str(lake), every=10.0, wait=wait, report=lines.append)  # type: ignore[arg-type]
    assert set(there) == {0}
    assert lines[0].startswith("waiting: no journal files"), "it begins before there is a store"
    assert [line.split()[0] for line in lines[1:]] == ["added", "repeated", "added", "added"]
    assert summary.findings[0].startswith("5 journal files")
    assert len(committed(str(lake))) == 3
    for table in TABLES:
        assert in_lake(lake, table) == in_journals(store, table)


def test_the_whole_content_of_a_lake_is_read(tmp_path: Path) -> None:
    write_store(tmp_path / "store", 300)
    lake = str(tmp_path / "lake")
    with LocalSession(tmp_path / "session") as session:
        archive.run(session, Sources((str(tmp_path / "store"),)), lake, layout=Layout(raw=True))  # type: ignore[arg-type]
        for table in TABLES:
            found = archive.read(session, lake, table)  # type: ignore[arg-type]
            places = Counter((row.file, row.offset) for row in found.collect())
            assert places == in_journals(tmp_path / "store", table)
        [kept] = archive.read(session, lake, "messages").orderBy("file", "offset").take(1)  # type: ignore[arg-type]
        assert (kept.destination, kept.body, kept.raw is not None) == ("orders", b"x" * 500, True)
        with pytest.raises(LakeError, match="has no"):
            archive.read(session, str(tmp_path), "messages")  # type: ignore[arg-type]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("engine", "seconds"),
    [
        pytest.param(["--engine", "local"], 0.5, id="local"),
        pytest.param(
            SPARK, 4.0, id="spark", marks=[pytest.mark.service, pytest.mark.proof_only, pytest.mark.timeout(1800)]
        ),
    ],
)
def test_killed_at_any_moment_and_run_again_each_message_is_there_once(
    request: pytest.FixtureRequest, tmp_path: Path, engine: list[str], seconds: float
) -> None:
    """The real command; the last one runs for ever, and ends on SIGTERM. With Spark its Java is killed, too."""
    if engine is SPARK:
        request.getfixturevalue("spark_installed")
    print(f"TANDEMMQ_SEED={SEED}")
    chance = random.Random(SEED)
    store, lake = tmp_path / "store", tmp_path / "lake"
    write_store(store, 1500)
    wanted = {table: in_journals(store, table) for table in TABLES}
    named = [sys.executable, "-m", "tandemmq", "pipeline", "archive", str(store), "--out", str(lake)]
    for _ in range(5 if IS_PROOF else 1):
        command = [*named, *engine]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True) as killed:
            try:
                wait_until(partial(has_begun, killed, lake / LEDGER / "staging"), "it has begun", SECONDS_MAX)
                time.sleep(chance.random() * seconds)
            finally:
                os.killpg(killed.pid, signal.SIGKILL)
        for table in TABLES:
            assert set(in_lake(lake, table).values()) <= {1}, "nothing is twice at any moment"
    with subprocess.Popen([*named, *engine, "--every", "1s"], cwd=ROOT) as again:
        try:
            # What was killed may have added all of them.
            wait_until(lambda: committed(str(lake)) and is_ready(again), "it has added them", SECONDS_MAX)
            os.kill(again.pid, signal.SIGTERM)
            assert again.wait(120) == 0, "SIGTERM is no failure"
        finally:
            again.kill()
    for table, expected in wanted.items():
        assert in_lake(lake, table) == expected, table
