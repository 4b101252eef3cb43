"""A kind of lock that another package brings: the example is installed, keeps the contract, and elects masters."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import ClassVar

import pytest

from tandemmq.locker.contract import Locker, LockRequest, LockSettingsError
from tandemmq.locker.kinds import create, names
from tests.contract.locker.test_contract import Leased, OutOfReach
from tests.support.locker.interleaved import InterleavedLease
from tests.support.locker.manual_clock import ManualClock
from tests.support.locker.pair import assert_a_frozen_master_is_followed, assert_the_standby_follows, running_pair
from tests.support.locker.steps import Stepping, stepping
from tests.support.prove import IS_THOROUGH

pytestmark = pytest.mark.promise("locks-keep-their-contract")

#: Calls whose order other processes can see. ftruncate and fsync of its own file are not such calls.
FILE_CALLS = ("makedirs", "listdir", "link", "unlink", "stat", "open", "pwrite")
EXAMPLE = Path(__file__).parents[3] / "examples" / "lease-files-locker"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the directory in which the example is installed, by pip, as by a user."""
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    done = subprocess.run(
        [*pip, "--no-deps", "--no-build-isolation", "--target", str(target), str(EXAMPLE)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    patch = pytest.MonkeyPatch()
    patch.setattr(sys, "path", [*sys.path, str(target)])
    patch.setenv("PYTHONPATH", str(target))
    yield target
    patch.undo()


@pytest.fixture
def leases(tmp_path: Path) -> Path:
    return tmp_path / "leases"


@pytest.mark.usefixtures("site")
class TestContract(Leased, OutOfReach, InterleavedLease):
    factory = "tandemmq_lease_files:LeaseFilesLocker"
    switches_max = 2 if IS_THOROUGH else 1
    switches_of_three_max = 1
    switches_of_many_max = 1
    switches_of_time_max = 1
    short: ClassVar = {"lock_keep_alive_period_seconds": 0.1}
    lease_ms = 5_000

    @pytest.fixture(autouse=True)
    def _leases(self, leases: Path, request: pytest.FixtureRequest) -> None:
        self.leases = leases
        self.lease_ms = 1_000 if "child" in request.fixturenames else 5_000

    def options(self) -> dict[str, object]:
        return {"directory": str(self.leases), "lease": str(self.lease_ms)}

    @pytest.fixture
    def place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # It asks the operating system itself.
        module = import_module("tandemmq_lease_files")
        monkeypatch.setattr(module, "os", Stepping(os, FILE_CALLS))
        monkeypatch.setattr(module, "open", stepping(open, "open"), raising=False)

    def stepped(self, request: LockRequest) -> Locker:
        return self.build(request)

    def anew(self) -> None:
        shutil.rmtree(self.leases, ignore_errors=True)

    def steal(self, locker: Locker) -> None:
        # Whoever wants the lock makes the next file, and need not ask.
        newest = max(self.leases.glob("claim-*"))
        number = int(newest.name.removeprefix("claim-"))
        (self.leases / f"claim-{number + 1:020d}").write_text('{"released": true}')

    @contextmanager
    def out_of_reach(self, locker: Locker) -> Iterator[None]:
        away = self.leases.with_name("away")
        if self.leases.exists():
            self.leases.rename(away)
        self.leases.symlink_to(self.leases)
        yield
        self.leases.unlink()
        if away.exists():
            away.rename(self.leases)


@pytest.mark.usefixtures("site")
def test_it_is_a_kind_among_others(request_for: Callable[..., LockRequest]) -> None:
    assert "lease-files" in names()
    with pytest.raises(LockSettingsError, match=r"locker\.options\.directory"):
        create("lease-files", request_for("a"))


@pytest.mark.usefixtures("site")
def test_a_slow_standby_does_not_take_a_number_that_was_passed(
    request_for: Callable[..., LockRequest], leases: Path
) -> None:
    def build(name: str) -> tuple[Locker, ManualClock]:
        clock = ManualClock()
        asked = request_for(name)
        kind = import_module("tandemmq_lease_files").LeaseFilesLocker
        return kind(LockRequest("", asked.holder, asked.settings, {"directory": str(leases)}, clock)), clock

    (a, _), (b, b_clock), (c, c_clock) = build("a"), build("b"), build("c")
    assert a.try_acquire()
    assert not b.try_acquire()
    assert not c.try_acquire()
    b_clock.advance(10.0)
    c_clock.advance(10.0)
    # c has decided to take number 2, and sleeps. Then b takes 2, a takes 3, b takes 4: 2 and 3 are used.
    highest = c._highest()
    assert b.try_acquire()
    a.release()
    b.release()
    assert a.try_acquire()
    a.release()
    assert b.try_acquire()
    assert [path.name for path in leases.iterdir()] == ["claim-00000000000000000004"]
    assert not c._take(highest[0] + 1)
    assert b.keep_alive()
    assert not c.try_acquire()
    for locker in (a, b, c):
        locker.release()


@pytest.mark.thorough
def test_a_pair_of_brokers_elects_by_it(site: Path, leases: Path, tmp_path: Path) -> None:
    options = {"type": "lease-files", "options.directory": leases, "lock_keep_alive_period": "200ms"}
    environment = {"PYTHONPATH": os.pathsep.join([str(site), str(EXAMPLE.parents[1])])}
    lines = [f"--set=locker.{key}={value}" for key, value in options.items()]
    with running_pair(tmp_path / "data", *lines, environment=environment) as (a, b):
        assert_a_frozen_master_is_followed(a, b)
        assert_the_standby_follows(b, a)
