"""What every lock promises in every order of the steps of those that ask: one more class of the contract's tests.

A step is a call to the outside: of the volume, the database, the server. The subclass of a kind says how its lockers
stand still before each (`stepped`); the orders, and what holds behind each, are the same for all.
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

#: Nobody has it: so many polls of each, in turn, and somebody has.
POLLS_MAX: Final = 3
#: A lease is let pass in steps: so much of it each, so often. A proof and a lease end behind different ones.
PASSING: Final = 0.55
PASSINGS: Final = 3


# Every order of their steps is tried, some of them by processes: on a busy machine that takes minutes.
@pytest.mark.timeout(600)
class Interleaved(LockerContract):
    """Two and three that ask for one lock, step by step. Their time stands still, unless a test lets it go on."""

    #: In how many places an actor that could go on is left for another; None: every order there is.
    switches_max: ClassVar[int | None] = None
    #: With three of them every order is too many, and where each has many steps.
    switches_of_three_max: ClassVar[int] = 2
    switches_of_asking_twice_max: ClassVar[int] = 2
    switches_of_many_max: ClassVar[int] = 2 if IS_THOROUGH else 1

    @abstractmethod
    def stepped(self, request: LockRequest) -> Locker:
        """A locker that stands still (tests.support.locker.steps) before every call to the outside."""

    def anew(self) -> None:
        """Make it as if nobody had ever asked. Everybody has let go."""

    def time(self) -> ManualClock:
        """What the lockers of a test go by."""
        return ManualClock()

    @pytest.fixture
    def place(self) -> object:
        """Where the lockers of a test are; a kind may have several such places."""
        return None

    @pytest.fixture
    def contenders(
        self, place: object, request_to: Callable[..., LockRequest]
    ) -> Iterator[Callable[..., list[Locker]]]:
        """A locker for each name, with settings by keyword."""
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
        """Each order of the acts, with what former orders left, or `anew`. Behind it one of them owns the lock at most,
        somebody can have it, and when all have let go each can."""

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
            assert any(self.gets(locker) for _ in range(POLLS_MAX) for locker in lockers), "nobody gets it"
            self.assert_one_owner(lockers)
        for locker in lockers:
            locker.release()
        for locker in lockers:
            assert any(self.gets(locker) for _ in range(POLLS_MAX)), "all have let go, and it is not free"
            locker.release()

    def gets(self, locker: Locker) -> bool:
        """At this poll. One who lost it lets it go for the next."""
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
    """Kinds whose lock runs out, by clocks that a test can let go on."""

    #: With the answers as steps too every order is too many.
    switches_of_time_max: ClassVar[int] = 3 if IS_THOROUGH else 1
    #: So often the standby asks meanwhile; more than once where a standby has to see that nothing changes.
    polls_of_time: ClassVar[int] = 1

    def time(self) -> ManualClock:
        self.clock = ManualClock()
        return self.clock

    def let_pass(self, seconds: float) -> None:
        """On the clocks of everybody."""
        self.clock.advance(seconds)

    def gets(self, locker: Locker) -> bool:
        """What was left by one who does not keep it alive is waited out."""
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
        """The first has it and acts, the other knows that and asks. What takes too long is unknown to them."""
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
            step("begins")  # and reads the clock
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
