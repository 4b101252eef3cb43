"""A server process of a test: on a free port of 127.0.0.1, in a temporary directory."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path

from tandemmq.bench.peers.ports import free_port

START_SECONDS_MAX = 60.0
END_SECONDS_MAX = 30.0
_PAUSE_SECONDS = 0.02
_AT_REST = {"T", "t", "Z", "X"}  # stopped, traced, ended


def user_for(name: str) -> str | None:
    """Return the user for a server that refuses to run as root; None: the current user."""
    if os.geteuid() != 0:
        return None
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(name).pw_name
    return "nobody"


class ServerProcess(ABC):
    """A server that a test starts, kills, pauses and stops. Its data stay until `remove`."""

    user: str | None = None

    def __init__(self) -> None:
        self.port = free_port()
        # In /tmp, because the server's user has no access to pytest's directories.
        self.directory = Path(tempfile.mkdtemp(prefix=f"tandemmq-{type(self).__name__.lower()}-"))
        if self.user is not None:
            shutil.chown(self.directory, self.user)
        self.process: subprocess.Popen[bytes] | None = None
        self._paused: list[int] = []

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command that starts the server in the foreground."""

    @abstractmethod
    def answers(self) -> bool:
        """Return whether a login is possible."""

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    def run(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        """Run a command of the server's package, as the server's user."""
        done = subprocess.run(
            command, user=self.user, capture_output=True, text=True, check=False, cwd=self.directory, env=environment
        )
        assert done.returncode == 0, f"{command}: {done.stdout[-2000:]} {done.stderr[-2000:]}"

    def start(self, environment: dict[str, str] | None = None) -> None:
        """Start the server; return when it answers."""
        assert self.process is None, "one at a time"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                user=self.user,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=None if environment is None else {**os.environ, **environment},
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self.answers():
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            assert time.monotonic() < deadline, (
                f"no answer within {START_SECONDS_MAX} s: {self.log.read_text()[-4000:]}"
            )
            time.sleep(_PAUSE_SECONDS)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the server; does nothing if it does not run."""
        self.resume()
        process, self.process = self.process, None
        if process is None:
            return
        children = _family(process.pid)[1:]
        process.send_signal(number)
        try:
            process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def kill(self) -> None:
        """End the server like a power loss of its machine."""
        self.stop(signal.SIGKILL)

    def pause(self) -> None:
        """Stop the server and its children; connections stay. On return all their threads are stopped: when ``kill``
        returns, the signal may not have arrived yet, and a running thread could still answer a request."""
        assert self.process is not None, "only a running server can be paused"
        self._paused = _family(self.process.pid)
        for pid in self._paused:
            os.kill(pid, signal.SIGSTOP)
        until = time.monotonic() + END_SECONDS_MAX
        while any(not thread_states(pid) <= _AT_REST for pid in self._paused):
            assert time.monotonic() < until, f"{self.command()[0]} does not stop"
            time.sleep(0.001)

    def resume(self) -> None:
        paused, self._paused = self._paused, []
        for pid in reversed(paused):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def thread_states(pid: int) -> set[str]:
    """Return the states of a process's threads, as in proc(5), without threads that have ended in the meantime."""
    states: set[str] = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                states.add((task / "stat").read_text().rpartition(")")[2].split()[0])
    return states


def _family(pid: int) -> list[int]:
    """Return a process and its descendants, the oldest first."""
    found = [pid]
    for member in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{member}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    return found
