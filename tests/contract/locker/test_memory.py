"""What only the lock in memory does: misbehave when told to, by a clock driven by hand."""

# proves: memory-lock, proof-grows-old

from __future__ import annotations

import threading

import pytest

from tandemmq.locker.contract import NO_PROOF, Holder, LockRequest, LockSettings, LockUnavailable, Proof
from tandemmq.locker.memory import MemoryLock, MemoryLocker
from tests.support.locker.manual_clock import ManualClock

WAIT_SECONDS_MAX = 20.0


def lock_handles(lock: MemoryLock, clock: ManualClock) -> tuple[MemoryLocker, MemoryLocker]:
    first, second = (MemoryLocker(LockRequest("", Holder(name), clock=clock), lock) for name in ("a", "b"))
    return first, second


def test_a_lock_granted_twice_has_two_owners_that_both_believe_it() -> None:
    lock = MemoryLock()
    a, b = lock_handles(lock, ManualClock())
    assert a.try_acquire()
    lock.grant_twice()
    assert b.try_acquire()
    assert a.keep_alive()
    assert b.keep_alive()
    c, _ = lock_handles(lock, ManualClock())
    assert not c.try_acquire()


def test_a_lease_runs_out_and_its_proof_with_it() -> None:
    lock, clock = MemoryLock(lease_seconds=2.0), ManualClock()
    a, b = lock_handles(lock, clock)
    assert a.try_acquire()
    clock.advance(1.9)
    assert a.proof().holds_at(clock.now())
    assert not b.try_acquire()
    clock.advance(0.2)
    assert not a.proof().holds_at(clock.now())
    assert b.try_acquire()
    assert not a.keep_alive()


def test_a_renewed_lease_lasts_on() -> None:
    lock, clock = MemoryLock(lease_seconds=2.0), ManualClock()
    a, b = lock_handles(lock, clock)
    assert a.try_acquire()
    for _ in range(5):
        clock.advance(1.5)
        assert a.keep_alive()
        assert not b.try_acquire()


def test_a_lease_that_ran_out_is_not_renewed() -> None:
    lock, clock = MemoryLock(lease_seconds=2.0), ManualClock()
    a, _ = lock_handles(lock, clock)
    assert a.try_acquire()
    clock.advance(2.0)
    assert not a.keep_alive()


def test_a_proof_ends_at_its_end() -> None:
    assert Proof(10.0, 2.0).holds_at(11.9)
    assert not Proof(10.0, 2.0).holds_at(12.0)
    assert not NO_PROOF.holds_at(0.0)


def test_a_lock_without_a_lease_proves_itself_for_ever() -> None:
    clock = ManualClock()
    a, _ = lock_handles(MemoryLock(), clock)
    assert a.try_acquire()
    clock.advance(1e9)
    assert a.proof().holds_at(clock.now())


def test_a_lock_that_cannot_be_asked_says_why_and_comes_back() -> None:
    lock = MemoryLock("m")
    a, _ = lock_handles(lock, ManualClock())
    assert a.try_acquire()
    lock.fail("no answer")
    with pytest.raises(LockUnavailable, match="m cannot be asked: no answer"):
        a.keep_alive()
    lock.fail(None)
    assert a.keep_alive()


def test_a_standby_waits_by_the_clock_that_is_driven_by_hand() -> None:
    lock, clock = MemoryLock(), ManualClock()
    a, _ = lock_handles(lock, clock)
    request = LockRequest("", Holder("b"), LockSettings(lock_acquire_sleep_interval_seconds=3_600.0), clock=clock)
    b = MemoryLocker(request, lock)
    assert a.try_acquire()
    got: list[bool] = []
    waiting = threading.Thread(target=lambda: got.append(b.acquire(threading.Event())))
    waiting.start()
    a.release()
    while waiting.is_alive():
        clock.advance(3_600.0)
        waiting.join(0.01)
    assert got == [True]
