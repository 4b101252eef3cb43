"""End the processes that a CI run left: `processes.py MARK` ends each one with TANDEMMQ_CI_RUN=MARK in its environment.

Processes of a run inherit the variable, also if they leave its process group. Each process that is ended is printed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "TANDEMMQ_CI_RUN"
END_SECONDS_MAX = 20.0


def marked(mark: str) -> Iterator[int]:
    """Yield the ids of processes with this mark, without this process and its ancestors."""
    wanted = f"{VARIABLE}={mark}".encode()
    spared = set(_line_to_the_first(os.getpid()))
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit() and int(directory.name) not in spared:
            try:
                if wanted in (directory / "environ").read_bytes().split(b"\0"):
                    yield int(directory.name)
            except OSError:  # the process has ended, or belongs to another user
                pass


def _line_to_the_first(process: int) -> Iterator[int]:
    while process > 0:
        yield process
        status = Path(f"/proc/{process}/stat").read_text()
        process = int(status.rpartition(")")[2].split()[1])


def end(mark: str, seconds: float = END_SECONDS_MAX) -> list[str]:
    """End the marked processes by SIGTERM, and after ``seconds`` by SIGKILL. Return their commands."""
    found = {process: _command(process) for process in marked(mark)}
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in marked(mark):
            try:
                os.kill(process, number)
            except ProcessLookupError:
                pass
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(True for _ in marked(mark)):
            time.sleep(0.05)
    return [command for command in found.values() if command]


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


if __name__ == "__main__":
    for each in end(sys.argv[1]):
        print(f"left behind, and ended: {each[:200]}")
