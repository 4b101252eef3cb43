"""`tandemmq doctor storage` on real volumes: good volumes, bad volumes, and interrupted runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import forked
from tests.support.acceptance.broker_process import ROOT, BrokerProcess, serving, wait_until

COMMAND = [sys.executable, "-m", "tandemmq", "doctor", "storage"]
#: Time for which a FUSE mount caches that a name is missing. A bad NFS mount caches this for a minute.
STALE_SECONDS = 1


def doctor(*arguments: object, code: int = 0) -> dict[str, Any]:
    """Return the report as JSON. The exit code must be ``code``."""
    result = forked.run([*COMMAND, *map(str, arguments), "--json"], timeout=100, cwd=ROOT)
    assert result.returncode == code, result.stdout + result.stderr
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["verdict"] for check in report["checks"]}


class Listening:
    """Run `doctor storage DIR --listen` until another host connects."""

    def __init__(self, directory: Path) -> None:
        self.process = forked.Popen(
            [*COMMAND, str(directory), "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"127\.0\.0\.1:(\d+)", line)
        assert found is not None, line
        self.address = f"127.0.0.1:{found[1]}"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def listening() -> Iterator[Callable[[Path], Listening]]:
    made: list[Listening] = []

    def listen(directory: Path) -> Listening:
        made.append(Listening(directory))
        return made[-1]

    yield listen
    for each in made:
        each.stop()


@pytest.mark.promise("volume-is-examined")
def test_a_running_broker_does_not_notice(tmp_path: Path) -> None:
    with serving(BrokerProcess(tmp_path / "data", "a")) as (broker,):
        epoch = broker.wait_role("master")["epoch"]
        before = sorted(os.listdir(tmp_path / "data"))
        report = doctor(tmp_path / "data")
        assert report["verdict"] in ("ok", "warn")
        assert sorted(os.listdir(tmp_path / "data")) == before
        status = broker.wait_role("master")
        assert status["epoch"] == epoch


def test_two_that_see_two_directories_are_told_so(tmp_path: Path, listening: Callable[[Path], Listening]) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    other = listening(tmp_path / "one")
    result = forked.run([*COMMAND, str(tmp_path / "two"), "--peer", other.address], timeout=60, cwd=ROOT)
    assert result.returncode == 1
    assert "on the same volume?" in result.stderr
    assert os.listdir(tmp_path / "two") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_nothing_is_left_behind_when_it_is_interrupted(tmp_path: Path, number: signal.Signals) -> None:
    """After SIGKILL, the second process removes the files of the first one."""
    process = subprocess.Popen(
        [*COMMAND, str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        start_new_session=True,
    )
    wait_until(lambda: any(tmp_path.glob(".doctor-*/link-*")), "it is at work")
    process.send_signal(number)
    assert process.wait(20) != 0
    wait_until(lambda: os.listdir(tmp_path) == [], f"nothing is left: {os.listdir(tmp_path)}")


def test_a_wrong_directory_or_address_is_wrong_usage(tmp_path: Path) -> None:
    for arguments in (
        (str(tmp_path / "missing"),),
        (str(tmp_path), "--peer", "two"),
        (str(tmp_path), "--listen", "x:y"),
    ):
        result = forked.run([*COMMAND, *arguments], cwd=ROOT)
        assert result.returncode == 2, result.stderr


# ---- a file system whose clients cache too long


@pytest.fixture
def stale_mounts(tmp_path: Path, require_service: Callable[[object, str], None]) -> Iterator[Callable[..., Path]]:
    """Return a function that mounts one directory by FUSE. Each mount has separate caches, as each NFS client has."""
    require_service(shutil.which("bindfs") and shutil.which("fusermount"), "bindfs is not installed")
    (tmp_path / "server").mkdir()
    mounted: list[Path] = []

    def mount(name: str, *timeouts: str, kind: str = "bindfs") -> Path:
        point = tmp_path / name
        point.mkdir()
        options = ",".join((f"subtype={kind}", *(f"{each}={STALE_SECONDS}" for each in timeouts)))
        made = subprocess.run(
            ["bindfs", "-o", options, str(tmp_path / "server"), str(point)],
            stderr=subprocess.PIPE,
            text=True,
            timeout=20,
            check=False,
        )
        if made.returncode != 0:
            pytest.skip(f"no FUSE mount can be made here: {made.stderr.strip()}")
        mounted.append(point)
        return point

    yield mount
    for point in mounted:
        subprocess.run(["fusermount", "-u", "-z", str(point)], check=True, timeout=20)


@pytest.mark.service
def test_a_client_that_remembers_missing_names_is_found_out(
    stale_mounts: Callable[..., Path], listening: Callable[[Path], Listening]
) -> None:
    """The client acts as NFS with lookupcache=all: the fence check of a master would be answered from a cache."""
    here, there = stale_mounts("one", "negative_timeout"), stale_mounts("two", "negative_timeout")
    started = time.monotonic()
    report = doctor(here, "--peer", listening(there).address, code=1)
    found = {each["name"]: each for each in report["checks"]}
    assert found["new names are seen"]["verdict"] == "fail"
    assert 0 < found["new names are seen"]["figures"]["late_ms"] <= (time.monotonic() - started) * 1000
    assert found["mount: fuse"]["verdict"] == "warn"
    assert os.listdir(here) == []


@pytest.mark.service
def test_a_client_that_remembers_removed_names_is_warned_of(
    stale_mounts: Callable[..., Path], listening: Callable[[Path], Listening]
) -> None:
    """The client acts as NFS with lookupcache=positive."""
    here, there = (
        stale_mounts("one", "entry_timeout", "attr_timeout"),
        stale_mounts("two", "entry_timeout", "attr_timeout"),
    )
    report = doctor(here, "--peer", listening(there).address, code=1)
    found = verdicts(report)
    assert found["removed names are missed"] == "warn"
    assert found["lock excludes"] == "fail"  # these mounts do not share locks


@pytest.mark.service
def test_a_broker_does_not_start_on_a_known_bad_mount_unless_told_so_by_name(
    stale_mounts: Callable[..., Path], tmp_path: Path
) -> None:
    """A mount whose type is sshfs, as the kernel reports it."""
    place = stale_mounts("one", kind="sshfs")
    broker = BrokerProcess(place / "data", "a")
    try:
        assert broker.start().wait() == 1
        broker.wait_log('store.ignore_unsafe_volume = ["sshfs"]')
        (tmp_path / "tandemmq.toml").write_text('[store]\nignore_unsafe_volume = ["sshfs"]\n')
        broker.options = ("--config", str(tmp_path / "tandemmq.toml"))
        warnings = broker.start().wait_role("master", 60.0)["warnings"]
        assert any(each.startswith("unsafe: ") and "sshfs" in each for each in warnings), warnings
        assert broker.terminate() == 0
    finally:
        broker.stop()
