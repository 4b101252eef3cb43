"""The interval is short while any work needs it, and otherwise depends on the load."""

from __future__ import annotations

import sys

from tandemmq.broker.process.switch_interval import (
    LOADED_SECONDS,
    SHORT_SECONDS,
    USUAL_SECONDS,
    note_load,
    restore,
    shorten,
    start,
)


def interval() -> float:
    return round(sys.getswitchinterval(), 6)


def test_the_interval_is_short_until_the_last_work_has_ended() -> None:
    start()
    shorten()
    shorten()
    restore()
    assert interval() == SHORT_SECONDS
    restore()
    assert interval() == USUAL_SECONDS


def test_under_load_the_interval_is_long_except_during_long_work() -> None:
    start()
    note_load(True)
    assert interval() == LOADED_SECONDS
    shorten()
    assert interval() == SHORT_SECONDS
    note_load(False)
    note_load(True)
    assert interval() == SHORT_SECONDS
    restore()
    assert interval() == LOADED_SECONDS
    note_load(False)
    assert interval() == USUAL_SECONDS
