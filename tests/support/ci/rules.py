"""The rules for a test that failed in CI: whether it is run again, and the effect of the second run.

`reruns.py` runs the tests and reads docs/ROADMAP.md.
"""

# proofs: ci-rules

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

#: A run of CI with more unstable tests than this fails.
UNSTABLE_MAX: Final = 3
#: A test that the roadmap lists this often gets no second run.
LISTINGS_MAX: Final = 2
#: The section of docs/ROADMAP.md with one line for each time that a test was unstable.
SECTION: Final = "## Unstable tests"
_LISTED = re.compile(r"- `(tests/[^`]+)`")


@dataclass(frozen=True, slots=True)
class Failure:
    """A test that failed in the first run of a leg. ``is_verdict``: the failure shows a broken promise
    (verdicts.py)."""

    leg: str
    test: str
    is_verdict: bool
    seed: int
    text: str


def listed(roadmap: str) -> Mapping[str, int]:
    """Return how often the roadmap lists each test as unstable."""
    _, _, section = roadmap.partition(f"\n{SECTION}\n")
    section, _, _ = section.partition("\n## ")
    return Counter(_LISTED.findall(section))


def why_final(failure: Failure, listings: Mapping[str, int]) -> str | None:
    """Return why a failure counts without a second run; None if the test is run again."""
    if failure.is_verdict:  # prove: promise-is-believed-once
        return "a promise was broken"
    if listings.get(failure.test, 0) >= LISTINGS_MAX:  # prove: listed-twice-is-final
        return f"docs/ROADMAP.md lists it as unstable {LISTINGS_MAX} times"
    return None


def can_be_saved(failures: Collection[Failure], listings: Mapping[str, int]) -> bool:
    """Return whether CI can still pass."""
    return len(failures) <= UNSTABLE_MAX and not any(why_final(each, listings) for each in failures)


def judged(failures: Iterable[Failure], passed_again: Collection[Failure]) -> tuple[list[Failure], list[Failure]]:
    """Return the failures that count, and the unstable ones, whose test passed in the second run."""
    failed, unstable = [], []
    for failure in failures:
        is_unstable = failure in passed_again  # prove: only-a-second-pass-helps
        (unstable if is_unstable else failed).append(failure)
    return failed, unstable


def is_passed(failed: Collection[object], unstable: Collection[object]) -> bool:
    """Return whether a run of CI with these tests of all its legs passes."""
    return not failed and len(unstable) <= UNSTABLE_MAX  # prove: few-unstable-tests
