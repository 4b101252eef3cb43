"""How long the tests of each file took when that was last recorded, in seconds.txt.

    python -m tests.affected --record JUNIT.XML       writes the table anew

It only decides about order and budgets. So a file that moved or is new needs no entry.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from tests.support.tree import ROOT

TABLE: Final = Path(__file__).with_name("seconds.txt")
#: Files that took less have no entry.
ENTRY_SECONDS_MIN: Final = 1.0
#: What such a file takes, with its imports and without a process of its own.
USUAL_SECONDS: Final = 0.3


@cache
def _table() -> dict[str, float]:
    lines = (line.split() for line in TABLE.read_text(encoding="utf-8").splitlines())
    return {file: float(seconds) for seconds, file in lines}


def seconds_of(file: str) -> float:
    """For a path from the root of the tree."""
    return _table().get(file, USUAL_SECONDS)


def record(junit: Path) -> int:
    """Write the table from a file that `pytest --junitxml` wrote. Return the number of entries."""
    spent: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        spent[_file_of(case.get("classname", ""))] += float(case.get("time", 0))
    entries = {file: seconds for file, seconds in spent.items() if file and seconds >= ENTRY_SECONDS_MIN}
    lines = [f"{seconds:.1f} {file}\n" for file, seconds in sorted(entries.items())]
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
