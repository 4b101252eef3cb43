"""Show whether a test fails if a line that carries a safety argument is wrong.

    python -m tests.mutants                      ten random mutants; the seed is printed
    python -m tests.mutants --count 30 --seed 7  thirty, the same each time
    python -m tests.mutants --names renew-before-end,fence-second-listing
    python -m tests.mutants --all --jobs 2       all mutants
    python -m tests.mutants --list               list the mutants, and run nothing
    python -m tests.mutants --all --resume FILE  append each outcome to FILE; skip the mutants that FILE has
    python -m tests.mutants --all --part 3/10    a tenth of the mutants; the parts can share one FILE
    python -m tests.mutants --summary FILE       the outcomes in FILE that are valid for this tree

Lines are marked in the source (marks.py), changes.py makes the mutants, and tests declare which marks they prove
(declared.py). Each mutant runs alone, in a copy of the tree, until a test fails. On a busy machine `--patience 3`
triples the time limits. Exit code 0: a test caught each mutant; 1: a mutant was not caught, or only by a time limit.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.changes import Mutant
from tests.mutants.marks import MarkError
from tests.mutants.record import Record
from tests.mutants.run import all_mutants, known_outcomes, line_of, part_of, summary_of, try_out
from tests.mutants.trial import How, Outcome

COUNT = 10


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--names", metavar="A,B", help="the mutants of these marks")
    parser.add_argument("--all", action="store_true", help="all mutants")
    parser.add_argument("--count", type=int, default=COUNT, help=f"number of random mutants ({COUNT})")
    parser.add_argument("--seed", type=int, help="seed of the random choice")
    parser.add_argument("--jobs", type=int, default=1, help="number of mutants that run at the same time (1)")
    parser.add_argument("--part", type=_part, metavar="N/M", help="the N-th of M parts of the mutants")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="file with the outcomes (JSON lines)")
    parser.add_argument(
        "--again", action="store_true", help="with --resume: repeat the mutants that no test has caught"
    )
    parser.add_argument("--patience", type=float, default=1, help="factor of the time limits (1)")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="report the outcomes in FILE, and run nothing")
    parser.add_argument("--list", action="store_true", help="list the mutants, and run nothing")
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON")
    text = parser.parse_args()
    try:
        mutants = all_mutants()
    except MarkError as error:
        parser.error(str(error))
    if text.names is not None:
        names = set(text.names.split(","))
        unknown = names - {mutant.mark.name for mutant in mutants}
        if unknown:
            parser.error(f"there is no mark {', '.join(sorted(unknown))}")
        mutants = [mutant for mutant in mutants if mutant.mark.name in names]
    elif not (text.all or text.list or text.summary or text.part):
        seed = text.seed if text.seed is not None else random.SystemRandom().randrange(1, 1 << 32)
        print(f"--seed {seed}", file=sys.stderr)
        mutants = random.Random(seed).sample(mutants, min(text.count, len(mutants)))
    if text.part is not None:
        mutants = part_of(mutants, *text.part)
    if text.summary is not None:
        return _summary(mutants, Record(text.summary))
    if text.list:
        for mutant in mutants:
            print(f"{mutant.mark.place}  {mutant.name}")
        return 0

    def report(outcome: Outcome) -> None:
        print(line_of(outcome), file=sys.stderr if text.json else sys.stdout, flush=True)

    record = Record(text.resume)
    if text.again:
        record.forget(outcome for outcome in known_outcomes(mutants, record) if outcome.how is not How.TEST)
    outcomes = try_out(mutants, jobs=text.jobs, report=report, record=record, patience=text.patience)
    if text.json:
        print(json.dumps([_json(outcome) for outcome in outcomes], indent=1))
    print(summary_of(outcomes), file=sys.stderr if text.json else sys.stdout)
    return _code(outcomes)


def _part(text: str) -> tuple[int, int]:
    number, parts = map(int, text.split("/"))
    if not 1 <= number <= parts:
        raise ValueError(text)
    return number, parts


def _summary(mutants: Sequence[Mutant], record: Record) -> int:
    outcomes = known_outcomes(mutants, record)
    for outcome in outcomes:
        if outcome.how is not How.TEST:
            print(line_of(outcome))
    print(f"{summary_of(outcomes)}; {len(mutants) - len(outcomes)} to try; {sum(o.seconds for o in outcomes):.0f} s")
    return _code(outcomes)


def _code(outcomes: Sequence[Outcome]) -> int:
    return 0 if all(outcome.how in (How.TEST, How.SIGNAL) for outcome in outcomes) else 1


def _json(outcome: Outcome) -> dict[str, object]:
    mark = outcome.mutant.mark
    return {
        "name": mark.name,
        "file": mark.path,
        "line": mark.line,
        "change": outcome.mutant.what,
        "how": str(outcome.how),
        "caught_by": outcome.caught_by or None,
        "seconds": round(outcome.seconds, 2),
    }


if __name__ == "__main__":
    sys.exit(main())
