"""Check whether a broker syncs before it confirms: strace(1) counts its calls while a load runs."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from tandemmq.bench.driver.process import descendants
from tandemmq.bench.driver.stomp import BenchError

#: Calls in a report. Those of _SYNCS return when data is on the disk.
CALLS: Final = ("fsync", "fdatasync", "syncfs", "sync_file_range", "msync", "io_submit", "io_uring_enter")
_SYNCS: Final = ("fsync", "fdatasync", "msync")
END_SECONDS_MAX: Final = 20.0


@contextmanager
def counted(pid: int) -> Iterator[dict[str, int]]:
    """Count the CALLS of all threads and processes of ``pid`` in the block; the mapping is filled when the block ends.
    The broker is slow meanwhile. Raises BenchError."""
    if shutil.which("strace") is None:
        raise BenchError("strace is not installed: nothing shows that the broker syncs")
    found: dict[str, int] = {}
    with tempfile.NamedTemporaryFile("r", prefix="bench-strace-") as table:
        pids = [word for each in descendants(pid) for word in ("-p", str(each))]
        calls = "trace=" + ",".join(f"?{call}" for call in CALLS)
        tracer = subprocess.Popen(
            ["strace", "-f", "-c", "-o", table.name, "-e", calls, *pids], stderr=subprocess.PIPE, text=True
        )
        assert tracer.stderr is not None
        try:
            line = tracer.stderr.readline()  # "strace: Process 7 attached"
            if "attached" not in line:
                raise BenchError(f"strace counts nothing: {line.strip()}")
            yield found
        finally:
            tracer.send_signal(signal.SIGINT)
            try:
                tracer.communicate(timeout=END_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                tracer.kill()
                tracer.communicate()
        found |= calls_in(table.read())


def calls_in(text: str) -> dict[str, int]:
    """Parse the table of ``strace -c``: the number of calls of each of CALLS."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 5 and words[-1] in CALLS:
            found[words[-1]] = int(words[3])
    return found


def is_synced(calls: Mapping[str, int], confirmed: int, outstanding: int | None) -> bool:
    """Return whether the calls can have synced ``confirmed`` messages before their confirmation: at most
    ``outstanding`` of them share a sync. Without that number one sync is enough."""
    count = syncs(calls)
    return count * outstanding >= confirmed if outstanding is not None else count > 0


def syncs(calls: Mapping[str, int]) -> int:
    """Return how many of the calls return when data is on the disk."""
    return sum(calls.get(call, 0) for call in _SYNCS)
