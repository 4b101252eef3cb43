"""How many system calls a process makes, counted by the kernel (perf-stat(1)): without stopping it at any of them."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

_EVENTS = {"raw_syscalls:sys_enter": "syscalls", "syscalls:sys_enter_futex": "futexes"}
# perf says nothing when it has begun to count.
_BEGIN_SECONDS = 0.2
_END_SECONDS = 10.0


@contextmanager
def counted(pid: int) -> Iterator[dict[str, int]]:
    """Filled when the block ends, with what all threads of ``pid`` called meanwhile: ``syscalls``, and of these
    ``futexes``, the waits and wake-ups of locks. Empty where perf is not there, or may not count."""
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
    """What perf stat printed: ``<count>;<unit>;<event>;...`` a line. Events that were not counted are left out."""
    found = {}
    for line in told.splitlines():
        count, _, rest = line.partition(";")
        event = rest.split(";")[1] if rest.count(";") >= 1 else ""
        if event in _EVENTS and count.isdigit():
            found[_EVENTS[event]] = int(count)
    return found
