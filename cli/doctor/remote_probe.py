"""The second process that a check of locks or caches needs: forked here, or listening on another host.

    ->  {"verb": "look", "arguments": {"name": "n-1", "is_there": true, "seconds": 5}}
    <-  {"result": {...}}    or    {"errno": 30, "text": "Read-only file system"}

One JSON object a line. The second process executes only VERBS, the verbs of `cli.doctor.local_probe`, in the scratch
directory that the examiner named. It removes that directory when the connection ends, also if the examiner is killed.
"""

from __future__ import annotations

import errno
import inspect
import json
import os
import re
import shutil
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from tandemmq.cli.doctor.local_probe import LocalProbe

GREETING: Final = {"tandemmq-doctor": 1}
LINE_BYTES_MAX: Final = 1 << 20
CONNECT_SECONDS_MAX: Final = 10.0
#: The longest verb is a race or a wait; a volume that hangs for longer has failed.
ANSWER_SECONDS_MAX: Final = 120.0
LISTEN_SECONDS_MAX: Final = 3600.0
#: A new name cannot be cached as missing: a process that does not see it within this time is on another volume.
ENTER_SECONDS_MAX: Final = 3.0
SCRATCH: Final = re.compile(r"\.doctor-[0-9a-f]{32}")
#: Verbs of a remote probe, with their parameters.
VERBS: Final = {
    name: inspect.signature(getattr(LocalProbe, name))
    for name in (
        *("race_links", "race_creates", "hold", "kill_holder", "is_free", "wait_free", "link", "unlink", "rename"),
        *("write", "read", "keep", "read_kept", "look"),
    )
}


class NoRemoteProbe(Exception):
    """No second process can be used. The text gives the reason."""


class RemoteProbe:
    """The probe at the other end of the wire. Raises its OSErrors, and NoRemoteProbe when the wire breaks."""

    def __init__(self, wire: socket.socket, name: str, pid: int | None = None) -> None:
        self.name = name
        self._wire = wire
        self._lines = wire.makefile("rwb")
        self._pid = pid
        wire.settimeout(ANSWER_SECONDS_MAX)

    def begin(self, verb: str, **arguments: Any) -> Callable[[], Any]:
        """Send a request. The returned function waits for the answer. One request at a time."""
        try:
            self._lines.write(json.dumps({"verb": verb, "arguments": arguments}).encode() + b"\n")
            self._lines.flush()
        except OSError as error:
            raise NoRemoteProbe(f"{self.name} has ended: {error.strerror or error}") from error
        return self._answer

    def call(self, verb: str, **arguments: Any) -> Any:
        return self.begin(verb, **arguments)()

    def _answer(self) -> Any:
        answer = self._read()
        if "errno" in answer:
            raise OSError(answer["errno"], answer["text"])
        return answer["result"]

    def _read(self) -> dict[str, Any]:
        try:
            line = self._lines.readline(LINE_BYTES_MAX)
            found = json.loads(line) if line else None
        except (OSError, ValueError) as error:
            raise NoRemoteProbe(f"{self.name} does not answer: {error}") from error
        if not isinstance(found, dict):
            raise NoRemoteProbe(f"{self.name} has disconnected")
        return found

    def greet(self) -> str:
        """Return the name that the host at the other end gives. NoRemoteProbe if it is not a doctor."""
        greeting = self._read()
        if greeting.get("tandemmq-doctor") != GREETING["tandemmq-doctor"]:
            raise NoRemoteProbe(f"{self.name} is no `tandemmq doctor storage --listen` of this version")
        return str(greeting.get("host"))

    def enter(self, scratch: str) -> bool:
        """Return whether the other side sees the scratch directory."""
        return bool(self.call("enter", scratch=scratch))

    def close(self) -> None:
        """End the remote process; it is gone on return."""
        for end in (self._lines, self._wire):
            try:
                end.close()
            except OSError:
                pass  # unsent bytes to a process that is gone
        if self._pid is not None:
            os.waitpid(self._pid, 0)
            self._pid = None

    def as_probe(self) -> LocalProbe:
        """Return this object as a probe: ``__getattr__`` provides VERBS as its methods."""
        return cast(LocalProbe, self)

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        if verb not in VERBS:
            raise AttributeError(verb)

        def ask(*given: Any, **named: Any) -> Any:
            arguments = VERBS[verb].bind(self, *given, **named).arguments
            del arguments["self"]
            return self.call(verb, **arguments)

        return ask


