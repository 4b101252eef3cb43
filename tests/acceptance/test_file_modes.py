"""Real brokers: the files of a store are their owner's, whatever the shell's umask says."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tandemmq.cli import main
from tests.support.acceptance.broker_process import BrokerProcess

UMASK = 0o022
WORKS = f"import os, sys; os.umask({UMASK}); os.execv(sys.argv[1], sys.argv[1:])"


def modes(directory: Path) -> dict[str, int]:
    found = [directory, *directory.rglob("*")]
    return {str(path.relative_to(directory)): stat.S_IMODE(path.stat().st_mode) for path in found}


def tandemmq(*arguments: str) -> None:
    """The command, in this process: an interpreter for each would take most of the time."""
    before = os.umask(UMASK)
    try:
        done = CliRunner().invoke(main, arguments)
    finally:
        os.umask(before)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("asked", [None, pytest.param("0660", marks=pytest.mark.promise("files-are-private"))])
def test_files_have_the_mode_that_was_asked_for(tmp_path: Path, asked: str | None) -> None:
    options = () if asked is None else ("--set", f"store.file_mode={asked}")
    data = tmp_path / "data"
    broker = BrokerProcess(data, "a", *options)
    broker.runs_under = (sys.executable, "-c", WORKS)
    broker.start()
    try:
        assert broker.wait_role("master")["warnings"] == []
        tandemmq("send", "q", "hello", "--url", broker.url)
        broker.kill()
        broker.start()
        assert broker.wait_role("master")["warnings"] == []
        assert broker.terminate() == 0
    finally:
        broker.stop()
    tandemmq("store", "compact", str(data))
    tandemmq("store", "rebuild-index", str(data), "--name", "a")
    mode = int(asked or "0600", 8)
    seen = modes(data)
    assert {"lock", "index", "index/a"} <= seen.keys()
    assert any(name.startswith("db-") for name in seen)
    assert seen.pop("index/a.admin-token") == 0o600, "a group is let in by hand"
    wrong = {
        name: oct(found)
        for name, found in seen.items()
        if found != ((mode | mode >> 2 & 0o111) if (data / name).is_dir() else mode)
    }
    assert wrong == {}
    tandemmq("store", "export", str(data), "--to", str(tmp_path / "copy"))
    assert not [name for name, found in modes(tmp_path / "copy").items() if found & 0o077]


def test_what_others_may_read_is_told(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    (data / "notes").touch()
    (data / "notes").chmod(0o644)
    broker = BrokerProcess(data, "a").start()
    try:
        (warning,) = broker.wait_role("master")["warnings"]
        assert warning.startswith(f"{data} and 1 more: open to more users than store.file_mode 0600 says")
        os.system(warning.rpartition("to mend it: ")[2])
        broker.terminate()
        broker.start()
        assert broker.wait_role("master")["warnings"] == []
    finally:
        broker.stop()
