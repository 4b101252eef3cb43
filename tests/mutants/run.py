"""Try out mutants, one in each copy of the tree, and tell which test caught each."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.changes import Mutant, mutants_of
from tests.mutants.marks import Mark, MarkError, marks_of
from tests.mutants.table import concerned, is_equivalent
from tests.mutants.trial import Outcome, Tree
from tests.support.tree import ROOT


def all_mutants(root: Path = ROOT, *, but_equivalent: bool = True) -> list[Mutant]:
    """Of all marks, by file and line, but for those that are shown to change nothing. Raises MarkError."""
    marks = marks_of(root)
    by_file: dict[str, list[Mark]] = {}
    names: dict[str, Mark] = {}
    for mark in marks:
        by_file.setdefault(mark.path, []).append(mark)
        other = names.setdefault(mark.name, mark)
        if other is not mark:
            raise MarkError(f"{mark.place}: {mark.name} stands at {other.place}, too")
    return [
        mutant
        for path, of_file in by_file.items()
        for mutant in mutants_of((root / path).read_text(encoding="utf-8"), of_file)
        if not (but_equivalent and is_equivalent(mutant))
    ]


def try_out(
    mutants: Sequence[Mutant], *, jobs: int = 1, told: Callable[[Outcome], object] = lambda outcome: None
) -> list[Outcome]:
    """What becomes of ``mutants``; ``told`` hears of each as soon as it is known, in another thread.

    A test that fails on the tree as it is has caught nothing: that is looked at last, and ``told`` hears of it again.
    """
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch, ExitStack() as stack:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for number in range(jobs):
            directory = Path(scratch, str(number))
            directory.mkdir()
            trees.put(Tree(ROOT, directory))

        def one(mutant: Mutant) -> Outcome:
            tree = trees.get()
            try:
                outcome = tree.try_out(mutant, concerned(mutant.mark))
            finally:
                trees.put(tree)
            told(outcome)
            return outcome

        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        try:
            outcomes = list(pool.map(one, mutants))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        failing, text = trees.get().failing(sorted(_tests(outcomes)))
        for number, outcome in enumerate(outcomes):
            if outcome.is_test and outcome.caught_by in failing:
                outcomes[number] = replace(outcome, caught_by=None, why_not=f"{outcome.caught_by}: {text}")
                told(outcomes[number])
        return outcomes


def _tests(outcomes: Iterable[Outcome]) -> set[str]:
    return {outcome.caught_by for outcome in outcomes if outcome.is_test and outcome.caught_by is not None}


def line_of(outcome: Outcome) -> str:
    """An outcome for a person."""
    mutant = outcome.mutant
    caught = f"caught by {outcome.caught_by}" if outcome.caught_by is not None else "NOT CAUGHT"
    if outcome.why_not:
        caught += f", for this fails on the tree as it is: {outcome.why_not}"
    return f"{mutant.name}\n    {mutant.mark.place}  {caught}  ({outcome.seconds:.1f} s)"


def summary_of(outcomes: Sequence[Outcome]) -> str:
    return f"caught {sum(outcome.caught_by is not None for outcome in outcomes)} of {len(outcomes)}"
