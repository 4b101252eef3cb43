"""The name of a test that leaves very many files open is reported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.descriptors import OPEN_MAX
from tests.support.tree import ROOT

TESTS = f"""
import os
kept = []
def test_leaves_many():
    kept.extend(os.open(os.devnull, os.O_RDONLY) for _ in range({OPEN_MAX - 50}))
def test_leaves_some():
    kept.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(60))
def test_closes_all():
    for each in kept:
        os.close(each)
"""


def test_a_test_that_leaves_many_files_open_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_leaving.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.descriptors", "-p", "no:cacheprovider", "-q"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert "3 passed, 1 error" in done.stdout, done.stdout
    named = next(line for line in done.stdout.splitlines() if "descriptors are open" in line)
    assert f"descriptors are open: [('{os.devnull}', " in named
    assert f"left by [('test_leaving.py::test_leaves_many', {OPEN_MAX - 50})" in named
