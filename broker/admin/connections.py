"""The connections of the admin server: each takes a place (``broker.admin.places``) and is closed when it loses the
place.

aiohttp parses all that it gets at once: a chunk of one byte takes 10 microseconds. So it gets the bytes of a peer in
pieces, in turns with other connections (``broker.net.turns``), and nothing more while requests wait for their answers.

Events that any stranger can cause are logged once a minute and kind (``tandemmq.limited_log``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address
from typing import Any, cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler, _ErrInfo

from tandemmq import log_events
from tandemmq.broker.admin.answers import answer
from tandemmq.broker.admin.places import IDLE_SECONDS_MAX, Place, Places, State
from tandemmq.broker.core.containment import ERROR_OF_BROKER
from tandemmq.broker.net.turns import Turns
from tandemmq.limited_log import LimitedLog

log = logging.getLogger(__name__)

# The longest names of destinations and ids of messages, each byte as three characters.
REQUEST_LINE_BYTES_MAX = 8_190
HEADER_BYTES_MAX = 4_096
#: An unwanted body is read for this long, so that the peer sees the answer.
UNWANTED_BODY_SECONDS_MAX = 1.0
#: Bytes that aiohttp parses between two checks of the clock: 85 chunks of one byte, or 20 short requests.
PIECE_BYTES_MAX = 512
PORT = "admin server"


class Connections:
    """Connections of one admin server. On the loop. ``clock``: seconds that only grow."""

    def __init__(self, places: Places, clock: Callable[[], float] = time.monotonic) -> None:
        self.places = places
        self.clock = clock
        self.log = LimitedLog(log, clock)
        self._of: dict[Place, AdminConnection] = {}

    def make(self, server: web.Server, turns: Turns, loop: asyncio.AbstractEventLoop) -> AdminConnection:
        """Make the protocol of a new connection, for the loop."""
        return AdminConnection(self, server, turns, loop)

    def take(self, connection: AdminConnection, host: str) -> Place | None:
        """Take a place, for which another connection may be closed; None: there is none."""
        place, victim = self.places.take(address_of(host), self.clock())
        self._make_room(victim, host)
        if place is None:
            self.log.warning(
                PORT,
                "no place",
                f"{PORT}: all {self.places.most} places are taken: a connection from {host} is refused",
                log_events.TOO_MANY_CONNECTIONS,
            )
            return None
        self._of[place] = connection
        return place

    def know(self, place: Place) -> None:
        """Note a login on the connection, for which another connection may be closed."""
        self._make_room(self.places.know(place), place.address)

    def _make_room(self, victim: Place | None, host: str) -> None:
        if victim is None:
            return
        self.log.warning(
            PORT,
            "makes room",
            f"{PORT}: all {self.places.most} places are taken: a connection from {victim.address}, which waits for "
            f"{victim.state.value}, makes room for one from {host}",
            log_events.TOO_MANY_CONNECTIONS,
        )
        self._of.pop(victim).hang_up()

    def give(self, place: Place) -> None:
        """Free the place of a closed connection."""
        self.places.give(place)
        self._of.pop(place, None)

    def write(self, place: Place, count: int) -> None:
        """Note a response of ``count`` bytes to the peer; other connections that hold too much may be closed."""
        for victim in self.places.write(place, count, self.clock()):
            self._close(victim, "holds too many bytes that it does not take")

    def look(self) -> None:
        """Close the connections whose time is over. Called at intervals."""
        for place, state in self.places.overdue(self.clock()):
            if state is State.IDLE:
                self._of.pop(place).hang_up()  # no fault of its peer
            else:
                self._close(place, f"waited too long for {state.value}")

    def _close(self, place: Place, why: str) -> None:
        self.log.warning(PORT, why, f"{PORT}: a connection from {place.address} is closed: it {why}")
        self.places.give(place)
        self._of.pop(place).hang_up()


class AdminConnection(RequestHandler):
    """A connection. ``place`` is None before the connect, and if the connection was refused."""

    def __init__(
        self, connections: Connections, server: web.Server, turns: Turns, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # which is allowed
            keepalive_timeout=IDLE_SECONDS_MAX,
            max_line_size=REQUEST_LINE_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            lingering_time=UNWANTED_BODY_SECONDS_MAX,
            auto_decompress=False,  # a body is short as it is
        )
        self.place: Place | None = None
        self._connections = connections
        self._turns = turns
        self._socket: asyncio.Transport | None = None
        self._is_read = True
        self._is_wanted = True  # aiohttp wants input
        self._is_in_line = False  # waits for its turn
        self._rest = b""  # received; aiohttp has what is before ``_offset``
        self._offset = 0
        self._work: asyncio.Task[Any] | None = None
        self._is_reading = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        address = transport.get_extra_info("peername")
        self.place = self._connections.take(self, str(address[0]) if isinstance(address, tuple) else "")
        self._socket = cast("asyncio.Transport", transport)
        if self.place is None:
            self._socket.abort()
        else:
            super().connection_made(cast("asyncio.Transport", _Socket(self._socket, self.want)))

    async def start(self) -> None:
        """Serve its requests, one after the other, until its end."""
        try:
            await super().start()
        finally:
            self.force_close()  # no more is parsed
            # What was not served, or whose answer did not arrive: it holds this connection.
            for message, _ in self._messages:
                if isinstance(message, _ErrInfo):
                    message.exc.with_traceback(None)
            self._messages.clear()
            self._current_request = None

    def connection_lost(self, exc: BaseException | None) -> None:
        self._socket = None
        self._rest = b""
        if self.place is not None:
            self._connections.give(self.place)
            if self._work is not None and (self._is_reading or self.place.state is State.LOGIN):
                self._work.cancel()
            super().connection_lost(exc)

    def hang_up(self) -> None:
        """Close the connection at once."""
        if self.transport is not None:
            self.transport.abort()

    def enter(self, state: State) -> None:
        """Note that the connection waits for this from now on."""
        if self.place is not None:
            self.place.enter(state, self._connections.clock())
        self._settle()

    @contextmanager
    def working(self, *, is_reading: bool) -> Iterator[None]:
        """Mark the current task as the work on the peer's request. The task is cancelled when the peer closes the
        connection, if it only reads, or while a login is under way: a change continues."""
        self._work, self._is_reading = asyncio.current_task(), is_reading
        self.enter(State.WORK)
        try:
            yield
        finally:
            self._work = None

    def data_received(self, data: bytes) -> None:
        if not data:  # aiohttp continues with what it has
            super().data_received(data)
            return
        if self.place is not None and self.place.state is State.IDLE:
            self.enter(State.HEAD)
        self._rest = self._rest[self._offset :] + data
        self._offset = 0
        until = 0.0 if self._is_in_line else self._turns.begin()
        if until:
            self._feed(until)
        else:
            self._settle(has_spent=False)

    def go_on(self, until: float) -> None:
        """Continue with the input that was read, until the clock shows ``until`` (broker.net.turns)."""
        self._is_in_line = False
        try:
            self._feed(until)
        except Exception as error:
            self.log_exception("hung up, for what a peer sent %s", ERROR_OF_BROKER, exc_info=error)
            self.hang_up()

    def want(self, is_wanted: bool) -> None:
        """Note whether aiohttp wants input."""
        self._is_wanted = is_wanted
        self._settle()

    @property
    def _has_rest(self) -> bool:
        return self._offset < len(self._rest)

    @property
    def _takes_more(self) -> bool:
        """Return whether aiohttp is to get the next piece: no request waits for the one before it."""
        return self._is_wanted and not self._messages and self._socket is not None

    def _feed(self, until: float) -> None:
        """Feed a piece, and more pieces until the clock shows ``until``."""
        while self._has_rest and self._takes_more:
            piece = self._rest[self._offset : self._offset + PIECE_BYTES_MAX]
            self._offset += len(piece)
            super().data_received(piece)
            if self._turns.clock() >= until:
                break
        self._settle()

    def _settle(self, *, has_spent: bool = True) -> None:
        """Wait for a turn if bytes are left, and read from the socket if none are."""
        has_rest = self._has_rest
        if has_rest and self._takes_more and not self._is_in_line:
            self._is_in_line = True
            self._turns.wait(self, has_spent=has_spent)
        is_to_be_read = self._is_wanted and not has_rest
        if self._socket is None or is_to_be_read is self._is_read:
            return
        self._is_read = is_to_be_read
        if is_to_be_read:
            self._socket.resume_reading()
        else:
            self._socket.pause_reading()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if self.place is not None:
            self._connections.write(self.place, resp.content_length or 0)
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self.enter(State.IDLE)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer bytes that are no HTTP request."""
        if status != 400:
            return super().handle_error(request, status, exc, message)
        if exc is not None:
            exc.with_traceback(None)  # its frames hold it, and this connection
        kind = type(exc).__name__
        reason = " ".join((message or kind).split())[:100]
        self._connections.log.warning(PORT, kind, f"{PORT}: no request from {request.remote}: {reason!r}")
        response = answer({"error": f"this is no request: {reason}"}, status)
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        error = kw.get("exc_info")
        text = str(args[0]) % args[1:]
        self._connections.log.warning(PORT, type(error).__name__, f"{PORT}: {text}: {error!r}", error=error)


class _Socket:
    """Transport for aiohttp, which does not decide alone whether the socket is read."""

    def __init__(self, transport: asyncio.Transport, want: Callable[[bool], None]) -> None:
        self._transport = transport
        self._want = want

    def pause_reading(self) -> None:
        self._want(False)

    def resume_reading(self) -> None:
        self._want(True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def address_of(host: str) -> str:
    """Return the part of a host that counts as one address: for IPv6 the network of 64 bits, which belongs to one
    machine."""
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> 64 << 64))
