"""The second process, without which no lock and no cache can be examined: forked here, or listening on another host.

    ->  {"verb": "look", "arguments": {"name": "n-1", "is_there": true, "seconds": 5}}
    <-  {"result": {...}}    or    {"errno": 30, "text": "Read-only file system"}

One JSON object a line. The second does nothing but the verbs of `broker.doctor.hand.Hand`, in the scratch directory
that the examiner named, and removes that directory when the wire ends: so nothing is left when the examiner was killed.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, Final, cast

from broker.doctor.hand import Look, NearHand

GREETING: Final = {"tandemmq-doctor": 1}
LINE_BYTES_MAX: Final = 1 << 20
CONNECT_SECONDS_MAX: Final = 10.0
#: The longest verb is a race or a wait; a volume that hangs for longer has failed.
ANSWER_SECONDS_MAX: Final = 120.0
LISTEN_SECONDS_MAX: Final = 3600.0
#: A fresh name cannot be in a cache as missing: who does not see it in this time looks at another volume.
ENTER_SECONDS_MAX: Final = 3.0
SCRATCH: Final = re.compile(r"\.doctor-[0-9a-f]{32}")
VERBS: Final = frozenset(
    {
        *("race_links", "race_creates", "hold", "kill_holder", "is_free", "wait_free", "link", "unlink", "rename"),
        *("write", "read", "keep", "read_kept", "look"),
    }
)


class NoSecond(Exception):
    """There is no second process to work with; the text says why."""


class FarHand:
    """A `Hand` at the other end of the wire. Its OSErrors are raised here; NoSecond when the wire breaks."""

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
            raise NoSecond(f"{self.name} is gone: {error.strerror or error}") from error
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
            raise NoSecond(f"{self.name} does not answer: {error}") from error
        if not isinstance(found, dict):
            raise NoSecond(f"{self.name} has hung up")
        return found

    def greet(self) -> str:
        """The host at the other end, by its own name. NoSecond when it is no doctor."""
        greeting = self._read()
        if greeting.get("tandemmq-doctor") != GREETING["tandemmq-doctor"]:
            raise NoSecond(f"{self.name} is no `tandemmq doctor storage --listen` of this version")
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

    # The verbs of a hand

    def race_links(self, prefix: str, rounds: int) -> list[int]:
        return cast("list[int]", self.call("race_links", prefix=prefix, rounds=rounds))

    def race_creates(self, prefix: str, rounds: int) -> list[int]:
        return cast("list[int]", self.call("race_creates", prefix=prefix, rounds=rounds))

    def hold(self, name: str, closes_another: bool = False) -> bool:
        return bool(self.call("hold", name=name, closes_another=closes_another))

    def kill_holder(self) -> None:
        self.call("kill_holder")

    def is_free(self, name: str, by_flock: bool = False) -> bool:
        return bool(self.call("is_free", name=name, by_flock=by_flock))

    def wait_free(self, name: str, seconds: float) -> bool:
        return bool(self.call("wait_free", name=name, seconds=seconds))

    def link(self, source: str, name: str) -> None:
        self.call("link", source=source, name=name)

    def unlink(self, name: str) -> None:
        self.call("unlink", name=name)

    def rename(self, source: str, name: str) -> None:
        self.call("rename", source=source, name=name)

    def write(self, name: str, text: str) -> None:
        self.call("write", name=name, text=text)

    def read(self, name: str) -> str:
        return str(self.call("read", name=name))

    def keep(self, name: str) -> None:
        self.call("keep", name=name)

    def read_kept(self, name: str) -> str:
        return str(self.call("read_kept", name=name))

    def look(self, name: str, is_there: bool, seconds: float) -> Look:
        return cast(Look, self.call("look", name=name, is_there=is_there, seconds=seconds))


def fork_second(directory: str) -> FarHand:
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
    second = FarHand(ours, "the second process", pid)
    second.greet()
    return second


def connect(host: str, port: int) -> FarHand:
    """The one that listens on another host. NoSecond when nobody does."""
    try:
        wire = socket.create_connection((host, port), CONNECT_SECONDS_MAX)
    except OSError as error:
        raise NoSecond(f"nobody listens at {host}:{port}: {error.strerror or error}") from error
    second = FarHand(wire, f"{host}:{port}")
    try:
        second.name = f"{second.greet()} ({host}:{port})"
    except NoSecond:
        second.close()
        raise
    return second


def listen(directory: str, host: str, port: int, on_listening: Callable[[int], None]) -> str:
    """Serve one examiner and return who it was. ``on_listening`` is told the port. NoSecond when none came in time."""
    with socket.create_server((host, port), backlog=1) as listener:
        listener.settimeout(LISTEN_SECONDS_MAX)
        on_listening(listener.getsockname()[1])
        try:
            wire, address = listener.accept()
        except TimeoutError as error:
            raise NoSecond(f"no examiner came within {LISTEN_SECONDS_MAX:g} seconds") from error
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
    """A hand in the scratch directory that was named, once it was."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._hand: NearHand | None = None

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """KeyError and TypeError: nobody who knows the wire asks like that."""
        verb, arguments = question["verb"], question["arguments"]
        try:
            if verb == "enter":
                return {"result": self._enter(arguments["scratch"])}
            if verb not in VERBS or self._hand is None:
                raise OSError(errno.ENOSYS, f"no such verb, or nothing entered yet: {verb}")
            return {"result": getattr(self._hand, verb)(**arguments)}
        except OSError as error:
            return {"errno": error.errno or errno.EIO, "text": error.strerror or str(error)}

    def _enter(self, name: str) -> bool:
        if not SCRATCH.fullmatch(name):
            raise OSError(errno.EINVAL, f"a scratch directory is called {SCRATCH.pattern}")
        path = os.path.join(self._directory, name)
        if not _is_seen(path):
            return False
        self._hand = NearHand(path)
        return True

    def end(self) -> None:
        if self._hand is not None:
            self._hand.close()
            shutil.rmtree(self._hand.directory, ignore_errors=True)


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
