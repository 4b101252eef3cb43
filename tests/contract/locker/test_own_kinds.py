"""The two kinds that need nothing else keep what every lock promises; and kinds of lock by name."""

# proves: memory-lock, proof-grows-old, shared-file-lock

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tandemmq.locker.contract import NO_PROOF, Holder, Locker, LockRequest, Proof, UnknownLocker
from tandemmq.locker.kinds import Unlocked, create, names
from tandemmq.locker.memory import MemoryLock, MemoryLocker
from tandemmq.locker.shared_file import SharedFileLocker
from tests.contract.locker.test_contract import BetweenProcesses, OutOfReach
from tests.support.locker.interleaved import Interleaved, InterleavedLease
from tests.support.locker.manual_clock import ManualClock
from tests.support.locker.stepped_volume import Elsewhere, SteppedVolume, here
from tests.support.locker.steps import Stepping
from tests.support.prove import IS_PROOF, IS_THOROUGH


class TestSharedFile(BetweenProcesses, OutOfReach, Interleaved):
    factory = "tandemmq.locker.shared_file:SharedFileLocker"
    # 14,000 orders of calls in other processes take minutes; of those in which somebody is left often, `make prove`
    # tries all.
    switches_max = None if IS_PROOF else 3 if IS_THOROUGH else 2
    switches_of_three_max = 1

    @pytest.fixture(params=["one process", "a process each"])
    def place(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """POSIX gives locks to processes, which are kept apart by another rule than brokers of one."""
        shared, opened = SteppedVolume(here), list[Elsewhere]()

        def elsewhere() -> SteppedVolume:
            opened.append(Elsewhere())
            return SteppedVolume(opened[-1])

        self.volume = elsewhere if request.param == "a process each" else lambda: shared
        yield
        for process in opened:
            process.close()

    def stepped(self, request: LockRequest) -> Locker:
        locker = SharedFileLocker(replace(request, volume=self.volume()))
        self.path = Path(locker.path)
        return locker

    def anew(self) -> None:
        self.path.unlink(missing_ok=True)

    def steal(self, locker: Locker) -> None:
        assert isinstance(locker, SharedFileLocker)
        Path(locker.path).unlink()

    @contextmanager
    def out_of_reach(self, locker: Locker) -> Iterator[None]:
        # A file in the place of the directory: whatever is asked of the path is ENOTDIR or ENOENT for a poll, and for
        # the holder as well, to whom that means that its file is gone. A loop of links is neither.
        assert isinstance(locker, SharedFileLocker)
        path, away = Path(locker.path), Path(f"{locker.path}.away")
        was_there = path.exists()
        if was_there:
            path.rename(away)
        path.symlink_to(path)
        yield
        path.unlink()
        if was_there:
            away.rename(path)


class TestMemory(OutOfReach, Interleaved):
    factory = "tandemmq.locker.memory:MemoryLocker"

    @pytest.fixture(autouse=True)
    def _lock(self) -> None:
        self.lock = MemoryLock()

    def build(self, request: LockRequest) -> Locker:
        return MemoryLocker(request, self.lock)

    def stepped(self, request: LockRequest) -> Locker:
        return MemoryLocker(request, Stepping(self.lock, {"take", "renew", "rename", "drop"}))  # type: ignore[arg-type]

    def steal(self, locker: Locker) -> None:
        self.lock.steal()

    @contextmanager
    def out_of_reach(self, locker: Locker) -> Iterator[None]:
        self.lock.fail("no answer")
        yield
        self.lock.fail(None)


class TestMemoryThatRunsOut(TestMemory, InterleavedLease):
    @pytest.fixture(autouse=True)
    def _lock(self) -> None:
        self.lock = MemoryLock(lease_seconds=60.0)


def test_a_holder_says_what_it_knows() -> None:
    assert str(Holder("x")) == "x"
    assert str(Holder("x", 2, 3, "h", "http://h:1")) == "x (epoch 2, pid 3, on h, admin http://h:1)"


# ---- behaviour of the lock in memory alone, with a clock that the test sets


def lock_handles(lock: MemoryLock, clock: ManualClock) -> Iterator[MemoryLocker]:
    return (MemoryLocker(LockRequest("", Holder(name), clock=clock), lock) for name in ("a", "b", "c"))


def test_a_lock_granted_twice_has_two_owners_that_both_believe_it() -> None:
    lock, clock = MemoryLock(), ManualClock()
    a, b, c = lock_handles(lock, clock)
    assert a.try_acquire()
    lock.grant_twice()
    assert b.try_acquire()
    assert a.keep_alive()
    assert b.keep_alive()
    assert not c.try_acquire()
    clock.advance(1e9)
    assert a.proof().holds_at(clock.now()), "without a lease it is proved for ever"


def test_a_lease_in_memory_runs_out_unless_it_is_renewed() -> None:
    lock, clock = MemoryLock(lease_seconds=2.0), ManualClock()
    a, b, _ = lock_handles(lock, clock)
    assert a.try_acquire()
    for _ in range(5):
        clock.advance(1.5)
        assert a.keep_alive()
        assert not b.try_acquire()
    clock.advance(1.9)
    assert a.proof().holds_at(clock.now())
    assert not b.try_acquire()
    clock.advance(0.1)
    assert not a.proof().holds_at(clock.now())
    assert not a.keep_alive()
    assert b.try_acquire()


def test_a_proof_ends_at_its_end() -> None:
    assert Proof(10.0, 2.0).holds_at(11.9)
    assert not Proof(10.0, 2.0).holds_at(12.0)
    assert not NO_PROOF.holds_at(0.0)


# ---- kinds by name


@pytest.fixture
def installed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Install a distribution that brings a kind of lock, by its entry points."""

    def install(points: str) -> None:
        site: Path = tmp_path_factory.mktemp("site")
        (site / "foreign_lock.py").write_text(
            "from tandemmq.locker.memory import MemoryLocker\nclass Foreign(MemoryLocker): kind = 'f'\n"
        )
        info = site / "foreign_lock-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign-lock\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[tandemmq.lockers]\n{points}\n")
        monkeypatch.setattr(sys, "path", [*sys.path, str(site)])

    return install


def test_built_in_kinds_are_found_by_name(request_for: Callable[..., LockRequest]) -> None:
    assert isinstance(create("shared-file", request_for()), SharedFileLocker)
    assert isinstance(create("memory", request_for()), MemoryLocker)


def test_a_kind_of_another_distribution_is_found_by_its_entry_point(
    installed: Callable[[str], None], request_for: Callable[..., LockRequest]
) -> None:
    installed("foreign = foreign_lock:Foreign")
    assert create("foreign", request_for()).kind == "f"
    assert "foreign" in names()


def test_our_names_cannot_be_taken(installed: Callable[[str], None], request_for: Callable[..., LockRequest]) -> None:
    installed("shared-file = foreign_lock:Foreign")
    assert isinstance(create("shared-file", request_for()), SharedFileLocker)


def test_a_kind_that_cannot_be_loaded_says_which(
    installed: Callable[[str], None], request_for: Callable[..., LockRequest]
) -> None:
    installed("broken = foreign_lock_that_is_not_there:X")
    with pytest.raises(UnknownLocker, match=r"'broken' .* cannot be loaded: No module named"):
        create("broken", request_for())


def test_an_unknown_kind_says_what_there_is(request_for: Callable[..., LockRequest]) -> None:
    with pytest.raises(UnknownLocker, match=r"the known types are .*memory, shared-file.*; did you mean 'shared-file'"):
        create("sharedfile", request_for())


def test_without_use_lock_everybody_owns_and_it_is_said_to_be_unsafe(request_for: Callable[..., LockRequest]) -> None:
    a, b = (create("shared-file", request_for(name, use_lock=False)) for name in ("a", "b"))
    for locker in (a, b):
        assert isinstance(locker, Unlocked)
        assert not locker.keep_alive()
        assert locker.acquire(threading.Event())
        assert locker.keep_alive()
        assert locker.proof().valid_for_seconds == math.inf
        assert "use_lock is false" in str(locker.unsafe)
    a.announce(2, "http://a:1")
    holder = a.holder()
    assert holder is not None
    assert (holder.name, holder.epoch, holder.admin) == ("a", 2, "http://a:1")
    a.release()
    assert not a.keep_alive()
    assert b.keep_alive()
