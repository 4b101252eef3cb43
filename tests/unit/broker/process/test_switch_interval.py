"""The interval is short while any work needs it, and afterwards as before."""

from __future__ import annotations

import sys

from tandemmq.broker.process.switch_interval import SHORT_SECONDS, restore, shorten


def test_the_interval_is_short_until_the_last_work_has_ended() -> None:
    usual = sys.getswitchinterval()
    shorten()
    shorten()
    restore()
    assert round(sys.getswitchinterval(), 6) == SHORT_SECONDS
    restore()
    assert sys.getswitchinterval() == usual != SHORT_SECONDS
