"""Long work is done in slices: each turn has a limit, each work gets a part of it, and an error ends only one work."""

# proves: first-work-leaves-time

from __future__ import annotations

import asyncio
from math import ceil

import pytest

from tandemmq.broker.core.slices import ITEMS, Pace, Rounds, Work, at_once, pieces
from tandemmq.broker.engine import slicing
from tandemmq.broker.engine.slicing import (
    GIVEN_ITERATIONS,
    LONG_SECONDS,
    OVERLONG_SECONDS,
    SLICE_SECONDS,
    TURN_SECONDS,
    Slices,
)

STEP_SECONDS = 2**-13  # sums of it are exact


class Clock:
    """Each step takes STEP_SECONDS."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def steps(clock: Clock, made: list[str], name: str, count: int) -> Work[None]:
    """Add ``name`` to ``made`` in each of ``count`` steps."""
    for _ in range(count):
        clock.now += STEP_SECONDS
        made.append(name)
        yield


def test_items_come_in_pieces() -> None:
    assert [len(piece) for piece in pieces(range(2 * ITEMS + 1))] == [ITEMS, ITEMS, 1]
    assert list(pieces(())) == []


async def test_each_turn_has_a_bound_and_each_work_its_slice() -> None:
    clock = Clock()
    slices = Slices(asyncio.get_running_loop(), clock)
    made: list[list[str]] = [[]]

    def work(name: str, count: int) -> Work[None]:
        for _ in range(count):
            clock.now += STEP_SECONDS
            made[-1].append(name)
            yield

    for name, count in (("a", 20), ("b", 8), ("c", 20), ("d", 20)):
        slices.start(work(name, count))
    while sum(map(len, made)) < 68:
        await asyncio.sleep(0)
        if made[-1]:
            made.append([])
    steps, turn = ceil(SLICE_SECONDS / STEP_SECONDS), ceil(TURN_SECONDS / STEP_SECONDS)
    assert "".join(map("".join, made)).startswith("".join(name * steps for name in "abcd"))
    assert max(map(len, made)) <= turn + 1
    assert sorted("".join(name for each in made for name in each)) == sorted("a" * 20 + "b" * 8 + "c" * 20 + "d" * 20)


@pytest.mark.parametrize(("step", "iterations"), [(OVERLONG_SECONDS, 1 + GIVEN_ITERATIONS), (TURN_SECONDS, 1)])
async def test_after_a_long_step_others_have_some_iterations_of_the_loop(step: float, iterations: int) -> None:
    clock = Clock()
    slices = Slices(asyncio.get_running_loop(), clock)
    made = 0

    def work() -> Work[None]:
        nonlocal made
        while True:
            clock.now += step
            made += 1
            yield

    slices.start(work())
    await asyncio.sleep(0)
    before = made
    for _ in range(3 * iterations):
        await asyncio.sleep(0)
    assert made == before + 3
    slices.is_over = True


async def test_long_work_comes_after_short_work_and_none_waits_forever() -> None:
    clock = Clock()
    slices = Slices(asyncio.get_running_loop(), clock)
    made: list[str] = []

    slices.start(steps(clock, made, "long", 200))
    while len(made) < LONG_SECONDS / STEP_SECONDS:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0)
    for number in range(50):
        slices.start(steps(clock, made, f"short {number}", 1))
    begun = len(made)
    while "short 49" not in made:  # noqa: ASYNC110
        await asyncio.sleep(0)
    rest = made[begun:]
    assert rest[0] == "short 0"
    assert rest.count("long") >= 50 * STEP_SECONDS / TURN_SECONDS - 1, "it goes on meanwhile"
    assert rest.count("long") <= 50


@pytest.mark.parametrize("count", [5, 300], ids=["long", "short"])
async def test_work_for_which_all_wait_comes_first(count: int) -> None:
    clock = Clock()
    slices = Slices(asyncio.get_running_loop(), clock)
    made: list[str] = []

    for _ in range(count):
        slices.start(steps(clock, made, "other", 200))
    slices.start_first(steps(clock, made, "first", 200))
    while made.count("first") < 100:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0)
    assert made.count("other") <= 100 * round((TURN_SECONDS + SLICE_SECONDS) / SLICE_SECONDS)


async def test_work_for_which_all_wait_leaves_time_for_short_work() -> None:
    clock = Clock()
    slices = Slices(asyncio.get_running_loop(), clock)
    made: list[str] = []

    slices.start_first(steps(clock, made, "first", 1 << 30))
    slices.start(steps(clock, made, "short", 20))
    while made.count("first") < 100 and made.count("short") < 20:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0)
    slices.end()
    assert made.count("short") == 20


async def test_all_works_of_a_loop_share_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setitem(slicing._LINES, asyncio.get_running_loop(), slicing._Line(clock))
    turns: list[int] = [0]

    def work() -> Work[None]:
        for _ in range(20):
            clock.now += STEP_SECONDS
            turns[-1] += 1
            yield

    runs = [asyncio.ensure_future(Slices(asyncio.get_running_loop()).run(work())) for _ in range(10)]
    while not all(run.done() for run in runs):
        await asyncio.sleep(0)
        turns.append(0)
    assert sum(turns) == 200
    assert max(turns) <= (TURN_SECONDS + SLICE_SECONDS) / STEP_SECONDS + 2


async def test_an_outcome_or_an_error_comes_back() -> None:
    slices = Slices(asyncio.get_running_loop())

    def right() -> Work[int]:
        yield
        return 7

    def wrong() -> Work[int]:
        yield
        raise ValueError("of this work")

    assert at_once(right()) == 7
    assert await asyncio.gather(slices.run(right()), slices.run(right())) == [7, 7]
    with pytest.raises(ValueError, match="of this work"):
        await slices.run(wrong())


async def test_an_error_ends_one_work_alone(caplog: pytest.LogCaptureFixture) -> None:
    slices = Slices(asyncio.get_running_loop())
    seen: list[int] = []

    def wrong() -> Work[None]:
        yield
        raise ValueError("of this work")

    def right() -> Work[None]:
        for number in range(3):
            seen.append(number)
            yield

    assert slices.is_idle
    slices.start(wrong())
    slices.start(right())
    assert not slices.is_idle
    async with asyncio.timeout(10):
        while not slices.is_idle:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
    assert seen == [0, 1, 2]
    assert "of this work" in caplog.text


def test_steps_are_counted_over_all_loops_of_a_work() -> None:
    pace = Pace()
    assert [pace.is_full() for _ in range(ITEMS)] == [False] * (ITEMS - 1) + [True]
    assert not pace.is_full(ITEMS - 1)
    assert pace.is_full(3 * ITEMS)
    assert not pace.is_full(ITEMS - 1)


def test_a_round_is_made_once_more_if_it_was_asked_for_meanwhile() -> None:
    works: list[Work[None]] = []
    made: list[str] = []

    def make(key: str) -> Work[None]:
        made.append(key)
        yield

    rounds = Rounds(works.append, make)
    for key in "abaa":
        rounds.ask(key)
    for work in works:
        at_once(work)
    assert (made, len(works)) == (["a", "b", "a"], 2)
    rounds.ask_soon("a")
    rounds.ask_soon("a")
    rounds.ask("a")
    assert (made, len(works)) == (["a", "b", "a"], 3), "what is asked for soon again and again takes one round"
    next(works[2])
    rounds.ask_soon("a")
    at_once(works[2])
    assert made == ["a", "b", "a", "a", "a"], "what was asked for while it was made takes one more"
    rounds.ask_soon("a")
    assert len(works) == 4


async def test_after_the_end_no_step_is_made() -> None:
    slices = Slices(asyncio.get_running_loop())
    seen: list[int] = []

    def work() -> Work[None]:
        while True:
            seen.append(1)
            if len(seen) == 5:
                slices.end()
            yield

    slices.start(work())
    await asyncio.sleep(0.02)
    assert len(seen) == 5
