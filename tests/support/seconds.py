"""The measured seconds of the tests of a file: tests/seconds.txt has the files that take half a second or more.

To measure again, on a quiet machine: ``pytest --junit-xml=REPORT``, then
``python -m tests.support.seconds REPORT > tests/seconds.txt``.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from tests.support.tree import ROOT, TESTS

FILE: Final = TESTS / "seconds.txt"
#: A file that takes less in total has no line.
NOTED_SECONDS_MIN: Final = 0.5
#: The tests of a file are fast if they take less on average.
FAST_SECONDS_MAX: Final = 0.03
#: Seconds of a file without a line, including its imports, without a separate process.
USUAL_SECONDS: Final = 0.3


@dataclass(frozen=True, slots=True)
class Measured:
    seconds: float
    tests: int

    @property
    def is_fast(self) -> bool:
        return self.seconds < FAST_SECONDS_MAX * self.tests


@cache
def measured() -> Mapping[str, Measured]:
    """Return the measured seconds by path below ``tests/``."""
    found = {}
    for line in FILE.read_text(encoding="utf-8").splitlines():
        seconds, tests, path = line.split()
        found[path] = Measured(float(seconds), int(tests))
    return found


def seconds_of(file: str) -> float:
    """Return the seconds of a file, given by its path from the root of the tree."""
    found = measured().get(file.removeprefix("tests/"))
    return USUAL_SECONDS if found is None else found.seconds


def of_report(report: Path) -> dict[str, Measured]:
    """Return the seconds of each file in a report in JUnit's format."""
    times: dict[str, list[float]] = defaultdict(list)
    for case in ElementTree.parse(report).iter("testcase"):
        parts = case.get("classname", "").split(".")
        while parts and not (ROOT.joinpath(*parts).with_suffix(".py")).is_file():
            parts.pop()  # a class
        if parts:
            times["/".join(parts[1:]) + ".py"].append(float(case.get("time", 0)))
    return {path: Measured(sum(each), len(each)) for path, each in times.items()}


if __name__ == "__main__":
    for path, found in sorted(of_report(Path(sys.argv[1])).items(), key=lambda each: -each[1].seconds):
        if found.seconds >= NOTED_SECONDS_MIN:
            print(f"{found.seconds:6.1f} {found.tests:4} {path}")
