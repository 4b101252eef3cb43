"""A plugin of pytest: tells what happens, a line each, in the file that TANDEMMQ_MUTANT_WITNESS names.

begun <test>     failed <test>     late <test>, which pytest-timeout ended     over
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

WITNESS = "TANDEMMQ_MUTANT_WITNESS"
BEGUN, FAILED, LATE, OVER = "begun ", "failed ", "late ", "over"
#: How pytest-timeout begins.
_TIMEOUT = "Timeout (>"


def _tell(what: str) -> None:
    with Path(os.environ[WITNESS]).open("a", encoding="utf-8") as file:
        file.write(f"{what}\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    _tell(BEGUN + nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _tell((LATE if _TIMEOUT in report.longreprtext else FAILED) + report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _tell(FAILED + report.nodeid)


def pytest_sessionfinish() -> None:
    _tell(OVER)
