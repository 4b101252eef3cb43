"""The two kinds that need nothing else keep what every lock promises."""

# proves: memory-lock, shared-file-lock

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tandemmq.locker.contract import Holder, Locker, LockRequest
from tandemmq.locker.memory import MemoryLock, MemoryLocker
from tandemmq.locker.shared_file import SharedFileLocker
from tests.contract.locker.test_contract import BetweenProcesses, OutOfReach
from tests.support.locker.interleaved import Interleaved, InterleavedLease
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
