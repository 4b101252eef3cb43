"""What ``tandemmq pipeline`` says before Spark has started; runs with and without the extra."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tandemmq.cli import main
from tandemmq.journal.format import encode_batch
from tandemmq.pipeline.jobs import JOBS
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
    done = CliRunner().invoke(main, ["pipeline", "composition", str(store), "--out", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert "tandemmq[spark]" in done.output
    assert not (tmp_path / "out").exists()


def test_a_directory_without_journals_is_told_before_spark_starts(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["pipeline", "verify", str(tmp_path), "--out", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert "no journal files" in done.output


@pytest.mark.parametrize("below", [".", "out"])
def test_results_do_not_go_into_a_store(store: Path, below: str) -> None:
    done = CliRunner().invoke(main, ["pipeline", "verify", str(store), "--out", str(store / below)])
    assert done.exit_code == 1
    assert "only read" in done.output
    assert sorted(path.name for path in store.iterdir()) == ["db-1.log", "db-2.log"]


def test_results_do_not_go_into_another_store(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "db-7.log").write_bytes(b"")
    done = CliRunner().invoke(main, ["pipeline", "verify", str(store), "--out", str(other)])
    assert done.exit_code == 1
    assert "holds a journal" in done.output


def test_closed_files_alone_leave_nothing_of_a_store_with_one_file(store: Path, tmp_path: Path) -> None:
    (store / "db-1.log").unlink()
    done = CliRunner().invoke(main, ["pipeline", "verify", str(store), "--closed", "--out", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert "--closed" in done.output


def test_a_setting_of_spark_has_a_key_and_a_value(store: Path, tmp_path: Path) -> None:
    arguments = ["pipeline", "verify", str(store), "--out", str(tmp_path / "out"), "--conf", "spark.x"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert "KEY=VALUE" in done.output


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


def test_a_url_is_left_to_who_reads_it_and_a_path_must_be_there(tmp_path: Path) -> None:
    for source, text in (("nosuch://bucket/archive", "nosuch://"), (str(tmp_path / "no"), "does not exist")):
        done = CliRunner().invoke(main, ["pipeline", "verify", source, "--out", str(tmp_path / "out")])
        assert done.exit_code != 0
        assert text in done.output


@pytest.mark.parametrize(
    ("out", "expected"),
    [
        ("file/below", "is no directory"),
        ("sealed/below", "no permission to write"),
        ("s3a://bucket/out", "results are written to a directory"),
    ],
)
def test_where_nothing_can_be_written_is_told_before_spark_starts(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "sealed").mkdir(mode=0o500)
    if os.geteuid() == 0 and out.startswith("sealed"):
        pytest.skip("root may write everywhere")
    done = CliRunner().invoke(main, ["pipeline", "verify", str(store), "--out", out])
    assert done.exit_code != 0
    assert expected in done.output


def test_a_master_that_is_none_is_told(store: Path, tmp_path: Path) -> None:
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
