"""Threads, queues and clocks in virtual time: what brokers rely on of real ones, and what only a simulation can do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from inspect import CORO_CLOSED, getcoroutinestate
from queue import Empty

import pytest

from tandemmq.simulator.kernel import Process, StandsStill, World
from tandemmq.simulator.loop import SimulatedLoop
from tandemmq.simulator.threads import SimulatedThreads


def a_process(world: World, name: str = "p") -> tuple[Process, SimulatedThreads]:
    process = Process(world, name)
    return process, SimulatedThreads(process, lambda: 0.0)


def run(world: World, until: float = 100.0) -> None:
    world.run(until)
    assert world.bugs == []


def turns_of(seed: int) -> list[str]:
    world = World(seed)
    _, threads = a_process(world)
    lines: list[str] = []

    def talk(name: str) -> Callable[[], None]:
        def target() -> None:
            for _ in range(5):
                lines.append(name)
                threads.sleep(1.0)

        return target

    for name in "abc":
        threads.thread(talk(name), name).start()
    run(world)
    return lines


def test_a_seed_decides_who_comes_first() -> None:
    assert turns_of(1) == turns_of(1)
    assert len({tuple(turns_of(seed)) for seed in range(10)}) > 1


def test_an_hour_is_over_at_once_and_was_an_hour() -> None:
    world = World(0)
    _, threads = a_process(world)
    slept: list[float] = []

    def sleep() -> None:
        began = threads.monotonic()
        threads.sleep(3600.0)
        slept.append(threads.monotonic() - began)

    threads.thread(sleep, "sleeper").start()
    run(world, until=4000.0)
    assert slept == [pytest.approx(3600.0)]


def test_queues_events_and_futures_wait_and_time_out() -> None:
    world = World(0)
    _, threads = a_process(world)
    inbox, event = threads.inbox(), threads.event()
    answer: Future[int] = Future()
    lines: list[object] = []

    def wait() -> None:
        with pytest.raises(Empty):
            inbox.get(timeout=1.0)
        lines.append(inbox.get())
        lines.append(event.wait(1.0))
        lines.append(event.wait())
        lines.append(threads.wait([answer], 1.0))
        lines.append(threads.wait([answer]))

    def give() -> None:
        threads.sleep(2.0)
        inbox.put("item")
        threads.sleep(2.0)
        event.set()
        threads.sleep(2.0)
        answer.set_result(7)

    waiting = threads.thread(wait, "waits")
    waiting.start()
    threads.thread(give, "gives").start()
    run(world)
    assert lines == ["item", False, True, False, True]
    assert not waiting.is_alive()


def test_a_lock_is_held_by_one_while_it_waits() -> None:
    world = World(3)
    _, threads = a_process(world)
    lock = threads.lock()
    inside: list[int] = []

    def enter() -> None:
        for _ in range(10):
            with lock:
                inside.append(1)
                threads.sleep(0.1)
                assert sum(inside) == 1
                inside.pop()

    for name in "abc":
        threads.thread(enter, name).start()
    run(world)


def test_an_executor_works_off_what_it_is_given_and_ends() -> None:
    world = World(0)
    _, threads = a_process(world)
    results: list[object] = []

    def use() -> None:
        executor = threads.executor(2, "pool")
        futures = [executor.submit(lambda n=n: threads.sleep(1.0) or n * n) for n in range(4)]  # type: ignore[misc]
        failing = executor.submit(lambda: 1 // 0)
        assert threads.wait([*futures, failing])
        results.extend(future.result() for future in futures)
        results.append(type(failing.exception()))
        executor.shutdown()
        with pytest.raises(RuntimeError):
            executor.submit(int)

    threads.thread(use, "user").start()
    run(world)
    assert results == [0, 1, 4, 9, ZeroDivisionError]


def test_an_event_loop_keeps_virtual_time_and_is_reached_from_threads() -> None:
    world = World(0)
    process, threads = a_process(world)
    lines: list[object] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 60.0)
        lines.append(round(loop.time() - began))
        heard = asyncio.Event()

        def call() -> str:
            threads.sleep(5.0)
            loop.call_soon_threadsafe(heard.set)
            threads.sleep(1.0)
            return "done"

        working = loop.run_in_executor(None, call)
        await heard.wait()
        lines.append(working.done())
        lines.append(await working)

    process.thread(lambda: SimulatedLoop(process).complete(main()), "loop").start()
    run(world)
    assert lines == [60, False, "done"]


def test_a_loop_that_waits_for_something_is_a_fault() -> None:
    world = World(0)
    process, threads = a_process(world)

    async def main() -> None:
        threads.sleep(1.0)

    process.thread(lambda: SimulatedLoop(process).complete(main()), "loop").start()
    world.run(10.0)
    assert any("must not wait" in bug for bug in world.bugs)


def test_a_stopped_process_does_nothing_until_it_goes_on() -> None:
    world = World(0)
    process, threads = a_process(world)
    ticks: list[float] = []

    def tick() -> None:
        while True:
            threads.sleep(1.0)
            ticks.append(world.now)

    threads.thread(tick, "ticks").start()
    world.after(3.5, process.pause)
    world.after(10.0, process.resume)
    run(world, until=12.5)
    assert [round(tick) for tick in ticks] == [1, 2, 3, 10, 11, 12]


def test_a_killed_process_unwinds_and_does_nothing_any_more() -> None:
    world = World(0)
    process, threads = a_process(world)
    lines: list[str] = []

    def work() -> None:
        try:
            threads.sleep(10.0)
            lines.append("went on")
        finally:
            lines.append("unwound")
            threads.sleep(1.0)
            lines.append("waited after its death")

    threads.thread(work, "works").start()
    world.after(5.0, process.kill)
    run(world)
    assert lines == ["unwound"]


def test_tasks_of_a_killed_loop_end_without_a_word() -> None:
    world = World(0)
    process, _ = a_process(world)
    lines: list[str] = []

    async def linger() -> None:
        try:
            await asyncio.sleep(1000.0)
        finally:
            lines.append("ended")

    async def main() -> None:
        lingering = asyncio.create_task(linger())
        await lingering

    process.thread(lambda: SimulatedLoop(process).complete(main()), "loop").start()
    world.after(5.0, process.kill)
    run(world)
    assert lines == ["ended"]


def test_a_task_that_a_killed_loop_begins_while_it_unwinds_ends_with_it() -> None:
    world = World(0)
    process, _ = a_process(world)
    begun: list[asyncio.Task[bool]] = []

    async def main() -> None:
        try:
            await asyncio.sleep(1000.0)
        finally:
            begun.append(asyncio.ensure_future(asyncio.Event().wait()))
            await begun[0]

    process.thread(lambda: SimulatedLoop(process).complete(main()), "loop").start()
    world.after(5.0, process.kill)
    run(world)
    coroutine = begun[0].get_coro()
    assert isinstance(coroutine, Coroutine)
    assert getcoroutinestate(coroutine) == CORO_CLOSED


def test_a_busy_loop_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandemmq.simulator.kernel.TURNS_AT_ONE_TIME_MAX", 100)
    world = World(0)
    _, threads = a_process(world)
    first, second = threads.event(), threads.event()

    def spin(mine: object, other: object) -> Callable[[], None]:
        def target() -> None:
            while True:
                other.set()  # type: ignore[attr-defined]
                mine.wait()  # type: ignore[attr-defined]
                mine.clear()  # type: ignore[attr-defined]

        return target

    threads.thread(spin(first, second), "first").start()
    threads.thread(spin(second, first), "second").start()
    with pytest.raises(StandsStill):
        world.run(1.0)
