"""Failures that count without a second run, because they show a broken promise of the broker and not a timeout of a
test.

CI runs a failed test a second time (tests/support/ci/rules.py), but never after one of these:
- a `PromiseBroken`, which functions with `@verdict` raise
- an assertion of a test with the marker `fence`, except one that waits (`CLOCKS`)
- an assertion that reads a result of the store checker or of the clients' records (`RESULTS`)
"""

# proofs: ci-verdicts

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: Names of the results of the store checker, the simulator and the clients' records.
RESULTS: Final = frozenset(("is_clean", "is_sound", "problems"))
#: An assertion that reads one of these waits for something; a busy machine may be the cause of its failure.
CLOCKS: Final = frozenset(("monotonic", "deadline"))


class PromiseBroken(AssertionError):
    """A message is lost, duplicated, undone or damaged, or a deposed master continued."""


def verdict(function: Callable[P, T]) -> Callable[P, T]:
    """Turn each failed assertion of a function that checks records into `PromiseBroken`."""

    @functools.wraps(function)
    def judging(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except PromiseBroken:
            raise
        except AssertionError as error:
            raise PromiseBroken(*error.args).with_traceback(error.__traceback__) from None

    return judging


def is_verdict(error: BaseException, *, is_about_the_fence: bool = False) -> bool:
    """Return whether this error of a test shows a broken promise."""
    return any(_is_verdict(each, is_about_the_fence) for each in _leaves(error))


def _is_verdict(error: BaseException, is_about_the_fence: bool) -> bool:
    if isinstance(error, PromiseBroken):  # prove: books-are-a-verdict
        return True
    if not isinstance(error, AssertionError):
        return False
    names = _names_read(error.__traceback__)
    is_wait = not CLOCKS.isdisjoint(names)
    reads_a_result = not RESULTS.isdisjoint(names)
    return reads_a_result or (is_about_the_fence and not is_wait)  # prove: fence-and-checker-are-a-verdict


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of a group, each with its causes."""
    while True:
        if isinstance(error, BaseExceptionGroup):
            for each in error.exceptions:
                yield from _leaves(each)
        yield error
        if error.__cause__ is None:
            return
        error = error.__cause__


def _names_read(traceback: TracebackType | None) -> set[str]:
    """Return the names in the failed assertion; none for another statement."""
    if traceback is None:
        return set()
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    try:
        tree = ast.parse(Path(traceback.tb_frame.f_code.co_filename).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return set()
    return {
        name
        for statement in ast.walk(tree)
        if isinstance(statement, ast.Assert)
        and statement.lineno <= traceback.tb_lineno <= (statement.end_lineno or statement.lineno)
        for name in _names(statement.test)
    }


def _names(expression: ast.expr) -> Iterator[str]:
    for node in ast.walk(expression):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            yield str(node.slice.value)
