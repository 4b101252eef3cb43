"""Cost of a server, from proc(5): CPU, peak memory and context switches of a process and its descendants."""

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost since the start of a process, with all its threads and its running descendants."""

    cpu_seconds: float
    """User and system time: exact to the nanosecond; of ended children, to the clock tick."""

    system_seconds: float
    """System time, exact to the clock tick."""

    peak_memory_bytes: int
    """Sum of the peaks (VmHWM) of all processes."""

    waits: int
    """Voluntary context switches (a thread waited for an event) of running threads."""

    preemptions: int
    """Involuntary context switches: the kernel gave the processor to another thread."""

    def since(self, before: "Cost") -> "Cost":
        """Return the cost since ``before``. The peak memory is that of the whole time."""
        return Cost(
            self.cpu_seconds - before.cpu_seconds,
            self.system_seconds - before.system_seconds,
            self.peak_memory_bytes,
            self.waits - before.waits,
            self.preemptions - before.preemptions,
        )


def descendants(pid: int) -> list[int]:
    """Return the pids of the process and all its running descendants."""
    found = [pid]
    for parent in found:  # grows while it is walked
        for task in _entries(_PROC / str(parent) / "task"):
            try:
                children = (_PROC / str(parent) / "task" / task / "children").read_text()
            except OSError:
                continue
            found += map(int, children.split())
    return found


def cost(pid: int) -> Cost:
    """Return the cost so far. A process that ends meanwhile is counted only in its parent."""
    seconds, system, peak, waits, preemptions = 0.0, 0.0, 0, 0, 0
    for member in descendants(pid):
        try:
            # Fields 14 to 17 (utime, stime, cutime, cstime); the name before them may hold blanks and brackets.
            fields = (_PROC / str(member) / "stat").read_text().rpartition(")")[2].split()
            own = time.clock_gettime(_cpu_clock(member))
            peak += peak_bytes(member)
        except OSError:
            continue
        _, own_system, children, children_system = (int(ticks) / _TICKS_PER_SECOND for ticks in fields[11:15])
        seconds += own + children + children_system
        system += own_system + children_system
        for task in _entries(_PROC / str(member) / "task"):
            try:
                status = (_PROC / str(member) / "task" / task / "status").read_text()
            except OSError:
                continue
            waits += status_number(status, "voluntary_ctxt_switches")
            preemptions += status_number(status, "nonvoluntary_ctxt_switches")
    return Cost(seconds, system, peak, waits, preemptions)


def peak_bytes(pid: int) -> int:
    """Return the peak memory of this process without its children; 0 for a zombie. Raises OSError if the process does
    not exist."""
    return status_number((_PROC / str(pid) / "status").read_text(), "VmHWM") * 1024


def status_number(text: str, name: str) -> int:
    """Return a number of /proc/<pid>/status; 0 if it is missing, for example for a zombie."""
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name}:")), 0)


def _cpu_clock(pid: int) -> int:
    """Return the id of a process's CPU clock: clock_getcpuclockid(3), which Python has only for threads."""
    return ~pid << 3 | 2


def end_in_order_at_sigterm() -> None:
    """Exit with SystemExit at SIGTERM, so that an interrupted run ends the processes that it started."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def _entries(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
