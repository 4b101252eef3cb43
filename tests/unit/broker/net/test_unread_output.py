"""A body that several peers have not read counts once, until the last of them has read it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvloop

from tandemmq.broker.core.commands import AckMode
from tandemmq.broker.core.memory import Holder, Kind, Memory
from tandemmq.broker.net.transport import _BEHIND
from tandemmq.broker.net.unread_output import PIECE_BYTES_MIN, UnreadOutput
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message

pytestmark = pytest.mark.promise("slow-readers")

LONG = b"x" * (PIECE_BYTES_MIN * 4)
OTHER = b"y" * (PIECE_BYTES_MIN * 2)
HEAD = b"h" * 100


class Peer:
    """Peer that reads nothing until the test permits it."""

    def __init__(self, memory: Memory) -> None:
        self.holder = Holder(memory)
        self.output = UnreadOutput(self.holder)
        self.unread = 0

    def tell(self, *pieces: bytes | memoryview) -> None:
        self.output.write(pieces, self.unread)
        self.unread += sum(map(len, pieces))
        self.output.note(self.unread, is_behind=True)

    def read(self, count: int, *, is_behind: bool = True) -> None:
        self.unread -= count
        self.output.note(self.unread, is_behind=is_behind)

    @property
    def held(self) -> int:
        return self.holder.by_kind[Kind.OUTPUT]


@pytest.fixture
def memory() -> Memory:
    return Memory(1 << 30)


def counted(memory: Memory) -> int:
    assert memory.used == memory.by_kind[Kind.OUTPUT]
    return memory.used


def test_a_message_in_many_frames_counts_once_until_its_last_frame_is_read(memory: Memory) -> None:
    peer = Peer(memory)
    frames = [memoryview(LONG)[start : start + PIECE_BYTES_MIN] for start in range(0, len(LONG), PIECE_BYTES_MIN)]
    for frame in frames:
        peer.tell(HEAD, frame)
    whole = len(LONG) + len(frames) * len(HEAD)
    assert peer.held == counted(memory) == whole
    peer.tell(HEAD, OTHER)
    peer.read(whole - 1)
    assert counted(memory) == len(LONG) + len(OTHER)
    peer.read(1)
    assert peer.held == counted(memory) == len(HEAD) + len(OTHER)


def test_a_piece_unread_by_several_connections_counts_once(memory: Memory) -> None:
    peers = [Peer(memory) for _ in range(10)]
    for peer in peers:
        peer.tell(HEAD, LONG)
    assert counted(memory) == 10 * len(HEAD) + len(LONG)
    assert [peer.held for peer in peers] == [len(HEAD) + len(LONG)] * 10, "each holds it, and is held back by that"
    assert [peer.holder.bytes for peer in peers] == [len(HEAD) + len(LONG)] * 10
    for number, peer in enumerate(peers, 1):
        peer.read(peer.unread, is_behind=False)
        assert peer.held == peer.holder.bytes == 0
        assert counted(memory) == (10 - number and (10 - number) * len(HEAD) + len(LONG))


def test_a_piece_counts_whole_until_the_last_of_it_is_read(memory: Memory) -> None:
    peer = Peer(memory)
    peer.tell(HEAD, LONG, HEAD, OTHER)
    peer.output.skip(len(HEAD))
    peer.unread += len(HEAD)
    peer.read(len(HEAD) + len(LONG) - 1)
    assert peer.held == counted(memory) == len(LONG) + len(OTHER)
    peer.read(1)
    assert peer.held == counted(memory) == len(HEAD) + len(OTHER) + len(HEAD)
    peer.read(len(HEAD) + len(OTHER))
    assert peer.held == counted(memory) == len(HEAD)


def test_a_piece_written_twice_to_a_connection_is_held_twice_and_counts_once(memory: Memory) -> None:
    peer = Peer(memory)
    peer.tell(LONG, LONG)
    assert (peer.held, counted(memory)) == (2 * len(LONG), len(LONG))
    peer.read(len(LONG))
    assert (peer.held, counted(memory)) == (len(LONG), len(LONG))


def test_a_view_is_what_it_shows_a_part_of(memory: Memory) -> None:
    for _ in range(3):
        Peer(memory).tell(memoryview(LONG)[4:])
    assert counted(memory) == len(LONG)


def test_earlier_output_counts_for_the_position_of_a_pieces_end(memory: Memory) -> None:
    peer = Peer(memory)
    peer.unread = 1000
    peer.tell(LONG)
    assert counted(memory) == 1000 + len(LONG)
    peer.read(1000)
    assert counted(memory) == len(LONG)
    peer.read(len(LONG))
    assert counted(memory) == 0


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """The broker's: asyncio's own joins what it is to write."""
    return uvloop.EventLoopPolicy()


@pytest.mark.parametrize("end", ["they read", "they leave"])
async def test_slow_connections_share_the_memory_of_their_output(bench_of: Any, end: str) -> None:
    body = b"x" * 8_000_000
    message = Message(Destination(DestinationKind.QUEUE, "a"), "ID:m:1:1:1", body, BodyKind.BYTES)
    async with bench_of() as bench:
        clients = []
        for number in range(5):
            client = await bench.connected()
            await client.say(b"SUBSCRIBE\nid:0\ndestination:/queue/a\n\n\0")
            await bench.until(lambda number=number: len(bench.engine.subscriptions) > number)
            client.writer.transport.pause_reading()
            clients.append(client)
        memory = bench.engine.memory
        for connection in bench.server.connections:
            connection.session.deliver("0", 1, message, 0, AckMode.AUTO)
            connection.touch()
        await bench.until(lambda: all(each._states & _BEHIND for each in bench.server.connections))
        assert len(body) <= memory.by_kind[Kind.OUTPUT] < len(body) + 10_000
        assert {each.holder.by_kind[Kind.OUTPUT] >= len(body) for each in bench.server.connections} == {True}
        for client in clients:
            client.writer.transport.resume_reading()
            if end == "they leave":
                client.hang_up()
            else:
                assert len(await client.reader.readexactly(len(body))) == len(body)
        await bench.until(lambda: not any(each._states & _BEHIND for each in bench.server.connections))
        for connection in bench.server.connections:
            connection.note_output()
        assert memory.by_kind[Kind.OUTPUT] == 0
        assert memory._shares == {}


async def test_short_writes_to_a_peer_that_reads_slowly_count_once_they_are_4_kib(bench: Any) -> None:
    _, connection = await bench.served()
    transport = connection._transport

    class Full:
        def __getattr__(self, name: str) -> Any:
            return getattr(transport, name)

        def write(self, data: bytes) -> None: ...

        def get_write_buffer_size(self) -> int:
            return 50_000

    connection._transport = Full()
    connection._uncounted = 0
    counted = []
    for _ in range(5):
        connection.session._write(b"x" * 1000)
        connection._write(0.0)
        counted.append(connection.holder.by_kind[Kind.OUTPUT])
    assert counted == [0, 0, 0, 0, 50_000]
    connection._transport = transport
