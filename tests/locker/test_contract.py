"""What every lock promises, whatever its kind."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from locker.contract import JITTER, NO_PROOF, Holder, Locker, LockHeld, LockLost, LockRequest
from locker.memory import MemoryLock, MemoryLocker
from locker.shared_file import SharedFileLocker

WAIT_SECONDS_MAX = 20.0


class CountingClock:
    """Remembers what was waited for, and waits for nothing; `stop` is set when it has seen enough."""

    def __init__(self, waits_max: int) -> None:
        self.waits: list[float] = []
        self.waits_max = waits_max
        self.now_seconds = 0.0

    def now(self) -> float:
        self.now_seconds += 1.0
        return self.now_seconds

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        self.waits.append(seconds)
        if len(self.waits) >= self.waits_max:
            stop.set()
        return stop.is_set()


class LockerContract(ABC):
    @abstractmethod
    def build(self, request: LockRequest) -> Locker:
        """A locker on the lock that all of this test share."""

    @abstractmethod
    def steal(self, locker: Locker) -> None:
        """Take the lock away under its owner."""

    @pytest.fixture
    def lockers(self, request_for: Callable[..., LockRequest]) -> Iterator[Callable[..., Locker]]:
        built: list[Locker] = []

        def build(name: str, **settings: object) -> Locker:
            built.append(self.build(request_for(name, **settings)))
            return built[-1]

        yield build
        for locker in built:
            locker.release()

    def test_only_one_owns_it(self, lockers: Callable[..., Locker]) -> None:
        a, b = lockers("a"), lockers("b")
        assert a.try_acquire()
        assert not b.try_acquire()
        assert a.keep_alive()
        assert not b.keep_alive()

    def test_after_release_the_next_poll_gets_it(self, lockers: Callable[..., Locker]) -> None:
        a, b = lockers("a"), lockers("b")
        assert a.try_acquire()
        a.release()
        assert b.try_acquire()
        assert not a.try_acquire()

    def test_releasing_what_is_not_held_does_nothing(self, lockers: Callable[..., Locker]) -> None:
        a, b = lockers("a"), lockers("b")
        a.release()
        assert a.try_acquire()
        b.release()
        b.release()
        assert a.keep_alive()

    def test_taking_it_again_while_owning_it_is_owning_it(self, lockers: Callable[..., Locker]) -> None:
        a, b = lockers("a"), lockers("b")
        assert a.try_acquire()
        assert a.try_acquire()
        assert not b.try_acquire()

    def test_the_same_locker_may_own_it_again(self, lockers: Callable[..., Locker]) -> None:
        a = lockers("a")
        for _ in range(3):
            assert a.try_acquire()
            assert a.keep_alive()
            a.release()

    def test_the_standby_learns_whom_it_stands_by_for(self, lockers: Callable[..., Locker]) -> None:
        a, b = lockers("a"), lockers("b")
        assert b.holder() is None
        assert a.try_acquire()
        before = b.holder()
        assert before is not None
        assert (before.name, before.epoch, before.host) == ("a", None, "here")
        a.announce(3, "http://127.0.0.1:8161")
        after = b.holder()
        assert after is not None
        assert (after.name, after.epoch, after.admin) == ("a", 3, "http://127.0.0.1:8161")
        assert a.holder() == after
        assert "a (epoch 3, pid " in str(after)

    def test_after_release_nobody_is_named(self, lockers: Callable[..., Locker]) -> None:
        a, b = lockers("a"), lockers("b")
        assert a.try_acquire()
        a.release()
        assert b.holder() is None

    def test_a_new_owner_does_not_go_by_the_old_ones_name(self, lockers: Callable[..., Locker]) -> None:
        a, b, watcher = lockers("a-with-a-long-name"), lockers("b"), lockers("w")
        assert a.try_acquire()
        a.announce(3)
        a.release()
        assert b.try_acquire()
        holder = watcher.holder()
        assert holder is not None
        assert (holder.name, holder.epoch) == ("b", None)

    def test_who_does_not_own_it_announces_nothing(self, lockers: Callable[..., Locker]) -> None:
        a, b = lockers("a"), lockers("b")
        assert a.try_acquire()
        with pytest.raises(LockLost):
            b.announce(1)
        assert a.keep_alive()

    def test_keep_alive_goes_on_after_announcing(self, lockers: Callable[..., Locker]) -> None:
        a = lockers("a")
        assert a.try_acquire()
        a.announce(1)
        a.announce(2)
        assert a.keep_alive()

    def test_a_stolen_lock_is_lost_for_ever(self, lockers: Callable[..., Locker]) -> None:
        a, b = lockers("a"), lockers("b")
        assert a.try_acquire()
        self.steal(a)
        assert b.try_acquire()
        assert not a.keep_alive()
        b.release()
        assert not a.keep_alive()
        assert not a.try_acquire()
        with pytest.raises(LockLost):
            a.announce(9)

    def test_who_lost_it_can_own_it_anew_after_releasing(self, lockers: Callable[..., Locker]) -> None:
        a, b = lockers("a"), lockers("b")
        assert a.try_acquire()
        self.steal(a)
        assert b.try_acquire()
        assert not a.keep_alive()
        a.release()
        assert b.keep_alive()
        b.release()
        assert a.try_acquire()
        assert a.keep_alive()

    def test_the_proof_is_as_old_as_the_call_that_gave_it(self, request_for: Callable[..., LockRequest]) -> None:
        clock = CountingClock(1)
        a = self.build(replace(request_for("a"), clock=clock))
        assert a.proof() == NO_PROOF
        try:
            assert a.try_acquire()
            taken_at = a.proof().known_at_seconds
            assert 0 < taken_at <= clock.now_seconds
            before = clock.now_seconds
            assert a.keep_alive()
            assert before < a.proof().known_at_seconds <= clock.now_seconds
            assert a.proof().holds_at(clock.now_seconds)
        finally:
            a.release()
        assert not a.proof().holds_at(clock.now_seconds)

    def test_what_is_lost_proves_nothing(self, lockers: Callable[..., Locker]) -> None:
        a, b = lockers("a"), lockers("b")
        assert a.try_acquire()
        self.steal(a)
        assert b.try_acquire()
        assert not a.keep_alive()
        assert a.proof() == NO_PROOF

    def test_a_waiting_standby_gets_it_when_it_is_released(self, lockers: Callable[..., Locker]) -> None:
        a, b = lockers("a"), lockers("b")
        assert a.try_acquire()
        got: list[bool] = []
        waiting = threading.Thread(target=lambda: got.append(b.acquire(threading.Event())))
        waiting.start()
        a.release()
        waiting.join(WAIT_SECONDS_MAX)
        assert got == [True]

    def test_a_waiting_standby_can_be_stopped(self, lockers: Callable[..., Locker]) -> None:
        a, b = lockers("a"), lockers("b")
        assert a.try_acquire()
        stop = threading.Event()
        got: list[bool] = []
        waiting = threading.Thread(target=lambda: got.append(b.acquire(stop)))
        waiting.start()
        stop.set()
        waiting.join(WAIT_SECONDS_MAX)
        assert got == [False]

    def test_a_standby_that_is_stopped_already_asks_nothing(self, lockers: Callable[..., Locker]) -> None:
        a, stop = lockers("a"), threading.Event()
        stop.set()
        assert not a.acquire(stop)
        assert a.proof() == NO_PROOF

    def test_polls_come_at_the_interval_with_jitter(self, request_for: Callable[..., LockRequest]) -> None:
        a = self.build(request_for("a"))
        clock = CountingClock(20)
        b = self.build(replace(request_for("b", lock_acquire_sleep_interval_seconds=0.2), clock=clock))
        try:
            assert a.try_acquire()
            assert not b.acquire(threading.Event())
        finally:
            a.release()
        assert len(clock.waits) == 20
        assert all(0.2 * (1 - JITTER) <= seconds <= 0.2 * (1 + JITTER) for seconds in clock.waits)
        assert len(set(clock.waits)) > 1

    def test_fail_if_locked_says_who_has_it(self, lockers: Callable[..., Locker]) -> None:
        a, b = lockers("a"), lockers("b", fail_if_locked=True)
        assert a.try_acquire()
        a.announce(4)
        with pytest.raises(LockHeld, match=r"held by a \(epoch 4, ") as failure:
            b.acquire(threading.Event())
        assert failure.value.holder is not None
        assert failure.value.holder.name == "a"

    def test_fail_if_locked_takes_a_free_lock(self, lockers: Callable[..., Locker]) -> None:
        assert lockers("a", fail_if_locked=True).acquire(threading.Event())

    def test_without_keep_alive_it_says_that_it_is_unsafe(self, lockers: Callable[..., Locker]) -> None:
        assert lockers("a", lock_keep_alive_period_seconds=0.0).unsafe is not None


class TestSharedFile(LockerContract):
    def build(self, request: LockRequest) -> Locker:
        return SharedFileLocker(request)

    def steal(self, locker: Locker) -> None:
        assert isinstance(locker, SharedFileLocker)
        Path(locker.path).unlink()


class TestMemory(LockerContract):
    @pytest.fixture(autouse=True)
    def _lock(self) -> None:
        self.lock = MemoryLock()

    def build(self, request: LockRequest) -> Locker:
        return MemoryLocker(request, self.lock)

    def steal(self, locker: Locker) -> None:
        self.lock.steal()


def test_a_holder_says_what_it_knows() -> None:
    assert str(Holder("x")) == "x"
    assert str(Holder("x", 2, 3, "h", "http://h:1")) == "x (epoch 2, pid 3, on h, admin http://h:1)"
