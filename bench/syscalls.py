"""Number of system calls of a process, counted by the kernel (perf-stat(1)) without stopping the process."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

_EVENTS = {"raw_syscalls:sys_enter": "syscalls", "syscalls:sys_enter_futex": "futexes"}
# perf prints nothing when it begins to count.
_BEGIN_SECONDS = 0.2
_END_SECONDS = 10.0


@contextmanager
def counted(pid: int) -> Iterator[dict[str, int]]:
    """Count the system calls of all threads of ``pid`` in the block. The mapping is filled when the block ends:
    ``syscalls``, and of these ``futexes``, the waits and wake-ups of locks. Empty if perf cannot count."""
    found: dict[str, int] = {}
    perf = shutil.which("perf")
    if perf is None:
        yield found
        return
    counter = subprocess.Popen(
        [perf, "stat", "-x", ";", "-e", ",".join(_EVENTS), "-p", str(pid)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        time.sleep(_BEGIN_SECONDS)
        yield found
    finally:
        counter.send_signal(signal.SIGINT)
        try:
            told = counter.communicate(timeout=_END_SECONDS)[1]
        except subprocess.TimeoutExpired:
            counter.kill()
            told = counter.communicate()[1]
    found.update(counts_in(told))


def counts_in(told: str) -> dict[str, int]:
    """Parse perf stat's output: ``<count>;<unit>;<event>;...`` a line. Events that were not counted are left out."""
    found = {}
    for line in told.splitlines():
        count, _, rest = line.partition(";")
        event = rest.split(";")[1] if rest.count(";") >= 1 else ""
        if event in _EVENTS and count.isdigit():
            found[_EVENTS[event]] = int(count)
    return found
