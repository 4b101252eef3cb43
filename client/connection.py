"""A STOMP connection to one broker: frames in and out, heart-beats, one write to the socket a turn of the loop.

Promises: written frames are sent in order, or the connection is lost, and its owner is called once. Input that is not
STOMP ends the connection, never the loop. Knows nothing of other brokers and keeps nothing for the next connection.
"""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from tandemmq.broker.core.commands import ClientError as Malformed
from tandemmq.broker.protocols.stomp.dialects import V12
from tandemmq.broker.protocols.stomp.frames import FrameParser, Headers
from tandemmq.client.errors import BrokerError, NoBroker
from tandemmq.client.failover_url import Address
from tandemmq.client.frames import BODIED, HEART_BEAT, LIMITS, connect_frame
from tandemmq.client.tls import reason_of_tls, tls_context

if TYPE_CHECKING:
    from tandemmq.client.link import Link

VERSION = "1.2"
# Unsent bytes above which a producer waits until a quarter is left.
UNSENT_BYTES_MAX = 1 << 20
# Number of the peer's heart-beat intervals that may pass without data.
HEART_BEAT_GRACE = 1.5
# Number of clock checks in one heart-beat interval; the client sends its heart-beat after half an interval.
TICKS_PER_INTERVAL = 4


@dataclass(frozen=True, slots=True)
class Greeting:
    """Contents of CONNECT. ``heart_beat_ms`` holds for both directions; 0: none."""

    host: str = "/"
    login: str | None = None
    passcode: str | None = None
    client_id: str | None = None
    heart_beat_ms: int = 0

    def headers(self) -> dict[str, str]:
        optional = {"login": self.login, "passcode": self.passcode, "client-id": self.client_id}
        return {
            "accept-version": VERSION,
            "host": self.host,
            "heart-beat": f"{self.heart_beat_ms},{self.heart_beat_ms}",
            **{name: value for name, value in optional.items() if value is not None},
        }


