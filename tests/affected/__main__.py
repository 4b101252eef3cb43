"""Runs the tests that a change can affect, the likeliest to notice first, within about a minute.

    python -m tests.affected                       for what is not committed (`make affected`)
    python -m tests.affected --base main           for all since main
    python -m tests.affected --base HEAD~3..HEAD   for a range of commits, of which the last is checked out
    python -m tests.affected --list                which they are and why, without running any
    python -m tests.affected -- -x --pdb           with options of pytest
    python -m tests.affected --judge 20            whether it would have found a mutant of each of the last 20 commits

imports.py finds which test needs which file, choose.py which of them run first. It is a sample that answers soon, not a
proof: before a change lands, run `make test` and `pytest`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from tests.affected.changes import changes_of
from tests.affected.choose import Choice, Kind, choose
from tests.affected.imports import graph_of
from tests.affected.judge import judge
from tests.support.tree import ROOT

#: Of all workers together; half of the time they wait for other processes, and about ten seconds go for the start.
BUDGET_SECONDS = 75.0
WORKERS_MAX = 8


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.affected", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", default="HEAD", metavar="REV", help="since when; A..B: between two (HEAD)")
    parser.add_argument("--budget", type=float, default=BUDGET_SECONDS, help=f"seconds of work ({BUDGET_SECONDS:g})")
    parser.add_argument("--list", action="store_true", help="run nothing")
    parser.add_argument("--judge", type=int, metavar="N", help="try it with mutants of the last N commits")
    parser.add_argument("options", nargs="*", help="options of pytest, after --")
    arguments = parser.parse_args()
    if arguments.judge is not None:
        return judge(arguments.judge, arguments.budget)
    choice = choose(graph_of(ROOT), changes_of(ROOT, arguments.base), arguments.budget)
    tell(choice, is_long=arguments.list)
    if arguments.list or not choice.tests:
        return 0
    workers = min(len(os.sched_getaffinity(0)) + 1, WORKERS_MAX)
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), *arguments.options, *choice.tests]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def tell(choice: Choice, *, is_long: bool) -> None:
    if is_long:
        for candidate in choice.candidates:
            print(f"{candidate.kind.name.lower():9}  {candidate.seconds:5.1f} s  {candidate.file}")
    print(f"{len(choice.candidates)} test files, {choice.seconds:.0f} s of work", end="")
    print(f"; {len(choice.left_out)} more need what changed" if choice.left_out else "", flush=True)
    near = [each.file for each in choice.left_out if each.kind <= Kind.DIRECT]
    if near:
        print(f"left out, for they need services or take too long: {' '.join(near)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
