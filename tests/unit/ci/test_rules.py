"""The rules for a test that failed in CI."""

# proves: ci-rules

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.ci.rules import (
    LISTINGS_MAX,
    SECTION,
    UNSTABLE_MAX,
    Failure,
    can_be_saved,
    is_passed,
    judged,
    listed,
    why_final,
)
from tests.support.tree import ROOT

FAILURE = Failure("plain", "tests/unit/test_x.py::test_x", is_verdict=False, seed=7, text="call\nassert False")
OTHERS = [replace(FAILURE, test=f"tests/unit/test_x.py::test_{number}") for number in range(9)]


def test_a_failure_is_run_again() -> None:
    assert why_final(FAILURE, {}) is None


def test_a_broken_promise_is_believed_at_once() -> None:
    assert why_final(replace(FAILURE, is_verdict=True), {}) is not None


@pytest.mark.parametrize(("times", "is_final"), [(0, False), (1, False), (2, True), (3, True)])
def test_a_test_that_is_listed_twice_is_not_run_again(times: int, is_final: bool) -> None:
    assert (why_final(FAILURE, {FAILURE.test: times}) is not None) == is_final
    assert why_final(FAILURE, {OTHERS[0].test: times}) is None, "another test is listed"


def test_only_a_test_that_passed_when_it_was_run_again_is_unstable() -> None:
    first, second, third = OTHERS[:3]
    assert judged([first, second, third], {second}) == ([first, third], [second])
    assert judged([first], {replace(first, leg="compiled")}) == ([first], []), "it passed in another leg"


@pytest.mark.parametrize(
    ("failed", "unstable", "passes"),
    [(0, 0, True), (0, UNSTABLE_MAX, True), (0, UNSTABLE_MAX + 1, False), (1, 0, False), (1, 1, False)],
)
def test_ci_passes_with_few_unstable_tests_and_no_failed_one(failed: int, unstable: int, passes: bool) -> None:
    assert is_passed(OTHERS[:failed], OTHERS[failed : failed + unstable]) == passes


def test_a_leg_ends_the_run_when_second_runs_cannot_save_it() -> None:
    assert can_be_saved(OTHERS[:UNSTABLE_MAX], {})
    assert not can_be_saved(OTHERS[: UNSTABLE_MAX + 1], {})
    assert not can_be_saved(OTHERS[:1], {OTHERS[0].test: LISTINGS_MAX})
    assert not can_be_saved([OTHERS[0], replace(OTHERS[1], is_verdict=True)], {})


def test_the_roadmap_lists_each_time_that_a_test_was_unstable() -> None:
    roadmap = f"""# Roadmap

## Known faults
- `tests/unit/test_y.py` is slow.

{SECTION}
They stay until the cause is known.
- `{FAILURE.test}`: leg plain, seed 7
- `tests/unit/test_x.py::test_z[a b]`: leg compiled, seed 8
- `{FAILURE.test}`: leg plain, seed 9

## Next
- `{FAILURE.test}`
"""
    assert listed(roadmap) == {FAILURE.test: 2, "tests/unit/test_x.py::test_z[a b]": 1}
    assert listed("# Roadmap\n") == {}


def test_the_roadmap_has_the_section_and_lists_tests_that_exist() -> None:
    text = (ROOT / "docs" / "ROADMAP.md").read_text(encoding="utf-8")
    assert f"\n{SECTION}\n" in text
    for test in listed(text):
        file, _, rest = test.partition("::")
        name = rest.rpartition("::")[2].partition("[")[0]
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), test
