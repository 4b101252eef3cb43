"""Incomplete frames have a common limit: each gets its turn, and none delays the others for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import tandemmq.broker.net.unfinished_input
from tandemmq.broker.core.memory import Holder, Memory
from tandemmq.broker.net.unfinished_input import COUNTED_BYTES_MIN, LONG_BYTES_MIN, UnfinishedInput

pytestmark = pytest.mark.promise("limits-before-login", "memory-is-bounded")

LIMIT = 1 << 20
BODY = b"x" * (3 * LIMIT)


class Reader:
    def __init__(self, unfinished: UnfinishedInput, memory: Memory) -> None:
        self.unfinished = unfinished
        self.holder = Holder(memory)
        self.is_held = False
        self.is_over = False

    def hold_input(self, is_held: bool) -> None:
        self.is_held = is_held

    def end_input(self) -> None:
        self.is_over = True
        self.unfinished.forget(self)


async def test_beyond_the_bound_only_who_began_first_is_read() -> None:
    memory = Memory(2 * 3 * LONG_BYTES_MIN)  # of which as much is left as they hold
    unfinished = UnfinishedInput(asyncio.get_running_loop(), memory)
    readers = [Reader(unfinished, memory) for _ in range(3)]
    for reader in readers:
        unfinished.note(reader, LONG_BYTES_MIN)
    assert [reader.is_held for reader in readers] == [False] * 3
    unfinished.note(readers[1], LONG_BYTES_MIN + 1)
    assert [reader.is_held for reader in readers] == [False, True, True]
    unfinished.note(readers[0], 0)
    assert [reader.is_held for reader in readers] == [False] * 3
    assert unfinished.bytes == 2 * LONG_BYTES_MIN + 1
    unfinished.note(readers[2], 2 * LONG_BYTES_MIN)
    assert [reader.is_held for reader in readers] == [False, False, True]
    for reader in readers:
        unfinished.forget(reader)
    assert unfinished.bytes == memory.used == 0
    assert [reader.is_held for reader in readers] == [False] * 3


async def test_the_wait_for_a_frame_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tandemmq.broker.net.unfinished_input, "FRAME_SECONDS_MAX", 0.02)
    memory = Memory(2 * 3 * LONG_BYTES_MIN)  # of which as much is left as they hold
    unfinished = UnfinishedInput(asyncio.get_running_loop(), memory)
    readers = [Reader(unfinished, memory) for _ in range(5)]
    for reader in readers:
        unfinished.note(reader, LONG_BYTES_MIN)
    await asyncio.sleep(0.2)
    assert [reader.is_over for reader in readers] == [True, True, False, False, False], "until there is room"
    assert [reader.is_held for reader in readers[2:]] == [False] * 3


async def test_a_short_part_of_a_frame_is_read_until_all_together_are_long() -> None:
    memory = Memory(64 * COUNTED_BYTES_MIN)
    unfinished = UnfinishedInput(asyncio.get_running_loop(), memory)
    readers = [Reader(unfinished, memory) for _ in range(100)]
    for reader in readers[:32]:
        unfinished.note(reader, COUNTED_BYTES_MIN - 1)
    assert unfinished.bytes == memory.used == 0
    for reader in readers[:36]:
        unfinished.note(reader, COUNTED_BYTES_MIN)
    assert memory.used == 36 * COUNTED_BYTES_MIN > memory.free
    assert not any(reader.is_held for reader in readers)
    for reader in readers[36:]:
        unfinished.note(reader, COUNTED_BYTES_MIN)
    assert [reader.is_held for reader in readers] == [False] + [True] * 99
    for reader in readers[36:]:
        unfinished.forget(reader)
    assert not any(reader.is_held for reader in readers)
    for reader in readers[:36]:
        unfinished.forget(reader)
    assert unfinished.bytes == memory.used == 0


@pytest.fixture
async def bench(bench_of: Any) -> AsyncIterator[Any]:
    async with bench_of() as bench:
        bench.engine.memory.limit = 2 * LIMIT
        yield bench


def frame(number: int) -> bytes:
    return b"SEND\ndestination:/queue/%d\ncontent-length:%d\nreceipt:%d\n\n%b\0" % (number, len(BODY), number, BODY)


async def held(bench: Any) -> int:
    return max(connection._unfinished.bytes for connection in bench.server.connections)


async def test_every_frame_comes_however_many_begin_at_once(bench: Any) -> None:
    clients = [await bench.connected() for _ in range(6)]
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, await held(bench))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    saying = [asyncio.create_task(client.say(frame(number))) for number, client in enumerate(clients)]
    for number, client in enumerate(clients):
        assert await client.frame() == b"RECEIPT\nreceipt-id:%d\n\n" % number
    await asyncio.gather(*saying)
    watching.cancel()
    assert LIMIT < most < LIMIT + len(BODY) + len(clients) * 2 * (256 << 10)
    assert await held(bench) == 0


async def test_a_connection_that_stops_within_a_frame_is_closed_if_others_wait(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tandemmq.broker.net.unfinished_input, "FRAME_SECONDS_MAX", 0.2)
    idle, other, small = [await bench.client() for _ in range(3)]
    for client in (idle, other, small):
        await client.connect()
    await idle.say(frame(0)[: LIMIT + 1000])
    await bench.until(lambda: max(each._unfinished.bytes for each in bench.server.connections) > LIMIT)
    saying = asyncio.create_task(other.say(frame(1)))
    await small.say(b"SEND\ndestination:/queue/s\nreceipt:s\n\nx\0")
    assert await small.frame() == b"RECEIPT\nreceipt-id:s\n\n", "what is small waits for nobody"
    assert b"Incomplete frames use all of their memory" in await idle.frame()
    assert await other.frame() == b"RECEIPT\nreceipt-id:1\n\n"
    await saying
