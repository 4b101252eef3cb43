"""Failures of a pair while clients send and receive, and the check of the clients' records afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from tests.support.acceptance.broker_process import WAIT_SECONDS_MAX, wait_until
from tests.support.acceptance.load import Books, consume, drain, produce
from tests.support.acceptance.stomp_wire import Address

PRODUCERS = 2
WINDOW = 20
RECEIPTS_BEFORE = 200
RECEIPTS_AFTER = 200
POLL_SECONDS = 0.002
#: A producer goes to the next broker after this silence, because a broker that is cut off does not close connections.
PATIENCE_SECONDS = 2.0


class Outage:
    """The longest time without a new receipt."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def watch(self, books: Books) -> None:
        seen, since = len(books.stored), time.monotonic()
        while True:
            await asyncio.sleep(POLL_SECONDS)
            now = time.monotonic()
            if len(books.stored) != seen:
                seen, since = len(books.stored), now
            self.seconds = max(self.seconds, now - since)


def under_load(
    ports: Sequence[Address], *acts: Callable[[Books], object], queue: str = "/queue/load"
) -> tuple[Books, list[float]]:
    """Run producers and a consumer with both ports, and the acts, each in a thread, with receipts before and after it.

    Returns the records after all queues are drained, and the longest time without a receipt around each act, in
    seconds.
    """

    async def story() -> tuple[Books, list[float]]:
        books, sending, receiving = Books(), asyncio.Event(), asyncio.Event()
        tasks = [
            asyncio.create_task(produce(books, ports, queue, f"p{number}", WINDOW, sending, PATIENCE_SECONDS))
            for number in range(PRODUCERS)
        ]
        tasks.append(asyncio.create_task(consume(books, ports, queue, receiving)))
        outages = []
        try:
            await _more_receipts(books, RECEIPTS_BEFORE, tasks)
            for act in acts:
                outage = Outage()
                watch = asyncio.create_task(outage.watch(books))
                await asyncio.to_thread(act, books)
                await _more_receipts(books, RECEIPTS_AFTER, tasks)
                watch.cancel()
                outages.append(outage.seconds)
            sending.set()
            await asyncio.gather(*tasks[:-1])
            receiving.set()
            await tasks[-1]
        finally:
            for task in tasks:
                task.cancel()
        await drain(books, ports, queue)
        return books, outages

    return asyncio.run(story())


async def _more_receipts(books: Books, count: int, tasks: list[asyncio.Task[None]]) -> None:
    wanted = len(books.stored) + count
    end = time.monotonic() + WAIT_SECONDS_MAX
    while len(books.stored) < wanted:
        for task in tasks:
            if task.done():
                task.result()  # raises its exception
        assert time.monotonic() < end, f"{len(books.stored)} receipts, and no further one within {WAIT_SECONDS_MAX:g} s"
        await asyncio.sleep(0.01)


def wait_for_receipts(books: Books, count: int = RECEIPTS_AFTER) -> None:
    """Wait in the thread of an act until ``count`` more receipts have come from any master."""
    wanted = len(books.stored) + count
    wait_until(lambda: len(books.stored) >= wanted, f"{count} more receipts")


def demand_kept(books: Books) -> None:
    """Fail if a promise was broken: no message may be lost, and no acknowledgement undone."""
    assert books.problems() == []
    assert books.stored
