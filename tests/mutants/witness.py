"""Plugin of pytest that writes a line about each event into the file that TANDEMMQ_MUTANT_WITNESS names.

begun <test>     failed <test>     late <test>: pytest-timeout ended it     over: the run ended
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

WITNESS = "TANDEMMQ_MUTANT_WITNESS"
BEGUN, FAILED, LATE, OVER = "begun ", "failed ", "late ", "over"
#: Beginning of a failure by pytest-timeout.
_TIMEOUT = "Timeout (>"


def _write(event: str) -> None:
    with Path(os.environ[WITNESS]).open("a", encoding="utf-8") as file:
        file.write(f"{event}\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    _write(BEGUN + nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _write((LATE if _TIMEOUT in report.longreprtext else FAILED) + report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _write(FAILED + report.nodeid)


def pytest_sessionfinish() -> None:
    _write(OVER)
