"""Run the tests of mutants, one mutant in each copy of the tree, and report which test caught each."""

from __future__ import annotations

import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.c_changes import mutants_of_c
from tests.mutants.changes import Mutant, mutants_of
from tests.mutants.declared import is_equivalent, tests_of
from tests.mutants.marks import Mark, MarkError, marks_of
from tests.mutants.record import Record
from tests.mutants.trial import How, Outcome, Tree
from tests.support.tree import ROOT


def all_mutants(root: Path = ROOT, *, but_equivalent: bool = True) -> list[Mutant]:
    """Return the mutants of all marks, by file and line; by default without those that change no behaviour. Raises
    MarkError."""
    marks = marks_of(root)
    by_file: dict[str, list[Mark]] = {}
    names: dict[str, Mark] = {}
    for mark in marks:
        by_file.setdefault(mark.path, []).append(mark)
        other = names.setdefault(mark.name, mark)
        if other is not mark:
            raise MarkError(f"{mark.place}: {mark.name} is also at {other.place}")
    return [
        mutant
        for path, of_file in by_file.items()
        for mutant in _mutants_of(path, (root / path).read_text(encoding="utf-8"), of_file)
        if not (but_equivalent and is_equivalent(mutant))
    ]


def _mutants_of(path: str, source: str, marks: Sequence[Mark]) -> list[Mutant]:
    return mutants_of_c(source, marks) if path.endswith(".c") else mutants_of(source, marks)


def part_of(mutants: Sequence[Mutant], number: int, parts: int) -> list[Mutant]:
    """Return the ``number``-th part, from 1. A mutant stays in its part if others are added or removed."""
    return [mutant for mutant in mutants if zlib.crc32(mutant.name.encode()) % parts == number - 1]


def try_out(
    mutants: Sequence[Mutant],
    *,
    jobs: int = 1,
    report: Callable[[Outcome], object] = lambda outcome: None,
    record: Record | None = None,
    patience: float = 1,
) -> list[Outcome]:
    """Return the outcomes of ``mutants``; those that ``record`` has are not tried again. ``report`` is called with each
    outcome as soon as it is known, in another thread.

    A test that also fails on the unchanged tree has caught nothing. This is checked at the end; ``report`` is then
    called again with the outcomes that change.
    """
    record = record or Record()
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch, ExitStack() as stack:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for number in range(jobs):
            directory = Path(scratch, str(number))
            directory.mkdir()
            trees.put(Tree(ROOT, directory, patience))

        def one(mutant: Mutant, tests: Sequence[str]) -> None:
            tree = trees.get()
            try:
                outcome = tree.try_out(mutant, tests)
            finally:
                trees.put(tree)
            record.add(outcome)
            report(outcome)

        left = [mutant for mutant in mutants if record.outcome(mutant) is None]
        tests_of_left = [tests_of(mutant.mark) for mutant in left]  # not in threads, as two ast.parse at once fail
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        try:
            list(pool.map(one, left, tests_of_left))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        tests = record.unchecked(known_outcomes(mutants, record))
        record.checked(tests, *trees.get().failing(tests))
        outcomes = known_outcomes(mutants, record)
        for outcome in outcomes:
            if outcome.why_not:
                report(outcome)
        return outcomes


def known_outcomes(mutants: Iterable[Mutant], record: Record) -> list[Outcome]:
    return [outcome for mutant in mutants if (outcome := record.outcome(mutant)) is not None]


def line_of(outcome: Outcome) -> str:
    """Return an outcome as text for people."""
    mutant = outcome.mutant
    caught = {
        How.TEST: f"caught by {outcome.caught_by}",
        How.LIMIT: f"ended by the time limit in {outcome.caught_by}",
        How.SIGNAL: f"caught by the end of the process: {outcome.caught_by}",
        How.NOTHING: "NOT CAUGHT",
    }[outcome.how]
    if outcome.why_not:
        caught += f", because this test also fails on the unchanged tree: {outcome.why_not}"
    return f"{mutant.name}\n    {mutant.mark.place}  {caught}  ({outcome.seconds:.1f} s)"


def summary_of(outcomes: Sequence[Outcome]) -> str:
    count = Counter(outcome.how for outcome in outcomes)
    caught = f"caught {len(outcomes) - count[How.NOTHING]} of {len(outcomes)}"
    return f"{caught}, {count[How.LIMIT]} of them by a time limit" if count[How.LIMIT] else caught
