"""The log: no thread waits for it, lost lines are counted, its file is bounded, it contains no secret, and the text of
a client stays within its line."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemmq.broker.process import log as log_module
from tandemmq.broker.process.log import Lines, Log, UnknownLogger
from tandemmq.broker.process.log_formats import FORMATS, JournalFormatter, TextFormatter
from tandemmq.config.errors import SettingsError
from tandemmq.config.load import load
from tandemmq.config.logging import LoggingSettings
from tandemmq.config.secrets import secrets_in

pytestmark = pytest.mark.promise("log-changes-at-runtime", "no-injection")

OURS = logging.getLogger("tandemmq.broker.net")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Log]]:
    """A log with these settings; of the process, until the test is over."""
    root, before = logging.getLogger(), list(logging.getLogger().handlers)
    level, ours = root.level, logging.getLogger("tandemmq").level
    made: list[Log] = []

    def build(secrets: Any = (), **settings: Any) -> Log:
        made.append(Log(LoggingSettings(**settings), secrets=secrets))
        return made[-1]

    yield build
    for each in made:
        each.take(LoggingSettings())
        each.close()
    root.handlers[:] = before
    root.setLevel(level)
    logging.getLogger("tandemmq").setLevel(ours)


def to_file(path: Path, **more: Any) -> dict[str, Any]:
    return {"target": "file", "file": str(path), **more}


def test_lines_go_to_the_file_and_levels_are_as_said(make: Callable[..., Log], tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = make(**to_file(path, format="json", loggers={"broker": {"net": "debug"}, "store": "error"}))
    OURS.debug("one")
    logging.getLogger("tandemmq.broker.engine").debug("two")
    logging.getLogger("tandemmq.store.store").warning("three")
    logging.getLogger("kazoo.client").debug("four")
    log.close()
    assert [json.loads(line)["message"] for line in path.read_text().splitlines()] == ["one"]
    assert path.stat().st_mode & 0o077 == 0


def test_levels_change_while_it_runs_until_the_settings_are_taken_again(make: Callable[..., Log]) -> None:
    log = make(loggers={"store": "error"})
    log.set_level("broker.net", "debug")
    log.set_level("store", "debug")
    assert log.levels == {"tandemmq": "info", "tandemmq.store": "debug", "tandemmq.broker.net": "debug"}
    assert OURS.isEnabledFor(logging.DEBUG)
    log.set_level("broker.net", None)
    assert not OURS.isEnabledFor(logging.DEBUG)
    log.take(LoggingSettings(level="warning", loggers={"store": "error"}))
    assert log.levels == {"tandemmq": "warning", "tandemmq.store": "error"}
    assert not logging.getLogger("tandemmq.store.store").isEnabledFor(logging.WARNING)
    assert not OURS.isEnabledFor(logging.INFO)


@pytest.mark.parametrize("name", ["brokr.net", "", "os", "broker..net", "tandemmq.nothing"])
def test_a_logger_that_is_none_is_refused(make: Callable[..., Log], name: str) -> None:
    with pytest.raises(UnknownLogger):
        make().set_level(name, "debug")


def test_libraries_say_details_only_when_they_are_named(make: Callable[..., Log]) -> None:
    log = make(level="debug")
    assert not logging.getLogger("kazoo.client").isEnabledFor(logging.DEBUG)
    log.set_level("kazoo", "debug")
    assert logging.getLogger("kazoo.client").isEnabledFor(logging.DEBUG)


def test_a_file_is_kept_within_its_bounds(make: Callable[..., Log], tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = make(**to_file(path, file_max_size=1_024, file_max_count=2))
    for number in range(100):
        OURS.warning("%03d %s", number, "x" * 100)
        log.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["log", "log.1", "log.2"]
    assert all(each.stat().st_size <= 1_024 for each in tmp_path.iterdir())
    kept = "".join((tmp_path / name).read_text() for name in ("log.2", "log.1", "log"))
    numbers = [int(line.split()[3]) for line in kept.splitlines()]
    assert numbers == list(range(numbers[0], 100))


def test_a_renamed_log_file_is_created_again(
    make: Callable[..., Log], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "CHECK_SECONDS", 0.0)
    path = tmp_path / "log"
    log = make(**to_file(path))
    OURS.warning("before")
    log.close()
    path.rename(tmp_path / "rotated")
    OURS.warning("after")
    log.close()
    assert "before" in (tmp_path / "rotated").read_text()
    assert "after" not in (tmp_path / "rotated").read_text()
    assert "after" in path.read_text()


def test_a_file_that_cannot_be_had_is_a_wrong_setting(make: Callable[..., Log], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"logging\.file"):
        make(**to_file(tmp_path / "nowhere" / "log"))
    log = make(**to_file(tmp_path / "log"))
    with pytest.raises(SettingsError):
        log.take(LoggingSettings(**to_file(tmp_path / "nowhere" / "log")))
    OURS.warning("still there")
    log.close()
    assert "still there" in (tmp_path / "log").read_text()


class Stuck:
    """Pipe without a reader until the gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.is_asked = threading.Event()
        self.written = b""

    def write(self, lines: bytes) -> None:
        self.is_asked.set()
        self.gate.wait(30)
        self.written += lines

    def close(self) -> None:
        pass


