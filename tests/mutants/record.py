"""Outcomes in a file, so that a run of many hours can stop and continue.

    {"mutant": "fence-by-link: without ...", "key": "5f0c...", "how": "test", "caught_by": "tests/...", ...}
    {"test": "tests/...::test_x", "key": "91aa...", "fails": ""}

Each line is a JSON object, appended as soon as it is known. The second kind shows whether a test that caught a mutant
passes on the unchanged tree. The key is a checksum of the changed source file and of the test files: an outcome is
valid only until one of them changes.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.mutants.changes import Mutant
from tests.mutants.declared import tests_of
from tests.mutants.trial import How, Outcome
from tests.support.tree import ROOT


class Record:
    """The known outcomes. ``file``: where they are read and appended; None: they are kept in memory only."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._entries: dict[tuple[str, str], dict[str, Any]] = {}
        self._lock = threading.Lock()
        if file is not None and file.exists():
            for line in file.read_text(encoding="utf-8").splitlines():
                if line.endswith("}"):  # the last line may be incomplete
                    self._remember(json.loads(line))

    def outcome(self, mutant: Mutant) -> Outcome | None:
        """Return the last outcome, if it is still valid. A mutant is not caught if the test that caught it fails on the
        unchanged tree, too."""
        entry = self._entries.get((mutant.name, _key_of_mutant(mutant)))
        if entry is None:
            return None
        outcome = Outcome(mutant, How(entry["how"]), entry["caught_by"], entry["seconds"])
        fails = self._fails(outcome.caught_by) if outcome.how is How.TEST else None
        return Outcome(mutant, How.NOTHING, "", outcome.seconds, f"{outcome.caught_by}: {fails}") if fails else outcome

    def add(self, outcome: Outcome) -> None:
        mutant = outcome.mutant
        self._append(
            {
                "mutant": mutant.name,
                "key": _key_of_mutant(mutant),
                "how": str(outcome.how),
                "caught_by": outcome.caught_by,
                "seconds": round(outcome.seconds, 1),
                "place": mutant.mark.place,
            }
        )

    def forget(self, outcomes: Iterable[Outcome]) -> None:
        """Remove these outcomes, so that their mutants are tried again."""
        for outcome in outcomes:
            del self._entries[outcome.mutant.name, _key_of_mutant(outcome.mutant)]

    def unchecked(self, outcomes: Iterable[Outcome]) -> list[str]:
        """Return the tests that caught a mutant and have not yet run on the unchanged tree."""
        tests = {outcome.caught_by for outcome in outcomes if outcome.how is How.TEST}
        return sorted(test for test in tests if self._fails(test) is None)

    def checked(self, tests: Sequence[str], failing: set[str], output: str) -> None:
        """Add the results of ``tests`` on the unchanged tree."""
        for test in tests:
            self._append({"test": test, "key": _key([test]), "fails": output or "fails" if test in failing else ""})

    def _fails(self, test: str) -> str | None:
        entry = self._entries.get((test, _key([test])))
        return None if entry is None else str(entry["fails"])

    def _append(self, entry: dict[str, Any]) -> None:
        with self._lock:
            self._remember(entry)
            if self._file is not None:
                with self._file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(entry) + "\n")

    def _remember(self, entry: dict[str, Any]) -> None:
        self._entries[entry.get("mutant") or entry["test"], entry["key"]] = entry


def _key_of_mutant(mutant: Mutant) -> str:
    return _key(sorted(tests_of(mutant.mark)), mutant.source)


def _key(tests: Iterable[str], source: str = "") -> str:
    checksum = hashlib.sha256(source.encode())
    for test in tests:
        checksum.update(f"\0{test}\0".encode())
        checksum.update((ROOT / test.partition("::")[0]).read_bytes())
    return checksum.hexdigest()[:16]
