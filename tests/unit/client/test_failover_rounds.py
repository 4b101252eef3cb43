"""Rounds of kill -9 and of handovers under load: nothing lost, nothing stored twice, the order kept.

The test prints its seed. TANDEMMQ_PROVE sets the number of rounds, TANDEMMQ_SEED the seed.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tandemmq.bench.peers.server import HOST
from tandemmq.client import Client, InDoubt, TransactionLost
from tandemmq.store.tools.check import check
from tests.support.client.lossy_way import LossyWay
from tests.support.prove import SEED, rounds
from tests.support.services.pairs import TandemMQ

pytestmark = pytest.mark.thorough

ROUNDS_IN_A_SAMPLE = 2
PRODUCERS = 3
TRANSACTION_MESSAGES = 5
QUEUE = "/queue/rounds"
MOVED = "/queue/rounds.moved"
QUIET_SECONDS = 1.5
# Between two batches of a producer: what is sent has to be taken and confirmed as well.
PAUSE_SECONDS = 0.1
PATIENCE_SECONDS = 60.0


class Pair:
    """Two brokers over one directory, one of which is master; ``change`` makes the other one so."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self._directory = directory
        self.duplicates = 0
        self.brokers = [TandemMQ(directory / name, data=self.data, broker=name) for name in ("a", "b")]

    @property
    def url(self) -> str:
        listed = ",".join(f"stomp://{HOST}:{broker.port}" for broker in self.brokers)
        return f"failover:({listed})?maxReconnectDelay=50"

    def start(self) -> None:
        self.brokers[0].start()
        self.brokers[0].wait_until_it_serves()
        self.brokers[1].start()
        self.brokers[1].await_standby()

    def change(self, number: int) -> None:
        """End the master by this signal, wait for the other, and start the first again behind it."""
        self.count_duplicates()
        master, standby = self.brokers
        if number == signal.SIGKILL:
            master.kill()
        else:
            master.stop()
        standby.wait_until_it_serves()
        master.start()
        master.await_standby()
        self.brokers.reverse()

    def count_duplicates(self) -> None:
        """Take note of what the present master left out, before it ends and forgets how often."""
        self.duplicates += int(self.brokers[0].status()["counts"]["duplicates_total"])

    def stop(self) -> None:
        for broker in self.brokers:
            broker.stop()


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    pair = Pair(tmp_path)
    try:
        await asyncio.to_thread(pair.start)
        yield pair
    finally:
        await asyncio.to_thread(pair.stop)
    report = check(str(pair.data))
    assert report.is_clean, report.problems


class Books:
    """Confirmed and received messages. Bodies are ``<producer>-<number>``."""

    def __init__(self) -> None:
        self.confirmed: list[str] = []
        self.doubtful: set[str] = set()
        self.received: list[str] = []
        self.settled: list[str] = []
        self.resent = 0

    def problems(self) -> list[str]:
        """Broken promises, after all was drained."""
        settled = set(self.settled)
        found = [f"lost: {body}" for body in self.confirmed if body not in settled]
        found += [f"settled twice: {body}" for body, times in Counter(self.settled).items() if times > 1]
        found += [f"out of nowhere: {body}" for body in settled - set(self.confirmed) - self.doubtful]
        return found


def out_of_order(bodies: list[str]) -> list[str]:
    """Bodies that came first before one of their producer's with a lower number did."""
    highest: dict[str, int] = {}
    late = []
    for body in dict.fromkeys(bodies):
        producer, _, number = body.partition("-")
        if int(number) < highest.get(producer, -1):
            late.append(body)
        highest[producer] = max(int(number), highest.get(producer, -1))
    return late


async def produce(url: str, name: str, books: Books, stop: asyncio.Event, pause_seconds: float = PAUSE_SECONDS) -> None:
    """Plain messages, fifty at a time."""
    async with Client(url, window=50) as client:
        number = 0
        while not stop.is_set():
            sent = [f"{name}-{number + each}" for each in range(50)]
            number += 50
            for body in sent:
                await client.send(QUEUE, body)
            await client.flush()
            books.confirmed += sent
            await asyncio.sleep(PAUSE_SECONDS)
        books.resent += client.resent


async def produce_in_transactions(url: str, name: str, books: Books, stop: asyncio.Event) -> None:
    """Send a few messages in each transaction: all of them take effect, or none."""
    async with Client(url) as client:
        number = 0
        while not stop.is_set():
            sent = [f"{name}-{number + each}" for each in range(TRANSACTION_MESSAGES)]
            number += TRANSACTION_MESSAGES
            async with await client.begin() as transaction:
                for body in sent:
                    await transaction.send(QUEUE, body)
            await asyncio.sleep(PAUSE_SECONDS)
            books.confirmed += sent  # the commit was repeated where its receipt was lost; no doubt is left


async def consume(url: str, books: Books, is_over: Callable[[], bool]) -> None:
    """Take each message; it is settled when the broker confirmed the acknowledgement."""
    async with Client(url) as client:
        subscription = await client.subscribe(QUEUE)
        while (message := await subscription.receive(QUIET_SECONDS)) is not None or not is_over():
            batch = []
            while message is not None:
                batch.append(message)
                message = await subscription.receive(0)
            answers = await asyncio.gather(*(client.acknowledge(each, is_confirmed=True) for each in batch))
            for each, is_settled in zip(batch, answers, strict=True):
                books.received.append(each.text)
                if is_settled:
                    books.settled.append(each.text)
                else:
                    books.doubtful.add(each.text)


