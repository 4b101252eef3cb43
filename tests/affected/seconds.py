"""The recorded seconds of the tests of each file, in seconds.txt.

    python -m tests.affected --record JUNIT.XML       writes the table anew

A file of which all tests were skipped, for want of a service or of time, has a dash there. The table only decides about
order and budgets. So a file that moved or is new needs no entry.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from tests.support.tree import ROOT

TABLE: Final = Path(__file__).with_name("seconds.txt")
#: Files that took less have no entry.
ENTRY_SECONDS_MIN: Final = 1.0
SKIPPED: Final = "-"
#: What such a file takes, with its imports and without a process of its own.
USUAL_SECONDS: Final = 0.3


@cache
def _table() -> dict[str, str]:
    lines = (line.split() for line in TABLE.read_text(encoding="utf-8").splitlines())
    return {file: seconds for seconds, file in lines}


def seconds_of(file: str) -> float:
    """For a path from the root of the tree; infinite if the file does nothing by default, and no more was asked for."""
    seconds = _table().get(file)
    if seconds == SKIPPED:
        return USUAL_SECONDS if os.environ.get("TANDEMMQ_SERVICES") else math.inf
    return USUAL_SECONDS if seconds is None else float(seconds)


def record(junit: Path) -> int:
    """Write the table from a file that `pytest --junitxml` wrote. Return the number of entries."""
    spent: dict[str, float] = defaultdict(float)
    ran: set[str] = set()
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        file = _file_of(case.get("classname", ""))
        spent[file] += float(case.get("time", 0))
        if case.find("skipped") is None:
            ran.add(file)
    lines = [
        f"{f'{seconds:.1f}' if file in ran else SKIPPED} {file}\n"
        for file, seconds in sorted(spent.items())
        if file and (seconds >= ENTRY_SECONDS_MIN or file not in ran)
    ]
    TABLE.write_text("".join(lines), encoding="utf-8")
    return len(lines)


def _file_of(classname: str) -> str:
    """`tests.unit.test_x.TestY` is of tests/unit/test_x.py."""
    names = classname.split(".")
    while names:
        path = "/".join(names) + ".py"
        if (ROOT / path).is_file():
            return path
        names.pop()
    return ""
