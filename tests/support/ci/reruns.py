"""First runs of the legs, second runs of failed tests, and the result of CI.

All files are in the directory that TANDEMMQ_CI_LOGS names: LEG.jsonl is the record of a first run, again-NUMBER.log the
output of a second one.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from tests.support.ci.legs import LEGS, Leg, arguments_of, prepared, pytest_command
from tests.support.ci.record import RECORD, Recorded
from tests.support.ci.rules import SECTION, UNSTABLE_MAX, Failure, can_be_saved, is_passed, judged, listed, why_final
from tests.support.prove import SEED
from tests.support.tree import ROOT

LOGS: Final = "TANDEMMQ_CI_LOGS"
#: With more failures than this in all legs no test is run again: CI fails anyway.
AGAIN_MAX: Final = 10
SLOWEST_COUNT: Final = 20
#: Limit of a test that has no limit of its own. It is long, because other legs run at the same time.
TEST_SECONDS_MAX: Final = 300
#: Maximum part of a log that is printed; the file has all of it.
PRINTED_MAX: Final = 6000
SECOND_RUN_SECONDS_MAX: Final = 1200
ALL_PASSED, SOME_FAILED = 0, 1


def logs() -> Path:
    return Path(os.environ[LOGS])


def _recorded_pytest() -> list[str]:
    return [*pytest_command(), "-p", "tests.support.ci.record", f"--timeout={TEST_SECONDS_MAX}"]


def run_first(leg: Leg, arguments: Sequence[str] = ()) -> int:
    """Run a leg, or the part that ``arguments`` select. The exit code is also 0 if second runs can still make CI
    pass."""
    record = logs() / f"{leg.name}.jsonl"
    with prepared(leg) as (tree, environment):
        command = [*_recorded_pytest(), "-n", str(leg.workers), "--durations=10"]
        command += arguments or arguments_of(leg, tree, environment)
        code = subprocess.run(command, cwd=tree, env={**environment, RECORD: str(record)}, check=False).returncode
    return code_of(code, Recorded(record), listed_now())


def code_of(code: int, recorded: Recorded, listings: Mapping[str, int]) -> int:
    """Return the exit code of a leg: 0 if all failures can still pass in second runs."""
    if code != SOME_FAILED or not recorded.is_whole or not recorded.failures:
        return code
    return ALL_PASSED if can_be_saved(recorded.failures, listings) else code


def listed_now() -> Mapping[str, int]:
    return listed((ROOT / "docs" / "ROADMAP.md").read_text(encoding="utf-8"))


def run_again(leg: Leg, test: str, seed: int, log: Path | None = None) -> bool:
    """Run a test alone, with this seed, and return whether it passes. It prints to ``log``, or to the terminal."""
    with prepared(leg) as (tree, environment), tempfile.TemporaryDirectory() as directory:
        record = Path(directory, f"{leg.name}.jsonl")
        command = [*_recorded_pytest(), "-n", "0", test]
        environment[RECORD] = str(record)
        if seed != SEED:  # otherwise it is the default seed, which all other runs have
            environment["TANDEMMQ_SEED"] = str(seed)
        with log.open("wb") if log is not None else nullcontext() as output:
            try:
                code = subprocess.run(
                    command, cwd=tree, env=environment, stdout=output, stderr=output, timeout=SECOND_RUN_SECONDS_MAX
                ).returncode
            except subprocess.TimeoutExpired:
                return False
        return code == ALL_PASSED and Recorded(record).passed > 0  # it was not skipped


def conclude(legs: Mapping[str, Leg] = LEGS) -> int:
    """Run the tests again that may be, print the slowest tests, the unstable tests and the failures, and return the
    exit code of CI."""
    records = {leg: Recorded(logs() / f"{leg}.jsonl") for leg in legs if (logs() / f"{leg}.jsonl").exists()}
    _print_slowest(records)
    failures = [failure for recorded in records.values() for failure in recorded.failures]
    second = second_runs(failures, listed_now(), legs)
    failed, unstable = judged(second, [failure for failure, (passed, _) in second.items() if passed])
    for what, failures in (("failed", failed), ("unstable", unstable)):
        for failure in failures:
            _print_logs(what, failure, second[failure][1])
    if unstable:
        print(f"\nAdd to docs/ROADMAP.md, below {SECTION!r}, until the cause is known:")
        print("\n".join(f"- `{each.test}`: leg {each.leg}, seed {each.seed}" for each in unstable))
    broken = [leg for leg, recorded in records.items() if not recorded.is_whole]
    if broken:
        print(f"\ndid not run to the end: {', '.join(broken)}")
    if len(unstable) > UNSTABLE_MAX:
        print(f"\n{len(unstable)} tests are unstable: more than {UNSTABLE_MAX} fail CI")
    for command in sorted({each for recorded in records.values() for each in recorded.by_hand}):
        print(f"\nnot run, because no registry has it; by hand: {command}")
    print(f"\n{sum(len(recorded.seconds) for recorded in records.values())} tests: ", end="")
    print(f"{len(failed)} failed twice or count at once, {len(unstable)} unstable", flush=True)
    return ALL_PASSED if is_passed(failed, unstable) and not broken else SOME_FAILED


def second_runs(
    failures: Sequence[Failure], listings: Mapping[str, int], legs: Mapping[str, Leg]
) -> dict[Failure, tuple[bool, Path | None]]:
    """Return for each failure whether its test passed in the second run, and the log of that run."""
    if len(failures) > AGAIN_MAX:
        print(f"\n{len(failures)} tests failed: none is run again")
        return dict.fromkeys(failures, (False, None))
    ended: dict[Failure, tuple[bool, Path | None]] = {}
    for number, failure in enumerate(failures, 1):
        why = why_final(failure, listings)
        if why is not None:
            print(f"\nnot run again, {why}: {failure.test}")
            ended[failure] = (False, None)
            continue
        print(f"\nrun again: {failure.test} (leg {failure.leg}, seed {failure.seed})", flush=True)
        log = logs() / f"again-{number}.log"
        ended[failure] = (run_again(legs[failure.leg], failure.test, failure.seed, log), log)
    return ended


def _print_slowest(records: Mapping[str, Recorded]) -> None:
    seconds = [(took, leg, test) for leg, recorded in records.items() for test, took in recorded.seconds.items()]
    lines = [f"{took:8.1f} s  {leg:9}{test}" for took, leg, test in sorted(seconds, reverse=True)]
    (logs() / "seconds.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(["the slowest tests:", *lines[:SLOWEST_COUNT]]), flush=True)


def _print_logs(what: str, failure: Failure, second: Path | None) -> None:
    print(f"\n{what}: {failure.test} (leg {failure.leg}, seed {failure.seed})")
    print(f"to repeat it: python -m tests.support.ci repeat --leg {failure.leg} --seed {failure.seed} '{failure.test}'")
    print(f"-- the first run ({logs() / failure.leg}.jsonl):\n{failure.text[-PRINTED_MAX:]}")
    if second is not None:
        print(f"-- the second run ({second}):\n{second.read_text(errors='replace')[-PRINTED_MAX:]}", flush=True)
