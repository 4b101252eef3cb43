"""A connector with TLS over the terms of a broker, on both event loops: handshakes that fail leave nothing behind."""

# proves: tls-carries-out-what-came, tls-is-lost-once, tls-rests-at-the-socket
# proves: refused-handshake-is-forgotten, failed-handshake-leaves-nothing, given-up-connection-is-no-cycle

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import socket
import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import aiohttp
import pytest
import uvloop

from tandemmq.broker.core.commands import Command, Send
from tandemmq.broker.core.memory import CONNECTION_BYTES, HANDSHAKE_BYTES, TLS_BUFFERS, TLS_BYTES, Kind
from tandemmq.broker.net.origins import Origins
from tandemmq.broker.net.server import Connector, Server
from tandemmq.broker.net.tls_handshake import HELLO_BYTES_MAX, LATER_MESSAGE_BYTES, Handshake, Secured, TlsServer
from tandemmq.broker.net.transport import Connection, TransportLimits
from tandemmq.broker.net.turns import TURN_SECONDS, Turns
from tandemmq.broker.net.websocket import WebSocketOptions, of_stomp
from tandemmq.broker.protocols.stomp.session import StompSession
from tandemmq.broker.security.tls import subject
from tests.support.broker.recording_engine import RecordingEngine
from tests.support.security.authority import Authority

CONNECT = b"CONNECT\naccept-version:1.2\nhost:/\n\n\0"


@pytest.fixture
def server(authority: Authority) -> Server:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(authority.certificate("broker"))
    make_session = partial(StompSession, secret=lambda: "secret", clock=lambda: time.time_ns() // 1_000_000)
    return Server([Connector("stomp+ssl", "127.0.0.1", 0, make_session, TransportLimits(), 2, tls, 5.0)])


async def ask(server: Server, authority: Authority) -> tuple[bytes, asyncio.StreamWriter]:
    """Open a connection. Return it and its first bytes."""
    trusting = ssl.create_default_context(cafile=str(authority.root))
    reader, writer = await asyncio.open_connection("127.0.0.1", server.addresses[0][2], ssl=trusting)
    writer.write(CONNECT)
    async with asyncio.timeout(10):
        return await reader.readuntil(b"\0"), writer


async def babble(server: Server) -> None:
    """Plain text, until the broker hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.addresses[0][2])
    writer.write(CONNECT)
    async with asyncio.timeout(10):
        try:
            await reader.read()
        except ConnectionError:
            pass
    writer.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


async def test_a_failed_handshake_is_told_and_takes_no_place(
    server: Server, authority: Authority, make_engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    await server.listen(make_engine(), "ID:test")
    for _ in range(5):  # of two places
        await babble(server)
    answer, writer = await ask(server, authority)
    assert answer.startswith(b"CONNECTED")
    assert len(server._unauthenticated) == 1
    writer.close()
    told = [record.getMessage() for record in caplog.records if record.name == "tandemmq.broker.net.tls_handshake"]
    assert len(told) == 1, "of the same reason"
    assert told[0].startswith("connector stomp+ssl: no TLS with 127.0.0.1:")
    await server.abort()
    server.unbind()


@pytest.mark.parametrize("event_loop_policy", [uvloop.EventLoopPolicy()], ids=["the broker's loop"])
async def test_a_failed_handshake_leaves_nothing_for_the_collector(server: Server, make_engine: Any) -> None:
    await server.listen(make_engine(), "ID:test")
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            await babble(server)
        await until(lambda: not server.connections)
        await asyncio.sleep(0.01)  # the last steps of its task
        assert not [each for each in gc.get_objects() if isinstance(each, Connection | Handshake)]
    finally:
        gc.enable()
    await server.abort()
    server.unbind()


async def test_stalled_handshakes_make_room_for_others(server: Server, authority: Authority, make_engine: Any) -> None:
    """The time of a handshake is five seconds, and there are two places."""
    await server.listen(make_engine(), "ID:test")
    silent = [await asyncio.open_connection("127.0.0.1", server.addresses[0][2]) for _ in range(7)]
    answer, writer = await ask(server, authority)
    assert answer.startswith(b"CONNECTED")
    for reader, _ in silent[:5]:
        async with asyncio.timeout(3):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
    for each in (writer, *(writer for _, writer in silent)):
        each.transport.abort()
    await server.abort()
    server.unbind()


@pytest.mark.parametrize(("hosts", "dropped"), [("223", 0), ("322", 1), ("234", 0)])
async def test_the_handshake_that_is_dropped_is_the_oldest_of_the_largest_address(hosts: str, dropped: int) -> None:
    """Three are under way, and a fourth one begins."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    where = listener.getsockname()
    turns = Turns(asyncio.get_running_loop())
    tls = TlsServer("x", listener, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), 60.0, 3, asyncio.Protocol, id, turns)
    tls.listen(10)
    peers = [await asyncio.open_connection(*where, local_addr=(f"127.0.0.{host}", 0)) for host in f"{hosts}5"]
    reading = [asyncio.create_task(reader.read()) for reader, _ in peers]
    async with asyncio.timeout(10):
        done, left = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
    assert done == {reading[dropped]}
    tls.close()
    for _, writer in peers:
        writer.transport.abort()
    await asyncio.gather(*left, return_exceptions=True)