def test_a_full_pipe_delays_nobody_and_dropped_lines_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "FLUSH_SECONDS_MAX", 0.05)
    monkeypatch.setattr(log_module, "LINES_MAX", 300)
    target = Stuck()
    lines = Lines(logging.Formatter(), target)
    logger = logging.getLogger("tandemmq.broker.process.log")
    logger.addHandler(lines)
    try:
        logger.warning("first")
        assert target.is_asked.wait(10)
        for number in range(300 + 7):
            logger.warning("line %d", number)
        lines.flush()  # gives up
        assert lines.dropped == 7
        target.gate.set()
        deadline = time.monotonic() + 10
        while b"7 lines of the log were dropped" not in target.written:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert target.written.count(b"\nline ") == 300
    finally:
        logger.removeHandler(lines)


class Failing(Stuck):
    def write(self, lines: bytes) -> None:
        if not self.gate.is_set():
            raise OSError(28, "No space left on device")
        self.written += lines


def test_a_disk_that_is_full_costs_lines_and_is_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    target = Failing()
    lines = Lines(logging.Formatter(), target)
    logger = logging.getLogger("tandemmq.broker.process.log")
    logger.addHandler(lines)
    try:
        for _ in range(3):
            logger.warning("lost")
            lines.flush()
        assert lines.dropped == 3
        target.gate.set()
        logger.warning("kept")
        lines.flush()
        lines.flush()  # the report about it comes after
        assert target.written == b"kept\n3 lines of the log were dropped\n"
    finally:
        logger.removeHandler(lines)
    assert capfd.readouterr().err.count("the log cannot be written") == 1


def test_no_secret_is_in_a_line(make: Callable[..., Log], tmp_path: Path) -> None:
    settings = load(
        environ={},
        overrides=[
            "locker.type=lease-database",
            "locker.data_source=postgresql+psycopg://bob:hidden1@h/d",
            "security.ldap.connection_password=hidden-two",
        ],
    )
    path = tmp_path / "log"
    log = make(set(secrets_in(settings.model_dump())), **to_file(path))
    OURS.warning("%s", settings)
    OURS.warning("no connection to %s", settings.locker.data_source)
    try:
        raise ValueError("bind with hidden-two failed")
    except ValueError:
        OURS.exception("x")
    log.close()
    text = path.read_text()
    assert "bind with *** failed" in text
    assert "hidden" not in text


def test_a_line_of_any_bytes_is_written(make: Callable[..., Log], tmp_path: Path) -> None:
    log = make(**to_file(tmp_path / "log"))
    root = logging.getLogger()
    # pytest cannot pass a log with such a character to another process.
    root.handlers[:] = [each for each in root.handlers if not type(each).__module__.startswith("_pytest")]
    OURS.warning("%s", os.fsdecode(b"\xff"))
    log.close()
    assert b"\\udcff" in (tmp_path / "log").read_bytes()


# ---- the content of a line


ATTACK = 'bob\n2026-01-01 INFO all is well\r\x1b[2J\x85\u2028\u202e\x7f" event=started'
TIME = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d"


def record(text: str, *, event: str | None = None, exc_info: Any = None) -> logging.LogRecord:
    made = logging.LogRecord("tandemmq.broker.x", logging.WARNING, __file__, 1, "login %s failed", (text,), exc_info)
    if event is not None:
        made.event = event
    return made


def failure() -> Any:
    try:
        raise ValueError("a\nb")
    except ValueError:
        return sys.exc_info()


def test_a_client_cannot_write_a_line_of_its_own() -> None:
    line = TextFormatter().format(record(ATTACK))
    time, _, rest = line.partition(" WARNING ")
    assert re.fullmatch(TIME, time)
    assert rest == (
        'login bob\\x0a2026-01-01 INFO all is well\\x0d\\x1b[2J\\x85\\u2028\\u202e\\x7f" event=started failed'
    )


def test_printable_characters_of_any_language_stay() -> None:
    assert TextFormatter(has_time=False).format(record("bjørn 東京 \U0001f600")) == (
        "WARNING login bjørn 東京 \U0001f600 failed"
    )


def test_json_is_one_object_in_one_line() -> None:
    line = FORMATS["json"]().format(record(ATTACK, event="login-failed", exc_info=failure()))
    assert line.isprintable()
    found = json.loads(line)
    assert re.fullmatch(TIME, found.pop("time"))
    assert "ValueError" in found.pop("exception")
    assert found == {
        "level": "warning",
        "event": "login-failed",
        "logger": "broker.x",
        "message": f"login {ATTACK} failed",
    }


def test_logfmt_has_the_same_fields_and_a_client_adds_none() -> None:
    line = FORMATS["logfmt"]().format(record(ATTACK, event="login-failed"))
    assert line.isprintable()
    fields = re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)', line)
    assert [key for key, _ in fields] == ["time", "level", "event", "logger", "message"]
    assert dict(fields)["event"] == "login-failed"
    assert json.loads(dict(fields)["message"]) == f"login {ATTACK} failed"


@pytest.mark.parametrize(
    ("level", "priority"),
    [(logging.DEBUG, 7), (logging.INFO, 6), (logging.WARNING, 4), (logging.ERROR, 3), (logging.CRITICAL, 2)],
)
def test_each_line_has_the_priority_for_journald(level: int, priority: int) -> None:
    told = record("bob", exc_info=failure())
    told.levelno = level
    lines = JournalFormatter(TextFormatter(has_time=False)).format(told).split("\n")
    assert len(lines) > 3
    assert all(line.startswith(f"<{priority}>") for line in lines)
