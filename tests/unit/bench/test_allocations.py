"""Allocations are counted of a program that was started so."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tandemmq.bench.allocations import Counter, counter


def test_each_object_of_a_program_counts() -> None:
    with counter() as counted:
        if counted is None:
            pytest.skip("no C compiler")
        assert counted.count() == 0
        _count(counted, 0)  # the first compiles what it imports, where that is not kept
        few, many = _count(counted, 0), _count(counted, 100_000)
    assert 100_000 <= many - few < 130_000


def _count(counted: Counter, objects: int) -> int:
    before = counted.count()
    program = f"kept = [object() for _ in bytes({objects})]"
    subprocess.run([sys.executable, "-S", "-c", program], env={**os.environ, **counted.environment}, check=True)
    return counted.count() - before
