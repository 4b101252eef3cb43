"""The real network: TCP, and TLS where it is configured. One thread owns all sockets.

It accepts connections, dials the given addresses again and again, and carries out handshakes. It reads links that are
up, and hands their messages to the listener. Nothing on this thread waits: names are resolved on separate threads,
and sockets do not block.

Which links there are is decided in ``network``.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import selectors
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tandemmq.broker.replication.frames import FrameError
from tandemmq.broker.replication.handshake import HANDSHAKE_SECONDS_MAX
from tandemmq.broker.replication.messages import Refused
from tandemmq.broker.replication.network import Listener, Network, Target
from tandemmq.broker.replication.tcp_link import Stage, TcpLink
from tandemmq.limited_log import LimitedLog
from tandemmq.store.threads import OS_THREADS, Thread, Threads

logger = logging.getLogger(__name__)

THREAD_NAME: Final = "tandemmq-replication"
# Limit of connections that proved nothing yet; beyond it the oldest one ends.
UNPROVED_MAX: Final = 64
# The loss of a peer's host is noticed after this time, whether or not something is to be sent to it.
KEEPALIVE_IDLE_SECONDS: Final = 3
KEEPALIVE_INTERVAL_SECONDS: Final = 2
KEEPALIVE_COUNT: Final = 3
UNACKNOWLEDGED_SECONDS_MAX: Final = 10
# Pause while the process has no descriptor for another connection.
ACCEPT_PAUSE_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS contexts: for incoming and for outgoing connections."""

    server: ssl.SSLContext
    client: ssl.SSLContext


@dataclass(frozen=True, slots=True)
class TcpSettings:
    """Settings of the network. ``hostname``: the advertised name. ``token``: if it is empty, any node may join."""

    host: str
    port: int
    hostname: str
    token: bytes = b""
    tls: Tls | None = None
    handshake_seconds_max: float = HANDSHAKE_SECONDS_MAX
    # A connection to a host that does not answer is given up and tried again with a new SYN, so that it is up soon
    # after the network is: the kernel would wait longer from one SYN to the next.
    connect_seconds_max: float = 1.5
    pause_seconds_min: float = 0.1
    pause_seconds_max: float = 1.0


