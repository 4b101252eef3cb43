"""The tests that prove a marked line: each test declares it.

    # proves: journal, copied-*, fence-by-link

Names of marks, subjects of files (marks.py), and patterns of both. A comment directly above a test is about this test;
any other, such as one below the docstring of the file, is about all tests of the file. If tests declare a mark by its
own name, only those tests run for it; otherwise the tests that declare its subject or a pattern. The fastest files run
first.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Final

from tests.mutants.changes import Mutant
from tests.mutants.marks import Mark
from tests.support.seconds import seconds_of
from tests.support.tree import ROOT

# Names of marks and subjects whose tests need a program that pip does not install. Only CI chooses them at random.
NEED_SERVICE: Final = frozenset({"zookeeper-lock", "answered-before-told", "native-journal"})

# Names of mutants that do not change the behaviour of the program, each with the reason: no test can catch them.
EQUIVALENT: Final[Mapping[str, str]] = {}

_COMMENT = re.compile("# proves: (.+)")


@dataclass(frozen=True, slots=True)
class Declaration:
    """``test`` is a file, from the root of the tree, or the id of a test in it."""

    name: str
    test: str

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]

    def names(self, mark: Mark) -> bool:
        return any(name is not None and fnmatchcase(name, self.name) for name in (mark.name, mark.subject))


def declarations_in(path: str, source: str) -> Iterator[Declaration]:
    """Yield the declarations of one file, from top to bottom."""
    comments = [
        (token.start[0], token.string)
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip()
    ]
    tests = dict(_tests(ast.parse(source), path))
    alone = {number for number, _ in comments}
    for number, comment in comments:
        if (match := _COMMENT.fullmatch(comment)) is None:
            continue
        below = number
        while below in alone:
            below += 1
        for name in match[1].split(","):
            yield Declaration(name.strip(), tests.get(below, path))


def _tests(tree: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[int, str]]:
    """Yield the first line of each test and class, and its id."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield first, f"{prefix}::{node.name}"
            if isinstance(node, ast.ClassDef):
                yield from _tests(node, f"{prefix}::{node.name}")


@cache
def declarations(root: Path = ROOT) -> tuple[Declaration, ...]:
    """Return the declarations of all tests of a tree, those of the fastest files first."""
    found: list[Declaration] = []
    for file in sorted((root / "tests").rglob("test_*.py")):
        source = file.read_text(encoding="utf-8")
        if "# proves: " in source:
            found += declarations_in(file.relative_to(root).as_posix(), source)
    return tuple(sorted(found, key=lambda each: seconds_of(each.file)))


def tests_of(mark: Mark) -> tuple[str, ...]:
    """Return test files and ids, in the order in which they run. Empty if no test declares the mark."""
    by_name = [each.test for each in declarations() if each.name == mark.name]
    return tuple(dict.fromkeys(by_name or [each.test for each in declarations() if each.names(mark)]))


def needs_service(mark: Mark) -> bool:
    return not NEED_SERVICE.isdisjoint((mark.name, mark.subject))


def is_equivalent(mutant: Mutant) -> bool:
    return mutant.name in EQUIVALENT
