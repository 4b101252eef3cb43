"""The second process, without which no lock and no cache can be examined: forked here, or listening on another host.

    ->  {"verb": "look", "arguments": {"name": "n-1", "is_there": true, "seconds": 5}}
    <-  {"result": {...}}    or    {"errno": 30, "text": "Read-only file system"}

One JSON object a line. The second process does nothing but VERBS, the verbs of `cli.doctor.local_probe`, in the scratch
directory that the examiner named, and removes it when the connection ends: nothing is left when the examiner is killed.
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
from typing import Any, Final, cast

from tandemmq.cli.doctor.local_probe import LocalProbe

GREETING: Final = {"tandemmq-doctor": 1}
LINE_BYTES_MAX: Final = 1 << 20
CONNECT_SECONDS_MAX: Final = 10.0
#: The longest verb is a race or a wait; a volume that hangs for longer has failed.
ANSWER_SECONDS_MAX: Final = 120.0
LISTEN_SECONDS_MAX: Final = 3600.0
#: A fresh name cannot be in a cache as missing: a process that does not see it in this time is on another volume.
ENTER_SECONDS_MAX: Final = 3.0
SCRATCH: Final = re.compile(r"\.doctor-[0-9a-f]{32}")
#: What a remote probe does, with what each verb is told.
VERBS: Final = {
    name: inspect.signature(getattr(LocalProbe, name))
    for name in (
        *("race_links", "race_creates", "hold", "kill_holder", "is_free", "wait_free", "link", "unlink", "rename"),
        *("write", "read", "keep", "read_kept", "look"),
    )
}


class NoRemoteProbe(Exception):
    """There is no second process to work with; the text says why."""


class RemoteProbe:
    """The probe at the other end of the wire. Its OSErrors are raised here; NoRemoteProbe when the wire breaks."""

    def __init__(self, wire: socket.socket, name: str, pid: int | None = None) -> None:
        self.name = name
        self._wire = wire
        self._lines = wire.makefile("rwb")
        self._pid = pid
        wire.settimeout(ANSWER_SECONDS_MAX)

    def begin(self, verb: str, **arguments: Any) -> Callable[[], Any]:
        """Ask without waiting; what is returned waits for the answer. One question at a time."""
        try:
            self._lines.write(json.dumps({"verb": verb, "arguments": arguments}).encode() + b"\n")
            self._lines.flush()
        except OSError as error:
            raise NoRemoteProbe(f"{self.name} is gone: {error.strerror or error}") from error
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
            raise NoRemoteProbe(f"{self.name} has hung up")
        return found

    def greet(self) -> str:
        """The host at the other end, by its own name. NoRemoteProbe when it is no doctor."""
        greeting = self._read()
        if greeting.get("tandemmq-doctor") != GREETING["tandemmq-doctor"]:
            raise NoRemoteProbe(f"{self.name} is no `tandemmq doctor storage --listen` of this version")
        return str(greeting.get("host"))

    def enter(self, scratch: str) -> bool:
        """Does the other side see the scratch directory?"""
        return bool(self.call("enter", scratch=scratch))

    def close(self) -> None:
        """End it; it is gone on return."""
        for end in (self._lines, self._wire):
            try:
                end.close()
            except OSError:
                pass  # what was on its way to one that is gone
        if self._pid is not None:
            os.waitpid(self._pid, 0)
            self._pid = None

    def as_probe(self) -> LocalProbe:
        """With VERBS as its methods (``__getattr__``)."""
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
    """A second process on this host. The caller has no other threads."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            ours.close()
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the examiner's; the end of the wire is ours
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
    """The probe of the process that listens on another host. NoRemoteProbe when none does."""
    try:
        wire = socket.create_connection((host, port), CONNECT_SECONDS_MAX)
    except OSError as error:
        raise NoRemoteProbe(f"nobody listens at {host}:{port}: {error.strerror or error}") from error
    remote_probe = RemoteProbe(wire, f"{host}:{port}")
    try:
        remote_probe.name = f"{remote_probe.greet()} ({host}:{port})"
    except NoRemoteProbe:
        remote_probe.close()
        raise
    return remote_probe


def listen(directory: str, host: str, port: int, on_listening: Callable[[int], None]) -> str:
    """Serve one examiner and return who it was. ``on_listening`` gets the port. NoRemoteProbe: none came in time."""
    with socket.create_server((host, port), backlog=1) as listener:
        listener.settimeout(LISTEN_SECONDS_MAX)
        on_listening(listener.getsockname()[1])
        try:
            wire, address = listener.accept()
        except TimeoutError as error:
            raise NoRemoteProbe(f"no examiner came within {LISTEN_SECONDS_MAX:g} seconds") from error
    wire.settimeout(LISTEN_SECONDS_MAX)
    serve(wire, directory)
    return str(address[0])


def serve(wire: socket.socket, directory: str) -> None:
    """Do what the wire says until it ends, then remove the scratch directory."""
    service = _Service(directory)
    with wire, wire.makefile("rwb") as lines:
        try:
            _say(lines, {**GREETING, "host": socket.gethostname()})
            while line := lines.readline(LINE_BYTES_MAX):
                _say(lines, service.answer(json.loads(line)))
        except (OSError, ValueError, KeyError, TypeError):
            pass  # the examiner is gone, or was none
        finally:
            service.end()


class _Service:
    """A probe in the scratch directory that was named, once it was."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._probe: LocalProbe | None = None

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """KeyError and TypeError: the peer does not speak this protocol."""
        verb, arguments = question["verb"], question["arguments"]
        try:
            if verb == "enter":
                return {"result": self._enter(arguments["scratch"])}
            if verb not in VERBS or self._probe is None:
                raise OSError(errno.ENOSYS, f"no such verb, or nothing entered yet: {verb}")
            return {"result": getattr(self._probe, verb)(**arguments)}
        except OSError as error:
            return {"errno": error.errno or errno.EIO, "text": error.strerror or str(error)}

    def _enter(self, name: str) -> bool:
        if not SCRATCH.fullmatch(name):
            raise OSError(errno.EINVAL, f"a scratch directory is called {SCRATCH.pattern}")
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
