"""The connections of the admin server: each takes a place (``broker.admin.places``) and is closed when it loses it.

What a stranger can cause here is logged once a minute and kind (``tandemmq.limited_log``).
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
from aiohttp.web_protocol import RequestHandler

from tandemmq import log_events
from tandemmq.broker.admin.answers import answer
from tandemmq.broker.admin.places import IDLE_SECONDS_MAX, Place, Places, State
from tandemmq.limited_log import LimitedLog

log = logging.getLogger(__name__)

# The longest names of destinations and ids of messages, each byte as three characters.
REQUEST_LINE_BYTES_MAX = 8_190
HEADER_BYTES_MAX = 4_096
#: A body that nobody wants is read for so long, for the peer to see the answer.
UNWANTED_BODY_SECONDS_MAX = 1.0
PORT = "admin server"


class Connections:
    """Those of one admin server. On the loop. ``clock``: seconds that only grow."""

    def __init__(self, places: Places, clock: Callable[[], float] = time.monotonic) -> None:
        self.places = places
        self.clock = clock
        self.log = LimitedLog(log, clock)
        self._of: dict[Place, AdminConnection] = {}

    def make(self, server: web.Server, loop: asyncio.AbstractEventLoop) -> AdminConnection:
        """For the loop, when a peer connects."""
        return AdminConnection(self, server, loop)

    def take(self, connection: AdminConnection, host: str) -> Place | None:
        """A place, for which another connection may be closed; None: there is none."""
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
        """A login was shown on it, for which another connection may be closed."""
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
        """It is not connected any more."""
        self.places.give(place)
        self._of.pop(place, None)

    def write(self, place: Place, count: int) -> None:
        """The peer is to take ``count`` bytes; others may be closed that hold too much."""
        for victim in self.places.write(place, count, self.clock()):
            self._close(victim, "holds too many bytes that it does not take")

    def look(self) -> None:
        """Close those whose time is over. Called again and again."""
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
    """One of them. ``place`` is None before it is connected, and where it was refused."""

    def __init__(self, connections: Connections, server: web.Server, loop: asyncio.AbstractEventLoop) -> None:
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
        self._work: asyncio.Task[Any] | None = None
        self._is_reading = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        address = transport.get_extra_info("peername")
        self.place = self._connections.take(self, str(address[0]) if isinstance(address, tuple) else "")
        if self.place is None:
            cast("asyncio.Transport", transport).abort()
        else:
            super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self.place is not None:
            self._connections.give(self.place)
            if self._work is not None and (self._is_reading or self.place.state is State.LOGIN):
                self._work.cancel()
            super().connection_lost(exc)

    def hang_up(self) -> None:
        """At once."""
        if self.transport is not None:
            self.transport.abort()

    def enter(self, state: State) -> None:
        """It waits for that from now on."""
        if self.place is not None:
            self.place.enter(state, self._connections.clock())

    @contextmanager
    def working(self, *, is_reading: bool) -> Iterator[None]:
        """The current task does what the peer asked for. It is cancelled when the peer closes its connection, if it
        only reads, or while a login is under way: a change goes on."""
        self._work, self._is_reading = asyncio.current_task(), is_reading
        self.enter(State.WORK)
        try:
            yield
        finally:
            self._work = None

    def data_received(self, data: bytes) -> None:
        if self.place is not None and self.place.state is State.IDLE:
            self.enter(State.HEAD)
        super().data_received(data)

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
        """What is no request of HTTP."""
        if status != 400:
            return super().handle_error(request, status, exc, message)
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


def address_of(host: str) -> str:
    """What counts as one address: of IPv6 the network of 64 bits, which one machine has to itself."""
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> 64 << 64))
