"""The link to the broker that is master: one connection after the other, and the tasks that wait on it.

One task searches, calls ``restore`` to repeat the state on each new connection, and searches again when the connection
is lost.
Tasks wait for a condition: it is checked again at each event, and the wait fails when the search does.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

from tandemmq.broker.protocols.stomp.frames import Headers
from tandemmq.broker.protocols.stomp.session import SERVER
from tandemmq.client.connection import Connection, Greeting, error_text, open_connection
from tandemmq.client.errors import BrokerError, ClientError, Closed, NoBroker
from tandemmq.client.failover_url import UNLIMITED, Address, FailoverUrl
from tandemmq.client.frames import frame
from tandemmq.client.outbox import Outbox
from tandemmq.client.search import Search

# After this many connections in a row that ended with an ERROR, without a receipt or a message, the client gives up.
REFUSED_CONNECTIONS_MAX = 3
# After a connection that brought a receipt or a message, or lasted this long, the reconnect delays start again.
USEFUL_SECONDS = 1.0
# An ERROR that belongs to no receipt: if the connection is still open after this time, the ERROR did not end it.
ERROR_SETTLES_SECONDS = 0.2
CLOSE_TIMEOUT_SECONDS = 5.0

Answer = Callable[[BrokerError | None], None]
MessageSink = Callable[[int, Headers, bytes], None]


@dataclass(eq=False)
class Link:
    """Used by one client with its subscriptions and transactions, on one loop."""

    url: FailoverUrl
    _greeting: Greeting
    _outbox: Outbox
    _notice: Callable[[str], None]
    _chance: random.Random
    _tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        self.connection: Connection | None = None
        self.on_message: MessageSink = lambda number, headers, body: None
        self.on_lost: Callable[[], None] = lambda: None
        self.restore: Callable[[Connection], int] = lambda connection: 0
        self.resent = 0
        self._failure: ClientError | None = Closed("the client is not connected")
        self._refusal: BrokerError | None = None
        self._fatal: BrokerError | None = None
        self._refused_connections = 0
        self._last_address: Address | None = None
        self._lost_at = 0.0
        self._lost_reason = ""
        self._connected_at = 0.0
        self._is_useful = False
        self._pauses: Iterator[float] = iter(())
        self._ended: asyncio.Event = asyncio.Event()
        self._waiters: set[asyncio.Future[None]] = set()
        self._answers: dict[str, Answer] = {}
        self._numbers = count(1)
        self._task: asyncio.Task[None] | None = None
        self._search: Search | None = None

    @property
    def is_tandemmq(self) -> bool:
        """Return whether the broker at the other end knows numbered messages."""
        return self.connection is not None and self.connection.server.startswith(SERVER)

    @property
    def is_running(self) -> bool:
        """Return whether ``start`` was called and ``stop`` was not, even if the search has ended."""
        return self._task is not None

    # ---- from connect to close

    async def start(self) -> Connection:
        """Start the task unless it runs, and wait for the connection. Raises the error that ends the search."""
        if self._task is None or self._task.done():
            self._failure = None
            self._refused_connections = 0
            self._pauses = self.url.pauses_seconds(is_first=True)
            self._lost_at = asyncio.get_running_loop().time()
            self._task = asyncio.create_task(self._run(), name="tandemmq.client")
        return await self.connected()

    async def stop(self) -> bool:
        """Disconnect. Return True if the broker confirmed everything sent on this connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        connection = self.connection
        is_confirmed = connection is not None and await self._disconnect(connection)
        if connection is not None:
            connection.owner = None
            connection.drop("closed")
            self.connection = None
        self._failure = Closed("the client was closed")
        self._wake()
        return is_confirmed

    async def _disconnect(self, connection: Connection) -> bool:
        """Send DISCONNECT, whose receipt means that all earlier frames were processed (STOMP 1.2)."""
        confirmed: list[BrokerError | None] = []
        connection.write(self.frame_with_receipt("DISCONNECT", {}, confirmed.append))
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                while not confirmed and connection.is_open:
                    await self._changed()
        except TimeoutError:
            pass
        return confirmed == [None]

    async def _run(self) -> None:
        try:
            is_first = True
            while True:
                await self._connect(is_first=is_first)
                await self._ended.wait()
                if is_first or self._is_useful:
                    self._pauses = self.url.pauses_seconds(is_first=False)
                is_first = False
        except ClientError as problem:
            self._failure = problem
            self._wake()
        except Exception as problem:
            # A mistake of this package: waiting tasks must not wait forever.
            self._failure = ClientError(f"the client failed: {problem!r}")
            self._wake()
            raise

    async def _connect(self, *, is_first: bool) -> None:
        if self._refused_connections >= REFUSED_CONNECTIONS_MAX:
            assert self._fatal is not None, "a connection that was refused has its reason"
            raise self._fatal
        self._search = Search(self.url, self._attempt, self._notice, self._chance)
        if self._last_address is not None:
            self._search.problems[self._last_address] = self._lost_reason
        connection = await self._search.run(self._last_address, self._pauses)
        self._ended.clear()
        self._is_useful = False
        self._fatal = None
        self._connected_at = asyncio.get_running_loop().time()
        connection.owner = self
        self.connection = connection
        self._last_address = connection.address
        again = self.restore(connection)
        self.resent += again
        self._notice(
            f"{'' if is_first else 're'}connected to {connection.address}"
            + (f", resending messages without a receipt: {again}" if again else "")
        )
        if not connection.is_open:  # closed since its CONNECTED arrived
            self.lost(connection, "connection closed")
        self._wake()

    async def _attempt(self, address: Address) -> Connection:
        seconds = self.url.connect_timeout_ms / 1000
        return await open_connection(address, next(self._numbers), self._greeting, seconds, self._tls)

    # ---- for tasks that wait

    async def wait(self, condition: Callable[[], bool], timeout_seconds: float | None = None) -> bool:
        """Return True when the condition holds, False when the time is up first.

        Raises the error that ended the search, an ERROR of the broker that belongs to no request, and NoBroker when
        there was no connection for the URL's ``timeout``.
        """
        loop = asyncio.get_running_loop()
        until = None if timeout_seconds is None else loop.time() + timeout_seconds
        waits_since = loop.time()
        while True:
            self._raise()
            if condition():
                return True
            limit = until
            if self.connection is None and self.url.timeout_ms != UNLIMITED:
                patience = max(waits_since, self._lost_at) + self.url.timeout_ms / 1000
                if loop.time() >= patience:
                    failures = self._search.failures() if self._search is not None else "not tried"
                    raise NoBroker(f"no broker reachable within {self.url.timeout_ms} ms ({failures})")
                limit = patience if limit is None else min(limit, patience)
            if until is not None and loop.time() >= until:
                return False
            await self._changed(None if limit is None else limit - loop.time())

    async def connected(self) -> Connection:
        """Wait for the connection and return it. Raises as ``wait``."""
        await self.wait(lambda: self.connection is not None)
        assert self.connection is not None, "the wait ended with a connection"
        return self.connection

    async def _changed(self, timeout_seconds: float | None = None) -> None:
        """Return at the next event, or when the time is up."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiters.add(future)
        timer = None if timeout_seconds is None else loop.call_later(timeout_seconds, _resolve, future)
        try:
            await future
        finally:
            self._waiters.discard(future)
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        for future in self._waiters:
            _resolve(future)
        self._waiters.clear()

    def _raise(self) -> None:
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            raise refusal
        if self._failure is not None:
            raise self._failure

    # ---- requests

    def frame_with_receipt(self, command: str, headers: Headers, answer: Answer) -> bytes:
        """Return a frame that requests a receipt; ``answer`` is called with None, or with the error.

        ``answer`` is forgotten when the connection is lost.
        """
        return frame(command, {**headers, "receipt": self.receipt_for(answer)})

    def receipt_for(self, answer: Answer) -> str:
        """Return the id of a new receipt; ``answer`` is called with None when it arrives, or with the error."""
        receipt = f"r-{next(self._numbers)}"
        self._answers[receipt] = answer
        return receipt

    async def request(self, connection: Connection, command: str, headers: Headers) -> bool:
        """Send a frame and wait for its receipt. Return True, or False when the connection was lost first.

        BrokerError: refused.
        """
        answered: list[BrokerError | None] = []
        connection.write(self.frame_with_receipt(command, headers, answered.append))
        await self.wait(lambda: bool(answered) or self.connection is not connection)
        if answered and answered[0] is not None:
            raise answered[0]
        return bool(answered)

    # ---- events of the connection

    def receipt(self, connection: Connection, receipt: str) -> None:
        self._is_useful = True
        self._refused_connections = 0
        if not self._outbox.confirmed(receipt) and (answer := self._answers.pop(receipt, None)) is not None:
            answer(None)

    def message(self, connection: Connection, headers: Headers, body: bytes) -> None:
        self._is_useful = True
        self._refused_connections = 0
        self.on_message(connection.number, headers, body)

    def error(self, connection: Connection, headers: Headers, body: bytes) -> None:
        error = BrokerError(error_text(headers, body))
        receipt = headers.get("receipt-id", "")
        if self._outbox.refused(receipt, error):
            return
        if (answer := self._answers.pop(receipt, None)) is not None:
            answer(error)
        else:
            self._fatal = error
            asyncio.get_running_loop().call_later(ERROR_SETTLES_SECONDS, self._settle, connection, error)

    def _settle(self, connection: Connection, error: BrokerError) -> None:
        """Raise an ERROR in the next call that waits, if the broker did not close the connection after it."""
        if self.connection is connection and self._fatal is error:
            self._fatal = None
            self._refusal = error
            self._wake()

    def turn_over(self, connection: Connection) -> None:
        """Wake the waiting tasks: all frames of one read were passed on, or more data may be written."""
        if self._waiters:
            self._wake()

    def lost(self, connection: Connection, reason: str) -> None:
        if self.connection is not connection:
            return
        self.connection = None
        self._lost_at = asyncio.get_running_loop().time()
        self._is_useful = self._is_useful or self._lost_at - self._connected_at >= USEFUL_SECONDS
        self._answers.clear()
        if self._fatal is not None:
            self._refused_connections += 1
            reason = str(self._fatal)
        self._lost_reason = f"connection lost ({reason})"
        if self._task is not None:  # else this client disconnects
            self._notice(f"connection to {connection.address} lost ({reason})")
        self.on_lost()
        self._ended.set()
        self._wake()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