async def test_a_connection_too_many_is_told_so_over_tls(
    server: Server, authority: Authority, make_engine: Any
) -> None:
    await server.listen(make_engine(), "ID:test")
    held = [await ask(server, authority) for _ in range(2)]
    answer, _ = await ask(server, authority)
    assert b"Too many connections" in answer
    for _, writer in held:
        writer.close()
    await server.abort()
    server.unbind()


async def test_the_memory_of_tls_is_counted(server: Server, authority: Authority, make_engine: Any) -> None:
    engine = make_engine()
    await server.listen(engine, "ID:test")
    _, writer = await ask(server, authority)
    before = engine.memory.by_kind[Kind.STATE]
    assert before >= TLS_BYTES
    writer.write(b"\n" * 100_000)  # heart-beats
    async with asyncio.timeout(10):
        while engine.memory.by_kind[Kind.STATE] < before + 10_000:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
    assert engine.memory.by_kind[Kind.STATE] <= before + TLS_BUFFERS * 100_000
    writer.transport.abort()
    await server.abort()
    server.unbind()


class Client:
    """A client's TLS without a socket: what it says next is in its hands."""

    def __init__(self, authority: Authority) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        trusting = ssl.create_default_context(cafile=str(authority.root))
        self.tls = trusting.wrap_bio(self._in, self._out, server_hostname="127.0.0.1")

    def goes_on(self, heard: bytes = b"") -> bytes:
        """Return the response to that."""
        self._in.write(heard)
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self._out.read()

    def says(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self._out.read()

    def hears(self, data: bytes) -> bytes:
        self._in.write(data)
        with contextlib.suppress(ssl.SSLWantReadError):
            return self.tls.read()
        return b""


async def hear_all(client: Client, reader: asyncio.StreamReader) -> bytes:
    """The client's next words, to all that the server says at first."""
    said = b""
    async with asyncio.timeout(10):
        while client.tls.cipher() is None or not said:
            said += client.goes_on(await reader.read(1 << 16))
    return said


@pytest.mark.parametrize("step", [1, 100, 1 << 20], ids=["byte by byte", "in pieces", "whole"])
async def test_bytes_right_after_a_handshake_are_received(
    server: Server, authority: Authority, make_engine: Any, step: int
) -> None:
    await server.listen(make_engine(), "ID:test")
    reader, writer = await asyncio.open_connection("127.0.0.1", server.addresses[0][2])
    client = Client(authority)
    hello = client.goes_on()
    for first in range(0, len(hello), step):
        writer.write(hello[first : first + step])
        await asyncio.sleep(0)
    finished = await hear_all(client, reader)
    writer.write(finished + client.says(CONNECT))
    heard = b""
    async with asyncio.timeout(10):
        while b"\0" not in heard:
            heard += client.hears(await reader.read(1 << 16))
    assert heard.startswith(b"CONNECTED")
    writer.transport.abort()
    await server.abort()
    server.unbind()


async def test_handshakes_take_turns_and_count(authority: Authority) -> None:
    """Each read of the clock adds a third of a turn, so only a few steps fit into one turn."""
    count = 30
    seconds = 0.0
    held = 0

    def clock() -> float:
        nonlocal seconds
        seconds += TURN_SECONDS / 3
        return seconds

    def hold(more: int) -> None:
        nonlocal held
        held += more

    loop = asyncio.get_running_loop()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.certificate("broker"))
    turns = Turns(loop, clock)
    tls = TlsServer("x", listener, context, 60.0, count, asyncio.Protocol, id, turns, hold)
    tls.listen(count)
    peers = [socket.create_connection(listener.getsockname()) for _ in range(count)]
    await until(lambda: len(tls._handshakes) == count)
    assert held == count * CONNECTION_BYTES
    hellos = [Client(authority).goes_on() for _ in peers]
    for peer, hello in zip(peers, hellos, strict=True):
        peer.setblocking(False)
        peer.sendall(hello)

    def answered() -> int:
        found = 0
        for peer in peers:
            with contextlib.suppress(BlockingIOError):
                found += len(peer.recv(1, socket.MSG_PEEK))
        return found

    each_turn = [0]
    async with asyncio.timeout(10):
        while each_turn[-1] < count:
            await asyncio.sleep(0)
            each_turn.append(answered())
    assert max(after - before for before, after in itertools.pairwise(each_turn)) <= 3
    assert held == count * HANDSHAKE_BYTES + sum(map(len, hellos))
    for peer in peers:
        peer.close()
    async with asyncio.timeout(10):
        while held:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
    tls.close()


