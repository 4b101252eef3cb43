"""Suites of others that no package has: a checkout that somebody has (in a variable of the environment), or fetched.

Nothing of them is kept here. Where they cannot be had, their tests are skipped, also in CI: the network is not ours.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

FETCH_SECONDS_MAX = 120


def checkout(variable: str, repository: str, commit: str, directory: Path) -> Path:
    """``repository`` (owner/name at GitHub) at ``commit``, in ``directory`` if it is fetched."""
    there = os.environ.get(variable)
    if there is not None:
        return Path(there)
    if "CI" not in os.environ:
        pytest.skip(f"{variable} names no checkout of {repository}")
    commands = (
        ["init", "-q", str(directory)],
        ["-C", str(directory), "fetch", "-q", "--depth", "1", f"https://github.com/{repository}", commit],
        ["-C", str(directory), "checkout", "-q", "FETCH_HEAD"],
    )
    for command in commands:
        try:
            environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
            done = subprocess.run(
                ["git", *command], capture_output=True, text=True, timeout=FETCH_SECONDS_MAX, env=environment
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"{repository} cannot be had: {error}")
        if done.returncode != 0:
            pytest.skip(f"{repository} cannot be had: {done.stderr.strip()}")
    return directory
