"""The way from a host to a server, and back: slow at times, cut at times, and sometimes an answer gets lost.

A call is under way on its own: whoever asked may be stopped or killed meanwhile, and it still arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tandemmq.simulator.kernel import Process, World

T = TypeVar("T")

#: One way, in seconds: nearly always about the first, now and then up to the second.
LATENCY_SECONDS = 0.0003
LATENCY_SECONDS_SLOW = 0.05
SLOW_SHARE = 0.01
#: A packet was lost, and sent again after a while.
STALL_SECONDS_MAX = 10.0
#: Of the answers, so many take a time of their own: something may happen between an effect and its answer.
ANSWER_SHARE = 0.25


class NoAnswer(Exception):
    """The call timed out: it may have happened, it may still happen, or never will."""


class Link:
    """Between one host and one server. ``timeout_seconds``: give up after so long (None: wait for ever)."""

    def __init__(self, world: World, timeout_seconds: float | None = None) -> None:
        self.world = world
        self.timeout_seconds = timeout_seconds
        self.is_cut = False
        self.stall_share = 0.0  # of the calls, so many take seconds
        self.stalls_until = 0.0  # until then such a call may be under way
        self.repeat_share = 0.0  # of the calls, so many are sent again because the answer was lost
        self._held: list[Callable[[], None]] = []

    def cut(self) -> None:
        """Nothing gets through until ``mend``."""
        self.is_cut = True

    def mend(self) -> None:
        self.is_cut = False
        held, self._held = self._held, []
        for go_on in held:
            self.world.after(self.latency(), go_on)

    def lose_what_is_under_way(self) -> None:
        """The host died: half of what waits to be sent never is."""
        self._held = [go_on for go_on in self._held if self.world.random.random() < 0.5]

    def latency(self) -> float:
        if self.stall_share and self.world.random.random() < self.stall_share:
            seconds = STALL_SECONDS_MAX * self.world.random.random()
            self.stalls_until = max(self.stalls_until, self.world.now + seconds)
            return seconds
        chance = self.world.random.random()
        if chance < SLOW_SHARE:
            return LATENCY_SECONDS_SLOW * self.world.random.random()
        return LATENCY_SECONDS * (0.5 + chance)

    def is_repeated(self) -> bool:
        """Whether this call's first answer got lost, and the server was asked twice."""
        return self.repeat_share > 0 and self.world.random.random() < self.repeat_share

    def call(self, process: Process, effect: Callable[[], T], cost_seconds: float = 0.0) -> T:
        """Have ``effect`` take place at the server, at one moment, and wait for what it returns or raises. Raises
        NoAnswer."""
        answer = _Answer(self, process.waker(), effect)
        self.world.after(self.latency() + cost_seconds, answer.go)
        process.park(self.timeout_seconds)
        if not answer.is_there:
            raise NoAnswer
        if answer.error is not None:
            raise answer.error
        return answer.value  # type: ignore[no-any-return]

    def hold(self, go_on: Callable[[], None]) -> None:
        """Until the link is mended."""
        self._held.append(go_on)


@dataclass(slots=True, eq=False)
class _Answer:
    """A call under way: first there, then back."""

    link: Link
    wake: Callable[[], None]
    effect: Callable[[], object]
    is_there: bool = False
    value: Any = None
    error: Exception | None = None

    def go(self) -> None:
        link = self.link
        if link.is_cut:
            link.hold(self.go)
            return
        try:
            self.value = self.effect()
        except Exception as error:
            self.error = error
        if link.world.random.random() < ANSWER_SHARE:
            link.world.after(link.latency(), self.come_back)
        else:
            self.come_back()

    def come_back(self) -> None:
        if self.link.is_cut:
            self.link.hold(self.come_back)
            return
        self.is_there = True
        self.wake()
