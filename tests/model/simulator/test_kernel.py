"""Threads, queues and clocks in virtual time: the behaviour of real ones, and effects that only a simulation has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from inspect import CORO_CLOSED, getcoroutinestate
from queue import Empty
from typing import Any

import pytest

from tandemmq.simulator.kernel import Process, StandsStill, World
from tandemmq.simulator.loop import SimulatedLoop
from tandemmq.simulator.threads import SimulatedThreads


class Site:
    """A process. ``play`` runs each story on a separate thread, until all have ended, or until the time ``until``."""

    def __init__(self, seed: int = 0) -> None:
        self.world = World(seed)
        self.process = Process(self.world, "p")
        self.threads = SimulatedThreads(self.process, lambda: 0.0)

    def play(self, *stories: Callable[[], object], until: float = 100.0) -> None:
        for number, story in enumerate(stories):
            self.threads.thread(story, str(number)).start()
        self.world.run(until)
        assert self.world.bugs == []

    def complete(self, main: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        """Return the story of a thread that runs ``main`` on an event loop."""
        return lambda: SimulatedLoop(self.process).complete(main())


@pytest.fixture
def site() -> Site:
    return Site()


def turns_of(seed: int) -> list[str]:
    site = Site(seed)
    lines: list[str] = []

    def talk(name: str) -> Callable[[], None]:
        def target() -> None:
            for _ in range(5):
                lines.append(name)
                site.threads.sleep(1.0)

        return target

    site.play(*map(talk, "abc"))
    return lines


def test_a_seed_decides_who_comes_first() -> None:
    assert turns_of(1) == turns_of(1)
    assert len({tuple(turns_of(seed)) for seed in range(10)}) > 1


def test_queues_events_and_futures_wait_and_time_out(site: Site) -> None:
    threads = site.threads
    inbox, event = threads.inbox(), threads.event()
    answer: Future[int] = Future()
    lines: list[object] = []

    def wait() -> None:
        with pytest.raises(Empty):
            inbox.get(timeout=1.0)
        lines.append(inbox.get())
        lines.extend((event.wait(1.0), event.wait(), threads.wait([answer], 1.0), threads.wait([answer])))
        began = threads.monotonic()
        threads.sleep(3600.0)
        lines.append(round(threads.monotonic() - began))

    def give() -> None:
        for item in (lambda: inbox.put("item"), event.set, lambda: answer.set_result(7)):
            threads.sleep(2.0)
            item()

    site.play(wait, give, until=4000.0)
    assert lines == ["item", False, True, False, True, 3600]


def test_a_lock_is_held_by_one_while_it_waits() -> None:
    site = Site(3)
    lock = site.threads.lock()
    inside: list[int] = []

    def enter() -> None:
        for _ in range(10):
            with lock:
                inside.append(1)
                site.threads.sleep(0.1)
                assert sum(inside) == 1
                inside.pop()

    site.play(enter, enter, enter)


def test_a_loop_that_waits_for_something_is_a_fault(site: Site) -> None:
    async def main() -> None:
        site.threads.sleep(1.0)

    site.process.thread(site.complete(main), "loop").start()
    site.world.run(10.0)
    assert any("must not wait" in bug for bug in site.world.bugs)


def test_a_stopped_process_does_nothing_until_it_goes_on(site: Site) -> None:
    ticks: list[float] = []

    def tick() -> None:
        while True:
            site.threads.sleep(1.0)
            ticks.append(site.world.now)

    site.world.after(3.5, site.process.pause)
    site.world.after(10.0, site.process.resume)
    site.play(tick, until=12.5)
    assert [round(tick) for tick in ticks] == [1, 2, 3, 10, 11, 12]


def test_a_killed_process_unwinds_and_does_nothing_any_more(site: Site) -> None:
    lines: list[str] = []

    def work() -> None:
        try:
            site.threads.sleep(10.0)
            lines.append("went on")
        finally:
            lines.append("unwound")
            site.threads.sleep(1.0)
            lines.append("waited after its death")

    site.world.after(5.0, site.process.kill)
    site.play(work)
    assert lines == ["unwound"]


def test_a_killed_loop_ends_its_tasks_and_what_they_begin_while_they_unwind(site: Site) -> None:
    begun: list[asyncio.Task[bool]] = []

    async def linger() -> None:
        try:
            await asyncio.sleep(1000.0)
        finally:
            begun.append(asyncio.ensure_future(asyncio.Event().wait()))
            await begun[0]

    async def main() -> None:
        lingering = asyncio.create_task(linger())
        await lingering

    site.world.after(5.0, site.process.kill)
    site.play(site.complete(main))
    coroutine = begun[0].get_coro()
    assert isinstance(coroutine, Coroutine)
    assert getcoroutinestate(coroutine) == CORO_CLOSED


def test_a_busy_loop_is_found(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandemmq.simulator.kernel.TURNS_AT_ONE_TIME_MAX", 100)
    first, second = site.threads.event(), site.threads.event()

    def spin(mine: Any, other: Any) -> Callable[[], None]:
        def target() -> None:
            while True:
                other.set()
                mine.wait()
                mine.clear()

        return target

    with pytest.raises(StandsStill):
        site.play(spin(first, second), spin(second, first), until=1.0)