class TcpNetwork(Network[TcpLink]):
    """Network over TCP."""

    def __init__(self, settings: TcpSettings, threads: Threads = OS_THREADS) -> None:
        pauses = settings.pause_seconds_min, settings.pause_seconds_max
        super().__init__(threads.monotonic, settings.token, pauses, random.SystemRandom())
        self._settings = settings
        self._threads = threads
        self._selector = selectors.DefaultSelector()
        self._calls: deque[Callable[[], object]] = deque()
        self._wakes, self._waker = socket.socketpair()
        self._is_woken = False
        self._is_ending = False
        self._accepts_at: float | None = None  # None: it accepts now
        self._limited = LimitedLog(logger)  # for events that any host can cause
        self._server: socket.socket | None = None
        self._thread: Thread | None = None
        for end in (self._wakes, self._waker):
            end.setblocking(False)

    # ---- any thread

    def start(self, listener: Listener) -> str:
        self._listener = listener
        self._server = _listening(self._settings.host, self._settings.port)
        self._selector.register(self._wakes, selectors.EVENT_READ, self._woken)
        self._selector.register(self._server, selectors.EVENT_READ, self._accept)
        self._thread = self._threads.thread(self._run, THREAD_NAME)
        self._thread.start()
        return join_address(self._settings.hostname, self._server.getsockname()[1])

    def dial(self, addresses: Mapping[str, str]) -> None:
        self._call(partial(self._dial, dict(addresses)))

    def end(self) -> None:
        self._call(self._end)
        if self._thread is not None:
            self._thread.join()
        self._selector.close()
        for end in (self._wakes, self._waker):
            end.close()

    def _call(self, act: Callable[[], object]) -> None:
        """Call ``act`` on the network's thread, soon."""
        self._calls.append(act)
        if not self._is_woken:
            self._is_woken = True
            try:
                self._waker.send(b"\0")
            except OSError:
                pass  # it is awake already, or ended

    # ---- the thread

    def _run(self) -> None:
        try:
            while not self._is_ending:
                for key, events in self._selector.select(self._patience()):
                    key.data(events)
                while self._calls:
                    self._calls.popleft()()
                self._check_deadlines()
        finally:
            for link in list(self._links):
                self._finish(link, "this node ends its network")
            if self._server is not None:
                self._server.close()

    def _end(self) -> None:
        self._is_ending = True

    def _woken(self, _: int) -> None:
        self._wakes.recv(64)
        self._is_woken = False  # before the calls are run: a call that is added from now on wakes this thread again

    def _patience(self) -> float | None:
        times = [link.deadline for link in self._links if link.deadline is not None]
        times += [at for at in (self._next_at(), self._accepts_at) if at is not None]
        return max(0.0, min(times) - self._now()) if times else None

    def _check_deadlines(self) -> None:
        now = self._now()
        for link in [link for link in self._links if link.deadline is not None and link.deadline <= now]:
            self._finish(link, f"no {'connection' if link.stage is Stage.CONNECTING else 'handshake'} in time")
        for target in self._due():
            self._resolve(target)
        if self._accepts_at is not None and self._accepts_at <= now and self._server is not None:
            self._accepts_at = None
            self._selector.register(self._server, selectors.EVENT_READ, self._accept)

    # ---- incoming connections

    def _accept(self, _: int) -> None:
        assert self._server is not None, "a connection comes to the socket that listens"
        try:
            sock, address = self._server.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                logger.warning("no connection can be accepted: %s", error.strerror)
                self._selector.unregister(self._server)
                self._accepts_at = self._now() + ACCEPT_PAUSE_SECONDS
            return
        link = TcpLink(sock, target=None, peer=join_address(*address[:2]), attend=self._attend_soon)
        unproved = [other for other in self._links if not other.is_ours and other.stage is not Stage.UP]
        if len(unproved) >= UNPROVED_MAX:
            self._finish(unproved[0], "too many connections without a handshake")
        try:
            self._begin(link, self._settings.handshake_seconds_max)
        except OSError as error:
            sock.close()
            text = f"the connection from {link.peer} ended at once: {error.strerror}"
            self._limited.warning("set", "at once", text, level=logging.INFO)
            return
        self._guarded(link, partial(self._connected, link))

    # ---- outgoing connections

    def _resolve(self, target: Target[TcpLink]) -> None:
        """Resolve the name on another thread, since a name server may not answer for long."""
        try:
            host, port = split_address(target.address)
        except ValueError as error:
            self._failed(target, str(error))
            return
        numeric = _resolve(host, port, socket.AI_NUMERICHOST)
        if not isinstance(numeric, str):
            self._resolved(target, numeric)
            return
        target.is_resolving = True

        def resolve() -> None:
            found = _resolve(host, port)
            self._call(partial(self._resolved, target, found))

        self._threads.thread(resolve, f"{THREAD_NAME}-names").start()

    def _resolved(self, target: Target[TcpLink], found: list[Any] | str) -> None:
        target.is_resolving = False
        if self._targets.get(target.store) is not target:
            return  # meanwhile its address changed, or it is no longer dialed
        if isinstance(found, str):
            self._failed(target, found)
            return
        family, kind, protocol, _, where = found[target.failures % len(found)]
        sock = None
        try:
            sock = socket.socket(family, kind, protocol)
            link = TcpLink(sock, target=target.store, peer=target.address, attend=self._attend_soon)
            self._begin(link, min(self._settings.connect_seconds_max, self._settings.handshake_seconds_max))
        except OSError as error:
            if sock is not None:
                sock.close()
            self._failed(target, _words(error))
            return
        target.attempt = link
        number = sock.connect_ex(where)
        if number in (0, errno.EINPROGRESS):
            self._selector.modify(sock, selectors.EVENT_WRITE, partial(self._ready, link))
        else:
            self._finish(link, os.strerror(number))

    # ---- one link

    def _begin(self, link: TcpLink, seconds: float) -> None:
        link.sock.setblocking(False)
        for level, option, value in _OPTIONS:
            link.sock.setsockopt(level, option, value)
        self._selector.register(link.sock, selectors.EVENT_READ, partial(self._ready, link))
        self._links[link] = None
        link.deadline = self._now() + seconds

    def _attend_soon(self, link: TcpLink) -> None:
        self._call(partial(self._attend, link))

    def _attend(self, link: TcpLink) -> None:
        """Handle a link that was closed, or that got bytes to send that the socket did not take."""
        if link.stage is Stage.DOWN:
            return
        if link.ended_by is not None:
            self._finish(link, link.ended_by)
            return
        self._listen_to(link)

    def _listen_to(self, link: TcpLink) -> None:
        writes = selectors.EVENT_WRITE if link.wants_to_write else 0
        key = self._selector.get_key(link.sock)
        if key.events != selectors.EVENT_READ | writes:
            self._selector.modify(link.sock, selectors.EVENT_READ | writes, key.data)

    def _ready(self, link: TcpLink, events: int) -> None:
        if link.stage is not Stage.DOWN:
            self._guarded(link, partial(self._handle, link, events))

    def _guarded(self, link: TcpLink, act: Callable[[], object]) -> None:
        """Call ``act``. An error of one link ends that link only."""
        try:
            act()
        except FrameError as error:
            link.send(Refused(str(error)))
            self._finish(link, f"it sent an invalid frame: {error}")
        except OSError as error:
            self._finish(link, _words(error))
        except Exception as error:
            kind = type(error).__name__ if link.stage is not Stage.UP else f"{link.member.store} {type(error).__name__}"
            self._limited.warning("set", kind, f"a message of {link} could not be handled", error=error)
            self._finish(link, f"a message could not be handled: {error!r}")

    def _handle(self, link: TcpLink, events: int) -> None:
        if link.stage is Stage.CONNECTING:
            number = link.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if number:
                self._finish(link, os.strerror(number))
                return
            link.deadline = self._now() + self._settings.handshake_seconds_max
            self._selector.modify(link.sock, selectors.EVENT_READ, partial(self._ready, link))
            self._connected(link)
        elif link.stage is Stage.ENCRYPTING:
            self._encrypt(link)
        else:
            if events & selectors.EVENT_READ:
                self._read(link)
            if link.stage is not Stage.DOWN and link.wants_to_write:
                link.flush()
            self._attend(link)

    def _connected(self, link: TcpLink) -> None:
        tls = self._settings.tls
        if tls is None:
            self._greet(link)
            return
        link.stage = Stage.ENCRYPTING
        key = self._selector.unregister(link.sock)
        if link.is_ours:
            host = split_address(link.peer)[0]
            link.sock = tls.client.wrap_socket(link.sock, do_handshake_on_connect=False, server_hostname=host)
        else:
            link.sock = tls.server.wrap_socket(link.sock, do_handshake_on_connect=False, server_side=True)
        self._selector.register(link.sock, selectors.EVENT_READ, key.data)
        self._encrypt(link)

    def _encrypt(self, link: TcpLink) -> None:
        assert isinstance(link.sock, ssl.SSLSocket), "it was wrapped before"
        try:
            link.sock.do_handshake()
        except ssl.SSLWantReadError:
            self._selector.modify(link.sock, selectors.EVENT_READ, partial(self._ready, link))
        except ssl.SSLWantWriteError:
            self._selector.modify(link.sock, selectors.EVENT_WRITE, partial(self._ready, link))
        else:
            self._selector.modify(link.sock, selectors.EVENT_READ, partial(self._ready, link))
            self._greet(link)

    def _greet(self, link: TcpLink) -> None:
        link.stage = Stage.GREETING
        super()._greet(link)

    def _read(self, link: TcpLink) -> None:
        received = link.receive()
        if received is None:
            return
        if not received:
            self._finish(link, "the other side ended the connection")
            return
        self._take_messages(link)

    def _finish(self, link: TcpLink, reason: str) -> None:
        if link.stage is Stage.DOWN:
            return
        was_up = link.is_up
        self._selector.unregister(link.sock)
        self._remove(link, reason)
        link.shut(reason)
        if was_up:
            try:
                self._listener.link_down(link, link.ended_by or reason)
            except Exception:
                logger.exception("the end of the link to %s could not be handled", link.member.node)
        elif not link.is_ours:
            # For peers that know the token, one line for each host: two may have copies of one disk.
            is_proved = link.handshake is not None and link.handshake.is_proved
            host = link.peer.rpartition(":")[0] if is_proved else ""
            text = f"the connection from {link.peer} ended before its handshake: {reason}"
            self._limited.warning(f"set {host}", reason.partition(":")[0], text, level=logging.INFO)


# ---- addresses and sockets


def split_address(address: str) -> tuple[str, int]:
    """Split "host:port"; an IPv6 address has brackets. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_OPTIONS: Final = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_COUNT),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_SECONDS_MAX * 1_000),
)


def _listening(host: str, port: int) -> socket.socket:
    family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    is_any_ipv6 = family == socket.AF_INET6 and where[0] == "::" and socket.has_dualstack_ipv6()
    server = socket.create_server(where[:2], family=family, dualstack_ipv6=is_any_ipv6)
    server.setblocking(False)
    return server


def _resolve(host: str, port: int, flags: int = 0) -> list[Any] | str:
    """Return the result of getaddrinfo(3), or the reason for an error."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags) or f"{host} has no address"
    except (OSError, UnicodeError) as error:
        return f"{host} cannot be resolved: {error}"


def _words(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    return error.strerror or str(error)