def record(kind: int, content: bytes) -> bytes:
    return bytes((kind, 3, 1)) + len(content).to_bytes(2) + content


def hello(length: int) -> bytes:
    """Return the beginning of a ClientHello of that length, in a record of all its bytes or of 16 KiB."""
    begin = b"\1" + length.to_bytes(3) + b"\3\3"
    return record(22, begin + bytes(min(length + 4, 1 << 14) - len(begin)))[: 5 + len(begin)]


def state_bytes(engine: Any) -> int:
    found: int = engine.memory.by_kind[Kind.STATE]
    return found


async def hung_up(reader: asyncio.StreamReader) -> bool:
    """Wait until the broker closes the connection. Return True if it sent nothing."""
    async with asyncio.timeout(10):
        try:
            return await reader.read() == b""
        except ConnectionError:
            return True


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (hello(HELLO_BYTES_MAX + 1)[:9], "a ClientHello of more than 16380 bytes"),
        (hello(131_396), "a ClientHello of more than 16380 bytes"),
        (record(22, b"\1\0\2") + record(22, b"\0\3\3"), "a ClientHello in several records"),
        (record(22, b"\1\0\0\6\0") + record(22, b"\0"), "a ClientHello in several records"),
        (record(21, b"\1\x5a") + hello(131_396), "a TLS record of type 21 before the ClientHello"),
        (record(20, b"\1"), "a TLS record of type 20 before the ClientHello"),
        (record(23, b"x"), "a TLS record of type 23 before the ClientHello"),
        (b"GET / HTTP/1.1\r\n\r\n", "the client does not use TLS"),
        (b"\x80\x40\1", "the client does not use TLS"),  # SSL 2
    ],
    ids=["too long", "longest", "hidden length", "two records", "alert", "cipher", "data", "HTTP", "SSL 2"],
)
@pytest.mark.parametrize("step", [1, 1 << 20], ids=["byte by byte", "whole"])
async def test_a_hello_for_which_openssl_would_allocate_much_is_refused(
    server: Server, make_engine: Any, caplog: pytest.LogCaptureFixture, said: bytes, reason: str, step: int
) -> None:
    engine = make_engine()
    await server.listen(engine, "ID:test")
    before = state_bytes(engine)
    for _ in range(3):  # of two places
        reader, writer = await asyncio.open_connection("127.0.0.1", server.addresses[0][2])
        for first in range(0, len(said), step):
            if not writer.is_closing():
                writer.write(said[first : first + step])
                await asyncio.sleep(0)
        assert await hung_up(reader)
        writer.close()
    await until(lambda: not server.connections)
    assert state_bytes(engine) == before
    assert len(server._unauthenticated) == 0
    told = [each.getMessage() for each in caplog.records if each.name == "tandemmq.broker.net.tls_handshake"]
    assert len(told) == 1
    assert told[0].endswith(reason)
    await server.abort()
    server.unbind()


