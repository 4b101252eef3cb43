"""The real network: TCP, and TLS where it is configured. One thread owns all sockets.

It accepts connections, dials the given addresses again and again, and carries out handshakes. It reads links that are
up, and hands their messages to the listener. Nothing on this thread waits: names are resolved on threads of their own,
and sockets do not block.

For each store at most one link of each direction is up. A newer link replaces an older one, since a peer that lost its
power leaves a connection that looks alive.
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
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from tandemmq.broker.replication.handshake import HANDSHAKE_SECONDS_MAX, Handshake, Introduction
from tandemmq.broker.replication.messages import (
    FRAME_BYTES_MAX,
    NONCE_BYTES,
    Challenge,
    FrameError,
    Hello,
    Message,
    Proof,
    Refused,
    name_of,
)
from tandemmq.broker.replication.network import Listener, Member
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


class _Target:
    """A store to connect to; one attempt at a time."""

    def __init__(self, store: str, address: str) -> None:
        self.store = store
        self.address = address
        self.link: TcpLink | None = None  # up
        self.linked_address = ""  # at which it was dialed
        self.attempt: TcpLink | None = None
        self.is_resolving = False
        self.failures = 0
        self.next_at = 0.0
        self.trouble = ""  # last logged reason
        self.is_former = False  # it refused CHALLENGE: the next attempt begins with HELLO

    def is_due(self, now: float) -> bool:
        return self.needs_link and self.next_at <= now

    @property
    def needs_link(self) -> bool:
        is_there = self.link is not None and self.linked_address == self.address
        return not is_there and self.attempt is None and not self.is_resolving


class TcpNetwork:
    """Network over TCP; see ``network.Network``."""

    def __init__(self, settings: TcpSettings, threads: Threads = OS_THREADS) -> None:
        self._settings = settings
        self._threads = threads
        self._now = threads.monotonic
        self._selector = selectors.DefaultSelector()
        self._calls: deque[Callable[[], object]] = deque()
        self._wakes, self._waker = socket.socketpair()
        self._is_woken = False
        self._is_ending = False
        self._accepts_at: float | None = None  # None: it accepts now
        self._links: dict[TcpLink, None] = {}  # all, by age
        self._up: dict[tuple[str, bool], TcpLink] = {}  # by store and direction
        self._targets: dict[str, _Target] = {}
        self._limited = LimitedLog(logger)  # for events that any host can cause
        self._listener: Listener
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
                self._look_at_the_clock()
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
        times += [target.next_at for target in self._targets.values() if target.needs_link]
        if self._accepts_at is not None:
            times.append(self._accepts_at)
        return max(0.0, min(times) - self._now()) if times else None

    def _look_at_the_clock(self) -> None:
        now = self._now()
        for link in [link for link in self._links if link.deadline is not None and link.deadline <= now]:
            self._finish(link, f"no {'connection' if link.stage is Stage.CONNECTING else 'handshake'} in time")
        for target in list(self._targets.values()):
            if target.is_due(now):
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

    def _dial(self, addresses: dict[str, str]) -> None:
        for store in self._targets.keys() - addresses.keys():
            target = self._targets.pop(store)
            for link in (target.attempt, target.link):
                if link is not None:
                    self._finish(link, "it is not to be dialed any more")
        for store, address in addresses.items():
            former = self._targets.get(store)
            if former is not None and former.address == address:
                continue
            target = self._targets[store] = _Target(store, address)
            if former is not None:  # its link stays until there is another one: it may be the only working one
                target.link, target.linked_address = former.link, former.linked_address
                if former.attempt is not None:
                    self._finish(former.attempt, "its address has changed")

    def _resolve(self, target: _Target) -> None:
        """Resolve the name on another thread, since a name server may not answer for long."""
        try:
            host, port = split_address(target.address)
        except ValueError as error:
            self._failed(target, str(error))
            return
        target.is_resolving = True
        if _is_numeric(host):
            self._resolved(target, _resolve(host, port))
            return

        def resolve() -> None:
            found = _resolve(host, port)
            self._call(partial(self._resolved, target, found))

        self._threads.thread(resolve, f"{THREAD_NAME}-names").start()

    def _resolved(self, target: _Target, found: list[Any] | str) -> None:
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

    def _failed(self, target: _Target, why: str) -> None:
        target.failures += 1
        longest = self._settings.pause_seconds_max
        pause = min(longest, self._settings.pause_seconds_min * 2.0 ** min(target.failures - 1, 30))
        # nosec B311: two that dial at the same time shall not do so for ever; nothing is secret in it
        target.next_at = self._now() + pause * (0.5 + random.random() / 2)  # nosec B311
        if why != target.trouble:
            target.trouble = why
            logger.info("store %s at %s cannot be reached: %s", target.store, target.address, why)

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
            self._guarded(link, partial(self._go_on, link, events))

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

    def _go_on(self, link: TcpLink, events: int) -> None:
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
        hello = replace(self._listener.hello(), nonce=os.urandom(NONCE_BYTES).hex(), as_sent=None)
        token, target = self._settings.token, self._targets.get(link.target or "")
        link.handshake = Introduction(
            Handshake(hello, token, link.is_ours, partial(self._admits, link)),
            os.urandom(NONCE_BYTES).hex(),
            token,
            link.is_ours,
            begins_plain=target is not None and target.is_former,
            may_be_plain=self._may_be_plain,
        )
        for message in link.handshake.start():
            link.send(message)

    def _may_be_plain(self, store: str) -> bool:
        """Return whether a node of that store may be of an older version, which begins with HELLO. Without a token any
        node may join, and learns names anyway."""
        if not self._settings.token:
            return True
        return self._listener.knows(store) and not self._is_introduced(store)

    def _is_introduced(self, store: str) -> bool:
        """Return whether a link to the store is up that began with an introduction: it runs this version, or a later
        one."""
        links = (self._up.get((store, is_ours)) for is_ours in (True, False))
        return any(each is not None and each.handshake is not None and each.handshake.is_introduced for each in links)

    def _admits(self, link: TcpLink, hello: Hello, is_proved: bool) -> str | None:
        if link.target not in (None, hello.store):
            return f"store {link.target} was dialed, and this is {hello.store}"
        life = max((other.member.life for other in self._up.values() if other.member.store == hello.store), default=0)
        # The listener hears an older life, too, or it would not know that two processes are alive.
        # prove: an-older-life-is-heard order later-life-is-linked
        if (refusal := self._listener.admits(hello, is_proved)) is not None:
            return refusal
        if life > hello.life:  # prove: later-life-is-linked "life > hello.life" -> "False"
            return f"life {life} of store {hello.store} is connected; this is life {hello.life}"
        return None

    def _read(self, link: TcpLink) -> None:
        received = link.receive()
        if received is None:
            return
        if not received:
            self._finish(link, "the other side ended the connection")
            return
        while link.ended_by is None and (message := link.reader.next_message()) is not None:
            if link.stage is Stage.GREETING:
                self._shake_hands(link, message)
            elif isinstance(message, Refused):
                self._finish(link, f"refused by the other side: {message.reason}")
            elif isinstance(message, Challenge | Hello | Proof):
                raise FrameError(f"{name_of(message)} after the handshake")
            else:
                self._listener.received(link, message)

    def _shake_hands(self, link: TcpLink, message: Message) -> None:
        handshake = link.handshake
        assert handshake is not None, "who greets has one"
        for answer in handshake.receive(message):
            link.send(answer)
        if handshake.refused is not None:
            self._finish(link, handshake.refused)
        elif handshake.peer is not None:
            self._come_up(link, handshake.peer)

    def _come_up(self, link: TcpLink, hello: Hello) -> None:
        older = [other for other in self._up.values() if other.member.store == hello.store]
        link.member = Member(hello.store, hello.node, hello.life, hello.set, hello.address)
        link.stage, link.deadline, link.up_at = Stage.UP, None, self._now()
        link.reader.bytes_max = FRAME_BYTES_MAX
        self._up[hello.store, link.is_ours] = link
        target = self._targets.get(hello.store)
        if link.is_ours and target is not None:
            target.link, target.linked_address, target.attempt, target.trouble = link, link.peer, None, ""
        for other in older:
            if other.is_ours == link.is_ours or other.member.life < hello.life:
                self._finish(other, "a newer link takes its place")
        self._listener.link_up(link)

    def _finish(self, link: TcpLink, reason: str) -> None:
        if link.stage is Stage.DOWN:
            return
        was_up = link.stage is Stage.UP
        self._selector.unregister(link.sock)
        link.shut(reason)
        del self._links[link]
        target = self._targets.get(link.target or "")
        if target is not None and link in (target.attempt, target.link):
            is_former = link.handshake is not None and link.handshake.is_former
            target.is_former = is_former and not self._is_introduced(target.store)
        if target is not None and target.attempt is link:
            target.attempt = None
            self._failed(target, reason)
        elif target is not None and target.link is link:
            target.link = None
            if self._now() - link.up_at >= self._settings.pause_seconds_max:
                target.failures = 0
            self._failed(target, reason)
        if was_up:
            if self._up.get((link.member.store, link.is_ours)) is link:
                del self._up[link.member.store, link.is_ours]
            try:
                self._listener.link_down(link, link.ended_by or reason)
            except Exception:
                logger.exception("the end of the link to %s could not be handled", link.member.node)
        elif not link.is_ours:
            # For peers that know the token, one line for each host: two may have copies of one disk.
            is_proved = link.handshake is not None and link.handshake.is_proved
            who = link.peer.rpartition(":")[0] if is_proved else ""
            text = f"the connection from {link.peer} ended before its handshake: {reason}"
            self._limited.warning(f"set {who}", reason.partition(":")[0], text, level=logging.INFO)


# ---- addresses and sockets


def split_address(address: str) -> tuple[str, int]:
    """Split "host:port"; an IPv6 address has brackets. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{address!r} is no host:port")
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


def _is_numeric(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return True
    return False


def _resolve(host: str, port: int) -> list[Any] | str:
    """Return the result of getaddrinfo(3), or the reason for an error."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM) or f"{host} has no address"
    except (OSError, UnicodeError) as error:
        return f"{host} cannot be resolved: {error}"


def _words(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    return error.strerror or str(error)
