"""Print the time of each step of a run: `split.py FILE`.

A line of FILE has a step, its start, end and exit code, and what bash's `times` prints: user and system CPU time of its
shell, and of the processes that its shell waited for.
"""

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
    cpu_seconds: float

    def shares_seconds_with(self, other: Step) -> float:
        return min(self.end, other.end) - max(self.start, other.start)


def steps_in(text: str) -> list[Step]:
    """Return the steps in the order in which they began."""
    steps = []
    for name, start, end, code, *times in (line.split() for line in text.splitlines()):
        cpu_seconds = sum(60 * int(minutes) + float(rest[:-1]) for minutes, rest in (t.split("m") for t in times))
        steps.append(Step(name, float(start), float(end), int(code), cpu_seconds))
    return sorted(steps, key=lambda step: step.start)


def table(steps: Sequence[Step]) -> str:
    """Return a table: start, duration and CPU time of each step in seconds, and the steps that ran beside it."""
    begin = steps[0].start
    width = max(len(step.name) for step in steps)
    rows = [f"{'step':{width}}  start  seconds  CPU  beside"]
    for step in steps:
        others = [each for each in steps if each is not step]
        beside = ", ".join(each.name for each in others if step.shares_seconds_with(each) >= SHARED_SECONDS_MIN)
        failed = f"  FAILED ({step.code})" if step.code else ""
        times = f"{step.start - begin:6.0f} {step.end - step.start:8.0f} {step.cpu_seconds:4.0f}"
        rows.append(f"{step.name:{width}} {times}  {beside}{failed}")
    took, used = max(step.end for step in steps) - begin, sum(step.cpu_seconds for step in steps)
    rows.append(f"{'all':{width}} {0:6.0f} {took:8.0f} {used:4.0f}")
    return "\n".join(rows)


if __name__ == "__main__":
    said = Path(sys.argv[1])
    if said.exists() and (found := steps_in(said.read_text())):
        print(table(found))