async def test_a_hello_that_is_not_whole_takes_its_own_bytes_only(
    server: Server, authority: Authority, make_engine: Any
) -> None:
    engine = make_engine()
    await server.listen(engine, "ID:test")
    reader, writer = await asyncio.open_connection("127.0.0.1", server.addresses[0][2])
    await until(lambda: len(server.connections) == 1)
    before = state_bytes(engine) - CONNECTION_BYTES
    client = Client(authority)
    first = client.goes_on()
    writer.write(first[:-1])
    await until(lambda: state_bytes(engine) == before + CONNECTION_BYTES + len(first) - 1)
    writer.write(first[-1:])
    finished = await hear_all(client, reader)
    assert state_bytes(engine) == before + len(first) + HANDSHAKE_BYTES
    writer.write(finished[:7])  # the length of the next message cannot be seen: it may be the longest
    await until(lambda: state_bytes(engine) == before + len(first) + HANDSHAKE_BYTES + LATER_MESSAGE_BYTES)
    writer.transport.abort()
    await until(lambda: not server.connections)
    await server.abort()
    server.unbind()


async def test_an_error_of_the_broker_in_a_handshake_leaves_nothing(
    server: Server, authority: Authority, make_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(handshake: Handshake) -> None:
        raise RuntimeError("an error")

    await server.listen(make_engine(), "ID:test")
    with monkeypatch.context() as patch:
        patch.setattr(Handshake, "_feed", fail)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.addresses[0][2])
        writer.write(Client(authority).goes_on())
        assert await hung_up(reader)
        writer.close()
        await until(lambda: not server.connections)
    answer, writer = await ask(server, authority)
    assert answer.startswith(b"CONNECTED")
    writer.transport.abort()
    await server.abort()
    server.unbind()


async def test_each_term_listens_again_and_drops_handshakes_in_progress(
    server: Server, authority: Authority, make_engine: Any
) -> None:
    for term in range(3):
        await server.listen(make_engine(), f"ID:test-{term}")
        silent, silent_writer = await asyncio.open_connection("127.0.0.1", server.addresses[0][2])
        answer, writer = await ask(server, authority)
        assert answer.startswith(b"CONNECTED")
        await server.close()
        async with asyncio.timeout(3):  # not the handshake's five seconds
            try:
                assert await silent.read() == b""
            except ConnectionError:
                pass
        for each in (silent_writer, writer):
            each.transport.abort()
        await server.lingered()
    server.unbind()


# ---- the end


class HoldingEngine(RecordingEngine):
    """Holds back what comes behind the first message, as when that takes long."""

    def handle(self, connection: Connection, command: Command) -> None:
        if isinstance(command, Send) and not any(isinstance(each, Send) for each in self.commands):
            connection.stop_reading()
        super().handle(connection, command)


def say_and_leave(port: int, authority: Authority, ending: str, text: bytes) -> None:
    """The end comes at once."""
    trusting = ssl.create_default_context(cafile=str(authority.root))
    client = trusting.wrap_socket(socket.create_connection(("127.0.0.1", port), 10), server_hostname="127.0.0.1")
    client.sendall(CONNECT)
    assert client.recv(1 << 16).startswith(b"CONNECTED")
    client.sendall(text)
    if ending == "close_notify":
        client.settimeout(0.1)
        with contextlib.suppress(OSError):  # the answer may come late
            client.unwrap()
    client.close()


