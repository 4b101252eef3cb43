"""Tests of the lock contract for every order of the contenders' steps: one more class of the contract's tests.

A step is an external call: to the volume, the database, the server. The subclass of a lock type defines how its lockers
wait before each step (`stepped`); the orders, and the checks after each, are the same for all.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, Final

import pytest

from tandemmq.locker.contract import Locker, LockRequest
from tests.contract.locker.test_contract import LockerContract, answers
from tests.support.locker.manual_clock import ManualClock
from tests.support.locker.steps import Act, Run, each_order, step
from tests.support.prove import IS_THOROUGH

#: If no locker has the lock, one gets it after this number of polls of each, in turn.
POLLS_MAX: Final = 3
#: A lease passes in steps of this length, this often. A proof and a lease end after different steps.
PASSING: Final = 0.55
PASSINGS: Final = 3


# All orders of their steps are run, some with processes: on a busy machine this takes minutes.
@pytest.mark.timeout(600)
class Interleaved(LockerContract):
    """Two and three contenders for one lock, step by step. Their clock runs only when a test advances it."""

    #: Maximum number of switches from an actor that could continue; None: all orders.
    switches_max: ClassVar[int | None] = None
    #: The same for three contenders, or many steps, for which all orders are too many.
    switches_of_three_max: ClassVar[int] = 2
    switches_of_asking_twice_max: ClassVar[int] = 2
    switches_of_many_max: ClassVar[int] = 2 if IS_THOROUGH else 1

    @abstractmethod
    def stepped(self, request: LockRequest) -> Locker:
        """Return a locker that waits (tests.support.locker.steps) before every external call."""

    def anew(self) -> None:
        """Reset the lock to its initial state. All lockers have released it."""

    def time(self) -> ManualClock:
        """Return the clock of the lockers."""
        return ManualClock()

    @pytest.fixture
    def place(self) -> object:
        """Return the location of the lockers; a lock type may have several."""
        return None

    @pytest.fixture
    def contenders(
        self, place: object, request_to: Callable[..., LockRequest]
    ) -> Iterator[Callable[..., list[Locker]]]:
        """Yield a function that returns a locker for each name, with settings by keyword."""
        built: list[Locker] = []
        clock = self.time()

        def build(*names: str, **settings: object) -> list[Locker]:
            built.extend(self.stepped(replace(request_to(name, **settings), clock=clock)) for name in names)
            return built

        yield build
        for locker in built:
            locker.release()

    def orders(
        self,
        lockers: list[Locker],
        acts: Callable[[], dict[str, Act]],
        expect: Callable[[Run], None] = lambda _: None,
        *,
        anew: bool = True,
        **how: Any,
    ) -> None:
        """Run the acts in each order, with the lock as former orders left it, or reset (`anew`). After each order at
        most one locker owns the lock, one can get it, and after all have released it each can."""

        def prepared() -> dict[str, Act]:
            if anew:
                self.anew()
            return acts()

        def check(run: Run) -> None:
            expect(run)
            self.assert_one_owner(lockers)
            self.assert_no_dead_end(lockers)

        self.assert_no_dead_end(lockers)
        assert each_order(prepared, check, **{"switches_max": self.switches_max, **how}) > 1

    def assert_one_owner(self, lockers: list[Locker]) -> None:
        owners = [locker.request.holder.name for locker in lockers if proves(locker)]
        assert len(owners) <= 1, f"{' and '.join(owners)} can prove that it is theirs"

    def assert_no_dead_end(self, lockers: list[Locker]) -> None:
        if not any(proves(locker) for locker in lockers):
            assert any(self.gets(locker) for _ in range(POLLS_MAX) for locker in lockers), "no locker gets it"
            self.assert_one_owner(lockers)
        for locker in lockers:
            locker.release()
        for locker in lockers:
            assert any(self.gets(locker) for _ in range(POLLS_MAX)), "all have released it, and it is not free"
            locker.release()

    def gets(self, locker: Locker) -> bool:
        """Return whether the locker gets the lock at this poll. If it lost the lock, it releases it first."""
        if not locker.try_acquire():
            return False
        if locker.keep_alive():
            return proves(locker)
        locker.release()
        return False

    def test_of_two_that_ask_at_once_one_owns_it(self, contenders: Callable[..., list[Locker]]) -> None:
        lockers = contenders("a", "b")

        def expect(run: Run) -> None:
            assert [run.results[locker.request.holder.name] for locker in lockers] == [proves(each) for each in lockers]

        self.orders(lockers, lambda: {each.request.holder.name: each.try_acquire for each in lockers}, expect)

    def test_of_two_that_ask_twice_one_owns_it(self, contenders: Callable[..., list[Locker]]) -> None:
        lockers = contenders("a", "b")

        def polls(locker: Locker) -> Act:
            return lambda: locker.try_acquire() or locker.try_acquire()

        self.orders(
            lockers,
            lambda: {each.request.holder.name: polls(each) for each in lockers},
            anew=False,
            switches_max=self.switches_of_asking_twice_max,
        )

    @pytest.mark.thorough
    def test_of_three_that_ask_at_once_one_owns_it(self, contenders: Callable[..., list[Locker]]) -> None:
        lockers = contenders("a", "b", "c")
        self.orders(
            lockers,
            lambda: {each.request.holder.name: each.try_acquire for each in lockers},
            anew=False,
            switches_max=self.switches_of_three_max,
        )

    def test_who_asks_while_another_lets_go_has_it_at_the_next_poll(
        self, contenders: Callable[..., list[Locker]]
    ) -> None:
        lockers = contenders("a", "b")
        a, b = lockers

        def acts() -> dict[str, Act]:
            assert a.try_acquire()
            return {"a": a.release, "b": b.try_acquire}

        def expect(run: Run) -> None:
            assert run.results["b"] or b.try_acquire()
            assert proves(b)

        self.orders(lockers, acts, expect)

    def test_who_asks_while_another_keeps_it_does_not_get_it(self, contenders: Callable[..., list[Locker]]) -> None:
        lockers = contenders("a", "b")
        a, b = lockers

        def acts() -> dict[str, Act]:
            assert a.try_acquire()
            return {"a": a.keep_alive, "b": b.try_acquire}

        def expect(run: Run) -> None:
            assert run.results == {"a": True, "b": False}
            assert proves(a)

        self.orders(lockers, acts, expect)


class InterleavedLease(Interleaved):
    """Tests of lock types with an expiry, by clocks that a test can advance."""

    #: If the answers are also steps, all orders are too many.
    switches_of_time_max: ClassVar[int] = 3 if IS_THOROUGH else 1
    #: Number of requests of the standby in the meantime; more than one if a standby must observe that nothing changes.
    polls_of_time: ClassVar[int] = 1

    def time(self) -> ManualClock:
        self.clock = ManualClock()
        return self.clock

    def let_pass(self, seconds: float) -> None:
        """Advance all clocks."""
        self.clock.advance(seconds)

    def gets(self, locker: Locker) -> bool:
        """Return whether the locker gets the lock, after waiting until the lease of a former holder expires."""
        if super().gets(locker):
            return True
        assert locker.lease_seconds is not None
        self.let_pass(PASSING * locker.lease_seconds)
        return False

    def test_who_asks_while_time_goes_on_gets_it_when_nobody_proves_it_any_more(
        self, contenders: Callable[..., list[Locker]]
    ) -> None:
        lockers = contenders("a", "b")
        a = lockers[0]
        self.while_time_goes_on(lockers, a.keep_alive, self.switches_of_time_max)

    def test_who_lets_go_while_time_goes_on_and_asks_again_is_not_beside_another(
        self, contenders: Callable[..., list[Locker]]
    ) -> None:
        lockers = contenders("a", "b")
        a = lockers[0]

        def let_go_and_ask() -> bool:
            a.release()
            return a.try_acquire()

        self.while_time_goes_on(lockers, let_go_and_ask, self.switches_of_many_max)

    def while_time_goes_on(self, lockers: list[Locker], act: Callable[[], bool], switches_max: int) -> None:
        """The first holds the lock and runs ``act`` while the other, which knows it, requests the lock. A call that
        takes too long has an unknown result."""
        a, b = lockers
        lease = a.lease_seconds
        assert lease is not None

        def prepared() -> dict[str, Act]:
            assert a.try_acquire()
            assert not b.try_acquire()
            return {"a": lambda: ask(act), "b": lambda: ask(poll), "time": pass_time}

        def poll() -> bool:
            return any(b.try_acquire() for _ in range(self.polls_of_time))

        def ask(act: Callable[[], bool]) -> None:
            step("begins")  # the next call reads the clock
            answers(act)
            self.assert_one_owner(lockers)

        def pass_time() -> None:
            for _ in range(PASSINGS):
                step("goes on")
                self.let_pass(PASSING * lease)
                self.assert_one_owner(lockers)

        self.orders(lockers, prepared, switches_max=switches_max, answers_are_steps=True)


def proves(locker: Locker) -> bool:
    return locker.proof().holds_at(locker.clock.now())
