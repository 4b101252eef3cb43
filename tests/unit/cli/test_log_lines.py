"""What a client says stays within the line that tells of it."""

from __future__ import annotations

import logging

from tandemmq.cli.log_lines import LineFormatter


def shown(text: str) -> str:
    record = logging.LogRecord("x", logging.WARNING, __file__, 1, "login %s failed", (text,), None)
    return LineFormatter("%(levelname)s %(message)s").format(record)


def test_a_client_cannot_write_a_line_of_its_own() -> None:
    text = "bob\n2026-01-01 INFO all is well\r\x1b[2J\x85\u2028\u202e\x7f"
    assert shown(text) == (
        "WARNING login bob\\x0a2026-01-01 INFO all is well\\x0d\\x1b[2J\\x85\\u2028\\u202e\\x7f failed"
    )


def test_what_is_only_foreign_stays() -> None:
    assert shown("bjørn 東京 \U0001f600") == "WARNING login bjørn 東京 \U0001f600 failed"
