"""Input of clients that have no login: how much of it waits, and how it is read.

A client needs no account to send bytes. So the waiting input of all connections without a login has a limit: 1 /
EARLY_PART of the broker's memory. Beyond it, the connection that has had much input for the longest time is closed: a
login takes less time. Sockets without TLS are read in small pieces: a turn of the loop reads each ready socket at least
once, and 10,000 reads of the loop's usual 256,000 bytes take a second.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final, Protocol, cast

from tandemmq.broker.core.memory import Memory

#: The limit is the memory divided by this number.
EARLY_PART: Final = 8
#: A connection with at most this many bytes is not counted and not closed: most logins are shorter.
KEPT_BYTES: Final = 4 * 1024
#: Length of one read.
READ_BYTES: Final = 4 * 1024


class Stranger(Protocol):
    """Connection of a client without a login."""

    def end_early(self) -> None:
        """Close the connection soon, because too much input of such clients waits. This must not call EarlyInput."""


@dataclass(slots=True, eq=False, repr=False)
class EarlyInput:
    """Counts the waiting input of the connections of one server that have no login. Runs on the loop. ``bytes``: of all
    connections with more than KEPT_BYTES."""

    _memory: Memory
    bytes: int = field(default=0, init=False)
    _counts: dict[Stranger, int] = field(default_factory=dict, init=False)  # the first that had much input is first

    def note(self, stranger: Stranger, count: int) -> None:
        """Note that ``count`` bytes of ``stranger`` wait. 0: none, or its client has logged in, or it has ended."""
        before = self._counts.get(stranger, 0)
        count = count if count > KEPT_BYTES else 0
        if count == before:
            return
        self.bytes += count - before
        if not count:
            del self._counts[stranger]
            return
        self._counts[stranger] = count
        while self.bytes > self._memory.limit // EARLY_PART:  # prove: strangers-are-bounded
            oldest = next(iter(self._counts))
            self.bytes -= self._counts.pop(oldest)
            oldest.end_early()


class Connected(Protocol):
    """Connection that an EarlyReader reads for, until its client has logged in."""

    @property
    def is_logged_in(self) -> bool: ...

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def data_received(self, data: bytes) -> None: ...

    def eof_received(self) -> bool: ...

    def connection_lost(self, error: Exception | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class EarlyReader(asyncio.BufferedProtocol):
    """Protocol of a socket until its client has logged in: it reads at most READ_BYTES at once for ``connection``,
    which is the protocol of the socket afterwards."""

    # All readers share this buffer: its bytes are copied before the next read.
    _buffer: Final = bytearray(READ_BYTES)

    def __init__(self, connection: Connected) -> None:
        self._connection = connection
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connection.connection_made(transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        connection, transport = self._connection, self._transport
        connection.data_received(bytes(memoryview(self._buffer)[:nbytes]))
        if connection.is_logged_in and transport is not None and not transport.is_closing():
            transport.set_protocol(cast("asyncio.Protocol", connection))

    def eof_received(self) -> bool:
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()
