"""Suites and programs of others that no package registry has: their tests run by hand, with a checkout.

Nothing of them is kept here. CI names each of them once in its summary, with the command.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

#: How the reason of a test that is skipped begins. tests/support/ci/record.py looks for it.
BY_HAND = "by hand: "


def checkout(variable: str, repository: str, tests: str) -> Path:
    """Where ``variable`` of the environment has ``repository`` (owner/name at GitHub)."""
    there = os.environ.get(variable)
    if there is None:
        clone = f"git clone https://github.com/{repository} /tmp/suite"
        run_by_hand(f"{clone} && {variable}=/tmp/suite pytest --services {tests}")
    return Path(there)


def run_by_hand(command: str) -> NoReturn:
    """Skip a test that needs what cannot be installed from a registry."""
    pytest.skip(f"{BY_HAND}{command}")
