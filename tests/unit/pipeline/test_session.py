"""Requirements of a session of `tandemmq.pipeline`, and its traces in the process; starts no Spark."""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from tandemmq.pipeline.session import (
    LOG4J,
    SMALL_BYTES,
    NoSpark,
    check_java,
    check_master,
    defaults,
    environment,
    environment_of_java,
)
from tandemmq.pipeline.stopping import Stopped, signals_held, stop_on_sigterm


def test_a_java_that_is_too_old_or_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NoSpark, match=r"Spark needs Java 17 or newer, and there is none at .*: install one"):
        check_java()
    java.parent.mkdir()
    for text, told in (
        ('openjdk version "11.0.2" 2019-01-15', "is Java 11"),
        ('java version "1.8.0_202"', "is Java 8"),
        ("nonsense", "does not show its version"),
    ):
        java.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
        java.chmod(stat.S_IRWXU)
        with pytest.raises(NoSpark, match=told):
            check_java()
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\"' >&2\n")
    check_java()


def test_an_interpreter_that_the_user_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert environment_of_java("local[2]", {})["PYSPARK_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "/their/python")
    assert "PYSPARK_PYTHON" not in environment_of_java("local[2]", {})


def test_the_log_is_quiet_unless_the_user_has_a_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_CONF_DIR", "JAVA_TOOL_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dtheir=1")
    text = environment_of_java("yarn", {})["SPARK_SUBMIT_OPTS"]
    assert text.startswith("-Dtheir=1 ")
    assert LOG4J.as_uri() in text
    assert LOG4J.is_file()
    theirs = {"spark.driver.extraJavaOptions": "-Dlog4j2.configurationFile=file:/theirs"}
    assert "SPARK_SUBMIT_OPTS" not in environment_of_java("yarn", theirs)
    monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
    assert "SPARK_SUBMIT_OPTS" not in environment_of_java("yarn", {})


def test_the_environment_is_afterwards_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE", "1")
    monkeypatch.delenv("NOT_THERE", raising=False)
    before = dict(os.environ)
    with environment({"THERE": "2", "NOT_THERE": "3"}):
        assert (os.environ["THERE"], os.environ["NOT_THERE"]) == ("2", "3")
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    "master", ["local", "local[*]", "local[2,3]", "local-cluster[2,1,1024]", "yarn", "k8s://https://h"]
)
def test_a_master_of_spark_is_one(master: str) -> None:
    check_master(master)


@pytest.mark.parametrize("master", ["", "lokal[2]", "local[", "http://host:7077", "yarn-client"])
def test_an_invalid_master_is_reported(master: str) -> None:
    with pytest.raises(NoSpark, match="is no master of Spark"):
        check_master(master)


def test_a_master_that_does_not_answer_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as there:
        port = there.getsockname()[1]
        check_master(f"spark://127.0.0.1:{port}")
    with pytest.raises(NoSpark, match=rf"no master of Spark answers .*127.0.0.1:{port}: .*refused"):
        check_master(f"spark://127.0.0.1:{port}")
    with pytest.raises(NoSpark, match="no master of Spark answers"):
        check_master("spark://127.0.0.1")


def test_a_session_for_little_starts_quickly_unless_java_was_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    little = defaults("local[*]", SMALL_BYTES)
    assert little["spark.sql.shuffle.partitions"] == "2"
    assert "SerialGC" in little["spark.driver.extraJavaOptions"]
    for much in (defaults("local[*]", SMALL_BYTES + 1), defaults("local[*]"), defaults("yarn", 1)):
        assert not {"spark.sql.shuffle.partitions", "spark.driver.extraJavaOptions"} & much.keys()
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseG1GC")
    assert "spark.driver.extraJavaOptions" not in defaults("local[*]", 1)


# ---- Signals that raise, and code that would lose what they raise


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_sigterm_stops_behind_the_block_and_interrupts_what_runs_in_it() -> None:
    stop_on_sigterm()
    told: list[str] = []

    def act() -> None:
        with signals_held(lambda: told.append("interrupt")):
            os.kill(os.getpid(), signal.SIGTERM)
            told.append("goes on")
            raise RuntimeError("interrupted")

    with pytest.raises(Stopped):
        act()
    assert told == ["interrupt", "goes on"]


def test_without_a_signal_nothing_changes() -> None:
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    signal.signal(signal.SIGTERM, note)
    with signals_held(lambda: None):
        pass
    assert signal.getsignal(signal.SIGTERM) is note
    os.kill(os.getpid(), signal.SIGTERM)
    assert seen == [signal.SIGTERM]
