"""Listening with TLS: who does not get through the handshake is forgotten, and the log says who it was and why, once a
minute for each reason.

The loop's own server reports neither, and a count of connections that it began to make never learns that they came to
nothing. It also does all handshakes at once, each of which takes it a millisecond. So a Handshake stands between the
socket and the loop's TLS until it is done:

    socket  ->  Handshake, in turns (broker.net.turns)  ->  TLS of the loop  ->  protocol

Promises: a socket whose handshake failed, or takes too long, is closed; what was made for it is given back; what a
handshake takes is counted. Refuses to know what is spoken afterwards, and what certificates say.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

from tandemmq import log_events
from tandemmq.broker.core.containment import ERROR_OF_BROKER
from tandemmq.broker.core.memory import HANDSHAKE_BYTES
from tandemmq.broker.net.turns import Turns
from tandemmq.limited_log import LimitedLog

log = logging.getLogger(__name__)

# In one turn of the loop, so that those who are connected have theirs: what is made for each takes 0.3 ms.
_ACCEPTED_MAX = 8
LOOKED_AT_MAX = 64
# So much of a handshake is read at once: all that a peer sends of an ordinary one.
READ_BYTES_MAX = 16 * 1024
# After there was no room for another socket (EMFILE and its kin): the time that asyncio takes, too.
_REST_SECONDS = 1.0


@dataclass(eq=False, repr=False)
class TlsServer:
    """Answers on ``listener``, which it owns, until ``close``. If ``handshakes_max`` are under way, one is dropped for
    each new one: of the LOOKED_AT_MAX oldest, the first of the address that has the most under way.

    ``make_protocol`` makes, at the beginning of a handshake, the protocol that is called when it is done; ``forget``
    gets back the one that will never be called. ``seconds_max`` None: the loop's default. ``count`` gets the bytes that
    a handshake takes when it begins, and the same, negative, when it is over.
    """

    _name: str
    _listener: socket.socket
    _tls: ssl.SSLContext
    _seconds_max: float | None
    _handshakes_max: int
    _make_protocol: Callable[[], asyncio.Protocol]
    _forget: Callable[[asyncio.Protocol], object]
    _turns: Turns
    _count: Callable[[int], object] = lambda count: None
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop, init=False)
    _handshakes: dict[asyncio.Task[None], str] = field(default_factory=dict, init=False)  # -> address
    _counts: Counter[str] = field(default_factory=Counter, init=False)  # of handshakes, by address
    _limited: LimitedLog = field(default_factory=lambda: LimitedLog(log), init=False)
    _rest: asyncio.TimerHandle | None = field(default=None, init=False)

    def listen(self, backlog: int) -> None:
        """Begin. OSError when the port is taken."""
        self._listener.listen(backlog)
        self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Answer no more; handshakes that are under way come to nothing."""
        if self._rest is None:
            self._loop.remove_reader(self._listener)
        else:
            self._rest.cancel()
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
                self._rest = self._loop.call_later(_REST_SECONDS, self._go_on)
                return
            if len(self._handshakes) >= self._handshakes_max:
                self._drop()
            accepted.setblocking(False)
            handshake = self._loop.create_task(self._shake_hands(accepted, f"{address[0]}:{address[1]}"))
            self._handshakes[handshake] = address[0]
            self._counts[address[0]] += 1
            handshake.add_done_callback(self._over)

    def _drop(self) -> None:
        """Make room for another handshake."""
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

    def _go_on(self) -> None:
        self._rest = None
        self._loop.add_reader(self._listener, self._accept)

    async def _shake_hands(self, accepted: socket.socket, peer: str) -> None:
        protocol = self._make_protocol()
        handshake = Handshake(self._turns, self._loop)
        self._count(HANDSHAKE_BYTES)
        try:
            plain, _ = await self._loop.connect_accepted_socket(lambda: handshake, accepted)
            if plain.is_closing():
                raise ConnectionResetError("the peer hung up")
            early = _Early()
            handshake.begin()
            secured = await self._loop.start_tls(
                plain, early, self._tls, server_side=True, ssl_handshake_timeout=self._seconds_max
            )
            if secured is None or early.is_lost or handshake.is_lost:
                raise ConnectionResetError("the peer hung up")
            secured.set_protocol(protocol)
            protocol.connection_made(secured)
            for data in early.data:
                protocol.data_received(data)
            handshake.end()
        except OSError as error:  # SSLError is one, and the end of the time
            reason = error.reason if isinstance(error, ssl.SSLError) else str(error)
            reason = reason or type(error).__name__
            text = f"connector {self._name}: no TLS with {peer}: {reason}"
            self._limited.warning(self._name, reason, text, log_events.TLS_FAILED)
            self._forget(protocol)
        except BaseException:
            handshake.abort()
            self._forget(protocol)
            raise
        finally:
            self._count(-HANDSHAKE_BYTES)


