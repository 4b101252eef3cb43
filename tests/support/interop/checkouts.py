"""Test suites and programs of other projects that are in no package registry: their tests are run manually, with a
checkout.

This tree contains no part of them. CI lists each of them once in its summary, with the command.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

#: Prefix of the reason of a skipped test, which tests/support/ci/record.py searches for.
BY_HAND = "by hand: "


def checkout(variable: str, repository: str, tests: str) -> Path:
    """Return the checkout of ``repository`` (owner/name at GitHub) that the environment variable ``variable`` names."""
    there = os.environ.get(variable)
    if there is None:
        clone = f"git clone https://github.com/{repository} /tmp/suite"
        run_by_hand(f"{clone} && {variable}=/tmp/suite pytest --services {tests}")
    return Path(there)


def run_by_hand(command: str) -> NoReturn:
    """Skip a test that needs a program which no registry has."""
    pytest.skip(f"{BY_HAND}{command}")
