"""Print the time of each step of a run: `split.py FILE`. A line of FILE has a step, its start, end and exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# A step ran beside another one if they share at least this time.
SHARED_SECONDS_MIN = 1.0


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    start: float
    end: float
    code: int

    def shares_seconds_with(self, other: Step) -> float:
        return min(self.end, other.end) - max(self.start, other.start)


def steps_in(text: str) -> list[Step]:
    """Return the steps in the order in which they began."""
    lines = (line.split() for line in text.splitlines())
    steps = [Step(name, float(start), float(end), int(code)) for name, start, end, code in lines]
    return sorted(steps, key=lambda step: step.start)


def table(steps: Sequence[Step]) -> str:
    """Return a table: start and duration of each step in seconds, and the steps that ran beside it."""
    begin = steps[0].start
    width = max(len(step.name) for step in steps)
    rows = [f"{'step':{width}}  start  seconds  beside"]
    for step in steps:
        others = [each for each in steps if each is not step]
        beside = ", ".join(each.name for each in others if step.shares_seconds_with(each) >= SHARED_SECONDS_MIN)
        failed = f"  FAILED ({step.code})" if step.code else ""
        rows.append(f"{step.name:{width}} {step.start - begin:6.0f} {step.end - step.start:8.0f}  {beside}{failed}")
    rows.append(f"{'all':{width}} {0:6.0f} {max(step.end for step in steps) - begin:8.0f}")
    return "\n".join(rows)


if __name__ == "__main__":
    said = Path(sys.argv[1])
    if said.exists() and (found := steps_in(said.read_text())):
        print(table(found))
