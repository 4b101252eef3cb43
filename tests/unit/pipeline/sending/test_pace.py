"""A rate is a bound, whoever sleeps too long."""

from __future__ import annotations

import random

from tandemmq.pipeline.sending.pace import BEHIND_SECONDS_MAX, Pace
from tests.support.prove import SEED


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_messages_go_one_by_one_at_the_rate() -> None:
    clock = Clock()
    pace = Pace(50, clock)
    went = []
    for _ in range(200):
        clock.now += pace.take()
        went.append(clock.now)
    assert went[-1] - went[0] >= 199 / 50 - 1e-6


def test_no_stretch_of_time_has_more_than_the_rate() -> None:
    seed = SEED
    print(f"seed {seed} (TANDEMMQ_SEED)")
    chance = random.Random(seed)
    clock = Clock()
    pace = Pace(100, clock)
    went = []
    for _ in range(2000):
        clock.now += pace.take() + (chance.random() if chance.random() < 0.02 else 0.0)
        went.append(clock.now)
    for start in range(len(went)):
        for stop in (start + 1, start + 10, start + 100):
            if stop < len(went):
                assert stop - start <= 100 * (went[stop] - went[start] + BEHIND_SECONDS_MAX) + 1 + 1e-6


def test_without_a_rate_nobody_waits() -> None:
    clock = Clock()
    pace = Pace(None, clock)
    assert [pace.take() for _ in range(1000)] == [0.0] * 1000
