"""The failures that show a broken promise."""

# proves: ci-verdicts

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.ci.verdicts import PromiseBroken, is_verdict, verdict

report: Any = SimpleNamespace(is_clean=False, problems=["lost"], text="problems")


def books_that_do_not_agree() -> None:
    @verdict
    def close(lost: list[str]) -> None:
        assert not lost, f"confirmed and lost: {lost}"

    close(["m1"])


def checker() -> None:
    assert report.is_clean, report.text


def checker_in_a_long_assertion() -> None:
    assert (report.text, report.problems) == ("problems", [])


def checker_of_a_volume() -> None:
    assert {"problems": ["lost"]}["problems"] == []


def several_examples_of_a_property() -> None:
    try:
        checker()
    except AssertionError as error:
        raise ExceptionGroup("examples", [ValueError(), error]) from None


def raised_from_it() -> None:
    try:
        checker()
    except AssertionError as error:
        raise RuntimeError("the round failed") from error


def plain_assertion() -> None:
    assert report.text == "is_clean"


def wait() -> None:
    raise TimeoutError("no problems")


def wait_with_an_assertion() -> None:
    deadline = time.monotonic()
    assert time.monotonic() < deadline, "not in time"


def checker_behind() -> None:
    wait()
    checker()


def _failure_of(function: Callable[[], None]) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        function()
    return caught.value


@pytest.mark.parametrize(
    "function",
    [
        books_that_do_not_agree, checker, checker_in_a_long_assertion, checker_of_a_volume,
        several_examples_of_a_property, raised_from_it,
    ],
)  # fmt: skip
def test_books_and_checker_are_believed(function: Callable[[], None]) -> None:
    assert is_verdict(_failure_of(function))


@pytest.mark.parametrize("function", [plain_assertion, wait, wait_with_an_assertion, checker_behind])
def test_other_failures_are_not(function: Callable[[], None]) -> None:
    assert not is_verdict(_failure_of(function))


def test_an_assertion_about_the_fence_is_believed_and_a_wait_is_not() -> None:
    assert is_verdict(_failure_of(plain_assertion), is_about_the_fence=True)
    for each in (wait, wait_with_an_assertion):
        assert not is_verdict(_failure_of(each), is_about_the_fence=True)


def test_a_failure_quotes_the_books_that_disagree() -> None:
    error = _failure_of(books_that_do_not_agree)
    assert isinstance(error, PromiseBroken)
    assert "confirmed and lost: ['m1']" in str(error)