@pytest.mark.parametrize("length", [10, 160_000])
@pytest.mark.parametrize("ending", ["FIN", "close_notify"])
async def test_input_before_the_end_is_processed_when_there_is_time(
    server: Server, authority: Authority, ending: str, length: int
) -> None:
    engine = HoldingEngine()
    await server.listen(engine, "ID:test")
    text = b"".join(b"SEND\ndestination:/queue/a\n\n%d%b\0" % (number, b"x" * length) for number in range(9))
    left = asyncio.create_task(asyncio.to_thread(say_and_leave, server.addresses[0][2], authority, ending, text))
    await until(lambda: len(engine.commands) >= 2)
    await asyncio.sleep(0.3)  # for all that the loop reads meanwhile
    (connection,) = server.connections
    connection.resume_reading()
    await left
    await until(lambda: not server.connections)
    kinds = [type(command).__name__ for command in engine.commands]
    assert kinds == ["Connect", *["Send"] * 9, "Disconnect"]
    assert engine.events == ["opened", "closed"]
    assert server.counts() == {"stomp+ssl": 0}
    await server.abort()
    server.unbind()


# ---- wss


async def test_a_client_with_a_certificate_speaks_stomp(authority: Authority, make_engine: Any) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(authority.certificate("broker"))
    tls.load_verify_locations(authority.root)
    tls.verify_mode = ssl.CERT_REQUIRED
    make_session = partial(StompSession, secret=lambda: "secret", clock=lambda: 0)
    options = WebSocketOptions(of_stomp(make_session, TransportLimits()), Origins(), 1 << 20)
    server = Server(
        [
            Connector(
                "wss", "127.0.0.1", 0, make_session, tls=tls, tls_handshake_seconds_max=5.0, subject=subject,
                connections_max=2, websocket=options,
            )
        ]
    )  # fmt: skip
    await server.listen(make_engine(), "ID:t")
    url = f"wss://127.0.0.1:{server.addresses[0][2]}/"
    trusting = ssl.create_default_context(cafile=str(authority.root))
    async with aiohttp.ClientSession() as session:
        for _ in range(3):  # who has no certificate takes no place
            with pytest.raises(aiohttp.ClientError):
                await session.ws_connect(url, ssl=trusting)
        trusting.load_cert_chain(authority.certificate("client"))
        async with session.ws_connect(url, ssl=trusting, protocols=["v12.stomp"]) as websocket:
            body = "x" * 900_000
            await websocket.send_str(
                "CONNECT\naccept-version:1.2\nhost:/\n\n\0SUBSCRIBE\nid:1\ndestination:/queue/a\n\n\0"
            )
            await websocket.send_str(f"SEND\ndestination:/queue/a\n\n{body}\0")
            assert (await websocket.receive(timeout=10)).data.startswith("CONNECTED")
            assert (await websocket.receive(timeout=10)).data.endswith(f"\n\n{body}\0\n")
            (connection,) = server.connections
            assert connection.certificate == "CN=client,O=Example"
    await server.abort()
    server.unbind()


class Closing(asyncio.Protocol):
    """Closes its transport with the first bytes, or with the end."""

    def __init__(self, closes_with: str) -> None:
        self._closes_with = closes_with
        self.lost = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._closes_with == "data":
            self._transport.close()

    def eof_received(self) -> bool:
        if self._closes_with == "end":
            self._transport.close()
        return self._closes_with == "kept"

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost += 1


@pytest.mark.parametrize("closes_with", ["data", "end", "kept", "nothing"])
async def test_a_connection_that_ended_before_it_began_is_lost_once(closes_with: str) -> None:
    above = Closing(closes_with)
    secured = Secured(asyncio.Transport(), above, asyncio.get_running_loop())
    secured.data_received(CONNECT)
    secured.connection_lost(None)
    secured.begin(asyncio.Transport())
    secured.close()
    await asyncio.sleep(0)
    assert above.lost == 1
