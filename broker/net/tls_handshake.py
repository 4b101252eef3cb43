"""Listening with TLS: who does not get through the handshake is forgotten, and the log says who it was and why, once a
minute for each reason.

The loop's own server reports neither, and a count of connections that it began to make never learns that they came to
nothing. Promises: a socket whose handshake failed, or takes too long, is closed; what was made for it is given back.
Refuses to know what is spoken afterwards, and what certificates say.
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

from tandemmq import log_events
from tandemmq.limited_log import LimitedLog

log = logging.getLogger(__name__)

# In one turn of the loop, so that those who are connected have theirs.
_ACCEPTED_MAX = 32
LOOKED_AT_MAX = 64
# After there was no room for another socket (EMFILE and its kin): the time that asyncio takes, too.
_REST_SECONDS = 1.0


@dataclass(eq=False, repr=False)
class TlsServer:
    """Answers on ``listener``, which it owns, until ``close``. If ``handshakes_max`` are under way, one is dropped for
    each new one: of the LOOKED_AT_MAX oldest, the first of the address that has the most under way.

    ``make_protocol`` makes, at the beginning of a handshake, the protocol that is called when it is done; ``forget``
    gets back the one that will never be called. ``seconds_max`` None: the loop's default.
    """

    _name: str
    _listener: socket.socket
    _tls: ssl.SSLContext
    _seconds_max: float | None
    _handshakes_max: int
    _make_protocol: Callable[[], asyncio.Protocol]
    _forget: Callable[[asyncio.Protocol], object]
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
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol, accepted, ssl=self._tls, ssl_handshake_timeout=self._seconds_max
            )
        except OSError as error:  # SSLError is one, and the end of the time
            reason = error.reason if isinstance(error, ssl.SSLError) else str(error)
            reason = reason or type(error).__name__
            text = f"connector {self._name}: no TLS with {peer}: {reason}"
            self._limited.warning(self._name, reason, text, log_events.TLS_FAILED)
            self._forget(protocol)
        except BaseException:
            self._forget(protocol)
            raise
