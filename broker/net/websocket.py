"""WebSocket of a client. It is between the socket and the Connection, for which it is the transport.

    socket  <->  WebSocket (HTTP request, then frames)  <->  Connection  <->  session (STOMP, MQTT or AMQP)

It behaves like the transport of a socket: reading can be paused, the Connection is called when the peer does not read,
unwritten output is counted, and ``abort`` closes it at once. If one read has many frames, they are parsed in turns with
other connections (``broker.net.turns``). Parts of an incomplete message are passed on and not kept. Of the session's
output, it only knows where messages begin (``broker.protocols.websocket.frames``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple, cast

from tandemmq import log_events
from tandemmq.broker.core.containment import ERROR_OF_BROKER
from tandemmq.broker.core.memory import CONNECTION_BYTES, Kind
from tandemmq.broker.net.origins import Origins
from tandemmq.broker.net.transport import EARLY_DROPPED_BYTES_MAX, LONG_BYTES_MIN, Connection, TransportLimits
from tandemmq.broker.net.turns import FRESH, FRESH_BYTES_MAX, SPENT, STRANGERS, Turns
from tandemmq.broker.protocols.output import asleep
from tandemmq.broker.protocols.session import Session
from tandemmq.broker.protocols.websocket.frames import (
    PING,
    PONG,
    CloseCode,
    Cut,
    FrameParser,
    WebSocketError,
    binary_messages,
    close_frame,
    head,
    stomp_messages,
)
from tandemmq.broker.protocols.websocket.upgrade import Refusal, Request, RequestParser, accepted

log = logging.getLogger(__name__)

# Number of frames that are parsed between two checks of the clock. An empty frame has 6 bytes and takes a microsecond.
FRAMES_A_STEP = 256
# Time for a client whose request was refused to read the HTTP response.
HANG_UP_SECONDS_MAX = 5.0


class Subprotocol(NamedTuple):
    """Protocol in a WebSocket. ``cut`` cuts its output into messages. ``make_session`` gets the id of the
    connection."""

    make_session: Callable[[str], Session]
    limits: TransportLimits
    cut: Cut
    accepts_text: bool


def of_stomp(make_session: Callable[[str], Session], limits: TransportLimits) -> dict[str | None, Subprotocol]:
    """Return the subprotocols of STOMP: the names of ActiveMQ, the newest version first, and None for clients that
    offer no subprotocol."""
    stomp = Subprotocol(make_session, limits, stomp_messages, accepts_text=True)
    return dict.fromkeys(("v12.stomp", "v11.stomp", "v10.stomp", "stomp", None), stomp)


def of_mqtt(make_session: Callable[[str], Session], limits: TransportLimits) -> dict[str | None, Subprotocol]:
    """Return the subprotocols of MQTT, which has only binary messages (MQTT 5, 6.0)."""
    mqtt = Subprotocol(make_session, limits, binary_messages, accepts_text=False)
    return dict.fromkeys(("mqtt", "mqttv3.1"), mqtt)


def of_amqp(make_session: Callable[[str], Session], limits: TransportLimits) -> dict[str | None, Subprotocol]:
    """Return the subprotocol of AMQP 1.0, which has only binary messages (AMQP WebSocket Binding 1.0, 2.1 and 2.4)."""
    return {"amqp": Subprotocol(make_session, limits, binary_messages, accepts_text=False)}


@dataclass(frozen=True, slots=True, eq=False)
class WebSocketOptions:
    """Options of one connector. ``subprotocols``: by name, the preferred one first; None: for clients that offer no
    subprotocol. ``ping_seconds`` 0: no pings are sent."""

    subprotocols: Mapping[str | None, Subprotocol]
    origins: Origins
    message_bytes_max: int
    handshake_seconds_max: float = 10.0
    ping_seconds: float = 30.0


@dataclass(slots=True, eq=False, repr=False)
class WebSocket(asyncio.Protocol):
    """Protocol object of one socket, and transport of ``connection``, which begins after the handshake.

    Until then, the connection has a placeholder session. ``on_open`` is called after the handshake; ``forget`` is
    called if it failed.
    """

    connection: Connection
    _name: str
    _options: WebSocketOptions
    _turns: Turns
    _loop: asyncio.AbstractEventLoop
    _on_open: Callable[[WebSocket], object]
    _forget: Callable[[WebSocket], object]
    _below: asyncio.Transport | None = field(default=None, init=False)
    _request: RequestParser | None = field(default_factory=RequestParser, init=False)
    _frames: FrameParser = field(init=False)
    _cut: Cut = field(default=stomp_messages, init=False)
    is_open: bool = field(default=False, init=False)
    _is_over: bool = field(default=False, init=False)  # closed in both directions
    _has_failed: bool = field(
        default=False, init=False
    )  # the peer broke the protocol; its input is not parsed any more
    _is_closing: bool = field(default=False, init=False)  # a Close frame was sent
    _has_ended: bool = field(default=False, init=False)  # the peer's Close frame arrived, or the peer disconnected
    _end: tuple[int, str] = field(default=(CloseCode.NORMAL, ""), init=False)
    _is_wanted: bool = field(default=True, init=False)  # the connection has not paused reading
    _is_read: bool = field(default=True, init=False)
    _is_queued: bool = field(default=False, init=False)  # for its turn
    _is_paused: bool = field(default=False, init=False)  # the peer does not read
    _counted: int = field(default=0, init=False)  # counted bytes of input
    _dropped_bytes: int = field(default=0, init=False)  # received after the end
    _last_received: float = field(default=0.0, init=False)
    _pinged: float = field(default=0.0, init=False)  # last
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)

    def __repr__(self) -> str:
        return f"<WebSocket {self.connection.id}>"

    # ---- called by the server

    @property
    def is_closing(self) -> bool:
        return self._is_over or self.connection.is_closing

    @property
    def is_logged_in(self) -> bool:
        return self.connection.is_logged_in

    @property
    def session(self) -> Session:
        return self.connection.session

    @property
    def descriptor(self) -> int:
        """File descriptor of the socket; -1: there is none."""
        found = None if self._below is None else self._below.get_extra_info("socket")
        return -1 if found is None else int(found.fileno())

    # ---- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast("asyncio.Transport", transport)
        self._last_received = self._loop.time()
        self._timer = self._loop.call_later(self._options.handshake_seconds_max, self._handshake_timeout)
        self._count()

    def data_received(self, data: bytes) -> None:
        if self._is_over or self._has_failed:
            self._dropped_bytes += len(data)
            if self._dropped_bytes > EARLY_DROPPED_BYTES_MAX and self._below is not None:
                self._below.pause_reading()
            return
        if self._request is not None:
            self._shake_hands(self._request, data)
            return
        self._last_received = self._loop.time()
        self._frames.feed(data)
        if self._is_queued:
            self._count()  # the loop had read these bytes before reading was paused
        elif self._turns.begin():
            self._read(0.0)
        else:
            self._wait(has_spent=len(data) > FRESH_BYTES_MAX)

    def eof_received(self) -> bool:
        if not self.is_open or self._is_over or self._is_closing or self._has_ended:
            return False
        self._has_ended = True
        return self.connection.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._below = None
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        if self.is_open:
            self.connection.connection_lost(error)
        else:
            self.connection.session.set_wake(asleep)
            self._count()
            self._forget(self)

    def pause_writing(self) -> None:
        self._is_paused = True
        if self.is_open:
            self.connection.pause_writing()

    def resume_writing(self) -> None:
        self._is_paused = False
        if self.is_open:
            self.connection.resume_writing()
            self._pong()

    # ---- the handshake

    def _shake_hands(self, parser: RequestParser, data: bytes) -> None:
        try:
            request = parser.feed(data)
            if request is None:
                self._count()
                return
            protocol, chosen = self._choose(request)
        except Refusal as refusal:
            self._log_refused("refused", refusal.reason)
            self._hang_up(refusal.answer)
            return
        self._request = None
        self._frames = FrameParser(self._options.message_bytes_max, accepts_text=chosen.accepts_text)
        self._cut = chosen.cut
        self._count()
        below = self._below
        assert below is not None, "a peer that sends is connected"
        below.write(accepted(request, protocol))
        self.connection.set_protocol(chosen.make_session(self.connection.id), chosen.limits)
        self.is_open = True
        self._start_timer()
        self._on_open(self)
        self.connection.connection_made(cast("asyncio.Transport", self))  # has all methods of a Transport
        if parser.rest:
            self.data_received(parser.rest)

    def _choose(self, request: Request) -> tuple[str | None, Subprotocol]:
        if not self._options.origins.may(request.origin, request.host):
            raise Refusal(
                HTTPStatus.FORBIDDEN,
                f"Pages of {(request.origin or '')[:255]!r} may not connect to {request.host[:255]!r}: "
                "websocket.allowed_origins lists the sites, websocket.hosts this broker's names.",
            )
        subprotocols = self._options.subprotocols
        protocol = request.choose([name for name in subprotocols if name is not None])
        return protocol, subprotocols[protocol]

    @property
    def _peer(self) -> str:
        address = None if self._below is None else self._below.get_extra_info("peername")
        return f"{address[0]}:{address[1]}" if isinstance(address, tuple) and len(address) >= 2 else "?"

    def _handshake_timeout(self) -> None:
        seconds = self._options.handshake_seconds_max
        self._log_refused("late", f"its request was not complete within {seconds:g} s")
        self._hang_up(Refusal(HTTPStatus.REQUEST_TIMEOUT, f"A request must be complete within {seconds:g} s.").answer)

    def _log_refused(self, kind: str, why: str) -> None:
        text = f"connector {self._name}: no WebSocket with {self._peer}: {why}"
        self.connection.log_fault(f"{self._name}: {kind}", text, log_events.WEBSOCKET_REFUSED)

    def _hang_up(self, answer: bytes) -> None:
        self._is_over = True
        self._request = None
        self._count()
        below = self._below
        if below is not None:
            below.write(answer)
            below.close()
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(HANG_UP_SECONDS_MAX, below.abort)

    # ---- input of the peer

    def resume(self, until: float) -> None:
        """Parse more frames until the clock shows ``until``. Called by Turns."""
        self._is_queued = False
        if not self._is_over:
            try:
                self._read(until)
            except Exception:
                log.exception("%s: disconnected: its input %s", self.connection, ERROR_OF_BROKER)
                self.connection.abort()

    def _read(self, until: float) -> None:
        """Parse at least FRAMES_A_STEP frames, and more until the clock shows ``until``. The rest waits for a later
        turn."""
        frames = self._frames
        failure: WebSocketError | None = None
        has_more = False
        try:
            while frames.read(FRAMES_A_STEP):
                if self._turns.clock() >= until:
                    has_more = True
                    break
        except WebSocketError as error:
            failure = error.with_traceback(None)  # the traceback would keep this stack frame in memory
        self._count()
        payload = frames.take()
        connection = self.connection
        if payload and not self._is_closing:
            connection.data_received(payload)
        if not self._is_paused:
            self._pong()
        if failure is not None:
            self._fail(failure)
        elif frames.closed is not None:
            self._process_close(frames.closed)
        elif has_more and not self._is_over:
            self._wait(has_spent=True)
            return
        self._settle()

    def _wait(self, *, has_spent: bool) -> None:
        self._is_queued = True
        self._count()
        self._settle()
        line = SPENT if has_spent else FRESH
        self._turns.wait(self, line if self.is_logged_in else STRANGERS)

    def _count(self) -> None:
        """Count the bytes that wait for a turn. Before the handshake ends, count the connection's size and the received
        part of the request. After the end, count 0."""
        waiting = 0
        if self._request is not None:
            waiting = 0 if self._below is None else CONNECTION_BYTES + self._request.waiting_bytes
        elif self._is_queued:
            waiting = self._frames.waiting_bytes
        if waiting != self._counted and not self.connection.is_closing:
            self.connection.holder.add(Kind.INPUT, waiting - self._counted)
            self._counted = waiting
            if self.is_open:
                self.connection.note_early()

    def _pong(self) -> None:
        """Send a pong for the last ping (RFC 6455, 5.5.3), unless the peer does not read."""
        ping = self._frames.ping
        if ping is not None and self._below is not None and not (self._is_closing or self._is_over):
            self._frames.ping = None
            self._below.write(head(PONG, len(ping)) + ping)

    def _fail(self, failure: WebSocketError) -> None:
        text = f"{self.connection}: disconnected: it violated the WebSocket protocol: {failure.reason}"
        self.connection.log_fault("broken", text, level=logging.INFO)
        self._has_failed = True
        self._end = failure.code, failure.reason
        if self._is_closing:
            self._close_below()
        else:
            self.connection.close()

    def _process_close(self, code: int) -> None:
        """Process the peer's Close frame. The peer sends no more data, but may still read until it gets a Close frame
        (RFC 6455, 5.5.1)."""
        self._is_over = self._has_ended = True
        self._end = code, ""
        if self._is_closing:
            self._close_below()
        elif not self.connection.eof_received():
            self.close()

    def _settle(self) -> None:
        """Read from the socket if the connection has not paused reading and no bytes wait for a turn."""
        below = self._below
        is_to_be_read = (self._is_wanted or self._is_closing) and not self._is_queued
        if below is not None and is_to_be_read is not self._is_read:
            self._is_read = is_to_be_read
            if is_to_be_read:
                self._last_received = self._loop.time()
                below.resume_reading()
            else:
                below.pause_reading()

    # ---- signs of life

    def _start_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        seconds = self._options.ping_seconds
        self._timer = self._loop.call_later(seconds, self._check_times) if seconds else None

    def _check_times(self) -> None:
        """Send a ping, or close a connection without signs of life. A WebSocket has only this timer."""
        seconds = self._options.ping_seconds
        now = self._loop.time()
        self._start_timer()
        if self._is_closing or not self._is_read or self._below is None:
            return
        if self._pinged > self._last_received:
            log.info(
                "%s showed no sign of life for %.1f seconds: disconnected", self.connection, now - self._last_received
            )
            self.connection.abort()
        elif now - self._last_received >= seconds and not self._is_paused:
            self._pinged = now
            self._below.write(head(PING, 0))

    # ---- called by the connection

    def write(self, data: bytes) -> None:
        self.writelines((data,))

    def writelines(self, parts: Iterable[bytes | memoryview]) -> None:
        below = self._below
        if below is None or self._is_closing:
            return
        messages = self._cut(list(parts))
        if sum(map(len, messages)) < LONG_BYTES_MIN:
            below.write(b"".join(messages))
        else:
            below.writelines(messages)

    def pause_reading(self) -> None:
        self._is_wanted = False
        self._settle()

    def resume_reading(self) -> None:
        self._is_wanted = True
        self._settle()

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        if self._below is not None:
            self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return 0 if self._below is None else self._below.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._below is None else self._below.get_extra_info(name, default)

    def can_write_eof(self) -> bool:
        """Return False: WebSocket has Close frames in place of a half-closed socket."""
        return False

    def close(self) -> None:
        """Send a Close frame after the written output. The socket is closed when the peer answers, or by ``abort``."""
        below = self._below
        if below is None:
            return
        if not self._is_closing:
            self._is_closing = True
            below.write(close_frame(*self._end))
        if self._has_ended:
            self._close_below()
        elif self._has_failed and below.can_write_eof():
            below.write_eof()  # if it were closed with unread bytes, a reset might destroy the Close frame
            self._settle()
        elif self._has_failed:
            self._close_below()
        else:
            self._settle()  # to read the peer's Close frame

    def _close_below(self) -> None:
        self._is_over = True
        if self._below is not None:
            self._below.close()

    def abort(self) -> None:
        self._is_over = True
        if self._below is not None:
            self._below.abort()