class Handshake(asyncio.BufferedProtocol):
    """One that is under way: what its peer sends waits for its turn, and the rest in the kernel. On the loop.

    ``begin`` before the loop's ``start_tls`` with this socket, ``end`` after it.
    """

    def __init__(self, turns: Turns, loop: asyncio.AbstractEventLoop) -> None:
        self._turns = turns
        self._loop = loop
        self._socket: asyncio.Transport | None = None
        self._tls: asyncio.BufferedProtocol | None = None
        self._buffer = bytearray()
        self._waiting = b""  # was read, and has its turn later

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast("asyncio.Transport", transport)

    @property
    def is_lost(self) -> bool:
        """Its socket is closed, or was never connected."""
        return self._socket is None

    def abort(self) -> None:
        """Close its socket at once."""
        if self._socket is not None:
            self._socket.abort()

    def begin(self) -> None:
        """In the next turn of the loop it is between the socket and what ``start_tls`` put there."""
        self._loop.call_soon(self._stand_between)

    def _stand_between(self) -> None:
        plain = self._socket
        if plain is None or plain.is_closing():
            return
        self._tls = cast("asyncio.BufferedProtocol", plain.get_protocol())
        plain.set_protocol(self)
        if self._waiting:
            self._turns.wait(self, has_spent=True)

    def end(self) -> None:
        """The handshake is done: the loop's TLS gets what comes from the socket itself."""
        plain, tls = self._socket, self._tls
        assert plain is not None, "it has begun"
        assert tls is not None, "it has begun"
        plain.set_protocol(tls)
        if self._waiting:
            self._feed()
            plain.resume_reading()

    def get_buffer(self, sizehint: int) -> bytearray:
        self._buffer = bytearray(READ_BYTES_MAX)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        assert self._socket is not None, "who sends something is connected"
        self._socket.pause_reading()  # twice at most, for ``start_tls`` resumes it once
        is_in_line = bool(self._waiting)
        self._waiting += self._buffer[:nbytes]
        self._buffer = bytearray()
        if self._tls is not None and not is_in_line:
            # Behind those who have little to say: its step is a long one.
            self._turns.wait(self, has_spent=True)

    def go_on(self, until: float) -> None:
        """Do one step of the handshake, unless the handshake is over (broker.net.turns)."""
        plain = self._socket
        if not self._waiting or plain is None or plain.is_closing():
            return
        try:
            self._feed()
            plain.resume_reading()
        except Exception:
            log.exception("TLS: hung up, for a handshake %s", ERROR_OF_BROKER)
            plain.abort()

    def _feed(self) -> None:
        data, self._waiting = self._waiting, b""
        tls = self._tls
        assert tls is not None, "it has begun"
        cast("Any", tls.get_buffer(len(data)))[: len(data)] = data
        tls.buffer_updated(len(data))

    def eof_received(self) -> bool | None:
        return None if self._tls is None else self._tls.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting = b""
        self._socket = None
        if self._tls is not None:
            self._tls.connection_lost(exc)


class _Early(asyncio.Protocol):
    """For what comes right behind a handshake, before its end is known here."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.is_lost = False

    def data_received(self, data: bytes) -> None:
        self.data.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
