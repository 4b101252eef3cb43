"""Limits of log lines that any client can cause."""

# proves: one-line-a-minute-and-kind

from __future__ import annotations

import logging

import pytest

from tandemmq.limited_log import AGAIN_SECONDS, KINDS_MAX, SHOWN_CHARACTERS_MAX, LimitedLog

log = logging.getLogger("tandemmq.test")


def test_each_port_and_kind_has_one_line_a_minute_with_the_count_of_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    limited = LimitedLog(log, lambda: now[0])
    for now[0] in (0.0, 1.0, AGAIN_SECONDS - 0.1, AGAIN_SECONDS, AGAIN_SECONDS + 1):
        for port, kind in (("stomp", "TLS"), ("stomp", "no frame"), ("mqtt", "TLS")):
            limited.warning(port, kind, f"{port} {kind} " + "x" * 1000)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(" x")[0] for line in lines] == ["stomp TLS", "stomp no frame", "mqtt TLS"] * 2
    assert all(len(line) == SHOWN_CHARACTERS_MAX for line in lines[:3])
    assert all(line.endswith("x (2 more like this since the last line)") for line in lines[3:])


def test_kinds_without_end_share_a_line(caplog: pytest.LogCaptureFixture) -> None:
    limited = LimitedLog(log, lambda: 0.0)
    for number in range(10 * KINDS_MAX):
        limited.warning("stomp", str(number), "")
    assert len(caplog.records) == KINDS_MAX + 1
