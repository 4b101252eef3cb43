"""Resource use of a process and its children, from /proc."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tandemmq.bench.driver.process import cost, descendants
from tandemmq.bench.peers import ports

_BUSY_PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "held = bytearray(64 << 20); print(len(held), flush=True); input()"],
                         stdin=subprocess.PIPE)
sum(range(10_000_000))
print("done", flush=True)
input()
child.communicate(b"\\n")
"""


def test_children_count_with_their_parent() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _BUSY_PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert {parent.stdout.readline().strip(), parent.stdout.readline().strip()} == {str(64 << 20), "done"}

        family = descendants(parent.pid)
        measured = cost(parent.pid)

        parent.communicate("\n")
    assert len(family) == 2
    assert measured.cpu_seconds > 0
    assert measured.peak_memory_bytes > 64 << 20


def test_a_process_that_is_gone_costs_nothing() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()

    assert cost(gone.pid).peak_memory_bytes == 0
    assert cost(os.getpid()).peak_memory_bytes > 0


# ---- Ports that are given out


ROOT = Path(__file__).parents[3]
_ASK_FOR = """
import sys
from tandemmq.bench.peers import ports
ports.FIRST_PORT = ports.LAST_PORT = int(sys.argv[1])
print(ports.free_port())
"""


def _given_to_another(port: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _ASK_FOR, str(port)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_a_port_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    port = ports.free_port()
    monkeypatch.setattr(ports, "FIRST_PORT", port)
    monkeypatch.setattr(ports, "LAST_PORT", port)
    with pytest.raises(OSError, match=f"no free port of 127.0.0.1 among {port} to {port}"):
        ports.free_port()


def test_another_process_gets_another_port() -> None:
    assert _given_to_another(ports.free_port()).startswith("OSError: no free port")


def test_a_port_is_free_again_when_its_process_has_ended() -> None:
    ask = "from tandemmq.bench.peers.ports import free_port; print(free_port())"
    done = subprocess.run([sys.executable, "-c", ask], cwd=ROOT, capture_output=True, text=True, check=True)
    assert _given_to_another(int(done.stdout)) == done.stdout.strip()
