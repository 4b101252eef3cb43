"""The link from a host to a server and back: slow at times, cut at times, and sometimes an answer is lost. A call under
way is independent of its caller: the caller may be stopped or killed meanwhile, and the call still arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tandemmq.simulator.kernel import Process, World

T = TypeVar("T")

#: Latency of one way, in seconds: nearly always about the first value, sometimes up to the second.
LATENCY_SECONDS = 0.0003
LATENCY_SECONDS_SLOW = 0.05
SLOW_SHARE = 0.01
#: Limit of the delay after a lost packet.
STALL_SECONDS_MAX = 10.0
#: Part of the answers with a latency of their own: an event may come between an effect and its answer.
ANSWER_SHARE = 0.25


class NoAnswer(Exception):
    """The call timed out: it may have happened, may still happen, or may never happen."""


class Link:
    """Link between one host and one server. ``timeout_seconds``: limit of a call (None: none)."""

    def __init__(self, world: World, timeout_seconds: float | None = None) -> None:
        self.world = world
        self.timeout_seconds = timeout_seconds
        self.is_cut = False
        self.stall_share = 0.0  # part of the calls that take seconds
        self.stalls_until = 0.0  # until then such a call may be under way
        self.repeat_share = 0.0  # part of the calls that are sent again because the answer was lost
        self._held: list[Callable[[], None]] = []

    def cut(self) -> None:
        """Cut the link until ``mend``."""
        self.is_cut = True

    def mend(self) -> None:
        self.is_cut = False
        held, self._held = self._held, []
        for call in held:
            self.world.after(self.latency(), call)

    def lose_calls_under_way(self) -> None:
        """Lose half of the calls that wait to be sent, because the host died."""
        self._held = [call for call in self._held if self.world.random.random() < 0.5]

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
        """Return whether the first answer of this call is lost, and the server gets the request twice."""
        return self.repeat_share > 0 and self.world.random.random() < self.repeat_share

    def call(self, process: Process, effect: Callable[[], T], cost_seconds: float = 0.0) -> T:
        """Let ``effect`` take place at the server, at one moment, and wait for its result or its exception. Raises
        NoAnswer."""
        answer = _Answer(self, process.waker(), effect)
        self.world.after(self.latency() + cost_seconds, answer.go)
        process.park(self.timeout_seconds)
        if not answer.is_there:
            raise NoAnswer
        if answer.error is not None:
            raise answer.error
        return answer.value  # type: ignore[no-any-return]

    def hold(self, call: Callable[[], None]) -> None:
        """Keep a call until the link is mended."""
        self._held.append(call)


@dataclass(slots=True, eq=False)
class _Answer:
    """A call under way: to the server, and then back."""

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
