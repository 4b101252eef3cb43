"""``tandemmq pipeline`` with a separate Java, in a terminal and in a pipe."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tests.support.tree import ROOT as TREE

pytestmark = [pytest.mark.service, pytest.mark.thorough, pytest.mark.timeout(300)]

MARK = "TANDEMMQ_TEST_MARK"
# Of the virtual machine, before any of our settings is read.
OF_JAVA = "WARNING: Using incubator modules: jdk.incubator.vector"
END_SECONDS = 100


@pytest.fixture
def marked(spark_installed: None) -> dict[str, str]:
    """An environment that every process of the command has, and no other."""
    return os.environ | {MARK: uuid.uuid4().hex}


def command(store: Path, out: Path, *options: str) -> list[str]:
    quick = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    conf = ["--conf", "spark.driver.memory=512m", "--conf", quick]
    arguments = ["composition", str(store), "--out", str(out), "--master", "local[2]", *conf, *options]
    return [sys.executable, "-m", "tandemmq", "pipeline", *arguments]


def processes(marked: dict[str, str]) -> list[str]:
    """The command lines of what runs with this mark."""
    wanted = f"{MARK}={marked[MARK]}".encode()
    found = []
    for process in Path("/proc").iterdir():
        try:
            if wanted in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except (OSError, UnicodeDecodeError):
            continue  # ended meanwhile, or is no process
    return found


def ended(marked: dict[str, str]) -> bool:
    """Return whether all processes of the command end soon."""
    until = time.monotonic() + END_SECONDS
    while processes(marked) and time.monotonic() < until:
        time.sleep(0.1)
    return not processes(marked)


def test_a_terminal_shows_how_far_it_is_and_ctrl_c_ends_it_all(
    store: Path, tmp_path: Path, marked: dict[str, str]
) -> None:
    terminal, side = pty.openpty()
    started = subprocess.Popen(
        command(store, tmp_path / "out"),
        cwd=TREE,
        env=marked,
        stdin=side,
        stdout=side,
        stderr=side,
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(side)
    shown = b""
    is_interrupted = False
    while piece := _read(terminal):
        shown += piece
        if b"[Stage " in shown and not is_interrupted:
            assert any("java" in line for line in processes(marked))
            os.write(terminal, b"\x03")
            is_interrupted = True
    os.close(terminal)
    text = shown.decode()
    assert started.wait(END_SECONDS) == 1, text
    assert is_interrupted, text
    assert "interrupted" in text
    # What the terminal echoes of Ctrl-C stands before the word, or alone: as it came to show the stages.
    lines = [line.removeprefix("^C").strip() for line in text.replace("\r", "\n").splitlines()]
    assert [line for line in lines if line and "[Stage " not in line] == [OF_JAVA, "Error: interrupted"]
    assert ended(marked), processes(marked)


def _take_terminal() -> None:
    """The new session's terminal is its standard input, so that Ctrl-C comes as a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # no process has the other side open any more
        return b""


@pytest.mark.prove
@pytest.mark.proof_only
def test_a_pipe_gets_json_and_nothing_else(store: Path, tmp_path: Path, marked: dict[str, str]) -> None:
    done = subprocess.run(
        command(store, tmp_path / "out", "--json"), cwd=TREE, env=marked, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["job"] == "composition"
    assert done.stderr.splitlines() in ([], [OF_JAVA])
    assert ended(marked), processes(marked)