async def many_rounds(pair: Pair, count: int, chance: random.Random) -> None:
    for each in range(count):
        await asyncio.sleep(chance.uniform(0.05, 0.5))
        await asyncio.to_thread(pair.change, signal.SIGKILL if each % 2 == 0 else signal.SIGTERM)


async def prove(pair: Pair, count: int, seed: int) -> None:
    print(f"seed {seed}, {count} rounds")
    chance = random.Random(seed)
    books = Books()
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        producers = [group.create_task(produce(pair.url, f"p{each}", books, stop)) for each in range(PRODUCERS)]
        producers.append(group.create_task(produce_in_transactions(pair.url, "t", books, stop)))
        group.create_task(consume(pair.url, books, lambda: all(task.done() for task in producers)))
        await many_rounds(pair, count, chance)
        stop.set()
    # An acknowledgement without a confirmation may have taken effect: such a message may be removed.
    books.settled += sorted(books.doubtful - set(books.settled))
    print(f"{len(books.confirmed)} confirmed, {len(books.doubtful)} acknowledgements in doubt")
    assert books.problems() == []
    assert out_of_order(books.received) == []
    assert books.confirmed


@pytest.mark.timeout(300)
async def test_rounds_of_kills_and_handovers_lose_nothing_and_store_nothing_twice(pair: Pair) -> None:
    await prove(pair, rounds(ROUNDS_IN_A_SAMPLE, 20), SEED)


async def kills_between_store_and_receipt(pair: Pair, ways: list[LossyWay], count: int, chance: random.Random) -> None:
    """In each round the receipts stop coming, and a little later the master dies."""
    for _ in range(count):
        await asyncio.sleep(chance.uniform(0.05, 0.3))
        master = next(way for way in ways if way.target == pair.brokers[0].port)
        master.receipt_lost.clear()
        master.is_withholding = True
        async with asyncio.timeout(PATIENCE_SECONDS):
            await master.receipt_lost.wait()
        await asyncio.sleep(chance.uniform(0.02, 0.1))
        await asyncio.to_thread(pair.change, signal.SIGKILL)
        master.is_withholding = False


@pytest.mark.timeout(1800)
async def test_a_message_whose_receipt_was_lost_is_stored_once(pair: Pair) -> None:
    """No client consumes meanwhile: the queue shows each stored message, and how often it is stored."""
    seed = SEED
    print(f"seed {seed}")
    books = Books()
    stop = asyncio.Event()
    first, second = pair.brokers
    async with LossyWay(first.port) as one, LossyWay(second.port) as other:
        url = f"failover:(stomp://{HOST}:{one.port},stomp://{HOST}:{other.port})?maxReconnectDelay=50"
        async with asyncio.TaskGroup() as group:
            for each in range(PRODUCERS):
                group.create_task(produce(url, f"p{each}", books, stop))
            group.create_task(produce_in_transactions(url, "t", books, stop))
            await kills_between_store_and_receipt(
                pair, [one, other], rounds(ROUNDS_IN_A_SAMPLE, 20), random.Random(seed)
            )
            stop.set()
    pair.count_duplicates()
    print(f"{len(books.confirmed)} confirmed, {books.resent} sent again, {pair.duplicates} of them were there already")
    assert pair.duplicates > 0, "no receipt was lost after its message was stored"
    await consume(pair.url, books, lambda: True)
    assert sorted(books.received) == sorted(books.confirmed), "each is there, and each once"
    assert out_of_order(books.received) == []


@pytest.mark.timeout(120)
async def test_a_move_in_transactions_over_a_kill_is_done_or_undone_or_in_doubt(pair: Pair) -> None:
    """Acknowledgement and message in one transaction: at the end each body is in the target, and none is in both."""
    bodies = [f"m-{number}" for number in range(200)]
    async with Client(pair.url) as client:
        for body in bodies:
            await client.send(QUEUE, body)
    killing = asyncio.create_task(asyncio.to_thread(pair.change, signal.SIGKILL))
    doubts = 0
    async with Client(pair.url) as client:
        source = await client.subscribe(QUEUE, prefetch=10)
        while (message := await source.receive(QUIET_SECONDS)) is not None or not killing.done():
            if message is None:
                continue
            try:
                async with await client.begin() as transaction:
                    await transaction.send(MOVED, message.body)
                    if not await transaction.acknowledge(message):
                        raise TransactionLost("the message comes again")
            except InDoubt:
                doubts += 1
            except TransactionLost:
                pass
        moved = await client.subscribe(MOVED)
        found = []
        while (message := await moved.receive(QUIET_SECONDS)) is not None:
            found.append(message.text)
            await client.acknowledge(message)
    await asyncio.wait_for(killing, PATIENCE_SECONDS)
    assert doubts <= 1, "one transaction was open when the master died"
    assert found == bodies
