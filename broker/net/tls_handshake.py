"""Listening with TLS: handshakes take turns, failed handshakes are logged (once a minute for each reason), and their
memory is counted.

The loop's own TLS server does not report a failed handshake, so its connection would stay counted. It also runs all
handshakes at once, and each takes a millisecond. So a Handshake object is between the socket and the loop's TLS until
the handshake is complete:

    socket  ->  Handshake, in turns (broker.net.turns)  ->  TLS of the loop  ->  Secured  ->  protocol

Bytes that a peer sent between its handshake and its disconnect reach the protocol. If a handshake fails or takes too
long, its socket is closed, and ``forget`` is called with its protocol. The module does not depend on the protocol above
TLS or on the contents of certificates.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, cast

from tandemmq import log_events
from tandemmq.broker.core.containment import ERROR_OF_BROKER
from tandemmq.broker.core.memory import CONNECTION_BYTES, HANDSHAKE_BYTES
from tandemmq.broker.net.turns import HANDSHAKES, Turns
from tandemmq.limited_log import LimitedLog

log = logging.getLogger(__name__)

# Connections accepted in one turn of the loop. Making the objects for each takes 0.3 ms, which open connections wait.
_ACCEPTED_MAX = 8
LOOKED_AT_MAX = 64
# Maximum number of bytes that one read of a handshake returns.
READ_BYTES_MAX = 16 * 1024
# A ClientHello has 300 to 2,000 bytes. OpenSSL takes up to 131,396, and allocates all of them when it has the length.
# More does not fit into one record.
HELLO_BYTES_MAX: Final = 16 * 1024 - 4
# Maximum number of bytes that OpenSSL allocates for a later message: 4/3 of the longest message.
LATER_MESSAGE_BYTES: Final = 175_200
# Header of the record (RFC 8446, section 5.1), and the header of the message that begins in it (section 4).
_HEAD_BYTES: Final = 9
# change_cipher_spec, alert and application_data: OpenSSL would wait for a ClientHello behind some of them.
_NOT_FIRST: Final = (20, 21, 23)
_HANDSHAKE: Final = 22
# Pause after an error such as EMFILE, when no more sockets can be accepted. asyncio uses the same time.
_PAUSE_SECONDS = 1.0
_STEP_SECONDS_MIN: Final = 0.001
# Default for the time of a handshake.
HANDSHAKE_SECONDS_MAX: Final = 60.0


@dataclass(eq=False, repr=False)
class TlsServer:
    """Accepts connections on ``listener``, which this object owns, until ``close``. If ``handshakes_max`` handshakes
    are in progress, one is dropped for each new one: of the LOOKED_AT_MAX oldest, the first from the address with the
    most handshakes in progress.

    ``make_protocol`` makes a protocol when a connection is accepted; it is used when the handshake is complete. If the
    handshake fails, ``forget`` is called with the protocol instead. ``seconds_max``: of a handshake. ``count`` is
    called with the bytes of memory that a handshake takes when it begins and when it grows, and with their negative sum
    when it ends.
    """

    _name: str
    _listener: socket.socket
    _tls: ssl.SSLContext
    _seconds_max: float
    _handshakes_max: int
    _make_protocol: Callable[[], asyncio.Protocol]
    _forget: Callable[[asyncio.Protocol], object]
    _turns: Turns
    _count: Callable[[int], object] = lambda count: None
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop, init=False)
    _handshakes: dict[asyncio.Task[None], str] = field(default_factory=dict, init=False)  # -> address
    _counts: Counter[str] = field(default_factory=Counter, init=False)  # handshakes in progress, by address
    _limited: LimitedLog = field(default_factory=lambda: LimitedLog(log), init=False)
    _pause: asyncio.TimerHandle | None = field(default=None, init=False)

    def listen(self, backlog: int) -> None:
        """Begin to accept connections. Raises OSError if the port is in use."""
        self._listener.listen(backlog)
        self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Stop accepting connections, and abort the handshakes in progress."""
        if self._pause is None:
            self._loop.remove_reader(self._listener)
        else:
            self._pause.cancel()
        self._listener.close()
        for handshake in list(self._handshakes):
            handshake.cancel()

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_MAX):
            try:
                accepted, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("connector %s: no connection can be accepted: %s", self._name, error)
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(_PAUSE_SECONDS, self._resume)
                return
            if len(self._handshakes) >= self._handshakes_max:
                self._drop()
            accepted.setblocking(False)
            handshake = self._loop.create_task(self._shake_hands(accepted, f"{address[0]}:{address[1]}"))
            self._handshakes[handshake] = address[0]
            self._counts[address[0]] += 1
            handshake.add_done_callback(self._over)

    def _drop(self) -> None:
        """Abort one handshake, so that another one can begin."""
        oldest = islice(self._handshakes, LOOKED_AT_MAX)
        dropped = max(oldest, key=lambda each: self._counts[self._handshakes[each]])
        self._limited.warning(
            self._name,
            "too many handshakes",
            f"connector {self._name}: more than {self._handshakes_max} handshakes at once, one dropped: "
            f"with {self._handshakes[dropped]}",
        )
        self._over(dropped)
        dropped.cancel()

    def _over(self, handshake: asyncio.Task[None]) -> None:
        address = self._handshakes.pop(handshake, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    async def _shake_hands(self, accepted: socket.socket, peer: str) -> None:
        ends = self._loop.time() + self._seconds_max
        protocol = self._make_protocol()
        handshake = Handshake(self._turns, self._loop, self._count)
        handshake.hold(CONNECTION_BYTES)
        try:
            plain, _ = await self._loop.connect_accepted_socket(lambda: handshake, accepted)
            async with asyncio.timeout_at(ends):
                lost = await handshake.hello
            if lost:
                raise ConnectionResetError(lost)
            secured = Secured(plain, protocol, self._loop)
            handshake.begin()
            tls = await self._loop.start_tls(
                plain, cast("asyncio.Protocol", secured), self._tls, server_side=True,
                ssl_handshake_timeout=max(ends - self._loop.time(), _STEP_SECONDS_MIN),
            )  # fmt: skip
            # uvloop may return a transport also if the socket was closed meanwhile.
            if tls is None or handshake.refusal:  # prove: refused-handshake-is-forgotten " or handshake.refusal"
                raise ConnectionResetError(handshake.refusal or "the peer disconnected")
            handshake.end()
            secured.begin(tls)  # after ``end``, which resumes reading: the protocol may pause it again
        except OSError as error:  # SSLError and TimeoutError are OSErrors
            reason = error.reason if isinstance(error, ssl.SSLError) else str(error)
            reason = reason or type(error).__name__
            text = f"connector {self._name}: no TLS with {peer}: {reason}"
            self._limited.warning(self._name, reason, text, log_events.TLS_FAILED)
            handshake.abort()
            self._forget(protocol)
        except BaseException:
            handshake.abort()
            self._forget(protocol)
            raise
        finally:
            self._count(-handshake.counted_bytes)


class Handshake(asyncio.BufferedProtocol):
    """Handshake in progress. Received bytes of its peer wait for their turn; further bytes are not read. Runs on the
    loop.

    Until the ClientHello is whole, only its bytes are kept: the objects of TLS take much more time and memory. The
    result of ``hello`` is "" then, or the reason why there is no ClientHello. Call ``begin`` before the loop's
    ``start_tls`` with this socket, and ``end`` after it. ``counted_bytes``: memory of this object and OpenSSL;
    ``count`` gets each change. ``refusal``: the reason why this object closed the socket, without any text of the peer;
    "" if it did not close the socket.
    """

    def __init__(
        self, turns: Turns, loop: asyncio.AbstractEventLoop, count: Callable[[int], object] = lambda count: None
    ) -> None:
        self._turns = turns
        self._loop = loop
        self._count = count
        self.counted_bytes = 0
        self.hello: asyncio.Future[str] = loop.create_future()  # an error would refer to itself by its traceback
        self.refusal = ""
        self._hello_bytes = 0  # of the ClientHello and the header of its record; 0: its length has not come
        self._fed_bytes = 0
        self._socket: asyncio.Transport | None = None
        self._tls: asyncio.BufferedProtocol | None = None
        self._buffer = bytearray()
        self._waiting = b""  # received bytes that wait for their turn

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast("asyncio.Transport", transport)

    def abort(self) -> None:
        """Close the socket of this handshake at once."""
        if self._socket is not None:
            self._socket.abort()

    def begin(self) -> None:
        """In the next turn of the loop, insert this object between the socket and the protocol of ``start_tls``."""
        self.hold(HANDSHAKE_BYTES - CONNECTION_BYTES)
        self._loop.call_soon(self._insert)

    def _insert(self) -> None:
        plain = self._socket
        if plain is None or plain.is_closing():
            return
        self._tls = cast("asyncio.BufferedProtocol", plain.get_protocol())
        plain.set_protocol(self)
        self._turns.wait(self, HANDSHAKES)

    def end(self) -> None:
        """End the handshake: remove this object from between the socket and the loop's TLS."""
        plain, tls = self._socket, self._tls
        if plain is None:
            return
        assert tls is not None, "it has begun"
        plain.set_protocol(tls)
        if self._waiting:
            self._feed()
            plain.resume_reading()

    def get_buffer(self, sizehint: int) -> bytearray:
        self._buffer = bytearray(READ_BYTES_MAX)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        plain = self._socket
        assert plain is not None, "a peer that sends is connected"
        is_in_line = bool(self._waiting)
        self._waiting += self._buffer[:nbytes]
        self._buffer = bytearray()
        if not self.hello.done():
            self.hold(nbytes)
            if self._has_hello():
                plain.pause_reading()
                self.hello.set_result("")
            return
        plain.pause_reading()  # at most twice, because ``start_tls`` resumes reading once
        if self._tls is not None and not is_in_line:
            self._turns.wait(self, HANDSHAKES)

    def _has_hello(self) -> bool:
        """Return whether the ClientHello is whole. Close the socket if it does not begin here, is too long, or is not
        in one record: OpenSSL would allocate memory and wait for more."""
        head = self._waiting
        kind = head[0]
        if kind in _NOT_FIRST:
            self._refuse(f"a TLS record of type {kind} before the ClientHello")
        elif kind != _HANDSHAKE:
            self._refuse("the client does not use TLS")
        elif not self._hello_bytes and len(head) >= _HEAD_BYTES:
            length = int.from_bytes(head[6:9])
            if length > HELLO_BYTES_MAX:
                self._refuse(f"a ClientHello of more than {HELLO_BYTES_MAX} bytes")
            elif int.from_bytes(head[3:5]) < _HEAD_BYTES - 5 + length:
                self._refuse("a ClientHello in several records")
            else:
                self._hello_bytes = _HEAD_BYTES + length
        return 0 < self._hello_bytes <= len(head)

    def _refuse(self, refusal: str) -> None:
        self.refusal = refusal
        self._waiting = b""
        self.abort()

    def resume(self, until: float) -> None:
        """Do one step of the handshake, unless the handshake is over (broker.net.turns)."""
        plain = self._socket
        if not self._waiting or plain is None or plain.is_closing():
            return
        try:
            self._feed()
            plain.resume_reading()
        except Exception:
            log.exception("TLS: disconnected: a handshake %s", ERROR_OF_BROKER)
            self._refuse(f"a handshake {ERROR_OF_BROKER}")

    def _feed(self) -> None:
        data, self._waiting = self._waiting, b""
        tls = self._tls
        assert tls is not None, "it has begun"
        if self._hello_bytes and self._fed_bytes <= self._hello_bytes < self._fed_bytes + len(data):
            self.hold(LATER_MESSAGE_BYTES)
        self._fed_bytes += len(data)
        cast("Any", tls.get_buffer(len(data)))[: len(data)] = data
        tls.buffer_updated(len(data))

    def hold(self, count: int) -> None:
        """Count ``count`` more bytes of memory, until the handshake is over."""
        self.counted_bytes += count
        self._count(count)

    def eof_received(self) -> bool | None:
        return None if self._tls is None else self._tls.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting = b""
        self._socket = None
        if not self.hello.done():
            self.hello.set_result(self.refusal or "the peer disconnected")
        if self._tls is not None:
            self._tls.connection_lost(exc)


class Secured:
    """Protocol of the loop's TLS, and transport of the protocol ``above``. With it, all bytes that a peer sent before
    it disconnected are processed, as without TLS.

    When its socket ends, the loop's TLS drops all bytes that it has not passed on. So while ``above`` pauses reading,
    the socket itself is not read, and the loop's TLS has no bytes that it could drop. The end of the socket is passed
    to ``above`` as the end of the peer's input (``eof_received``). ``connection_lost`` follows when ``above`` closes,
    or at once if ``eof_received`` returned False.
    """

    _tls: asyncio.Transport

    def __init__(self, below: asyncio.Transport, above: asyncio.Protocol, loop: asyncio.AbstractEventLoop) -> None:
        self._below = below
        self._above = above
        self._loop = loop
        self._has_begun = False
        self._early: list[bytes] = []  # bytes that arrived before ``begin``
        self._has_ended = False  # the end of the peer's input was noted
        self._is_kept = False  # ``above`` keeps the connection after the end of the input
        self._is_lost = False
        self._is_closed = False  # by ``above``

    def begin(self, tls: asyncio.Transport) -> None:
        """Begin after the handshake. Raises ConnectionResetError if the peer disconnected and sent nothing."""
        if self._is_lost and not self._early:
            raise ConnectionResetError("the peer disconnected")
        self._tls = tls
        self._has_begun = True
        self._above.connection_made(cast("asyncio.Transport", self))  # it has the methods that a connection needs
        for data in self._early:
            self._above.data_received(data)
        self._early = []
        if self._has_ended:
            self.eof_received()
        if self._is_lost and not self._is_closed:  # prove: tls-is-lost-once " and not self._is_closed"
            self.connection_lost(None)

    # ---- called by the loop's TLS

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def data_received(self, data: bytes) -> None:
        if self._has_begun:
            self._above.data_received(data)
        else:
            self._early.append(data)

    def eof_received(self) -> None:
        self._has_ended = True
        if self._has_begun and not self._is_closed:
            self._is_kept = bool(self._above.eof_received())

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        if not self._has_begun:
            if error is not None:
                self._early = []
            return
        if self._is_closed:
            self._above.connection_lost(error)
            return
        if error is None and not self._has_ended:
            self.eof_received()  # prove: tls-carries-out-what-came
        if not self._is_kept and not self._is_closed:
            self._is_closed = True
            self._above.connection_lost(error)

    def pause_writing(self) -> None:
        self._above.pause_writing()

    def resume_writing(self) -> None:
        self._above.resume_writing()

    # ---- called by ``above``

    def write(self, data: bytes) -> None:
        if not self._is_lost:
            self._tls.write(data)

    def writelines(self, parts: Iterable[bytes | memoryview]) -> None:
        if not self._is_lost:
            self._tls.writelines(parts)

    def pause_reading(self) -> None:
        self._below.pause_reading()  # prove: tls-rests-at-the-socket "_below" -> "_tls"

    def resume_reading(self) -> None:
        self._below.resume_reading()

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        if not self._is_lost:
            self._tls.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return 0 if self._is_lost else self._tls.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        # A closed socket's number may belong to another socket.
        return default if self._is_lost and name == "socket" else self._tls.get_extra_info(name, default)

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._is_closed or self._is_lost

    def close(self) -> None:
        if not self._is_lost:
            self._is_closed = True
            self._below.resume_reading()  # to read the peer's answer to the close
            self._tls.close()
        elif not self._is_closed:
            self._is_closed = True
            self._loop.call_soon(self._above.connection_lost, None)

    def abort(self) -> None:
        if self._is_lost:
            self.close()
        else:
            self._is_closed = True
            self._tls.abort()
