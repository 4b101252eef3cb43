"""Another process that locks, driven by one word a line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from tandemmq.locker.contract import Holder, LockRequest, LockSettings
from tests.support import forked
from tests.support.tree import ROOT

# `probe` is a lock as ActiveMQ takes it: fcntl on byte 0 alone. After `hold` the lock is kept alive between the words.
_PROGRAM = """
import fcntl, importlib, json, os, select, sys
from tandemmq.locker.contract import Holder, LockRequest, LockSettings, LockUnavailable
said = json.loads(sys.argv[1])
module, _, name = said["factory"].partition(":")
request = LockRequest(said["directory"], Holder(said["name"], pid=os.getpid(), host="elsewhere"),
                      LockSettings(**said["settings"]), said["options"])
locker = getattr(importlib.import_module(module), name)(request)
held, last = False, locker.proof()
def probe():
    descriptor = os.open(locker.path, os.O_RDWR)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        return "free"
    except OSError:
        return "locked"
    finally:
        os.close(descriptor)
def attempt():
    global last
    got = locker.try_acquire()
    last = locker.proof() if got else last
    return got
def keep():
    global held, last
    try:
        held = locker.keep_alive()
    except LockUnavailable:
        return "unknown"
    last = locker.proof() if held else last
    return held
def ask():
    try:
        return locker.keep_alive()
    except LockUnavailable:
        return "unknown"
words = {"try": attempt, "keep": ask, "hold": keep, "release": locker.release, "holder": locker.holder,
         "announce": lambda: locker.announce(7, "http://127.0.0.1:1"), "probe": probe,
         "proof": lambda: locker.proof().holds_at(locker.clock.now()),
         "proved-until": lambda: last.known_at_seconds + last.valid_for_seconds}
while True:
    ready, _, _ = select.select([sys.stdin], [], [], request.settings.lock_keep_alive_period_seconds if held else None)
    if ready:
        line = sys.stdin.readline()
        if not line:
            break
        print(words[line.strip()](), flush=True)
    else:
        keep()
"""


class OtherProcess:
    def __init__(self, arguments: list[str]) -> None:
        self.process = forked.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
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

    def pause(self) -> None:
        """SIGSTOP; returns when it stands still."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

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
def spawn_locker(spawn: Callable[[list[str]], OtherProcess]) -> Callable[[str, LockRequest], OtherProcess]:
    """A process with a separate locker, made by "module:name" from a request whose options are plain values."""

    def start(factory: str, request: LockRequest) -> OtherProcess:
        options = {
            "factory": factory,
            "directory": request.directory,
            "name": request.holder.name,
            "settings": asdict(request.settings),
            "options": dict(request.options),
        }
        return spawn([sys.executable, "-c", _PROGRAM, json.dumps(options)])

    return start


@pytest.fixture
def other(spawn_locker: Callable[[str, LockRequest], OtherProcess], tmp_path: Path) -> OtherProcess:
    """A process with a separate shared-file locker on `tmp_path`, named "other"."""
    return spawn_locker("tandemmq.locker.shared_file:SharedFileLocker", LockRequest(str(tmp_path), Holder("other")))


@pytest.fixture
def request_for(tmp_path: Path) -> Callable[..., LockRequest]:
    """A request for a lock on `tmp_path`, by broker name, with settings by keyword."""

    def build(name: str = "a", **settings: object) -> LockRequest:
        quick = {"lock_acquire_sleep_interval_seconds": 0.01, **settings}
        return LockRequest(str(tmp_path), Holder(name, pid=os.getpid(), host="here"), LockSettings(**quick))  # type: ignore[arg-type]

    return build
