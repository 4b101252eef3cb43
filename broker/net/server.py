"""The listening side: ports bound at start, open only while this broker is master.

Promises: a port that cannot be had fails at start, with its address and the reason, on a standby too; between
``bind`` and ``listen`` clients are refused at once, so that a failover URL continues to the next broker;
``close`` and ``abort`` end within a bound whatever the peers do, and the ports are bound again for the next time.
Refuses to know who is master.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from itertools import islice
from typing import Any, NamedTuple, cast

from tandemmq import log_events
from tandemmq.broker.core.commands import ClientError
from tandemmq.broker.core.containment import ERROR_OF_BROKER
from tandemmq.broker.core.memory import Kind
from tandemmq.broker.net.tls_handshake import TlsServer
from tandemmq.broker.net.transport import DEFAULT_LIMITS, Connection, Engine, Outbox, TransportLimits
from tandemmq.broker.net.turns import Turns
from tandemmq.broker.net.unfinished_input import UnfinishedInput
from tandemmq.broker.net.websocket import WebSocket, WebSocketOptions
from tandemmq.broker.protocols.session import Session
from tandemmq.broker.protocols.websocket.upgrade import Refusal
from tandemmq.config.addresses import Address
from tandemmq.limited_log import LimitedLog

log = logging.getLogger(__name__)

# Where there is no room for a new connection, one of so many newcomers is cut off if it was silent for so long.
LOOKED_AT_MAX = 64
SILENT_SECONDS_MIN = 0.25
# Connections that the kernel queues for us (ActiveMQ's TcpTransportServer backlog is 5000; Linux caps it at somaxconn).
BACKLOG = 1024
# Longest time of an orderly end: a standby is to be master within a second.
CLOSE_SECONDS_MAX = 0.5
_Info = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]
# So many connections get the addresses of all brokers in a turn of the loop.
TOLD_A_TURN = 100
# Polled: the last bytes of a connection leave within a turn of the loop, unless its peer does not read.
FLUSH_LOOK_SECONDS = 0.002


class Connector(NamedTuple):
    """Address of a connector, and its protocol. ``make_session`` gets the id of the new connection."""

    name: str
    host: str
    port: int
    make_session: Callable[[str], Session]
    limits: TransportLimits = DEFAULT_LIMITS
    connections_max: int = 10_000
    tls: ssl.SSLContext | None = None
    tls_handshake_seconds_max: float = 60.0
    subject: Callable[[Any], str | None] = lambda certificate: None
    websocket: WebSocketOptions | None = None  # its sessions are by WebSocket
    told: Address | None = None  # its address for others, with port 0 for the one that is bound; None: as it is bound


@dataclass(slots=True, eq=False, repr=False)
class Refused(asyncio.Protocol):
    """Connection beyond the limit: its peer gets ``answer``, and nothing else."""

    _answer: bytes
    _name: str
    _reason: str
    _limited: LimitedLog

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        text = f"connector {self._name}: too many connections, one refused: {self._reason}"
        self._limited.warning(self._name, "one refused", text, log_events.TOO_MANY_CONNECTIONS)
        writing = cast("asyncio.WriteTransport", transport)  # uvloop's, with TLS, is no subclass of it
        writing.write(self._answer)
        writing.close()


def _refused(connector: Connector, session: Session, reason: str, limited: LimitedLog) -> Refused:
    """Return the protocol that refuses a connection in the words of the connector's protocol; by WebSocket in those of
    HTTP."""
    if connector.websocket is not None:
        answer = Refusal(HTTPStatus.SERVICE_UNAVAILABLE, f"Too many connections: {reason}").answer
    else:
        session.fail(ClientError("Too many connections", reason))
        answer = session.take()
    return Refused(answer, connector.name, reason, limited)


class Newcomer(NamedTuple):
    """Connection that has not logged in yet. ``came``: by the loop's clock."""

    connection: Connection | WebSocket
    connector: Connector
    came: float

    @property
    def is_over(self) -> bool:
        return self.connection.is_closing or self.connection.session.is_connected


class BindError(OSError):
    """Address of a connector that cannot be had. ``errno`` is the reason."""

    def __init__(self, connector: Connector, error: OSError) -> None:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        code = errno.errorcode.get(error.errno or 0, "getaddrinfo")
        super().__init__(
            f"connector {connector.name}: cannot bind {connector.host}:{connector.port}: {reason} ({code})"
        )
        self.errno = error.errno


