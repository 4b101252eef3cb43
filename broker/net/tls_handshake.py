"""Listening with TLS: who does not get through the handshake is forgotten, and the log says who it was and why.

The loop's own server reports neither, and a count of connections that it began to make never learns that they came to
nothing. Promises: a socket whose handshake failed, or takes too long, is closed; what was made for it is given back.
Refuses to know what is spoken afterwards, and what certificates say.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

from tandemmq import log_events

log = logging.getLogger(__name__)

# In one turn of the loop, so that those who are connected have theirs.
_ACCEPTED_MAX = 32
# After there was no room for another socket (EMFILE and its kin): the time that asyncio takes, too.
_REST_SECONDS = 1.0


@dataclass(eq=False, repr=False)
class TlsServer:
    """Answers on ``listener``, which it owns, until ``close``. Of ``handshakes_max`` at once one more is dropped.

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
    _handshakes: set[asyncio.Task[None]] = field(default_factory=set, init=False)
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
                log.warning(
                    "connector %s: more than %d handshakes at once, one dropped", self._name, len(self._handshakes)
                )
                accepted.close()
                continue
            accepted.setblocking(False)
            handshake = self._loop.create_task(self._shake_hands(accepted, f"{address[0]}:{address[1]}"))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

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
            log.warning(
                "connector %s: no TLS with %s: %s",
                self._name,
                peer,
                reason or type(error).__name__,
                extra=log_events.TLS_FAILED,
            )
            self._forget(protocol)
        except BaseException:
            self._forget(protocol)
            raise