def fork_remote_probe(directory: str) -> RemoteProbe:
    """Fork a second process on this host. The caller has no other threads."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            ours.close()
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the examiner handles Ctrl-C; this process ends with the wire
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            serve(theirs, directory)
            code = 0
        finally:
            os._exit(code)
    theirs.close()
    remote_probe = RemoteProbe(ours, "the second process", pid)
    remote_probe.greet()
    return remote_probe


def connect(host: str, port: int) -> RemoteProbe:
    """Connect to the process that listens on another host. NoRemoteProbe if there is none."""
    try:
        wire = socket.create_connection((host, port), CONNECT_SECONDS_MAX)
    except OSError as error:
        raise NoRemoteProbe(f"no process listens at {host}:{port}: {error.strerror or error}") from error
    remote_probe = RemoteProbe(wire, f"{host}:{port}")
    try:
        remote_probe.name = f"{remote_probe.greet()} ({host}:{port})"
    except NoRemoteProbe:
        remote_probe.close()
        raise
    return remote_probe


def listen(directory: str, host: str, port: int, on_listening: Callable[[int], None]) -> str:
    """Serve one examiner and return its address. ``on_listening`` gets the port. NoRemoteProbe: none came in time."""
    with socket.create_server((host, port), backlog=1) as listener:
        listener.settimeout(LISTEN_SECONDS_MAX)
        on_listening(listener.getsockname()[1])
        try:
            wire, address = listener.accept()
        except TimeoutError as error:
            raise NoRemoteProbe(f"no other host connected within {LISTEN_SECONDS_MAX:g} seconds") from error
    wire.settimeout(LISTEN_SECONDS_MAX)
    serve(wire, directory)
    return str(address[0])


def serve(wire: socket.socket, directory: str) -> None:
    """Execute requests until the wire ends, then remove the scratch directory."""
    service = _Service(directory)
    with wire, wire.makefile("rwb") as lines:
        try:
            _say(lines, {**GREETING, "host": socket.gethostname()})
            while line := lines.readline(LINE_BYTES_MAX):
                _say(lines, service.answer(json.loads(line)))
        except (OSError, ValueError, KeyError, TypeError):
            pass  # the examiner has disconnected, or the peer is not an examiner
        finally:
            service.end()


class _Service:
    """The probe that serves the wire, once the examiner has named a scratch directory."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._probe: LocalProbe | None = None

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Execute one request. KeyError and TypeError: the peer does not speak this protocol."""
        verb, arguments = question["verb"], question["arguments"]
        try:
            if verb == "enter":
                return {"result": self._enter(arguments["scratch"])}
            if verb not in VERBS or self._probe is None:
                raise OSError(errno.ENOSYS, f"no such verb, or no scratch directory yet: {verb}")
            return {"result": getattr(self._probe, verb)(**arguments)}
        except OSError as error:
            return {"errno": error.errno or errno.EIO, "text": error.strerror or str(error)}

    def _enter(self, name: str) -> bool:
        if not SCRATCH.fullmatch(name):
            raise OSError(errno.EINVAL, f"the name of a scratch directory must match {SCRATCH.pattern}")
        path = os.path.join(self._directory, name)
        if not _is_seen(path):
            return False
        self._probe = LocalProbe(path)
        return True

    def end(self) -> None:
        if self._probe is not None:
            self._probe.close()
            shutil.rmtree(self._probe.directory, ignore_errors=True)


def _say(lines: Any, answer: dict[str, Any]) -> None:
    lines.write(json.dumps(answer).encode() + b"\n")
    lines.flush()


def _is_seen(path: str) -> bool:
    end = time.monotonic() + ENTER_SECONDS_MAX
    while not os.path.isdir(path):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@dataclass(frozen=True, slots=True)
class ProbePair:
    """The probe of this process and that of the other one. ``who`` names the other in words."""

    local: LocalProbe
    remote: RemoteProbe
    who: str

    @property
    def directions(self) -> tuple[tuple[LocalProbe, LocalProbe, str, str], ...]:
        """Both directions: the acting probe, the watching probe, and the names of both."""
        remote = self.remote.as_probe()
        return (self.local, remote, "this process", self.who), (remote, self.local, self.who, "this process")
