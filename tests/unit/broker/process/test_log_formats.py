"""What a client says stays within the line that tells of it, and what a line has is found by programs."""

from __future__ import annotations

import json
import logging
import re
import sys
from typing import Any

import pytest

from tandemmq.broker.process.log_formats import FORMATS, JournalFormatter, TextFormatter

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


def test_what_is_only_foreign_stays() -> None:
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
