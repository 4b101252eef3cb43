"""A plug-in of pytest that records the failed tests and the duration of each test, for `reruns.py`.

Enabled by `-p tests.support.ci.record` and TANDEMMQ_CI_RECORD, the file to write. With several workers, each adds the
exception to its report, and the process that collects the reports writes the file.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.ci.rules import Failure
from tests.support.ci.verdicts import is_verdict
from tests.support.interop.checkouts import BY_HAND
from tests.support.prove import SEED

RECORD: Final = "TANDEMMQ_CI_RECORD"
#: Name of the property that a worker adds to the report of a failure.
_NOTED: Final = "tandemmq_ci"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.excinfo is not None:
        is_about_the_fence = item.get_closest_marker("fence") is not None
        noted = {"is_verdict": is_verdict(call.excinfo.value, is_about_the_fence=is_about_the_fence), "seed": SEED}
        setattr(report, _NOTED, noted)
    return report


def pytest_configure(config: pytest.Config) -> None:
    path = os.environ.get(RECORD)
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Writer(Path(path)))


class _Writer:
    """Writes JSON lines: each failure as soon as it is known; at the end the seconds of all tests, the number of passed
    tests, and the commands that run skipped tests manually."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: Counter[str] = Counter()
        self._passed = 0
        self._by_hand: set[str] = set()
        path.unlink(missing_ok=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        self._passed += report.passed and report.when == "call"
        if report.skipped and isinstance(report.longrepr, tuple):
            _, is_by_hand, command = report.longrepr[2].partition(BY_HAND)
            self._by_hand |= {command} if is_by_hand else set()
        if report.failed:
            output = "".join(f"\n-- {title} --\n{text}" for title, text in report.sections)
            # A worker that died has added nothing.
            noted = getattr(report, _NOTED, {"is_verdict": False, "seed": SEED})
            self._write({"test": report.nodeid, "text": f"{report.when}\n{report.longreprtext}{output}", **noted})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write({"broken": report.nodeid})

    def pytest_sessionfinish(self) -> None:
        seconds = {test: round(seconds, 3) for test, seconds in self._seconds.items()}
        self._write({"seconds": seconds, "passed": self._passed, "by_hand": sorted(self._by_hand)})

    def _write(self, line: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


class Recorded:
    """The record of a leg, LEG.jsonl. ``is_whole``: the run of the tests ended normally. A test has at most one
    failure."""

    def __init__(self, path: Path) -> None:
        self.failures: list[Failure] = []
        self.seconds: dict[str, float] = {}
        self.passed = 0
        self.by_hand: list[str] = []
        self.is_whole = False
        by_test: dict[str, list[dict[str, Any]]] = {}
        broken = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            entry = json.loads(line)
            if "test" in entry:
                by_test.setdefault(entry["test"], []).append(entry)
            elif "broken" in entry:
                broken.append(entry["broken"])
            else:
                self.seconds, self.passed, self.by_hand = entry["seconds"], entry["passed"], entry["by_hand"]
                self.is_whole = not broken
        self.failures = [
            Failure(
                path.stem,
                test,
                any(each["is_verdict"] for each in entries),
                entries[0]["seed"],
                "\n\n".join(each["text"] for each in entries),
            )
            for test, entries in by_test.items()
        ]
