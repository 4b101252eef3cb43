"""Messages of ``tandemmq pipeline`` before Spark has started; the tests run with and without the extra."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tandemmq.cli import main
from tandemmq.journal.format import encode_batch
from tandemmq.pipeline import choice
from tandemmq.pipeline.jobs import JOBS
from tandemmq.pipeline.session import NoSpark
from tandemmq.store.records.commands import encode_trace
from tests.support.tree import ROOT as TREE


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A journal of two files."""
    directory = tmp_path / "store"
    directory.mkdir()
    for file in (1, 2):
        (directory / f"db-{file}.log").write_bytes(encode_batch([encode_trace("hello")])[0])
    return directory


def test_without_spark_the_extra_is_named(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    done = CliRunner().invoke(main, ["pipeline", "composition", str(store), "--out", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert "tandemmq[spark]" in done.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("asked", "bytes", "needs_spark", "missing", "name", "why"),
    [
        ("auto", 50 << 20, None, (), "local", "50.0 MiB are read, no more than 512.0 MiB"),
        ("auto", 600 << 20, None, (), "spark", "600.0 MiB are read, more than 512.0 MiB"),
        ("auto", None, None, (), "spark", "the size of the data is unknown"),
        ("auto", 1, "--master is Spark's", (), "spark", "--master is Spark's"),
        ("auto", 1, None, ("duckdb",), "spark", "DuckDB is not installed (the extra local)"),
        ("auto", 600 << 20, None, ("pyspark",), "local", "Spark is not installed (the extra spark)"),
        ("auto", 600 << 20, None, ("java",), "local", "Spark needs Java, and there is none"),
        ("local", 600 << 20, None, (), "local", "--engine names it"),
        ("spark", 1, None, (), "spark", "--engine names it"),
    ],
)
def test_little_data_is_computed_without_spark(
    monkeypatch: pytest.MonkeyPatch,
    asked: str,
    bytes: int | None,
    needs_spark: str | None,
    missing: tuple[str, ...],
    name: str,
    why: str,
) -> None:
    def check_java() -> None:
        if "java" in missing:
            raise NoSpark("Spark needs Java, and there is none")

    monkeypatch.setattr(choice, "check_java", check_java)
    monkeypatch.setattr(choice, "_is_there", lambda module: module not in missing)
    monkeypatch.setattr(choice, "_has_session", lambda: False)
    assert choice.choose(asked, bytes, needs_spark) == choice.Choice(name, why)


def test_the_answer_says_which_engine_gave_it(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("duckdb", reason="duckdb is not installed: the extra local")
    monkeypatch.setattr(choice, "_has_session", lambda: False)
    out = tmp_path / "out"
    done = CliRunner().invoke(main, ["pipeline", "composition", str(store), "--out", str(out)])
    assert done.exit_code == 0, done.output
    told = "Computed by DuckDB, in the process of the command: "
    assert told in done.output
    assert told in (out / "composition.html").read_text()
    assert json.loads((out / "composition.json").read_text())["engine"]["name"] == "local"


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ("empty --out out", 1, "no journal files"),
        ("no --out out", 2, "does not exist"),
        ("nosuch://bucket/archive --out out", 1, "nosuch://"),
        ("store --out store", 1, "only read"),
        ("store --out store/out", 1, "only read"),
        ("store --out other", 1, "contains a journal"),
        ("store --out file/below", 1, "is no directory"),
        ("store --out sealed/below", 1, "no permission to write"),
        ("store --out s3a://bucket/out", 2, "results can be written only to a directory"),
        ("other --out out --closed", 2, "--closed"),
        ("store --out out --conf spark.x", 2, "KEY=VALUE"),
    ],
)
def test_an_impossible_job_is_reported_before_spark_starts(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, code: int, told: str
) -> None:
    if os.geteuid() == 0 and "sealed" in arguments:
        pytest.skip("root may write everywhere")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "sealed").mkdir(mode=0o500)
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    shutil.copy(store / "db-2.log", tmp_path / "other")
    done = CliRunner().invoke(main, ["pipeline", "verify", *arguments.split()])
    assert (done.exit_code, told in done.output) == (code, True), done.output
    assert sorted(path.name for path in store.iterdir()) == ["db-1.log", "db-2.log"]
    assert not (tmp_path / "out").exists()


def test_the_help_names_every_job_and_imports_no_spark() -> None:
    output = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys\nfrom tandemmq.cli import main\n"
            "main(['pipeline', '--help'], standalone_mode=False)\nassert 'pyspark' not in sys.modules",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert set(JOBS) <= {line.split()[0] for line in output.splitlines() if line.strip()}


def test_an_invalid_master_is_reported(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed: the extra spark")
    # Of its own process: a session of other tests has its master.
    done = subprocess.run(
        [sys.executable, "-m", "tandemmq", "pipeline", "verify", str(store), "--out", str(tmp_path), "--master", "x"],
        cwd=TREE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        "Error: 'x' is no master of Spark: local[*], local[4], spark://host:7077, yarn, k8s://https://host:443\n"
    )
