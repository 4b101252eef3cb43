"""The pace of a catch-up: less while batches are late by what was usual before, more when they are not."""

from __future__ import annotations

import pytest

from tandemmq.broker.replication.stream import (
    BATCHES_MIN,
    BLOCK_BATCHES,
    LATE_OF_SECONDS,
    LATE_PART_MAX,
    LATE_TIMES,
    LOOK_SECONDS,
    RATE_MIN,
    REST_SECONDS,
    SETTLE_SECONDS,
    SLOWER,
    Pace,
)

PIECE = 1 << 20
USUAL = 0.02


class Timed:
    """A pace, and time that passes as is said."""

    def __init__(self, batches: int = BATCHES_MIN) -> None:
        self.now = 1_000.0
        self.pace = Pace(lambda: self.now)
        for _ in range(batches):
            self.pace.settled(USUAL)

    def send(self, rate: float, *, batch: float = USUAL) -> None:
        """One interval's worth at this rate, or at the pace's, beside one batch that takes so long."""
        self.pace.settled(batch)
        until = self.now + LOOK_SECONDS
        while self.now < until:
            self.now += max(PIECE / rate, self.pace.seconds_for(PIECE))

    @property
    def rate(self) -> float:
        seconds = self.pace.seconds_for(PIECE)
        return PIECE / seconds if seconds else float("inf")


@pytest.fixture
def timed() -> Timed:
    made = Timed()
    made.pace.seconds_for(PIECE)
    return made


RATE = 400 << 20
LATE = LATE_TIMES * USUAL + 2 * LATE_PART_MAX * LOOK_SECONDS


@pytest.mark.parametrize(
    ("before", "batch", "times"),
    [
        (BATCHES_MIN, LATE_TIMES * USUAL, 10),  # it takes as long as before
        (BATCHES_MIN, LATE_TIMES * USUAL + LATE_PART_MAX * LOOK_SECONDS / 2, 1),  # a late batch now and then
        (BATCHES_MIN - 1, 10.0, 1),  # with few batches before nothing is known
    ],
)
def test_what_is_no_reason_slows_nothing(before: int, batch: float, times: int) -> None:
    timed = Timed(before)
    timed.pace.seconds_for(PIECE)
    for _ in range(times):
        timed.send(RATE, batch=batch)
    assert timed.rate == float("inf")


def test_late_batches_make_it_slower_than_it_was(timed: Timed) -> None:
    timed.send(RATE, batch=LATE)
    first = timed.rate
    assert RATE / 2 < first < RATE
    for _ in range(int(SETTLE_SECONDS / LOOK_SECONDS) - 2):
        timed.send(RATE, batch=LATE)
    assert timed.rate == pytest.approx(first, rel=0.05), "what was under way when it slowed down slows it no more"
    timed.now += SETTLE_SECONDS
    timed.send(RATE, batch=10.0)
    assert timed.rate < 0.8 * first


def test_what_was_too_much_is_come_near_to_in_small_steps(timed: Timed) -> None:
    timed.send(RATE, batch=LATE)
    assert timed.rate < RATE
    for _ in range(20):
        timed.send(RATE)
    assert SLOWER * RATE * 0.9 < timed.rate < 0.9 * RATE


def test_beyond_what_was_too_much_it_is_as_fast_as_it_can(timed: Timed) -> None:
    """Then it was not the rate; and it is never slower than its least."""
    for _ in range(60):
        timed.send(RATE, batch=10.0)
    assert RATE_MIN <= timed.rate < 1.2 * RATE_MIN
    for _ in range(250):
        timed.send(RATE)
    assert timed.rate > RATE


def test_a_disturbance_before_is_not_what_is_usual() -> None:
    timed = Timed(batches=3 * BLOCK_BATCHES)
    for _ in range(2 * BLOCK_BATCHES):
        timed.pace.settled(10.0)
    timed.pace.seconds_for(PIECE)
    timed.send(RATE, batch=LATE)
    assert timed.rate < RATE


def test_what_batches_take_beside_a_catch_up_is_not_what_is_usual(timed: Timed) -> None:
    for _ in range(BATCHES_MIN):
        timed.send(RATE, batch=1.0)
    timed.now += REST_SECONDS
    assert timed.rate == float("inf"), "another catch-up begins"
    timed.send(RATE, batch=LATE)
    assert timed.rate < RATE


def test_what_disturbs_once_after_seconds_without_is_no_reason(timed: Timed) -> None:
    for _ in range(int(LATE_OF_SECONDS / LOOK_SECONDS)):
        timed.send(RATE)
    once = LATE_TIMES * USUAL + 0.9 * LATE_PART_MAX * LATE_OF_SECONDS
    timed.send(RATE, batch=once)
    timed.send(RATE)
    assert timed.rate == float("inf")
    for _ in range(3):  # but what goes on is
        timed.send(RATE, batch=once)
    assert timed.rate < RATE
