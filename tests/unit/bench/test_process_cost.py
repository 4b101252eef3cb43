"""What a process and its children cost, from /proc."""

import os
import subprocess
import sys

from tandemmq.bench.process import cost, descendants

_BUSY_PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "held = bytearray(64 << 20); print(len(held), flush=True); input()"],
                         stdin=subprocess.PIPE)
sum(range(10_000_000))
print("done", flush=True)
input()
child.communicate(b"\\n")
"""


def test_children_count_with_their_parent() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _BUSY_PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert {parent.stdout.readline().strip(), parent.stdout.readline().strip()} == {str(64 << 20), "done"}

        family = descendants(parent.pid)
        measured = cost(parent.pid)

        parent.communicate("\n")
    assert len(family) == 2
    assert measured.cpu_seconds > 0
    assert measured.peak_memory_bytes > 64 << 20


def test_a_process_that_is_gone_costs_nothing() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()

    assert cost(gone.pid).peak_memory_bytes == 0
    assert cost(os.getpid()).peak_memory_bytes > 0
