"""All orders of the steps of several threads.

Each actor runs in a separate thread, which waits before every step (`step`) until the schedule continues it; so one of
them runs at a time, and the same choices make the same run. All orders are run, or all with at most `switches_max`
switches from an actor that could have continued.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

#: A step that takes longer waits for a waiting actor. This is much longer than every time limit of a lock.
STEP_SECONDS_MAX: Final = 60.0
#: A run with more steps than this has an endless loop.
STEPS_MAX: Final = 300
#: With more orders than this the test must set a bound for the switches.
ORDERS_MAX: Final = 20_000

Act = Callable[[], object]

logger = logging.getLogger(__name__)

_here = threading.local()


def step(what: str, can_continue: Callable[[], bool] = lambda: True) -> None:
    """Make the calling actor wait here until its turn, and until `can_continue`. Does nothing in other threads."""
    actor: _Actor | None = getattr(_here, "actor", None)
    if actor is not None:
        actor.stand(what, can_continue)


class Stepping:
    """The same object, with the named methods as steps."""

    def __init__(self, target: object, verbs: Iterable[str]) -> None:
        self._target, self._verbs = target, frozenset(verbs)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        return stepping(found, name) if name in self._verbs else found


def stepping(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    """Return the same function with a wait before it, and after it if answers are steps."""

    def called(*arguments: Any, **options: Any) -> Any:
        named = f"{what} {arguments[0]}" if arguments and isinstance(arguments[0], str) else what
        step(named)
        try:
            return function(*arguments, **options)
        finally:
            answered(named)

    return called


def answered(what: str) -> None:
    """The call is made, and its answer is in transit: a separate step if the run demands it."""
    actor: _Actor | None = getattr(_here, "actor", None)
    if actor is not None and actor.answers_are_steps:
        actor.stand(f"{what} answered", lambda: True)


@dataclass(frozen=True, slots=True)
class Run:
    """The outcome of one order. `results`: return value of each actor."""

    results: Mapping[str, Any]
    order: tuple[str, ...]


@dataclass(slots=True)
class _Choice:
    chosen: str
    could: tuple[str, ...]


@dataclass(slots=True)
class _Schedule:
    """Chooses the next actor: first by the given choices, then the last actor, as long as it can continue."""

    prefix: tuple[str, ...]
    choices: list[_Choice] = field(default_factory=list)

    def next(self, could: tuple[str, ...]) -> str:
        at = len(self.choices)
        if at < len(self.prefix):
            chosen = self.prefix[at]
            assert chosen in could, f"the same choices made another run: {chosen} cannot continue after {at} steps"
        else:
            last = self.choices[-1].chosen if self.choices else None
            chosen = last if last in could else could[0]
        self.choices.append(_Choice(chosen, could))
        return chosen

    def others(self, switches_max: int | None) -> Iterator[tuple[str, ...]]:
        """Yield the runs that differ from this one after its prefix."""
        made: list[str] = []
        switches = 0
        for at, choice in enumerate(self.choices):
            for other in choice.could if at >= len(self.prefix) else ():
                leaves = bool(made) and other != made[-1] and made[-1] in choice.could
                if other != choice.chosen and (switches_max is None or switches + leaves <= switches_max):
                    yield (*made, other)
            switches += bool(made) and choice.chosen != made[-1] and made[-1] in choice.could
            made.append(choice.chosen)


class _Actor:
    def __init__(self, name: str, act: Act, answers_are_steps: bool) -> None:
        self.name = name
        self.answers_are_steps = answers_are_steps
        self.stands_before: str | None = "its first step"
        self.can_continue: Callable[[], bool] = lambda: True
        self.result: object = None
        self.error: BaseException | None = None
        self._act = act
        self._may_go, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._run, name=f"actor {name}", daemon=True).start()
        self._wait_until_it_stands()

    def stand(self, what: str, can_continue: Callable[[], bool]) -> None:
        """Wait for the turn; called in the actor's thread."""
        self.stands_before, self.can_continue = what, can_continue
        self._stands.release()
        self._may_go.acquire()

    def run_step(self) -> None:
        """Run one step; return when the actor waits before the next one, or has ended."""
        self._may_go.release()
        self._wait_until_it_stands()

    def _wait_until_it_stands(self) -> None:
        before = self.stands_before
        assert self._stands.acquire(timeout=STEP_SECONDS_MAX), f"{self.name} hangs in {before}"

    def _run(self) -> None:
        _here.actor = self
        try:
            self.result = self._act()
        except BaseException as error:
            self.error = error
        self.stands_before = None
        self._stands.release()


def each_order(
    acts: Callable[[], Mapping[str, Act]],
    check: Callable[[Run], None],
    *,
    switches_max: int | None = None,
    answers_are_steps: bool = False,
) -> int:
    """For each order create the acts, run them, and check the outcome. Return the number of orders.

    Exceptions of an act are raised here, with the order in a note.
    """
    waiting: list[tuple[str, ...]] = [()]
    count = 0
    while waiting:
        count += 1
        assert count <= ORDERS_MAX, f"more than {ORDERS_MAX} orders: set a bound for the switches"
        schedule = _Schedule(waiting.pop())
        steps: list[str] = []
        try:
            check(_run(acts(), schedule, steps, answers_are_steps))
        except BaseException as error:
            error.add_note(f"order {count}: {', '.join(steps)}")
            raise
        waiting.extend(schedule.others(switches_max))
    logger.info("%d orders, %d steps in the last", count, len(steps))
    return count


def _run(acts: Mapping[str, Act], schedule: _Schedule, steps: list[str], answers_are_steps: bool) -> Run:
    actors = {name: _Actor(name, act, answers_are_steps) for name, act in acts.items()}
    while True:
        acting = [actor for actor in actors.values() if actor.stands_before is not None]
        could = tuple(actor.name for actor in acting if actor.can_continue())
        if not could:
            assert not acting, f"no actor can continue: {[(actor.name, actor.stands_before) for actor in acting]}"
            break
        assert len(steps) < STEPS_MAX, f"an actor is in an endless loop of more than {STEPS_MAX} steps"
        actor = actors[schedule.next(could)]
        steps.append(f"{actor.name}: {actor.stands_before}")
        actor.run_step()
    for actor in actors.values():
        if actor.error is not None:
            raise actor.error
    return Run({name: actor.result for name, actor in actors.items()}, tuple(steps))
