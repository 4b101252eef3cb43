"""The schedule behind the tests of locks tries what it says."""

from __future__ import annotations

import threading
from math import comb

import pytest

from tests.support.locker import steps
from tests.support.locker.steps import Act, Run, each_order, step


def counting(made: list[str], name: str, times: int) -> Act:
    def act() -> None:
        for number in range(times):
            step(str(number))
            made.append(name)

    return act


def orders(counts: dict[str, int], switches_max: int | None = None) -> list[str]:
    """Return the steps of each order, as letters."""
    seen: list[str] = []
    made: list[str] = []

    def acts() -> dict[str, Act]:
        made.clear()
        return {name: counting(made, name, times) for name, times in counts.items()}

    each_order(acts, lambda _: seen.append("".join(made)), switches_max=switches_max)
    return seen


def test_every_order_of_two_comes_once() -> None:
    seen = orders({"a": 3, "b": 4})
    assert len(seen) == len(set(seen)) == comb(7, 3)


def test_every_order_of_three_comes_once() -> None:
    seen = orders({"a": 2, "b": 2, "c": 1})
    assert len(seen) == len(set(seen)) == 30


def test_with_a_bound_every_order_of_so_few_switches_comes_once() -> None:
    # Whoever has ended is left without a switch.
    assert sorted(orders({"a": 2, "b": 2}, 0)) == ["aabb", "bbaa"]
    assert sorted(orders({"a": 2, "b": 2}, 1)) == ["aabb", "abba", "baab", "bbaa"]
    assert len(orders({"a": 2, "b": 2}, 2)) == comb(4, 2)


def test_it_finds_the_one_order_that_breaks_and_says_it() -> None:
    def acts() -> dict[str, Act]:
        nonlocal count
        count = 0
        return {"a": add, "b": add}

    def add() -> None:
        nonlocal count
        step("read")
        found = count
        step("write")
        count = found + 1

    def check(_: Run) -> None:
        assert count == 2

    count = 0
    with pytest.raises(AssertionError) as failure:
        each_order(acts, check)
    assert "a: read, b: read" in failure.value.__notes__[0]


def test_a_step_that_cannot_go_on_is_left_for_others() -> None:
    made: list[str] = []

    def waiting() -> None:
        step("wait", lambda: "b" in made)
        made.append("a")

    def acts() -> dict[str, Act]:
        made.clear()
        return {"a": waiting, "b": counting(made, "b", 2)}

    # Behind the first of the other's steps, or behind both.
    seen: list[str] = []
    assert each_order(acts, lambda _: seen.append("".join(made))) == 2
    assert sorted(seen) == ["bab", "bba"]


def test_those_that_wait_for_each_other_are_named() -> None:
    with pytest.raises(AssertionError, match=r"no actor can continue: \[\('a', 'wait'\)\]"):
        each_order(lambda: {"a": lambda: step("wait", lambda: False)}, lambda _: None)


def test_a_step_that_hangs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "STEP_SECONDS_MAX", 0.1)

    held = threading.Event()

    def hang() -> None:
        step("ask")
        held.wait()

    try:
        with pytest.raises(AssertionError, match="a hangs in ask"):
            each_order(lambda: {"a": hang}, lambda _: None)
    finally:
        held.set()