class Server:
    """All connectors of one broker, over all its terms as master.

    ``bind`` -> (``listen`` -> ``close`` or ``abort``)* -> ``unbind``. All on the loop's thread. The two endings
    may be called when there is nothing to end.
    """

    def __init__(
        self,
        connectors: Sequence[Connector],
        connections_max: int = 1 << 30,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take ``connections_max``, the limit of all connectors together (``broker.process.descriptors``), and
        ``clock``, that of ``Turns``."""
        self._connectors = connectors
        self._connections_max = connections_max
        self._clock = clock
        self._bound: list[tuple[Connector, socket.socket]] = []
        # The port that 0 became, so that the next bind gets the same.
        self._ports: dict[Connector, int] = {}
        self._servers: list[asyncio.AbstractServer | TlsServer] = []
        self._listening: list[socket.socket] = []
        self._connections: dict[Connection, Connector] = {}
        self._counts: Counter[Connector] = Counter()  # of connections
        self._handshakes: set[WebSocket] = set()  # of HTTP, that are under way
        # Connections that have not logged in yet, the oldest first, and some that have.
        self._newcomers: dict[Connection, Newcomer] = {}  # the oldest first
        self._outbox: Outbox | None = None
        self._turns: Turns | None = None
        self._overlong_before = 0  # in former terms
        self._count = 0
        self._is_empty = asyncio.Event()

    @property
    def connections(self) -> frozenset[Connection]:
        """Connections that are open now."""
        return frozenset(self._connections)

    def counts(self) -> dict[str, int]:
        """Return the number of connections of each connector, by its name."""
        return {connector.name: count for connector, count in self._counts.items()}

    def connector_names(self) -> dict[str, str]:
        """Return the name of each connection's connector, by the connection's id."""
        return {connection.id: connector.name for connection, connector in self._connections.items()}

    @property
    def addresses(self) -> list[tuple[str, str, int]]:
        """Return connector name, host and port of every address that is bound."""
        bound = [connector for connector in self._connectors if connector in self._ports]
        return [(connector.name, connector.host, self._ports[connector]) for connector in bound]

    @property
    def told_addresses(self) -> list[tuple[str, Address]]:
        """Return connector name and advertised address of every address that is bound."""
        found = []
        for connector, port in self._ports.items():
            told = connector.told or Address(connector.host, port)
            found.append((connector.name, Address(told.host, told.port or port)))
        return found

    @property
    def overlong_steps(self) -> int:
        """Number of steps that took long and that cannot be interrupted: see ``Turns.took``."""
        return self._overlong_before + (0 if self._turns is None else self._turns.overlong)

    def bind(self) -> None:
        """Take all ports without answering on them. Raises :class:`BindError`, and then holds none."""
        assert not self._bound, "ports are bound once"
        try:
            for connector in self._connectors:
                self._bound += [(connector, listener) for listener in self._bind(connector)]
        except OSError as error:
            self.unbind()
            raise BindError(connector, error) from error

    def _bind(self, connector: Connector) -> list[socket.socket]:
        listeners = bound_sockets(connector.host, self._ports.get(connector, connector.port))
        self._ports[connector] = listeners[0].getsockname()[1]
        return listeners

    def unbind(self) -> None:
        """Give the ports back that are bound and not listened to."""
        for _, listener in self._bound:
            listener.close()
        self._bound = []

    async def listen(self, engine: Engine, id_prefix: str) -> None:
        """Answer clients, on behalf of ``engine``. Connections are called ``<id_prefix>-<n>``, n never repeats.

        Raises :class:`BindError` when a port was taken by another program that we shared it with; nothing
        listens then.
        """
        if not self._bound:
            self.bind()
        loop = asyncio.get_running_loop()
        self._outbox = outbox = Outbox(loop, engine)
        self._overlong_before = self.overlong_steps
        self._turns = turns = Turns(loop, self._clock, between=outbox.take_reports)
        unfinished = UnfinishedInput(loop, engine.memory)
        bound, self._bound = self._bound, []
        try:
            while bound:
                connector, listener = bound[0]
                # Accepted sockets inherit these; the first lets the port be bound again while they linger.
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

                def make_connection(connector: Connector = connector) -> asyncio.Protocol:
                    self._count += 1
                    id = f"{id_prefix}-{self._count}"
                    session = connector.make_session(id)
                    reason = self._too_many(connector)
                    if reason is not None:
                        return _refused(connector, session, reason, outbox.limited)
                    connection = Connection(
                        id,
                        session,
                        engine,
                        outbox,
                        turns,
                        unfinished,
                        loop,
                        self._forget,
                        connector.limits,
                        connector.subject,
                    )
                    self._connections[connection] = connector
                    self._counts[connector] += 1
                    if connector.websocket is not None:
                        websocket = WebSocket(
                            connection,
                            connector.name,
                            connector.websocket,
                            turns,
                            loop,
                            self._handshakes.discard,
                            self._forget,
                        )
                        self._handshakes.add(websocket)
                        self._newcomers[connection] = Newcomer(websocket, connector, loop.time())
                        return websocket
                    self._newcomers[connection] = Newcomer(connection, connector, loop.time())
                    return cast("asyncio.Protocol", connection)  # it has all of its methods

                if connector.tls is None:
                    self._servers.append(await loop.create_server(make_connection, sock=listener, backlog=BACKLOG))
                else:
                    secured = TlsServer(
                        connector.name,
                        listener,
                        connector.tls,
                        connector.tls_handshake_seconds_max,
                        connector.connections_max,
                        make_connection,
                        self._give_up,
                        turns,
                        partial(engine.memory.add, Kind.STATE),
                    )
                    secured.listen(BACKLOG)
                    self._servers.append(secured)
                self._listening.append(listener)
                del bound[0]
        except OSError as error:
            self._stop_listening()
            self._bound = bound
            self.unbind()
            raise BindError(connector, error) from error

    def _too_many(self, connector: Connector) -> str | None:
        """Return why no more connections are taken; None: one more is. Where there is no room, a newcomer that has been
        silent since it came is cut off: that would happen soon anyway."""
        newcomers = self._newcomers
        while newcomers and next(iter(newcomers.values())).is_over:
            del newcomers[next(iter(newcomers))]
        is_connector_full = self._counts[connector] >= connector.connections_max
        if is_connector_full:
            reason = f"maximumConnections of this connector is {connector.connections_max}."
        elif len(self._connections) >= self._connections_max:
            reason = f"There are file descriptors for {self._connections_max} (LimitNOFILE)."
        else:
            return None
        now = asyncio.get_running_loop().time()
        for newcomer in islice(newcomers.values(), LOOKED_AT_MAX):
            # In a TLS handshake, which has its own time, there is no socket of ours yet.
            is_there = not newcomer.is_over and newcomer.connection.descriptor >= 0
            is_fit = is_there and (newcomer.connector is connector or not is_connector_full)
            if is_fit and now - newcomer.came >= SILENT_SECONDS_MIN:
                assert self._outbox is not None, "it listens"
                text = f"{newcomer.connection!r} has been silent since it came, and makes room for another"
                self._outbox.limited.warning(connector.name, "silent", text, log_events.TOO_MANY_CONNECTIONS)
                newcomer.connection.abort()
                return None
        return reason

    def stop_reading(self) -> None:
        """Take no new connections and read nothing more from those that are open; what is promised to them is still
        written."""
        self._stop_listening()
        for connection in self._connections:
            connection.end_reading()

    def tell_brokers(self) -> None:
        """Send the new addresses of all brokers to all clients, to TOLD_A_TURN of them in a turn of the loop."""
        self._tell_brokers(iter(list(self._connections)))

    def _tell_brokers(self, left: Iterator[Connection]) -> None:
        told = list(islice(left, TOLD_A_TURN))
        for connection in told:
            try:
                connection.session.tell_brokers()
                connection.touch()
            except Exception:
                log.exception("%s: cut off, for the news of other brokers %s", connection, ERROR_OF_BROKER)
                connection.abort()
        if told:
            asyncio.get_running_loop().call_soon(self._tell_brokers, left)

    def resume_reading_all(self) -> None:
        """Let all connections read again, as ``Outbox.resume_reading``."""
        if self._outbox is not None:
            self._outbox.resume_reading()

    async def close(self, seconds_max: float = CLOSE_SECONDS_MAX) -> None:
        """Stop listening, write what sessions have to say, and bind the ports again for the next term.

        A peer that has not taken its last bytes after ``seconds_max`` is cut off. Peers that have them are not waited
        for: a peer that is slow to disconnect delays no handover (``lingered`` waits).
        """
        self._stop_listening()
        closing = list(self._connections)
        for connection in closing:
            try:
                connection.session.tell_brokers()
                connection.close()
            except Exception:
                log.exception("%s: cut off, for its last words %s", connection, ERROR_OF_BROKER)
                connection.abort()
        deadline = asyncio.get_running_loop().time() + seconds_max
        while not all(connection.is_flushed for connection in closing):
            if asyncio.get_running_loop().time() >= deadline:
                for connection in closing:
                    if not connection.is_flushed:
                        connection.abort()
                break
            await asyncio.sleep(FLUSH_LOOK_SECONDS)
        self._bind_again()

    async def lingered(self, seconds_max: float = CLOSE_SECONDS_MAX) -> None:
        """Wait until the peers of a ``close`` have disconnected, too, or the time is over."""
        await self._emptied(seconds_max)

    async def abort(self) -> None:
        """Stop listening and disconnect before this returns to the loop for the first time: nothing more is written.

        The engine is not called: the connection belongs to a term that is over.
        """
        self._stop_listening()
        for connection in list(self._connections):
            connection.abandon()
        await self._emptied(CLOSE_SECONDS_MAX)
        self._bind_again()

    def cut(self) -> None:
        """Break every connection and answer no more, from any thread, while the loop hangs. ``abort`` is to follow.

        The loop may wake up and close a socket meanwhile, whose number another one gets: then that is broken too.
        """
        for listener in list(self._listening):
            _shut_down(listener.fileno())
        for connection in list(self._connections):
            _shut_down(connection.descriptor)

    def _stop_listening(self) -> None:
        for server in self._servers:
            server.close()
        self._servers, self._listening = [], []
        for websocket in list(self._handshakes):
            websocket.abort()

    def _bind_again(self) -> None:
        """Bind the ports for the next term. A port that is not free yet is no failure now: ``listen`` tries again."""
        if self._bound:
            return
        try:
            self.bind()
        except BindError as error:
            log.warning("%s; tried again at the next promotion", error)

    async def _emptied(self, seconds_max: float) -> bool:
        """Return whether all connections are over within the time."""
        if not self._connections:
            return True
        self._is_empty.clear()
        try:
            async with asyncio.timeout(seconds_max):
                await self._is_empty.wait()
        except TimeoutError:
            return False
        return True

    def _give_up(self, connection: Connection | asyncio.Protocol) -> None:
        """Forget a connection that never began."""
        ours = connection.connection if isinstance(connection, WebSocket) else connection
        if isinstance(ours, Connection):
            # Otherwise it and its session refer to each other.
            ours.abandon()  # prove: given-up-connection-is-no-cycle
        self._forget(connection)

    def _forget(self, connection: Connection | asyncio.Protocol) -> None:
        if isinstance(connection, WebSocket):
            self._handshakes.discard(connection)
            connection = connection.connection
        # prove: failed-handshake-leaves-nothing
        self._newcomers.pop(cast("Connection", connection), None)
        connector = self._connections.pop(cast("Connection", connection), None)
        if connector is not None:
            self._counts[connector] -= 1
        if not self._connections:
            self._is_empty.set()


def _shut_down(descriptor: int) -> None:
    """End both ways of a socket that has another owner, which closes it."""
    try:
        ours = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return  # closed meanwhile
    with ours:
        try:
            ours.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the peer was first


def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """Return a socket bound to each address of ``host``, exclusively, that does not listen; all have the same port, the
    one that the system chose for the first if ``port`` is 0. Raises OSError."""
    infos = addresses_of(host, port)
    listeners: list[socket.socket] = []
    failure: OSError | None = None
    for family, kind, protocol, _, address in dict.fromkeys(infos):
        if listeners and port == 0:
            address = (address[0], listeners[0].getsockname()[1], *address[2:])
        try:
            listeners.append(_bound_socket(family, kind, protocol, address))
        except OSError as error:
            # localhost may name an IPv6 address on a machine that has none: one of the addresses is enough.
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) or len(infos) == 1:
                for listener in listeners:
                    listener.close()
                raise
            failure = error
    if not listeners:
        assert failure is not None, "no address, yet no failure"
        raise failure
    return listeners


def addresses_of(host: str, port: int) -> Sequence[_Info]:
    """Return the addresses that a connector of this address binds, as getaddrinfo(3) has them. Raises OSError."""
    host_or_any = None if host in ("", "*") else host
    return socket.getaddrinfo(host_or_any, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)


def _bound_socket(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    """Return a socket bound to ``address``, exclusively.

    Linux lets two sockets with SO_REUSEADDR share a port until one listens: two standbys would notice their
    mistake only at a failover. So the port is bound without it first; with it only when that fails, which
    works when nothing but connections of a former run linger there.
    """
    try:
        return _try_bind(family, kind, protocol, address, is_reused=False)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
    return _try_bind(family, kind, protocol, address, is_reused=True)


def _try_bind(family: int, kind: int, protocol: int, address: tuple[object, ...], *, is_reused: bool) -> socket.socket:
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setblocking(False)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(is_reused))
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener
