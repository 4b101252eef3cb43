"""The choice of the tests that run for a change, the likeliest first, within a budget.

Nearly every test needs nearly every module over some steps. So those that are likeliest to notice come first:

    CHANGED    the test itself changed, or something in tests/support that it imports
    MIRROR     tests/unit/store/test_x.py for store/x.py; for a package, those of its directory
    PROOF      it declares a mark of a changed file (tests/mutants)
    NAMED      it needs the file and names what changed there, which few tests do
    DIRECT     it imports the file
    NEIGHBOUR  it stands beside the mirror
    IMPORTER   it is the mirror of a file that imports the changed one
    ALIKE      its path, or the promise that it is marked with, has words of the changed path, such as
               acceptance/test_mqtt_survives.py for broker/mqtt/wills.py
    FAR        it needs the file over several steps

Within a kind, those come first that name more of what changed, then the quick ones. A file whose tests take longer than
the rest of the budget is left out; of a file that changed itself, the changed tests are kept.
"""

from __future__ import annotations

import enum
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final

from tests.affected.changes import Change, functions_in, names_in
from tests.affected.imports import Graph, is_product, is_test
from tests.mutants.declared import declarations
from tests.mutants.marks import marks_in
from tests.support.seconds import USUAL_SECONDS, seconds_of

#: What so many tests name says nothing about any of them.
_NAMED_BY_MAX: Final = 25
#: A test that names so much of what changed is about it: one thing that ten tests name, or several.
_LIKE_MIN: Final = 0.1
#: So many of the words of the changed path are in the path of a test that is alike.
_ALIKE_MIN: Final = 0.4
#: Of the budget, for those that need the file only over several steps.
_FAR_SHARE: Final = 1 / 3
_WORD = re.compile(r"\w+")
_PROMISE = re.compile(r'mark\.promise\("([\w-]+)"')


class Kind(enum.IntEnum):
    """The reasons why a test may notice a change, the likeliest first."""

    CHANGED = enum.auto()
    MIRROR = enum.auto()
    PROOF = enum.auto()
    NAMED = enum.auto()
    DIRECT = enum.auto()
    NEIGHBOUR = enum.auto()
    IMPORTER = enum.auto()
    ALIKE = enum.auto()
    FAR = enum.auto()


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """Sorted, the one that runs first is the smallest. ``unlike``: minus how much of what changed it names."""

    kind: Kind
    unlike: float
    steps: int
    seconds: float
    file: str


@dataclass(frozen=True, slots=True)
class Choice:
    """``tests``: files, or ids of tests, in the order in which they run. ``left_out``: what did not fit."""

    tests: tuple[str, ...]
    seconds: float
    candidates: tuple[Candidate, ...]
    left_out: tuple[Candidate, ...]


def choose(graph: Graph, changes: Sequence[Change], budget_seconds: float) -> Choice:
    """``budget_seconds`` is the time of all workers together."""
    candidates = rank(graph, changes)
    changed = {change.path: change for change in changes}
    chosen: list[Candidate] = []
    tests: list[str] = []
    left_out: list[Candidate] = []
    left = budget_seconds
    is_far = False
    for candidate in candidates:
        if candidate.kind is Kind.FAR and not is_far:
            is_far = True
            left = min(left, budget_seconds * _FAR_SHARE)
        ids = [candidate.file]
        seconds = candidate.seconds
        if seconds > left and candidate.file in changed:
            functions = functions_in(graph.root, changed[candidate.file])
            ids = [f"{candidate.file}::{name}" for name, _ in functions if name.rpartition("::")[2].startswith("test_")]
            seconds = min(seconds, USUAL_SECONDS * len(ids))
            candidate = replace(candidate, seconds=seconds)
        if seconds <= left and ids:
            left -= seconds
            chosen.append(candidate)
            tests += ids
        else:
            left_out.append(candidate)
    return Choice(tuple(tests), sum(each.seconds for each in chosen), tuple(chosen), tuple(left_out))


def rank(graph: Graph, changes: Iterable[Change]) -> list[Candidate]:
    """All tests that need something that changed, the likeliest to notice first."""
    words = {path: _words_in(graph.root / path) for path in graph.needs if is_test(path)}
    named_by = Counter(word for found in words.values() for word in found)
    best: dict[str, Candidate] = {}
    for change in changes:
        names = {name for name in names_in(graph.root, change) if named_by[name] <= _NAMED_BY_MAX}
        for candidate in _of_one(graph, change, names, words, named_by):
            other = best.get(candidate.file)
            if other is None or candidate < other:
                best[candidate.file] = candidate
    return sorted(best.values())


def _of_one(
    graph: Graph, change: Change, names: set[str], words: dict[str, set[str]], named_by: Counter[str]
) -> Iterator[Candidate]:
    distances = graph.distances(change.path)
    mirrors = set(_mirrors(graph, change.path))
    proofs = set() if is_test(change.path) else _proofs(graph.root, change.path)
    importers: defaultdict[str, int] = defaultdict(int)
    for user in graph.needed_by.get(change.path, ()):
        if is_product(user):
            for mirror in _mirrors(graph, user):
                importers[mirror] += 1
    for file in words.keys() & {*distances, *mirrors, *proofs}:
        steps = distances.get(file, 0)
        like = sum(1 / named_by[name] for name in names & words[file])
        alike = _alike(change.path, f"{file} {' '.join(_promises(graph.root / file))}")
        if file == change.path or (not is_product(change.path) and steps == 1):
            kind = Kind.CHANGED
        elif file in mirrors:
            kind = Kind.MIRROR
        elif file in proofs:
            kind = Kind.PROOF
        elif like >= _LIKE_MIN:
            kind = Kind.NAMED
        elif steps == 1:
            kind = Kind.DIRECT
        elif _directory_of_mirror(change.path) == str(PurePosixPath(file).parent):
            kind = Kind.NEIGHBOUR
        elif file in importers:
            kind, like = Kind.IMPORTER, importers[file]
        elif alike >= _ALIKE_MIN:
            kind, like = Kind.ALIKE, alike
        else:
            kind = Kind.FAR
        yield Candidate(kind, -like, steps, seconds_of(file), file)


def _words_in(file: Path) -> set[str]:
    return {word.lstrip("_") for word in _WORD.findall(file.read_text(encoding="utf-8"))}


@cache
def _promises(file: Path) -> list[str]:
    return _PROMISE.findall(file.read_text(encoding="utf-8"))


def _directory_of_mirror(path: str) -> str:
    return f"tests/unit/{PurePosixPath(path).parent}"


def _mirrors(graph: Graph, path: str) -> Iterator[str]:
    """In tests/unit/, tests/contract/ and the like: `<directory>/test_<file>*.py`; of a package, its directory."""
    if not is_product(path):
        return
    file = PurePosixPath(path)
    ending = f"/{file.parent}"
    for test in graph.needs:
        place = PurePosixPath(test)
        is_named = f"{place.stem}_".startswith(f"test_{file.stem}_") or file.stem == "__init__"
        if is_named and is_test(test) and str(place.parent).endswith(ending):
            yield test


def _proofs(root: Path, path: str) -> set[str]:
    file = root / path
    if not path.endswith(".py") or not file.is_file():
        return set()
    source = file.read_text(encoding="utf-8")
    marks = list(marks_in(path, source)) if "# prove" in source else []
    return {each.file for each in declarations(root) if any(each.names(mark) for mark in marks)}


def _alike(path: str, test: str) -> float:
    """Return the share of the words of the changed path that are in the other text."""
    ours, others = set(re.findall(r"[a-z]+", path.rpartition(".")[0])), set(re.findall(r"[a-z]+", test))
    ours -= {"tandemmq", "broker", "protocols", "init"}
    return len(ours & others) / len(ours) if ours else 0.0
