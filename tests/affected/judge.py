"""Check whether the chosen tests find faults: try one mutant of each of the last commits that changed the product.

The commit is checked out elsewhere, and the tests are chosen for it. A changed line is broken as tests/mutants does it,
and the chosen tests run until one fails. If none does, others that need the file run, too: if one of those fails, the
choice has missed the fault; else no test sees it, and another line is tried.
"""

from __future__ import annotations

import ast
import random
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from tests.affected.changes import Change, changes_of
from tests.affected.choose import Choice, choose
from tests.affected.imports import graph_of, is_product
from tests.mutants.changes import Mutant, mutants_of
from tests.mutants.marks import Mark, MarkError
from tests.mutants.trial import How, Tree
from tests.support.tree import DIRECTORIES, ROOT

#: So many lines of a commit are tried until a test sees that one is wrong.
LINES_MAX: Final = 5
#: Work of the tests that run when no chosen one fails.
FURTHER_SECONDS: Final = 60.0
#: A busy machine is slower.
PATIENCE: Final = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """``found_by``: the test that failed. ``is_chosen``: whether it was among those chosen."""

    choice: Choice
    mutant: Mutant | None
    found_by: str
    is_chosen: bool


def judge(count: int, budget_seconds: float) -> int:
    """Print a line for each commit. Return 0 if the chosen tests found a mutant of each that any test sees."""
    verdicts: list[Verdict] = []
    for commit, title in _commits():
        if len(verdicts) == count:
            break
        with _checked_out(commit) as root:
            verdict = _judged(root, commit, budget_seconds)
        if verdict is None:
            continue
        verdicts.append(verdict)
        answer = "found" if verdict.is_chosen else "MISSED" if verdict.found_by else "no test sees any"
        print(f"{commit[:7]}  {verdict.choice.seconds:3.0f} s of work  {answer:6}  {title}", flush=True)
        if verdict.mutant is not None:
            print(f"         {verdict.mutant.mark.place}  {verdict.mutant.what}")
            print(f"         {verdict.found_by}", flush=True)
    seen = [verdict for verdict in verdicts if verdict.found_by]
    found = sum(verdict.is_chosen for verdict in seen)
    median = statistics.median(verdict.choice.seconds for verdict in verdicts)
    print(f"found {found} of {len(seen)} that a test sees, of {len(verdicts)} commits; median {median:.0f} s of work")
    return 0 if all(verdict.is_chosen for verdict in seen) else 1


def _commits() -> list[tuple[str, str]]:
    """Return the commits that changed the product, the last one first."""
    paths = [f"{directory}/*.py" for directory in (*DIRECTORIES, "tandemmq")]
    command = ["git", "log", "--no-merges", "--format=%H %s", "--diff-filter=AM", "--", *paths]
    lines = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


@contextmanager
def _checked_out(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="affected-") as scratch:
        root = Path(scratch, "tree")
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(root), commit], check=True)
        try:
            yield root
        finally:
            subprocess.run([*git, "remove", "--force", str(root)], check=True)


def _judged(root: Path, commit: str, budget_seconds: float) -> Verdict | None:
    """Return mutants of the changed lines; none of a commit that changed no statement, such as one of comments."""
    changes = changes_of(root, f"{commit}^..{commit}")
    mutants = list(islice(_mutants(root, changes, random.Random(commit)), LINES_MAX))
    if not mutants:
        return None
    graph = graph_of(root)
    choice = choose(graph, changes, budget_seconds)
    with tempfile.TemporaryDirectory(prefix="affected-") as scratch:
        tree = Tree(root, Path(scratch), PATIENCE, is_thorough=False)
        for mutant in mutants:
            if found_by := _found_by(tree, mutant, choice.tests):
                return Verdict(choice, mutant, found_by, is_chosen=True)
            further = choose(graph, [each for each in changes if each.path == mutant.mark.path], FURTHER_SECONDS)
            others = [test for test in further.tests if test not in choice.tests]
            if found_by := _found_by(tree, mutant, others):
                return Verdict(choice, mutant, found_by, is_chosen=False)
    return Verdict(choice, None, "", is_chosen=False)


def _found_by(tree: Tree, mutant: Mutant, tests: Sequence[str]) -> str:
    """The first test that fails, and does not fail on the unchanged tree."""
    if not tests:
        return ""
    outcome = tree.try_out(mutant, tests)
    if outcome.how is not How.TEST or tree.failing([outcome.caught_by])[0]:
        return ""
    return outcome.caught_by


def _mutants(root: Path, changes: Sequence[Change], chance: random.Random) -> Iterator[Mutant]:
    """Return one mutant of each changed line with a statement, in any order."""
    places = [
        (change.path, line)
        for change in changes
        if is_product(change.path) and change.path.endswith(".py") and (root / change.path).is_file()
        for line in _lines(ast.parse((root / change.path).read_text(encoding="utf-8")), change)
    ]
    chance.shuffle(places)
    for path, line in places:
        try:
            found = mutants_of((root / path).read_text(encoding="utf-8"), [Mark("changed", path, line)])
        except MarkError:
            continue
        yield chance.choice(found)


def _lines(tree: ast.Module, change: Change) -> set[int]:
    """Return the changed files that have a changed statement in a function."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {
        node.lineno
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.stmt)
        and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom)
        and not isinstance(node, ast.Pass | ast.Assert | ast.Nonlocal)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        and change.touches(node.lineno, node.lineno)
    }
