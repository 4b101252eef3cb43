"""The admin port: it listens from the start of the process, and its server is made later.

The import of the server takes as long as the rest of a start, so a thread does it: when the first client connects, or
when the broker has time (``open``). Connections wait in the listener's queue until then.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tandemmq.broker.admin.token import read_token, write_token
from tandemmq.broker.core.containment import ERROR_OF_BROKER
from tandemmq.broker.process.switch_interval import restore, shorten

if TYPE_CHECKING:
    from tandemmq.broker.admin.guard import Guard
    from tandemmq.broker.admin.server import AdminServer

log = logging.getLogger(__name__)

#: Limit of the connections that wait to be accepted.
BACKLOG: Final = 1_024
#: Pause before the next attempt to make the server, after an error for lack of resources.
RETRY_SECONDS: Final = 5.0
#: Errors of the system for lack of file descriptors or memory.
_LACKS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})


def bound(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address, which does not listen yet. OSError names the address that is wrong or in
    use."""
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind(address)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise OSError(error.errno, f"admin server: {host}:{port}: {error.strerror or error}") from error
    return listener


class AdminPort:
    """Address of the admin server. Runs on the loop."""

    def __init__(
        self,
        host: str,
        port: int,
        token_file: str,
        make: Callable[[socket.socket], tuple[AdminServer, Guard]],
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """Make the port. ``make`` imports and makes the server of a listening socket, in a thread; if file descriptors
        or memory are missing, it is called again in ``retry_seconds``. After any other error the port is closed."""
        self._address = host, port
        self._token_file = token_file
        self._make = make
        self._retry_seconds = retry_seconds
        self._listener: socket.socket | None = None
        self._is_waiting = False  # for the first client, for ``open``, or for the next attempt
        self._retry: asyncio.TimerHandle | None = None
        self._opening: asyncio.Task[None] | None = None
        self._server: AdminServer | None = None
        self._guard: Guard | None = None

    def start(self) -> None:
        """Bind and listen. OSError names the address that is wrong or in use. Commands that are called from now on find
        the token in its file."""
        self._listener = bound(*self._address)
        with suppress(OSError):  # the guard tries again, and logs it
            _ = read_token(self._token_file) or write_token(self._token_file)
        self._listener.listen(BACKLOG)
        self._is_waiting = True
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self.open)

    def open(self) -> None:
        """Begin to make the server and to answer. No effect if that has begun, or after ``stop``."""
        if self._is_waiting:
            listener = self._waited()
            self._opening = asyncio.get_running_loop().create_task(self._open(listener), name="admin port")

    def refresh(self) -> None:
        """See Guard.refresh."""
        if self._guard is not None:
            self._guard.refresh()

    def end_sessions(self, names: Collection[str]) -> None:
        """See Sessions.end_of."""
        if self._guard is not None:
            self._guard.sessions.end_of(names)

    async def stop(self) -> None:
        """Close the listener and every connection. The address is free afterwards."""
        if self._is_waiting:
            self._waited()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._server is not None:
            await self._server.stop()
        if self._listener is not None:
            self._listener.close()

    def _waited(self) -> socket.socket:
        """End the wait, and return the listener."""
        assert self._listener is not None, "a port that waits has its listener"
        self._is_waiting = False
        if self._retry is not None:
            self._retry.cancel()
        asyncio.get_running_loop().remove_reader(self._listener.fileno())
        return self._listener

    async def _open(self, listener: socket.socket) -> None:
        try:
            try:
                server, guard = await self._made_in_thread(listener)
            except OSError as error:
                if error.errno not in _LACKS:
                    raise
                log.warning("the admin server could not be made, next attempt in %g s: %s", self._retry_seconds, error)
                self._is_waiting = True
                self._retry = asyncio.get_running_loop().call_later(self._retry_seconds, self.open)
                return
            guard.start()
            self._server, self._guard = server, guard
            await server.start()
        except Exception:
            log.exception("the admin server %s, and its port is closed", ERROR_OF_BROKER)
            listener.close()

    async def _made_in_thread(self, listener: socket.socket) -> tuple[AdminServer, Guard]:
        shorten()
        try:
            return await asyncio.get_running_loop().run_in_executor(None, self._make, listener)
        finally:
            restore()
