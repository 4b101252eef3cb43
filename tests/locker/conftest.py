"""Another process that locks, driven by one word a line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from locker.contract import Holder, LockRequest, LockSettings

ROOT = Path(__file__).parents[2]

# `probe` is a lock as ActiveMQ takes it: fcntl on byte 0 alone.
_PROGRAM = """
import fcntl, os, sys
from locker.contract import Holder, LockRequest
from locker.shared_file import SharedFileLocker
directory, name = sys.argv[1:]
locker = SharedFileLocker(LockRequest(directory, Holder(name, pid=os.getpid(), host="elsewhere")))
def probe():
    descriptor = os.open(locker.path, os.O_RDWR)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        return "free"
    except OSError:
        return "locked"
    finally:
        os.close(descriptor)
words = {"try": locker.try_acquire, "keep": locker.keep_alive, "release": locker.release, "holder": locker.holder,
         "announce": lambda: locker.announce(7, "http://127.0.0.1:1"), "probe": probe}
for line in sys.stdin:
    print(words[line.strip()](), flush=True)
"""


class OtherProcess:
    def __init__(self, arguments: list[str]) -> None:
        self.process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def say(self, word: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def spawn() -> Iterator[Callable[[list[str]], OtherProcess]]:
    """Start a process that answers lines; gone at the end of the test."""
    processes: list[OtherProcess] = []

    def start(arguments: list[str]) -> OtherProcess:
        processes.append(OtherProcess(arguments))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()


@pytest.fixture
def other(spawn: Callable[[list[str]], OtherProcess], tmp_path: Path) -> OtherProcess:
    """A process with a shared-file locker of its own on `tmp_path`, named "other"."""
    return spawn([sys.executable, "-c", _PROGRAM, str(tmp_path), "other"])


@pytest.fixture
def request_for(tmp_path: Path) -> Callable[..., LockRequest]:
    """A request for a lock on `tmp_path`, by broker name, with settings by keyword."""

    def build(name: str = "a", **settings: object) -> LockRequest:
        quick = {"lock_acquire_sleep_interval_seconds": 0.01, **settings}
        return LockRequest(str(tmp_path), Holder(name, pid=os.getpid(), host="here"), LockSettings(**quick))  # type: ignore[arg-type]

    return build
