"""Processes of the tree that do not import it: a server that has imported everything forks them.

A broker imports for 0.7 s of CPU before it does anything. ``Popen`` and ``run`` have the interface of ``subprocess``. A
command ``python -m tandemmq ...``, ``python -m tests...`` or ``python -c ...`` becomes a fork of the server, any other
command a new process.

Each process that starts others has a server of its own, from its first ``Popen`` until it ends. However it ends, the
server then reads the end of its socket, and ends. For each request the server forks twice and ends the process between;
the requesting process is the subreaper meanwhile, and so becomes the parent. Therefore waiting, exit codes and signals
are those of any child.

All forks of a server hash strings alike (PYTHONHASHSEED); everything else that is drawn differs (test_forked.py).
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from tests.support.tree import ROOT

#: Set to anything but nothing, every process is a new one.
NO_FORK: Final = "TANDEMMQ_NO_FORK"
PACKAGES: Final = ("tandemmq", "tests")
#: Variables that a program reads when it needs them. A difference in any other one means a new process: in the server
#: the interpreter, a library or an import has read it.
READ_WHEN_NEEDED: Final = (
    "COLUMNS", "KUBERNETES_", "NOTIFY_SOCKET", "NO_COLOR", "OTEL_", "PATH", "PYTEST_", "TANDEMMQ_", "TZ", "WATCHDOG_",
    "no_proxy",
)  # fmt: skip
#: Modules that a broker imports after its start, or for a connector.
IMPORTED_LATER: Final = {
    f"tandemmq.broker.{module}" for module in ("protocols.mqtt.session", "protocols.openwire.session", "wiring_admin")
}
PR_SET_CHILD_SUBREAPER: Final = 36
MESSAGE_BYTES_MAX: Final = 1 << 20
HELD_BACK: Final = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP})


class Popen(subprocess.Popen[Any]):
    """``subprocess.Popen``: forked if the command allows it."""

    def _execute_child(self, args: Any, *others: Any) -> None:
        """The one seam between making pipes and starting a program."""
        executable, preexec_fn, close_fds, pass_fds, cwd, env, _, _, shell, *pipes = others[:15]
        _, gid, gids, uid, umask, new_session, group = others[15:22]
        plain = (executable, preexec_fn, gid, gids, uid) == (None,) * 5 and (umask, group) == (-1, -1)
        environment = dict(os.environ if env is None else env)
        if not plain or not close_fds or pass_fds or shell or not _may_be_forked(args, environment):
            super()._execute_child(args, *others)
            return
        p2cread, _, _, c2pwrite, _, errwrite = pipes
        streams = [own if theirs == -1 else theirs for own, theirs in enumerate((p2cread, c2pwrite, errwrite))]
        try:
            self.pid = _server().fork(
                {"words": [os.fspath(each) for each in args[1:]], "environment": environment,
                 "directory": os.fspath(cwd or os.getcwd()), "new_session": new_session},
                streams,
            )  # fmt: skip
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)


def run(
    command: Sequence[str], *, input: str | None = None, timeout: float | None = None, **others: Any
) -> subprocess.CompletedProcess[str]:
    """``subprocess.run`` that captures text."""
    pipe = subprocess.PIPE
    if input is not None:
        others["stdin"] = pipe
    with Popen(command, **{"stdout": pipe, "stderr": pipe, "text": True} | others) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _may_be_forked(args: object, environment: Mapping[str, str]) -> bool:
    if not sys.platform.startswith("linux") or environment.get(NO_FORK) or "coverage" in sys.modules:
        return False
    if not isinstance(args, list | tuple) or len(args) < 3 or args[0] != sys.executable:
        return False
    if args[1] != "-c" and (args[1] != "-m" or str(args[2]).partition(".")[0] not in PACKAGES):
        return False
    base = _server().environment
    different = {name for name in environment.keys() | base.keys() if environment.get(name) != base.get(name)}
    places = [str(ROOT), *_places(base)]
    if all(place in places for place in _places(environment)):
        different.discard("PYTHONPATH")
    return all(name.startswith(READ_WHEN_NEEDED) for name in different)


def _places(environment: Mapping[str, str]) -> list[str]:
    return [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]


# ---- the calling process


class _Server:
    """The server, as its owner sees it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.environment = dict(os.environ)
        self._turn = threading.Lock()
        self._prctl = ctypes.CDLL(None).prctl
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())], pass_fds=[theirs.fileno()], cwd=ROOT,
                stdin=subprocess.DEVNULL, env=self.environment,
            )  # fmt: skip

    @property
    def is_usable(self) -> bool:
        return self.owner == os.getpid() and self._socket.fileno() != -1

    def fork(self, request: Mapping[str, object], streams: Sequence[int]) -> int:
        """The process id of a new child of this process."""
        with self._turn:
            self._prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], streams)
                pid, is_ours = self._socket.recv(16), self._socket.recv(16)
                assert is_ours, "the server that forks has ended"
            except BaseException:  # what it answers later is no answer to another request
                self.end()
                raise
            finally:
                self._prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        return int(pid)

    def end(self) -> None:
        self._socket.close()
        if self.owner == os.getpid():
            self._process.wait()


