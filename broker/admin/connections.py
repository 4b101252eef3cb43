"""The connections of the admin server. Each takes a place (``broker.admin.places``), and is closed when it loses its
place.

aiohttp parses all bytes of one call without interruption, and a chunk of one byte takes 10 microseconds. So a
connection passes the bytes of its peer to aiohttp in pieces, in turns with other connections (``broker.net.turns``). It
passes no bytes while requests wait for their answers.

Events that a peer without a login can cause are logged once a minute for each kind (``tandemmq.limited_log``).
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
from tandemmq.broker.net.turns import FRESH, SPENT, Turns
from tandemmq.limited_log import LimitedLog

log = logging.getLogger(__name__)

# Room for the longest name of a destination and the longest message id, each byte escaped as three characters.
REQUEST_LINE_BYTES_MAX = 8_190
HEADER_BYTES_MAX = 4_096
#: A body that is not used is read for this long, so that the peer receives the answer.
UNWANTED_BODY_SECONDS_MAX = 1.0
#: Bytes that aiohttp parses between two checks of the clock: 85 chunks of one byte, or 20 short requests.
PIECE_BYTES_MAX = 512
PORT = "admin server"


class Connections:
    """Connections of one admin server. Runs on the loop. ``clock``: a monotonic clock, in seconds."""

    def __init__(self, places: Places, clock: Callable[[], float] = time.monotonic) -> None:
        self.places = places
        self.clock = clock
        self.log = LimitedLog(log, clock)
        self._of: dict[Place, AdminConnection] = {}

    def make(self, server: web.Server, turns: Turns, loop: asyncio.AbstractEventLoop) -> AdminConnection:
        """Make the protocol of a new connection, for the loop."""
        return AdminConnection(self, server, turns, loop)

    def take(self, connection: AdminConnection, host: str) -> Place | None:
        """Take a place. Another connection may be closed for it. None: no place is available."""
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

    def note_login(self, place: Place) -> None:
        """Note a login on the connection of ``place``. If that was a place for health checks, it becomes a normal one,
        and another connection may be closed."""
        self._make_room(self.places.note_login(place), place.address)

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

    def release(self, place: Place) -> None:
        """Free the place of a closed connection."""
        self.places.release(place)
        self._of.pop(place, None)

    def write(self, place: Place, count: int) -> None:
        """Note a response of ``count`` bytes to the peer. Connections are closed if all unread responses together are
        too large."""
        for victim in self.places.write(place, count, self.clock()):
            self._close(victim, "has too many unread bytes")

    def close_overdue(self) -> None:
        """Close the connections whose time is over. Called at intervals."""
        for place, state in self.places.overdue(self.clock()):
            if state is State.IDLE:
                self._of.pop(place).hang_up()  # expected, so it is not logged
            else:
                self._close(place, f"waited too long for {state.value}")

    def _close(self, place: Place, why: str) -> None:
        self.log.warning(PORT, why, f"{PORT}: a connection from {place.address} is closed: it {why}")
        self.places.release(place)
        self._of.pop(place).hang_up()


class AdminConnection(RequestHandler):
    """A connection. ``place`` is None before the connection is established, and if it was refused."""

    def __init__(
        self, connections: Connections, server: web.Server, turns: Turns, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # aiohttp permits None
            keepalive_timeout=IDLE_SECONDS_MAX,
            max_line_size=REQUEST_LINE_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            lingering_time=UNWANTED_BODY_SECONDS_MAX,
            auto_decompress=False,  # a body has a small limit, so clients have no reason to compress it
        )
        self.place: Place | None = None
        self._connections = connections
        self._turns = turns
        self._socket: asyncio.Transport | None = None
        self._is_read = True
        self._is_wanted = True  # aiohttp has not paused reading
        self._is_queued = False  # waits for its turn in ``Turns``
        self._rest = b""  # received bytes; aiohttp has those before ``_offset``
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
        """Serve the requests of the connection, one after the other, until it ends."""
        try:
            await super().start()
        finally:
            self.force_close()  # parse no further bytes
            # A request that was not served, or whose answer was not sent, refers to this connection and would keep it
            # in memory.
            for message, _ in self._messages:
                if isinstance(message, _ErrInfo):
                    message.exc.with_traceback(None)
            self._messages.clear()
            self._current_request = None

    def connection_lost(self, exc: BaseException | None) -> None:
        self._socket = None
        self._rest = b""
        if self.place is not None:
            self._connections.release(self.place)
            if self._work is not None and (self._is_reading or self.place.state is State.LOGIN):
                self._work.cancel()
            super().connection_lost(exc)

    def hang_up(self) -> None:
        """Close the connection at once."""
        if self.transport is not None:
            self.transport.abort()

    def enter(self, state: State) -> None:
        """Note the reason why the connection waits from now on."""
        if self.place is not None:
            self.place.enter(state, self._connections.clock())
        self._settle()

    @contextmanager
    def working(self, *, is_reading: bool) -> Iterator[None]:
        """Mark the current task as the work on a request. If the peer closes the connection, the task is cancelled
        during a login and if the request only reads. A request that changes the broker continues."""
        self._work, self._is_reading = asyncio.current_task(), is_reading
        self.enter(State.WORK)
        try:
            yield
        finally:
            self._work = None

    def data_received(self, data: bytes) -> None:
        if not data:  # aiohttp calls this to continue with bytes that it has
            super().data_received(data)
            return
        if self.place is not None and self.place.state is State.IDLE:
            self.enter(State.HEAD)
        self._rest = self._rest[self._offset :] + data
        self._offset = 0
        until = 0.0 if self._is_queued else self._turns.begin()
        if until:
            self._feed(until)
        else:
            self._settle(FRESH)

    def resume(self, until: float) -> None:
        """Pass received bytes to aiohttp until the clock of the loop shows ``until`` (broker.net.turns)."""
        self._is_queued = False
        try:
            self._feed(until)
        except Exception as error:
            self.log_exception("a connection was closed: input of its peer %s", ERROR_OF_BROKER, exc_info=error)
            self.hang_up()

    def want(self, is_wanted: bool) -> None:
        """Note whether aiohttp has resumed or paused reading."""
        self._is_wanted = is_wanted
        self._settle()

    @property
    def _has_rest(self) -> bool:
        return self._offset < len(self._rest)

    @property
    def _takes_more(self) -> bool:
        """Return whether to pass the next piece to aiohttp: only if no request waits for another one."""
        return self._is_wanted and not self._messages and self._socket is not None

    def _feed(self, until: float) -> None:
        """Pass at least one piece to aiohttp, and more until the clock shows ``until``."""
        while self._has_rest and self._takes_more:
            piece = self._rest[self._offset : self._offset + PIECE_BYTES_MAX]
            self._offset += len(piece)
            super().data_received(piece)
            if self._turns.clock() >= until:
                break
        self._settle()

    def _settle(self, line: int = SPENT) -> None:
        """Wait for a turn if received bytes are left; otherwise read from the socket."""
        has_rest = self._has_rest
        if has_rest and self._takes_more and not self._is_queued:
            self._is_queued = True
            self._turns.wait(self, line)
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
        """Answer bytes that are not an HTTP request."""
        if status != 400:
            return super().handle_error(request, status, exc, message)
        if exc is not None:
            exc.with_traceback(None)  # frames of a traceback would keep this connection in memory
        kind = type(exc).__name__
        reason = " ".join((message or kind).split())[:100]
        self._connections.log.warning(
            PORT, kind, f"{PORT}: input from {request.remote} is not an HTTP request: {reason!r}"
        )
        response = answer({"error": f"not an HTTP request: {reason}"}, status)
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        error = kw.get("exc_info")
        text = str(args[0]) % args[1:]
        self._connections.log.warning(PORT, type(error).__name__, f"{PORT}: {text}: {error!r}", error=error)


class _Socket:
    """Transport for aiohttp: pausing and resuming call ``want``, and do not change the socket directly."""

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
    """Return the part of a peer's address by which places are counted: of IPv6 the first 64 bits, because one machine
    may use all addresses of such a network."""
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> 64 << 64))
