"""Would a test see it if a line that carries a safety argument were wrong?

    python -m tests.mutants                      ten of all mutants, at random; the seed is printed
    python -m tests.mutants --count 30 --seed 7  thirty, the same each time
    python -m tests.mutants --names renew-before-end,fence-second-listing
    python -m tests.mutants --all --jobs 2       all of them
    python -m tests.mutants --list               which there are, without running anything

Lines are marked in the source (marks.py); what is made of them, says changes.py; which tests are asked, table.py.
Each mutant runs alone, in a copy of the tree, until a test fails. Exit code 0: all were caught; 1: not all.
"""

from __future__ import annotations

import argparse
import json
import random
import sys

from tests.mutants.marks import MarkError
from tests.mutants.run import all_mutants, line_of, summary_of, try_out
from tests.mutants.trial import Outcome

COUNT = 10


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--names", metavar="A,B", help="the mutants of these marks")
    parser.add_argument("--all", action="store_true", help="every mutant")
    parser.add_argument("--count", type=int, default=COUNT, help=f"so many at random ({COUNT})")
    parser.add_argument("--seed", type=int, help="which these are")
    parser.add_argument("--jobs", type=int, default=1, help="so many at the same time (1)")
    parser.add_argument("--list", action="store_true", help="tell them, and run nothing")
    parser.add_argument("--json", action="store_true", help="for a machine")
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
    elif not text.all and not text.list:
        seed = text.seed if text.seed is not None else random.SystemRandom().randrange(1, 1 << 32)
        print(f"--seed {seed}", file=sys.stderr)
        mutants = random.Random(seed).sample(mutants, min(text.count, len(mutants)))
    if text.list:
        for mutant in mutants:
            print(f"{mutant.mark.place}  {mutant.name}")
        return 0

    def told(outcome: Outcome) -> None:
        print(line_of(outcome), file=sys.stderr if text.json else sys.stdout, flush=True)

    outcomes = try_out(mutants, jobs=text.jobs, told=told)
    if text.json:
        print(json.dumps([_json(outcome) for outcome in outcomes], indent=1))
    print(summary_of(outcomes), file=sys.stderr if text.json else sys.stdout)
    return 0 if all(outcome.caught_by is not None for outcome in outcomes) else 1


def _json(outcome: Outcome) -> dict[str, object]:
    mark = outcome.mutant.mark
    return {
        "name": mark.name,
        "file": mark.path,
        "line": mark.line,
        "change": outcome.mutant.what,
        "caught_by": outcome.caught_by,
        "seconds": round(outcome.seconds, 2),
    }


if __name__ == "__main__":
    sys.exit(main())
