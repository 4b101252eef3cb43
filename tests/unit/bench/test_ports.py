"""Ports that are given out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tandemmq.bench.peers import ports

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
