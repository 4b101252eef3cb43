"""What a server costs, asked from Linux (proc(5)): CPU, peak memory, context switches of a process and its children."""

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
    """Since the start of the process, and with all its threads: those of its children that still run, too."""

    cpu_seconds: float
    """User and system, to the nanosecond; of children that were waited for to the tick."""

    system_seconds: float
    """The system's part of them, to the tick."""

    peak_memory_bytes: int
    """The sum of the peaks (VmHWM) of all processes."""

    waits: int
    """Voluntary context switches: a thread had nothing to do until something happened. Of threads that still run."""

    preemptions: int
    """Involuntary ones: another thread was given the processor."""

    def since(self, before: "Cost") -> "Cost":
        """What came to it; the peak stays what it is."""
        return Cost(
            self.cpu_seconds - before.cpu_seconds,
            self.system_seconds - before.system_seconds,
            self.peak_memory_bytes,
            self.waits - before.waits,
            self.preemptions - before.preemptions,
        )


def descendants(pid: int) -> list[int]:
    """The process and everything it started that still runs."""
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
    """What it cost until now; a process that ended meanwhile counts with nothing but its waited-for children."""
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
    """The most memory that this process alone had; 0 when it has none any more. OSError when it is not there."""
    return status_number((_PROC / str(pid) / "status").read_text(), "VmHWM") * 1024


def status_number(text: str, name: str) -> int:
    """A number of /proc/<pid>/status; 0 where it says none, as of a process that ended and was not waited for."""
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name}:")), 0)


def _cpu_clock(pid: int) -> int:
    """The clock of the CPU time of a process: clock_getcpuclockid(3), which Python has for threads only."""
    return ~pid << 3 | 2


def end_in_order_at_sigterm() -> None:
    """A run that is told to end must still end what it started."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def _entries(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
