"""What a server costs, asked from Linux: CPU seconds and peak memory of a process and its children (proc(5))."""

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds since the start, and the sum of the peaks (VmHWM) of all processes, in bytes."""

    cpu_seconds: float
    peak_memory_bytes: int


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
    """Both figures now; a process that ended meanwhile counts with nothing but its waited-for children."""
    seconds, peak = 0.0, 0
    for member in descendants(pid):
        try:
            # Fields 14 to 17 (utime, stime, cutime, cstime); the name before them may hold blanks and brackets.
            fields = (_PROC / str(member) / "stat").read_text().rpartition(")")[2].split()
            status = (_PROC / str(member) / "status").read_text()
        except OSError:
            continue
        seconds += sum(map(int, fields[11:15])) / _TICKS_PER_SECOND
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                peak += int(line.split()[1]) * 1024
    return Cost(seconds, peak)


def _entries(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
