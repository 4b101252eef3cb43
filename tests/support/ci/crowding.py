"""A plug-in of pytest: a worker begins a test when the machine has time for it.

The legs of CI run in parallel, and their tests start brokers, databases and JVMs. On a slow machine, all of these at
once are too slow for the limits of the waits in tests.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final

import pytest

#: No test begins while more threads than this want to run.
RUNNABLE_MAX: Final = 3 * (os.cpu_count() or 1)
WAIT_SECONDS_MAX: Final = 30.0
POLL_SECONDS: Final = 0.1


def runnable() -> int:
    """Return the number of threads on this machine that run or could run (proc_loadavg(5))."""
    return int(Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[0])


def wait(runnable: Callable[[], int] = runnable, sleep: Callable[[float], None] = time.sleep) -> float:
    """Wait until at most RUNNABLE_MAX threads want to run, and at most WAIT_SECONDS_MAX. Return the seconds."""
    waited = 0.0
    while runnable() > RUNNABLE_MAX and waited < WAIT_SECONDS_MAX:
        sleep(POLL_SECONDS)
        waited += POLL_SECONDS
    return waited


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside the time that pytest-timeout limits
def pytest_runtest_protocol() -> Generator[None, object, object]:
    wait()
    return (yield)
