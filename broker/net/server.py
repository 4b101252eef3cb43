"""Server: the ports of all connectors. They are bound at the start, and listen only while this broker is master.

A port that cannot be bound is an error at the start, with address and reason, also on a standby. Between ``bind`` and
``listen``, connections are refused at once, so that a client with a failover URL tries the next broker. ``close`` and
``abort`` end within a time limit, independent of the peers; then the ports are bound again for the next term.
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
from tandemmq.broker.net.early_input import Connected, EarlyInput, EarlyReader
from tandemmq.broker.net.tls_handshake import HANDSHAKE_SECONDS_MAX, TlsServer
from tandemmq.broker.net.transport import DEFAULT_LIMITS, Connection, Engine, Outbox, TransportLimits
from tandemmq.broker.net.turns import Turns
from tandemmq.broker.net.unfinished_input import UnfinishedInput
from tandemmq.broker.net.websocket import WebSocket, WebSocketOptions
from tandemmq.broker.process.switch_interval import note_load
from tandemmq.broker.protocols.session import Session
from tandemmq.broker.protocols.websocket.upgrade import Refusal
from tandemmq.config.addresses import Address
from tandemmq.limited_log import LimitedLog

log = logging.getLogger(__name__)

# At the limit of connections, one of the LOOKED_AT_MAX oldest connections without a login is closed for a new one, if
# it has been silent for SILENT_SECONDS_MIN.
LOOKED_AT_MAX = 64
SILENT_SECONDS_MIN = 0.25
# Connections that the kernel queues (in ActiveMQ's TcpTransportServer 5000; Linux limits it to somaxconn).
BACKLOG = 1024
# Limit of the time of ``close``: a standby should be master within a second.
CLOSE_SECONDS_MAX = 0.5
_Info = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]
# Number of connections that get the addresses of all brokers in one turn of the loop.
ADVERTISED_A_TURN = 100
# Interval of the checks whether all output was written. This takes one turn of the loop, unless a peer does not read.
FLUSH_CHECK_SECONDS = 0.002


class Connector(NamedTuple):
    """Address and protocol of a connector. ``make_session`` gets the id of a new connection."""

    name: str
    host: str
    port: int
    make_session: Callable[[str], Session]
    limits: TransportLimits = DEFAULT_LIMITS
    connections_max: int = 10_000
    tls: ssl.SSLContext | None = None
    tls_handshake_seconds_max: float = HANDSHAKE_SECONDS_MAX
    subject: Callable[[Any], str | None] = lambda certificate: None
    websocket: WebSocketOptions | None = None  # if not None, its sessions use WebSocket
    # Address for clients, in which port 0 means the bound port; None: the bound address.
    advertised: Address | None = None


@dataclass(slots=True, eq=False, repr=False)
class Refused(asyncio.Protocol):
    """Protocol of a connection beyond the limit: it writes ``answer``, and closes the connection."""

    _answer: bytes
    _name: str
    _reason: str
    _limited: LimitedLog

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        text = f"connector {self._name}: too many connections, one refused: {self._reason}"
        self._limited.warning(self._name, "one refused", text, log_events.TOO_MANY_CONNECTIONS)
        writing = cast("asyncio.WriteTransport", transport)  # with TLS, uvloop's transport is not a subclass of it
        writing.write(self._answer)
        writing.close()


def _refused(connector: Connector, session: Session, reason: str, limited: LimitedLog) -> Refused:
    """Return the protocol object that refuses a connection, with an error of the connector's protocol; for WebSocket
    with an HTTP error."""
    if connector.websocket is not None:
        answer = Refusal(HTTPStatus.SERVICE_UNAVAILABLE, f"Too many connections: {reason}").answer
    else:
        session.fail(ClientError("Too many connections", reason))
        answer = session.take()
    return Refused(answer, connector.name, reason, limited)


class Unauthenticated(NamedTuple):
    """Connection that has not logged in yet. ``accepted``: when it was accepted, by the loop's clock."""

    connection: Connection | WebSocket
    connector: Connector
    accepted: float

    @property
    def is_over(self) -> bool:
        return self.connection.is_closing or self.connection.session.is_connected


class BindError(OSError):
    """The address of a connector cannot be bound. ``errno`` is the reason."""

    def __init__(self, connector: Connector, error: OSError) -> None:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        code = errno.errorcode.get(error.errno or 0, "getaddrinfo")
        super().__init__(
            f"connector {connector.name}: cannot bind {connector.host}:{connector.port}: {reason} ({code})"
        )
        self.errno = error.errno


