"""Lower bound of the time at which ZooKeeper's leader last had contact with a session."""

# proves: answered-before-told

from __future__ import annotations

import math

from tandemmq.locker.zookeeper.session import REMEMBERED_MAX, Touches

SESSION = 64.0


def test_what_was_answered_too_late_to_be_told_does_not_count() -> None:
    touches = Touches()
    assert touches.counted_since(100.0) == -math.inf
    touches.connected(1.0)
    touches.answered(10.0, 12.0, SESSION)
    touches.answered(20.0, 21.0, SESSION)
    assert touches.counted_since(11.9) == 1.0
    assert touches.counted_since(12.0) == 10.0
    assert touches.counted_since(20.9) == 10.0
    assert touches.counted_since(21.0) == 20.0


def test_to_connect_anew_counts_at_once() -> None:
    touches = Touches()
    touches.connected(1.0)
    touches.answered(10.0, 12.0, SESSION)
    touches.connected(30.0)
    assert touches.counted_since(12.0) == 30.0


def test_many_requests_do_not_make_it_forget_an_older_one() -> None:
    touches = Touches()
    for number in range(100 * REMEMBERED_MAX):
        touches.answered(number / 100, number / 100 + 0.005, SESSION)
    last = REMEMBERED_MAX - 0.01
    assert last - SESSION / 2 - 1.0 <= touches.counted_since(last - SESSION / 2) <= last - SESSION / 2
