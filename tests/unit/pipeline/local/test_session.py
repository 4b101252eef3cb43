"""Jobs by DuckDB, where there is neither Spark nor Java."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("duckdb", reason="duckdb is not installed: the extra local")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: the extra local")

from tandemmq.cli import main
from tandemmq.pipeline.columns import RECORDS
from tandemmq.pipeline.engine import F, Window
from tandemmq.pipeline.jobs import JOBS
from tandemmq.pipeline.jobs.tables import Sources
from tandemmq.pipeline.lake import LEDGER
from tandemmq.pipeline.local.session import LocalSession
from tandemmq.pipeline.parts import FileGone
from tests.support.pipeline.pipeline_stores import write_stores
from tests.support.prove import SEED
from tests.support.tree import ROOT as TREE

# Spark cannot be imported, and nothing says where a Java would be.
WITHOUT_SPARK = """
import json, sys
sys.modules["pyspark"] = None
from tandemmq.cli import main

codes = {}
for job in sys.argv[3].split(","):
    own = {"at": ["--time", "2023-11-16"], "replay": ["--dry-run"]}.get(job, [])
    try:
        main(["pipeline", job, sys.argv[1], "--out", f"{sys.argv[2]}/{job}", "--engine", "local", *own])
    except SystemExit as end:
        codes[job] = end.code
print(json.dumps(codes), file=sys.stderr)
"""


@pytest.mark.thorough
def test_every_job_runs_without_spark(tmp_path: Path) -> None:
    write_stores(tmp_path / "stores", random.Random(1))
    out = tmp_path / "out"
    environment = {name: value for name, value in os.environ.items() if name not in ("PATH", "JAVA_HOME")}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK, str(tmp_path / "stores"), str(out), ",".join(JOBS)],
        cwd=TREE,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(done.stderr.splitlines()[-1]) == {
        "composition": 0,
        "verify": 1,
        "duplicates": 1,
        "latency": 1,
        "pins": 1,
        "at": 1,
        "dlq": 1,
        "archive": 1,
        "replay": 1,
    }, done.stdout + done.stderr
    letters = json.loads((out / "dlq" / "dlq.json").read_text())
    assert letters["findings"][0] == "60 dead letters of 3 causes; 42 are still there."
    for job in JOBS:
        reports = out / job / (LEDGER if job == "archive" else "")
        figures = json.loads((reports / f"{job}.json").read_text())
        assert figures["written"]
        assert (reports / f"{job}.html").is_file()
        for directory in figures["written"].values():
            assert list(Path(directory).rglob("*.parquet"))
        if job in ("archive", "replay"):
            continue  # closed files, and a plan
        assert {reach["store"] for reach in figures["read"]} == {str(each) for each in (tmp_path / "stores").iterdir()}


def test_settings_of_spark_are_none_of_the_local_engine(store: Path, tmp_path: Path) -> None:
    arguments = ["pipeline", "verify", str(store), "--out", str(tmp_path / "out"), "--engine", "local"]
    for own, told in ((["--master", "local[2]"], "--master"), (["--conf", "spark.x=1"], "spark.x")):
        done = CliRunner().invoke(main, [*arguments, *own])
        assert done.exit_code == 2
        assert told in done.output


def test_without_duckdb_the_extra_is_named(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    arguments = ["pipeline", "verify", str(store), "--out", str(tmp_path / "out"), "--engine", "local"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1
    assert "tandemmq[local]" in done.output


def test_a_file_deleted_before_its_read_is_reported(store: Path, tmp_path: Path) -> None:
    with LocalSession(tmp_path / "out") as session:
        read = Sources((str(store),)).fixed(session).read(session, RECORDS, ("offset",))  # type: ignore[arg-type]
        (store / "db-2.log").unlink()
        with pytest.raises(FileGone, match=r"db-2\.log was deleted after this read was planned"):
            read.count()
    assert not list((tmp_path / "out").iterdir()), "what the session kept is gone, also after a failure"


def test_a_reused_frame_reads_the_present_files(store: Path, tmp_path: Path) -> None:
    with LocalSession(tmp_path / "out") as session:
        read = Sources((str(store),)).read(session, RECORDS, ("file",))  # type: ignore[arg-type]
        before = read.count()
        gone = read.where("file = 1").count()
        (store / "db-1.log").unlink()
        assert read.count() == before - gone


def test_nulls_stand_where_spark_has_them(tmp_path: Path) -> None:
    """Nulls are first in ascending order, and last in descending order; a window has only the ascending order."""
    with LocalSession(tmp_path) as session:
        frame = session.createDataFrame([("a", 2), ("a", None), ("a", 1)], "name STRING, n INT")
        assert [row.n for row in frame.orderBy("n").collect()] == [None, 1, 2]
        assert [row.n for row in frame.orderBy(F.desc("n")).collect()] == [2, 1, None]
        before = Window.partitionBy("name").orderBy("n")
        lagged = frame.withColumn("before", F.lag("n").over(before)).orderBy("n").collect()
        assert [tuple(row) for row in lagged] == [("a", None, None), ("a", 1, None), ("a", 2, 1)]


# A job that gets a signal to end at random moments, repeatedly.
TOLD_TO_END = """
import os, random, signal, sys, threading
from tandemmq.pipeline.local.session import LocalSession
from tandemmq.pipeline.stopping import Stopped, stop_on_sigterm

chance = random.Random(int(sys.argv[2]))
with LocalSession(sys.argv[1]) as session:
    for _ in range(30):
        stop_on_sigterm()
        told = threading.Timer(chance.random() * 0.05, os.kill, (os.getpid(), signal.SIGTERM))
        try:
            with session.scope():
                told.start()
                while True:
                    session.kept(session.createDataFrame([(1,)], "a BIGINT"))
                    session.rows("SELECT count(*) FROM range(100000)")
        except Stopped:
            told.join()
    print("ended", len(session.rows("SELECT 1 AS one")))
"""


def test_a_job_that_is_told_to_end_ends_wherever_it_is(tmp_path: Path) -> None:
    print(f"TANDEMMQ_SEED={SEED}")
    command = [sys.executable, "-c", TOLD_TO_END, str(tmp_path), str(SEED)]
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=100)
    assert done.stdout == "ended 1\n", done.stderr[-4000:]