class Server:
    """All connectors of one broker, in all its terms as master.

    ``bind`` -> (``listen`` -> ``close`` or ``abort``)* -> ``unbind``. Runs on the loop. ``close`` and ``abort`` may be
    called also when the connectors do not listen.
    """

    def __init__(
        self,
        connectors: Sequence[Connector],
        connections_max: int = 1 << 30,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make the server. ``connections_max``: limit for all connectors together (``broker.process.machine``).
        ``clock``: clock of ``Turns``."""
        self._connectors = connectors
        self._connections_max = connections_max
        self._clock = clock
        self._bound: list[tuple[Connector, socket.socket]] = []
        # The bound port of each connector. A connector with port 0 binds the same port in the next term.
        self._ports: dict[Connector, int] = {}
        self._servers: list[asyncio.AbstractServer | TlsServer] = []
        self._listening: list[socket.socket] = []
        self._connections: dict[Connection, Connector] = {}
        self._counts: Counter[Connector] = Counter()  # of connections
        self._handshakes: set[WebSocket] = set()  # of HTTP, that are under way
        # Connections that have not logged in yet, the oldest first, and some that have.
        self._unauthenticated: dict[Connection, Unauthenticated] = {}  # the oldest first
        self._outbox: Outbox | None = None
        self._turns: Turns | None = None
        self._overlong_before = 0  # count of former terms
        self._count = 0
        self._is_empty = asyncio.Event()

    @property
    def connections(self) -> frozenset[Connection]:
        """All open connections."""
        return frozenset(self._connections)

    def counts(self) -> dict[str, int]:
        """Return the number of connections of each connector, by its name."""
        counts = dict.fromkeys((name for name, _, _ in self.addresses), 0)
        return counts | {connector.name: count for connector, count in self._counts.items()}

    def connector_names(self) -> dict[str, str]:
        """Return the name of each connection's connector, by the connection's id."""
        return {connection.id: connector.name for connection, connector in self._connections.items()}

    @property
    def addresses(self) -> list[tuple[str, str, int]]:
        """Return connector name, host and port of each bound address."""
        bound = [connector for connector in self._connectors if connector in self._ports]
        return [(connector.name, connector.host, self._ports[connector]) for connector in bound]

    @property
    def advertised_addresses(self) -> list[tuple[str, Address]]:
        """Return connector name and advertised address of each bound address."""
        found = []
        for connector, port in self._ports.items():
            advertised = connector.advertised or Address(connector.host, port)
            found.append((connector.name, Address(advertised.host, advertised.port or port)))
        return found

    @property
    def overlong_steps(self) -> int:
        """Number of long steps that could not be interrupted (see ``Turns.took``)."""
        return self._overlong_before + (0 if self._turns is None else self._turns.overlong)

    def bind(self) -> None:
        """Bind all ports without listening. Raises :class:`BindError`; then no port is bound."""
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
        """Release the ports that are bound and do not listen."""
        for _, listener in self._bound:
            listener.close()
        self._bound = []

    async def listen(self, engine: Engine, id_prefix: str) -> None:
        """Accept connections for ``engine``. The id of a connection is ``<id_prefix>-<n>``; n is never used twice.

        Raises :class:`BindError` if another program that shared a port listens on it; then no port listens.
        """
        if not self._bound:
            self.bind()
        loop = asyncio.get_running_loop()
        self._outbox = outbox = Outbox(loop, engine)
        self._overlong_before = self.overlong_steps
        self._turns = turns = Turns(loop, self._clock, between=outbox.take_reports, note_load=note_load)
        unfinished = UnfinishedInput(loop, engine.memory)
        early = EarlyInput(engine.memory)
        bound, self._bound = self._bound, []
        try:
            while bound:
                connector, listener = bound[0]
                # Accepted sockets inherit these options. With SO_REUSEADDR, the port can be bound again while closed
                # connections are in TIME_WAIT.
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
                        early,
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
                        self._unauthenticated[connection] = Unauthenticated(websocket, connector, loop.time())
                        return _until_login(websocket, connector)
                    self._unauthenticated[connection] = Unauthenticated(connection, connector, loop.time())
                    return _until_login(connection, connector)

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
        """Return why a new connection is refused; None: it is accepted. At a limit, a connection without a login that
        has been silent since it was accepted is closed for the new one."""
        candidates = self._unauthenticated
        while candidates and next(iter(candidates.values())).is_over:
            del candidates[next(iter(candidates))]
        is_connector_full = self._counts[connector] >= connector.connections_max
        if is_connector_full:
            reason = f"maximumConnections of this connector is {connector.connections_max}."
        elif len(self._connections) >= self._connections_max:
            reason = f"The file descriptors allow {self._connections_max} connections (LimitNOFILE)."
        else:
            return None
        now = asyncio.get_running_loop().time()
        for candidate in islice(candidates.values(), LOOKED_AT_MAX):
            # During a TLS handshake, which has its own time limit, the connection has no socket yet.
            is_there = not candidate.is_over and candidate.connection.descriptor >= 0
            is_fit = is_there and (candidate.connector is connector or not is_connector_full)
            if is_fit and now - candidate.accepted >= SILENT_SECONDS_MIN:
                assert self._outbox is not None, "it listens"
                text = (
                    f"{candidate.connection!r} has been silent since it was accepted: closed to make room for a new one"
                )
                self._outbox.limited.warning(connector.name, "silent", text, log_events.TOO_MANY_CONNECTIONS)
                candidate.connection.abort()
                return None
        return reason

    def stop_reading(self) -> None:
        """Accept no new connections, and read no further input. Output for open connections is still written."""
        self._stop_listening()
        for connection in self._connections:
            connection.end_reading()

    def tell_brokers(self) -> None:
        """Send the new addresses of all brokers to all clients, to ADVERTISED_A_TURN of them in each turn of the
        loop."""
        self._send_brokers(iter(list(self._connections)))

    def _send_brokers(self, left: Iterator[Connection]) -> None:
        advertised = list(islice(left, ADVERTISED_A_TURN))
        for connection in advertised:
            try:
                connection.session.tell_brokers()
                connection.touch()
            except Exception:
                log.exception(
                    "%s: closed, because sending the addresses of all brokers %s", connection, ERROR_OF_BROKER
                )
                connection.abort()
        if advertised:
            asyncio.get_running_loop().call_soon(self._send_brokers, left)

    def resume_reading_all(self) -> None:
        """Let all connections read again (see ``Outbox.resume_reading``)."""
        if self._outbox is not None:
            self._outbox.resume_reading()

    async def close(self, seconds_max: float = CLOSE_SECONDS_MAX) -> None:
        """Stop listening, write all output of the sessions, and bind the ports again for the next term.

        A connection whose output is not written after ``seconds_max`` is aborted. This does not wait until the peers
        disconnect (``lingered`` does), so that a slow peer does not delay a handover.
        """
        self._stop_listening()
        closing = list(self._connections)
        for connection in closing:
            try:
                connection.session.tell_brokers()
                connection.close()
            except Exception:
                log.exception("%s: closed, because writing its last output %s", connection, ERROR_OF_BROKER)
                connection.abort()
        deadline = asyncio.get_running_loop().time() + seconds_max
        while not all(connection.is_flushed for connection in closing):
            if asyncio.get_running_loop().time() >= deadline:
                for connection in closing:
                    if not connection.is_flushed:
                        connection.abort()
                break
            await asyncio.sleep(FLUSH_CHECK_SECONDS)
        self._bind_again()

    async def lingered(self, seconds_max: float = CLOSE_SECONDS_MAX) -> None:
        """Wait after ``close`` until all peers have disconnected, at most ``seconds_max``."""
        await self._emptied(seconds_max)

    async def abort(self) -> None:
        """Stop listening, and close all connections before this coroutine first waits. No further output is written.

        The engine is not called, because its term has ended.
        """
        self._stop_listening()
        for connection in list(self._connections):
            connection.abandon()
        await self._emptied(CLOSE_SECONDS_MAX)
        self._bind_again()

    def cut(self) -> None:
        """Shut down all sockets, while the loop hangs. Any thread. Call ``abort`` afterwards.

        If the loop continues and closes a socket meanwhile, another socket may get its number. Then that one is shut
        down, too.
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
        """Bind the ports for the next term. A port that is not free yet is only logged: ``listen`` tries again."""
        if self._bound:
            return
        try:
            self.bind()
        except BindError as error:
            log.warning("%s; the next promotion tries again", error)

    async def _emptied(self, seconds_max: float) -> bool:
        """Wait until all connections have ended. Return False if ``seconds_max`` are over before."""
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
        self._unauthenticated.pop(cast("Connection", connection), None)
        connector = self._connections.pop(cast("Connection", connection), None)
        if connector is not None:
            self._counts[connector] -= 1
        if not self._connections:
            self._is_empty.set()


def _until_login(connection: Connected, connector: Connector) -> asyncio.Protocol:
    """Return the protocol of a new socket. It has all methods that the loop calls."""
    return cast("asyncio.Protocol", connection if connector.tls is not None else EarlyReader(connection))


def _shut_down(descriptor: int) -> None:
    """Shut down both directions of a socket. Its owner closes it."""
    try:
        ours = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return  # its owner closed it meanwhile
    with ours:
        try:
            ours.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the peer has disconnected before


def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """Return a socket for each address of ``host``, bound exclusively and not listening. All have the same port; if
    ``port`` is 0, the system chooses it. Raises OSError."""
    infos = addresses_of(host, port)
    listeners: list[socket.socket] = []
    failure: OSError | None = None
    for family, kind, protocol, _, address in dict.fromkeys(infos):
        if listeners and port == 0:
            address = (address[0], listeners[0].getsockname()[1], *address[2:])
        try:
            listeners.append(_bound_socket(family, kind, protocol, address))
        except OSError as error:
            # localhost may resolve to an IPv6 address although the machine has no IPv6. One address is enough.
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) or len(infos) == 1:
                for listener in listeners:
                    listener.close()
                raise
            failure = error
    if not listeners:
        assert failure is not None, "without a bound address there was an error"
        raise failure
    return listeners


def addresses_of(host: str, port: int) -> Sequence[_Info]:
    """Return the addresses to bind for ``host`` and ``port``, as results of getaddrinfo(3). Raises OSError."""
    host_or_any = None if host in ("", "*") else host
    return socket.getaddrinfo(host_or_any, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)


def _bound_socket(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    """Return a socket bound to ``address``, exclusively.

    Linux lets two sockets with SO_REUSEADDR share a port until one listens. Two standbys with the same port would then
    fail only at a failover. So the port is first bound without this option. If that fails, it is bound with the option,
    which succeeds if only old connections in TIME_WAIT use the port.
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
