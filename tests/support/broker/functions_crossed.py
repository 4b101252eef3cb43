"""The functions of the broker that one SEND and one ACK call, from the first byte of the client to the last byte for
it.

Real sockets, sessions, engine and store, in one process. Only the loop's thread and the storage thread are traced, and
only between the first byte in and the last byte out.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.engine.part import Loop
from tandemmq.broker.engine.slicing import Slices
from tandemmq.broker.net.server import Connector, Server
from tandemmq.broker.net.transport import TransportLimits
from tandemmq.broker.protocols.stomp.session import StompSession
from tandemmq.store.settings import StoreSettings
from tandemmq.store.standby import Standby
from tandemmq.store.threads import OsThreads
from tests.support.tree import DIRECTORIES, ROOT

# Only messages wake the storage thread.
QUIET = replace(
    StoreSettings(),
    clock_mark_interval=float("inf"),
    checkpoint_interval=3600.0,
    cleanup_interval=3600.0,
    fence_check_interval=3600.0,
    recovery_budget=3600.0,
    failover_budget=3600.0,
    disk_reserve=0,
)
# The timer of a connection does not run either; on a busy machine the test could last until then.
LIMITS = TransportLimits(check_seconds=3600.0)
# Comprehensions are frames only in some versions of Python, and constructors show where a value is created: both are
# left out.
_NOT_COUNTED = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "__init__")


class Function(NamedTuple):
    """A function. ``file``: path from the root of the tree."""

    file: str
    name: str


class Trace:
    """The called functions, in the order of their first calls."""

    def __init__(self) -> None:
        self.loop: list[Function] = []
        self.storage: list[Function] = []


class Tracer:
    """A profile function for this thread and all threads that start while it is installed."""

    def __init__(self) -> None:
        self._is_recording = False
        self._is_storage_idle = False
        self._loop: dict[CodeType, None] = {}
        self._storage: dict[CodeType, None] = {}

    def __enter__(self) -> Tracer:
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        return self

    def __exit__(self, *reason: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        thread = threading.current_thread()
        if thread.name == "tandemmq-storage":
            if event == "call" and self._is_recording:
                self._storage[frame.f_code] = None
            elif event.startswith("c_") and argument.__name__ == "get":
                self._is_storage_idle = event == "c_call"  # it waits for operations
        elif event == "call" and self._is_recording and thread is threading.main_thread():
            self._loop[frame.f_code] = None

    async def until_idle(self) -> None:
        """Wait until the storage thread has finished its work after a batch."""
        async with asyncio.timeout(30):
            while not self._is_storage_idle:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.001)

    @contextmanager
    def recorded(self) -> Iterator[Trace]:
        trace = Trace()
        self._is_recording = True
        try:
            yield trace
        finally:
            self._is_recording = False
            trace.loop = _functions(self._loop)
            trace.storage = _functions(self._storage)
            self._loop = {}
            self._storage = {}


def _functions(codes: dict[CodeType, None]) -> list[Function]:
    found = []
    for code in codes:
        path = Path(code.co_filename).resolve()
        if path.is_relative_to(ROOT) and code.co_name not in _NOT_COUNTED:
            file = str(path.relative_to(ROOT))
            if file.split("/")[0] in (*DIRECTORIES, "tandemmq"):
                found.append(Function(file, code.co_qualname.replace(".<locals>", "")))
    return found


class _NoTimePasses(OsThreads):
    """Threads without timeouts, so that the storage thread does no periodic work."""

    __slots__ = ()

    monotonic = staticmethod(lambda: 1_000.0)


class _Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, frame: bytes, answer: bytes) -> None:
        self._writer.write(frame)
        await self.frame(answer)

    async def frame(self, kind: bytes) -> bytes:
        async with asyncio.timeout(30):
            found = (await self._reader.readuntil(b"\0"))[:-1].lstrip(b"\n")
        assert found.startswith(kind), found
        return found

    def hang_up(self) -> None:
        self._writer.transport.abort()


class Traces(NamedTuple):
    """``send``: to a queue without a consumer, until RECEIPT is sent. ``delivery``: the same with a consumer, until
    MESSAGE is sent as well. ``ack``: of that message, until RECEIPT is sent."""

    send: Trace
    delivery: Trace
    ack: Trace


async def trace_messages(directory: str) -> Traces:
    """Return the traces. Each message is persistent, and each frame requests a receipt. The third frame of each kind is
    traced, so that work done only once is not included."""
    loop = asyncio.get_running_loop()
    with Tracer() as tracer:
        standby = Standby(directory, f"{directory}/index", "a", QUIET, threads=_NoTimePasses())
        lost: list[BaseException] = []
        store = standby.promote(
            has_proof=lambda: True,
            call_soon=loop.call_soon_threadsafe,
            call_later=loop.call_later,
            on_lost=lost.append,
        )
        clock = partial(next, itertools.count(time.time_ns() // 1_000_000))
        make_session = partial(StompSession, secret=lambda: "secret", clock=clock)
        server = Server([Connector("stomp", "127.0.0.1", 0, make_session, LIMITS)])
        engine = Engine(
            store,
            EngineSettings(),
            Loop(clock, loop.call_later, Slices(loop).start),
            on_drained=server.resume_reading_all,
        )
        store.start(engine)
        await server.listen(engine, "ID:t-1")
        clients = []
        try:
            for _ in range(2):
                client = _Client(*await asyncio.open_connection("127.0.0.1", server.addresses[0][2]))
                clients.append(client)
                await client.ask(b"CONNECT\naccept-version:1.2\nhost:/\n\n\0", b"CONNECTED")
            producer, consumer = clients
            for destination in (b"/queue/consumed", b"/queue/kept"):
                if destination == b"/queue/consumed":
                    await consumer.ask(_SUBSCRIBE % destination, b"RECEIPT")
                for number in range(3):
                    with tracer.recorded() as sent:
                        await producer.ask(_SEND % (destination, number), b"RECEIPT")
                        if destination == b"/queue/consumed":
                            message = await consumer.frame(b"MESSAGE")
                        await tracer.until_idle()
                    if destination == b"/queue/consumed":
                        delivery = sent
                        id = next(line for line in message.split(b"\n") if line.startswith(b"ack:"))[4:]
                        with tracer.recorded() as ack:
                            await consumer.ask(_ACK % (id, number), b"RECEIPT")
                            await tracer.until_idle()
            assert not lost, lost
        finally:
            for client in clients:
                client.hang_up()
            await server.abort()
            server.unbind()
            await loop.run_in_executor(None, store.drop)
    return Traces(sent, delivery, ack)


_SUBSCRIBE = b"SUBSCRIBE\nid:s\ndestination:%b\nack:client-individual\nreceipt:r\n\n\0"
_SEND = b"SEND\ndestination:%b\npersistent:true\nreceipt:%d\n\nbody\0"
_ACK = b"ACK\nid:%b\nreceipt:%d\n\n\0"


# ---- the list in docs/architecture.md (tests/support/lists.py)

TRANSPORT = "broker/net/"


def without_transport(functions: Iterable[Function]) -> list[Function]:
    """Return the functions of session, engine, store and formats; those that only transport bytes are left out."""
    return [function for function in functions if not function.file.startswith(TRANSPORT)]


def listing(traces: Traces) -> str:
    """Return the list as text of the page."""
    send, ack = traces.send, traces.ack
    moved = [each for trace in traces for each in trace.loop if each.file.startswith(TRANSPORT)]
    given = [each for each in without_transport(traces.delivery.loop) if each not in send.loop]
    parts = (
        ("A SEND, on the loop, until its RECEIPT", without_transport(send.loop)),
        ("Added by a consumer, until its MESSAGE", given),
        ("An ACK, on the loop, until its RECEIPT", without_transport(ack.loop)),
        ("A SEND or an ACK, in the transport", list(dict.fromkeys(moved))),
        ("A batch with a SEND, on the storage thread", send.storage),
        ("Added by an ACK, on the storage thread", [e for e in ack.storage if e not in send.storage]),
    )
    return "\n".join(line for title, functions in parts for line in _part(title, functions)) + "\n"


def _part(title: str, functions: list[Function]) -> Iterator[str]:
    by_file: dict[str, list[str]] = {}
    for function in functions:
        by_file.setdefault(function.file, []).append(function.name)
    yield f"**{title}: {len(functions)} functions in {len(by_file)} files**"
    yield ""
    for file, names in by_file.items():
        yield f"- `{file}`: {', '.join(f'`{name}`' for name in names)}"
    yield ""
