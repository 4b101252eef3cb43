"""A forked process behaves like a new interpreter, and its parent is the process that started it."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.tree import ROOT

PR_GET_CHILD_SUBREAPER = 37
PROGRAM = [sys.executable, "-c"]
#: What two interpreters that do the same agree about.
SAME = """
import gc, json, os, resource, signal, sys, threading
print(json.dumps({
    "arguments": sys.argv,
    "directory": os.getcwd(),
    "environment": dict(os.environ),
    "name": __name__,
    "descriptors": sorted(os.listdir("/proc/self/fd")),
    "signals": {each: str(signal.getsignal(each)) for each in range(1, 32)},
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "streams": [[each.fileno(), each.mode, each.encoding, each.errors, each.line_buffering, each.write_through,
                 type(each.buffer).__name__, each.buffer.mode] for each in (sys.stdin, sys.stdout, sys.stderr)],
    "threads": [each.name for each in threading.enumerate()],
    "limits": [resource.getrlimit(each) for each in range(10)],
    "parent": os.getppid(),
    "group": os.getpgid(0),
    "session": os.getsid(0),
    "collector": [gc.isenabled(), gc.get_threshold()],
    "umask": os.umask(0),
}))
"""
#: What they do not: each is drawn, or noted, by each process.
OWN = """
import json, os, random, secrets, time, uuid
from tandemmq.bench.peers.ports import free_port
print(json.dumps([random.random(), secrets.token_hex(), str(uuid.uuid4()), os.getpid(), free_port()]))
"""


def program(popen: type[subprocess.Popen[str]], text: str, *words: str, **others: object) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return popen([*PROGRAM, text, *words], stdin=pipe, stdout=pipe, stderr=pipe, text=True, **others)


def test_it_is_what_a_new_interpreter_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEMMQ_TEST", "a\udc80 b")
    found = []
    for popen in (subprocess.Popen, forked.Popen):
        started = program(popen, SAME, "one", "two words", cwd=tmp_path, env=dict(os.environ))
        out, said = started.communicate(timeout=60)
        assert said == ""
        found.append(json.loads(out))
    real, fork = found
    for each in real:
        assert fork[each] == real[each], each
    assert fork["parent"] == os.getpid()


def test_it_is_forked() -> None:
    """Otherwise the other tests here would be about new interpreters."""
    loaded = forked.run([*PROGRAM, "import sys; print('tandemmq.broker.run' in sys.modules)"])
    assert loaded.stdout == "True\n"


@pytest.mark.parametrize("variable", ["PYTHONHASHSEED", "LD_PRELOAD", "LC_ALL", "MALLOC_ARENA_MAX", forked.NO_FORK])
def test_a_command_that_needs_a_start_runs_in_a_new_interpreter(variable: str) -> None:
    environment = {**os.environ, variable: "" if variable == "LD_PRELOAD" else "1"}
    loaded = forked.run([*PROGRAM, "import sys; print('tandemmq.broker.run' in sys.modules)"], env=environment)
    assert loaded.stdout == "False\n"


def test_a_module_runs_as_python_m_runs_it() -> None:
    command = [sys.executable, "-m", "tandemmq", "--no-such-option"]
    real = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    fork = forked.run(command, cwd=ROOT)
    assert (fork.returncode, fork.stdout, fork.stderr) == (real.returncode, real.stdout, real.stderr)


def test_two_share_nothing_that_is_drawn() -> None:
    both = [program(forked.Popen, OWN) for _ in range(2)]
    first, second = (json.loads(each.communicate(timeout=60)[0]) for each in both)
    assert not set(first) & set(second)


def test_two_run_beside_each_other() -> None:
    first, second = (program(forked.Popen, "print(input())") for _ in range(2))
    assert second.communicate("b", timeout=60)[0] == "b\n"
    assert first.poll() is None
    assert first.communicate("a", timeout=60)[0] == "a\n"


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("", 0, ""),
        ("raise SystemExit(7)", 7, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit('no')", 1, "no\n"),
        ("import os; os._exit(9)", 9, ""),
        ("import atexit; atexit.register(print, 'last'); print('first'); raise SystemExit(2)", 2, ""),
        ("import threading, time; threading.Timer(0.1, print, ['late']).start()", 0, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV, ""),
    ],
)
def test_it_ends_as_an_interpreter_does(text: str, code: int, said: str) -> None:
    real, fork = (program(popen, text) for popen in (subprocess.Popen, forked.Popen))
    assert fork.communicate(timeout=60) == (out := real.communicate(timeout=60))
    assert (fork.returncode, out[1]) == (code, said)
    assert real.returncode == code


def test_an_unread_output_is_reported_at_the_end() -> None:
    text = "import sys; sys.stdin.readline(); sys.stdout.write('x')"
    codes = []
    for popen in (subprocess.Popen, forked.Popen):
        with program(popen, text) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            process.stdout.close()
            process.stdin.write("\n")
        codes.append(process.returncode)
    assert codes[0] == codes[1] != 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_it_from_its_first_moment_on(number: signal.Signals) -> None:
    with program(forked.Popen, "input()") as process:
        process.send_signal(number)
        assert process.wait(60) == -number


def test_orphans_of_others_are_not_adopted() -> None:
    """The owner adopts orphans only while a forked process runs."""
    assert forked.run([*PROGRAM, ""]).returncode == 0
    found = ctypes.c_int(-1)
    assert ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(found), 0, 0, 0) == 0
    assert found.value == 0


def test_a_session_of_its_own() -> None:
    with program(forked.Popen, "input()", start_new_session=True) as process:
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL


def test_the_server_ends_with_its_owner_however_that_ends(tmp_path: Path) -> None:
    """The processes that it forked continue, like processes started in any other way."""
    text = """
import json, os, sys
from tests.support import forked
child = forked.Popen([sys.executable, "-c", "input()"], stdin=int(sys.argv[1]))
print(json.dumps([forked._server()._process.pid, child.pid]), flush=True)
input()
"""
    reader, writer = os.pipe()
    with program(subprocess.Popen, text, str(reader), cwd=ROOT, pass_fds=[reader]) as owner:
        assert owner.stdout is not None
        server, child = json.loads(owner.stdout.readline())
        ends = {pid: os.pidfd_open(pid) for pid in (server, child)}
        owner.kill()
    os.close(reader)
    _wait_readable(ends[server])
    os.kill(child, 0)
    os.close(writer)  # the end of what it reads
    _wait_readable(ends[child])
    for descriptor in ends.values():
        os.close(descriptor)


def _wait_readable(descriptor: int) -> None:
    ended = select.poll()
    ended.register(descriptor, select.POLLIN)
    assert ended.poll(60_000)