_running: list[_Server] = []


def _server() -> _Server:
    if not _running or not _running[-1].is_usable:
        _running[:] = [_Server()]
        atexit.register(_running[0].end)
    return _running[0]


# ---- the server


def _serve(requests: socket.socket) -> None:
    """Fork for each request; return in the child, when it is what was requested."""
    from tandemmq.broker.run import selector
    from tandemmq.cli import COMMANDS

    for module in {module for module, _ in COMMANDS.values()} | IMPORTED_LATER:
        import_module(module)
    selector.prepare()  # each broker does so: 0.1 s
    gc.collect()
    gc.freeze()
    # A signal that comes before the child is ready waits until it is.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    while True:
        message, streams, _, _ = socket.recv_fds(requests, MESSAGE_BYTES_MAX, 3)
        if not message:
            sys.exit()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            closed, held = os.pipe()
            pid = os.fork()
            if pid == 0:
                requests.close()
                _become(json.loads(message), streams, between)
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                return
            os.close(held)
            os.read(closed, 1)  # the child has closed it, and is in its session
            requests.send(str(pid).encode())
            os._exit(0)
        for descriptor in streams:
            os.close(descriptor)
        os.waitpid(between, 0)
        requests.send(b"yours")


def _become(request: Mapping[str, Any], streams: Sequence[int], between: int) -> None:
    """Make the child equal to a new interpreter: streams, directory, environment, arguments; nothing else is open."""
    if request["new_session"]:
        os.setsid()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    _await_end(between)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    if request["directory"] != str(ROOT):
        sys.path.insert(0, request["directory"])
    sys.orig_argv[1:] = request["words"]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(number, getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _await_end(between: int) -> None:
    """From then on the process that asked is the parent."""
    try:
        ended = os.pidfd_open(between)
    except ProcessLookupError:
        return
    select.select([ended], [], [])
    os.close(ended)


def _stream(number: int, former: io.TextIOWrapper) -> io.TextIOWrapper:
    """Make the streams as the interpreter does at its start."""
    is_unbuffered = former.write_through
    stream = io.TextIOWrapper(
        open(number, f"{former.mode}b", 0 if is_unbuffered and number else -1, closefd=False),  # noqa: SIM115
        former.encoding, former.errors, "\n" if number else None,
        line_buffering=not is_unbuffered and (number == 2 or os.isatty(number)), write_through=is_unbuffered,
    )  # fmt: skip
    stream.mode = former.mode
    return stream


def _run(option: str, program: str, *words: str) -> None:
    sys.argv = [option, *words]
    if option == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(program, "<string>", "exec"), vars(main))


def _end(code: int) -> None:
    """End as an interpreter does, in what others see. An interpreter then also clears each module, for 45 ms."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if not stream.closed:
                stream.flush()
        except OSError:
            code = 120
    os._exit(code)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
    try:
        _run(*sys.orig_argv[1:])
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        _end(end.code or 0)
    _end(0)
