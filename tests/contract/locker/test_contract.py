"""Contract of every kind of lock: classes of tests, which the tests of each kind subclass."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

import pytest

from tandemmq.locker.contract import (
    JITTER,
    NO_PROOF,
    Locker,
    LockHeld,
    LockLost,
    LockRefused,
    LockRequest,
    LockUnavailable,
)

pytestmark = pytest.mark.promise("locks-keep-their-contract")

if TYPE_CHECKING:
    from tests.contract.locker.conftest import OtherProcess

WAIT_SECONDS_MAX = 30.0
Make = Callable[..., Locker]
RequestFor = Callable[..., LockRequest]


class CountingClock:
    """Remembers what was waited for, and waits for nothing; `stop` is set when it has seen enough.

    It goes on a little whenever it is read: too little for any lease to run out.
    """

    def __init__(self, waits_max: int) -> None:
        self.waits: list[float] = []
        self.waits_max = waits_max
        self.now_seconds = 0.0

    def now(self) -> float:
        self.now_seconds += 1e-6
        return self.now_seconds

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        self.waits.append(seconds)
        if len(self.waits) >= self.waits_max:
            stop.set()
        return stop.is_set()


class LockerContract(ABC):
    """Subclassed for each kind. What differs between kinds is above the first test; fixtures may set it."""

    #: "module:name" of what builds the kind from a LockRequest; a child process imports it anew.
    factory: str
    #: Of LockSettings, where the quick ones of `request_for` do not fit.
    settings: ClassVar[Mapping[str, object]] = {}

    def options(self) -> dict[str, object]:
        """Return the options of `[locker]` for this kind: plain values of JSON."""
        return {}

    @abstractmethod
    def steal(self, locker: Locker) -> None:
        """Take the lock away under its owner."""

    def build(self, request: LockRequest) -> Locker:
        """A locker on the lock that all of this test share."""
        module, _, name = self.factory.partition(":")
        locker = getattr(import_module(module), name)(request)
        assert isinstance(locker, Locker)
        return locker

    @pytest.fixture
    def request_to(self, request_for: RequestFor) -> RequestFor:
        """A request that this kind understands, by broker name, with settings by keyword."""

        def build(name: str, **settings: object) -> LockRequest:
            return replace(request_for(name, **{**self.settings, **settings}), options=self.options())

        return build

    @pytest.fixture
    def lockers(self, request_to: RequestFor) -> Iterator[Make]:
        built: list[Locker] = []

        def build(name: str, **settings: object) -> Locker:
            built.append(self.build(request_to(name, **settings)))
            return built[-1]

        yield build
        for locker in built:
            locker.release()

    def test_only_one_owns_it(self, lockers: Make) -> None:
        a, b = lockers("a"), lockers("b")
        for _ in range(2):  # taking it again while owning it is owning it
            assert a.try_acquire()
            assert not b.try_acquire()
            assert a.keep_alive()
            assert not b.keep_alive()

    def test_after_release_the_next_poll_gets_it(self, lockers: Make) -> None:
        a, b = lockers("a"), lockers("b")
        for owner, other in ((a, b), (b, a), (a, b)):
            assert owner.try_acquire()
            assert owner.keep_alive()
            assert not other.try_acquire()
            owner.release()
        b.release()  # b does not wait any more
        assert a.try_acquire()

    def test_releasing_what_is_not_held_does_nothing(self, lockers: Make) -> None:
        a, b = lockers("a"), lockers("b")
        a.release()
        assert a.try_acquire()
        b.release()
        b.release()
        assert a.keep_alive()

    def test_the_standby_learns_whom_it_stands_by_for(self, lockers: Make) -> None:
        a, b = lockers("a"), lockers("b")
        assert b.holder() is None
        assert a.try_acquire()
        before = b.holder()
        assert before is not None
        assert (before.name, before.epoch, before.host) == ("a", None, "here")
        a.announce(2)
        a.announce(3, "http://127.0.0.1:8161")
        assert a.keep_alive()
        after = b.holder()
        assert after is not None
        assert (after.name, after.epoch, after.admin) == ("a", 3, "http://127.0.0.1:8161")
        assert a.holder() == after
        assert "a (epoch 3, pid " in str(after)
        a.release()
        assert b.holder() is None

    def test_a_new_owner_does_not_go_by_the_old_ones_name(self, lockers: Make) -> None:
        a, b, watcher = lockers("a-with-a-long-name"), lockers("b"), lockers("w")
        assert a.try_acquire()
        a.announce(3)
        a.release()
        assert b.try_acquire()
        holder = watcher.holder()
        assert holder is not None
        assert (holder.name, holder.epoch) == ("b", None)

    def test_who_does_not_own_it_announces_nothing(self, lockers: Make) -> None:
        a, b = lockers("a"), lockers("b")
        assert a.try_acquire()
        with pytest.raises(LockLost):
            b.announce(1)
        assert a.keep_alive()

    def test_a_stolen_lock_is_lost_until_it_is_let_go(self, lockers: Make) -> None:
        a, b = lockers("a"), lockers("b")
        assert a.try_acquire()
        self.steal(a)
        assert b.try_acquire()
        assert not a.keep_alive()
        assert a.proof() == NO_PROOF
        b.release()
        assert not a.keep_alive()
        assert not a.try_acquire()
        with pytest.raises(LockLost):
            a.announce(9)
        assert b.try_acquire()
        a.release()
        assert b.keep_alive()
        b.release()
        assert a.try_acquire()
        assert a.keep_alive()

    def test_the_proof_is_as_old_as_the_call_that_gave_it(self, request_to: RequestFor) -> None:
        clock = CountingClock(1)
        a = self.build(replace(request_to("a"), clock=clock))
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

    def test_a_waiting_standby_gets_it_when_it_is_released(self, lockers: Make) -> None:
        a, b = lockers("a"), lockers("b")
        assert a.try_acquire()
        with waiting(b) as (_, got):
            a.release()
        assert got == [True]

    def test_others_may_ask_who_has_it_while_a_standby_polls_until_it_is_stopped(self, lockers: Make) -> None:
        a, b = lockers("a"), lockers("b")
        assert a.try_acquire()
        with waiting(b) as (stop, got):
            try:
                for _ in range(20):
                    holder, waiters = b.holder(), b.waiters()
                    assert holder is not None
                    assert holder.name == "a"
                    assert waiters is None or all(waiter.name == "b" for waiter in waiters)
            finally:
                stop.set()
        assert got == [False]

    def test_a_standby_that_is_stopped_already_asks_nothing(self, lockers: Make) -> None:
        a, stop = lockers("a"), threading.Event()
        stop.set()
        assert not a.acquire(stop)
        assert a.proof() == NO_PROOF

    def test_polls_come_at_the_interval_with_jitter(self, request_to: RequestFor) -> None:
        a = self.build(request_to("a"))
        clock = CountingClock(20)
        b = self.build(replace(request_to("b"), clock=clock))
        try:
            assert a.try_acquire()
            assert not b.acquire(threading.Event())
            interval = b.poll_seconds
        finally:
            a.release()
            b.release()
        assert len(clock.waits) == 20
        assert all(interval * (1 - JITTER) <= seconds <= interval * (1 + JITTER) for seconds in clock.waits)
        assert len(set(clock.waits)) > 1

    def test_fail_if_locked_says_who_has_it(self, lockers: Make) -> None:
        a, b = lockers("a"), lockers("b", fail_if_locked=True)
        assert a.try_acquire()
        a.announce(4)
        with pytest.raises(LockHeld, match=r"held by a \(epoch 4, ") as failure:
            b.acquire(threading.Event())
        assert failure.value.holder is not None
        assert failure.value.holder.name == "a"

    def test_fail_if_locked_takes_a_free_lock(self, lockers: Make) -> None:
        assert lockers("a", fail_if_locked=True).acquire(threading.Event())

    def test_without_keep_alive_it_says_that_it_is_unsafe(self, lockers: Make) -> None:
        assert lockers("a", lock_keep_alive_period_seconds=0.0).unsafe is not None

    def test_a_proof_never_outlives_the_lease(self, lockers: Make) -> None:
        a = lockers("a")
        assert a.try_acquire()
        assert a.keep_alive()
        assert a.proof().valid_for_seconds > 0
        if a.lease_seconds is not None:
            assert a.proof().valid_for_seconds < a.lease_seconds


class OutOfReach(LockerContract):
    """Kinds for which "it could not be asked" is another answer than "lost"."""

    @abstractmethod
    def out_of_reach(self, locker: Locker) -> AbstractContextManager[object]:
        """Return a context in which this locker cannot reach its lock. After the context it can again."""

    def test_unknown_is_not_lost(self, lockers: Make) -> None:
        a = lockers("a")
        assert a.try_acquire()
        proof = a.proof()
        with self.out_of_reach(a):
            with pytest.raises(LockUnavailable) as failure:
                a.keep_alive()
            assert a.where in str(failure.value)
            assert a.proof() == proof
        assert eventually(lambda: answers(a.keep_alive))
        assert a.proof().known_at_seconds > proof.known_at_seconds

    def test_a_lock_that_is_out_of_reach_is_let_go_without_a_word(self, lockers: Make) -> None:
        a = lockers("a")
        assert a.try_acquire()
        with self.out_of_reach(a):
            a.release()
            assert a.proof() == NO_PROOF

    def test_a_first_poll_that_is_not_answered_is_the_operators(self, lockers: Make) -> None:
        a = lockers("a")
        with self.out_of_reach(a), pytest.raises(LockUnavailable):
            a.acquire(threading.Event())

    def test_a_later_one_is_said_once_and_waited_out(self, lockers: Make, caplog: pytest.LogCaptureFixture) -> None:
        a, b = lockers("a"), lockers("b")
        assert a.try_acquire()
        with waiting(b) as (_, got):
            assert eventually(lambda: b.refused_at_seconds is not None)
            with self.out_of_reach(b):
                assert eventually(lambda: any("trying again every" in line for line in caplog.messages))
            a.release()
        assert got == [True]
        assert sum("trying again every" in line for line in caplog.messages) == 1


class Refusing(LockerContract):
    """Kinds that can answer "not you, ever"."""

    @abstractmethod
    def refused(self, request: LockRequest) -> Locker:
        """A locker that its lock will not have: a wrong password, no rights."""

    def test_who_is_refused_at_the_first_poll_does_not_stand_by(self, request_to: RequestFor) -> None:
        a = self.refused(request_to("a"))
        try:
            with pytest.raises(LockRefused):
                a.acquire(threading.Event())
            assert a.proof() == NO_PROOF
        finally:
            a.release()


class BetweenProcesses(LockerContract):
    """Kinds whose brokers need not share a process: all that are for use."""

    #: Beyond lease and poll: starting threads, a busy machine, the rounding of a server.
    slack_seconds: float = 5.0
    #: Of LockSettings, for tests that wait a lease out.
    short: ClassVar[Mapping[str, object]] = {}

    @pytest.fixture
    def child(
        self, spawn_locker: Callable[[str, LockRequest], OtherProcess], request_to: RequestFor
    ) -> Callable[..., OtherProcess]:
        """A process with a separate locker."""
        return lambda name: spawn_locker(self.factory, request_to(name, **self.short))

    def test_two_processes_exclude_each_other(self, lockers: Make, child: Callable[..., OtherProcess]) -> None:
        a, b = lockers("a", **self.short), child("b")
        assert b.say("try") == "True"
        b.say("announce")
        assert not a.try_acquire()
        holder = a.holder()
        assert holder is not None
        assert (holder.name, holder.epoch, holder.pid, holder.host) == ("b", 7, b.pid, "elsewhere")
        b.say("release")
        assert a.try_acquire()
        assert b.say("try") == "False"

    def test_a_killed_holder_is_followed_within_lease_and_poll(
        self, lockers: Make, child: Callable[..., OtherProcess]
    ) -> None:
        a, b = lockers("a", **self.short), child("b")
        assert b.say("try") == "True"
        assert b.say("hold") == "True"
        assert not a.try_acquire()
        b.kill()
        killed_at = a.clock.now()
        assert eventually(a.try_acquire, a.poll_seconds)
        assert a.clock.now() - killed_at < (a.lease_seconds or 0.0) + a.poll_seconds + self.slack_seconds
        assert a.keep_alive()


class Leased(BetweenProcesses):
    """Kinds whose lock runs out."""

    def test_it_says_how_long_a_lease_is(self, lockers: Make) -> None:
        a = lockers("a", **self.short)
        assert a.try_acquire()
        assert a.lease_seconds is not None
        assert 0 < a.poll_seconds < a.lease_seconds / 2

    def test_a_paused_holder_knows_that_it_lost_before_anybody_else_could_own_it(
        self, lockers: Make, child: Callable[..., OtherProcess]
    ) -> None:
        a, b = lockers("a", **self.short), child("b")
        assert b.say("try") == "True"
        assert b.say("hold") == "True"
        assert b.say("proof") == "True"
        assert not a.try_acquire()
        b.pause()
        assert eventually(a.try_acquire, a.poll_seconds)
        taken_at = a.clock.now()
        b.resume()
        assert b.say("proof") == "False"
        assert float(b.say("proved-until")) < taken_at
        # Its connection may have gone with the pause: what it cannot ask is unknown, and not its own.
        assert eventually(lambda: b.say("keep") == "False")
        assert a.keep_alive()
        b.say("release")
        assert a.keep_alive()

    def test_a_namesake_that_lives_keeps_its_namesake_out(
        self, lockers: Make, child: Callable[..., OtherProcess]
    ) -> None:
        b = child("same")
        assert b.say("try") == "True"
        assert b.say("hold") == "True"
        a = lockers("same", **self.short)
        # At a start it takes a few polls to tell a namesake that lives from what we were before we were killed.
        with pytest.raises(LockRefused) as refusal:
            a.acquire(threading.Event())
        assert f"pid {b.pid}" in str(refusal.value)
        assert "elsewhere" in str(refusal.value)
        assert a.proof() == NO_PROOF
        assert b.say("keep") == "True"

    def test_a_broker_that_was_killed_follows_itself(self, lockers: Make, child: Callable[..., OtherProcess]) -> None:
        b = child("same")
        assert b.say("try") == "True"
        assert b.say("hold") == "True"
        b.kill()
        a = lockers("same", **self.short)
        assert eventually(a.try_acquire, a.poll_seconds)
        assert a.keep_alive()


@contextmanager
def waiting(standby: Locker) -> Iterator[tuple[threading.Event, list[bool]]]:
    """Run a locker that waits for the lock in a thread, which has ended after the block; yield the function that stops
    it, and the result."""
    stop, got = threading.Event(), list[bool]()
    thread = threading.Thread(target=lambda: got.append(standby.acquire(stop)))
    thread.start()
    try:
        yield stop, got
        thread.join(WAIT_SECONDS_MAX)
    finally:
        stop.set()
        thread.join(WAIT_SECONDS_MAX)


def eventually(condition: Callable[[], bool], pause_seconds: float = 0.02) -> bool:
    """Check repeatedly until it is true, up to a time limit."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_seconds)
    return True


def answers(ask: Callable[[], bool]) -> bool:
    """Return the answer; False as long as it cannot be requested."""
    try:
        return ask()
    except LockUnavailable:
        return False