class Connection(asyncio.Protocol):
    """A connection that ``open_connection`` made; ``number`` distinguishes it from all others of its client."""

    def __init__(self, address: Address, number: int, greeting: Greeting) -> None:
        self.address = address
        self.number = number
        self.server = ""
        self.owner: Link | None = None  # gets the frames; all on the loop, nothing after ``lost``
        self.is_open = False
        self._greeting = greeting
        self._loop = asyncio.get_running_loop()
        self._parser = FrameParser(LIMITS, BODIED)
        self._transport: asyncio.Transport | None = None
        # Done when CONNECTED has arrived; NoBroker or BrokerError otherwise.
        self.answer: asyncio.Future[None] = self._loop.create_future()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._is_paused = False
        self._reason: str | None = None
        self._heard_at = self._wrote_at = self._loop.time()
        self._send_seconds = self._receive_seconds = 0.0
        self._tick_due_at = 0.0
        self._ticker: asyncio.TimerHandle | None = None

    @property
    def is_congested(self) -> bool:
        """Return whether more data waits to be sent than the peer takes; producers should wait."""
        return self._is_paused or self._out_bytes > UNSENT_BYTES_MAX

    def write(self, data: bytes) -> None:
        """Send ``data`` with all other data written in this turn; dropped when the connection is lost."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)
        self._out_bytes += len(data)

    def drop(self, reason: str) -> None:
        """Close at once. ``lost`` follows in a later turn with the first reason given."""
        if self._reason is None:
            self._reason = reason
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio.Transport.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        self.write(connect_frame(self._greeting.headers()))

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        parser = self._parser
        try:
            parser.feed(data)
            while parser.data:
                frame = parser.next_frame()
                if frame is None:
                    continue
                command, headers, body = frame
                if self.owner is not None:
                    self._pass_on(self.owner, command, headers, body)
                else:
                    self._handshake(command, headers, body)
        except Malformed as problem:
            self.drop(f"it sent invalid STOMP: {problem.message}")
        if self.owner is not None:
            self.owner.turn_over(self)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        if self.owner is not None:
            self.owner.turn_over(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._ticker is not None:
            self._ticker.cancel()
        reason = self._reason or (reason_of(error) if error is not None else "connection closed")
        if not self.answer.done():
            if error is None and self._reason is None and self.address.is_tls:
                # TLS 1.3: a server refuses a certificate after the handshake, and the loop keeps its reason.
                reason = f"{reason}: does it require a client certificate?"
            self.answer.set_exception(NoBroker(reason))
            self.answer.exception()  # the opener may no longer wait for it
        owner, self.owner = self.owner, None
        if owner is not None:
            owner.lost(self, reason)

    # ---- inside

    def _flush(self) -> None:
        out = self._out
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
            self._wrote_at = self._loop.time()
        out.clear()
        was_congested = self._out_bytes > UNSENT_BYTES_MAX
        self._out_bytes = 0
        if was_congested and self.owner is not None:
            self.owner.turn_over(self)

    def _pass_on(self, owner: Link, command: str, headers: Headers, body: bytes) -> None:
        if command == "RECEIPT":
            owner.receipt(self, headers.get("receipt-id", ""))
        elif command == "MESSAGE":
            owner.message(self, headers, body)
        elif command == "ERROR":
            owner.error(self, headers, body)
        else:
            raise Malformed(f"a frame {command[:40]!r}", "MESSAGE, RECEIPT and ERROR are expected.")

    def _handshake(self, command: str, headers: Headers, body: bytes) -> None:
        if self.answer.done():
            raise Malformed(f"a frame {command[:40]!r} before any request", "Nothing is expected.")
        if command == "ERROR":
            self.answer.set_exception(
                BrokerError(f"{self.address} refused the connection: {error_text(headers, body)}")
            )
            return
        if command != "CONNECTED":
            raise Malformed(f"a frame {command[:40]!r} instead of CONNECTED", "CONNECTED is expected.")
        if headers.get("version") != VERSION:
            spoken = headers.get("version", "1.0")
            self.answer.set_exception(BrokerError(f"{self.address} uses STOMP {spoken}, expected {VERSION}"))
            return
        # Set before the next frame is parsed, which may be in the same piece of bytes as CONNECTED.
        self._parser.dialect = V12
        self.server = headers.get("server", "")
        self._start_heart_beats(headers.get("heart-beat", "0,0"))
        self.is_open = True
        self.answer.set_result(None)

    def _start_heart_beats(self, header: str) -> None:
        """STOMP 1.2, Heart-beating: each direction uses the slower of the offered and the wanted interval; 0: never."""
        try:
            offered, wanted = (int(part) for part in header.split(","))
        except ValueError:
            raise Malformed(f"the heart-beat {header[:40]!r}", "Two numbers are expected.") from None
        ours = self._greeting.heart_beat_ms
        self._send_seconds = max(ours, wanted) / 1000 if ours and wanted > 0 else 0.0
        self._receive_seconds = max(ours, offered) / 1000 if ours and offered > 0 else 0.0
        self._tick_seconds = (
            min(filter(None, (self._send_seconds, self._receive_seconds)), default=0.0) / TICKS_PER_INTERVAL
        )
        if self._tick_seconds:
            self._schedule_tick()

    def _schedule_tick(self) -> None:
        self._tick_due_at = self._loop.time() + self._tick_seconds
        self._ticker = self._loop.call_at(self._tick_due_at, self._tick)

    def _tick(self) -> None:
        now = self._loop.time()
        # A late tick means that this event loop was blocked: data of the peer may be unread.
        is_late = now - self._tick_due_at > self._tick_seconds
        silence = now - self._heard_at
        if self._receive_seconds and silence > self._receive_seconds * HEART_BEAT_GRACE and not is_late:
            self.drop(f"no sign of life for {silence:.1f} s")
            return
        if self._send_seconds and now - self._wrote_at >= self._send_seconds / 2 and not self._out:
            self.write(HEART_BEAT)
        self._schedule_tick()


async def open_connection(
    address: Address, number: int, greeting: Greeting, timeout_seconds: float, tls: ssl.SSLContext | None = None
) -> Connection:
    """Connect and log in. NoBroker with the reason when there is no answer or no trusted one, BrokerError when the
    broker refuses. ``tls``: for addresses with TLS; None: the system's authorities, and no certificate of our own."""
    connection: Connection | None = None
    is_made = False
    if address.is_tls and tls is None:
        tls = tls_context()

    def make() -> Connection:
        nonlocal connection
        connection = Connection(address, number, greeting)
        return connection

    try:
        async with asyncio.timeout(timeout_seconds):
            await asyncio.get_running_loop().create_connection(
                make, address.host, address.port, ssl=tls if address.is_tls else None
            )
            assert connection is not None, "the factory was called"
            await connection.answer
        is_made = True
        return connection
    except TimeoutError:
        raise NoBroker(f"no answer within {timeout_seconds:g} s") from None
    except (OSError, UnicodeError) as problem:  # UnicodeError: an invalid host name
        raise NoBroker(reason_of(problem)) from problem
    finally:
        if not is_made and connection is not None:
            connection.drop("given up")


def error_text(headers: Mapping[str, str], body: bytes) -> str:
    """Return the text of an ERROR frame, in one line."""
    lines = body.decode(errors="replace").strip().splitlines()
    return headers.get("message") or (lines[0] if lines else "no reason given")


def reason_of(problem: Exception) -> str:
    """Return the system's text for the error, without the address that asyncio adds."""
    if isinstance(problem, ssl.SSLError):  # its errno is OpenSSL's
        return reason_of_tls(problem)
    number = problem.errno if isinstance(problem, OSError) else None
    if number is not None and number in errno.errorcode:
        return os.strerror(number)
    return str(problem) or type(problem).__name__
