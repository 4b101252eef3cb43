"""Both ends of the replication network for tests: a listener that records its calls, and a peer with a plain socket."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tandemmq.broker.replication.frames import FRAME_BYTES_MAX, FrameReader, encode
from tandemmq.broker.replication.handshake import Handshake
from tandemmq.broker.replication.messages import Hello, Message
from tandemmq.broker.replication.network import Link
from tandemmq.broker.replication.tcp import TcpNetwork, TcpSettings, Tls, split_address

PATIENCE_SECONDS = 60.0


def store_id(number: int) -> str:
    return f"{number:032x}"


def hello_of(number: int, *, set_id: str | None = None, life: int = 1, address: str = "") -> Hello:
    return Hello("queue", set_id, f"b{number}", store_id(number), life, address, "0" * 64)


def admits_all(hello: Hello, is_proved: bool) -> str | None:
    return None


def handshake_of(
    hello: Hello,
    token: bytes,
    is_dialer: bool,
    admits: Callable[[Hello, bool], str | None] = admits_all,
    *,
    challenge: str | None = None,
) -> Handshake:
    """Return a side of a handshake. Without ``challenge``, it has a former version."""
    return Handshake(hello, token, is_dialer, admits, challenge=challenge, may_be_plain=lambda store: False)


def eventually(holds: Callable[[], Any], what: str = "") -> Any:
    end = time.monotonic() + PATIENCE_SECONDS
    while not (found := holds()):
        assert time.monotonic() < end, f"in {PATIENCE_SECONDS:g} s: {what or holds}"
        time.sleep(0.005)
    return found


class Node:
    """A member of a set that records its calls, and its network."""

    def __init__(self, number: int, *, token: bytes = b"secret", tls: Tls | None = None, **changes: Any) -> None:
        self.said = hello_of(number)
        self.refuses: str | None = None
        self.known = {store_id(number) for number in range(100)}
        self.heard: list[tuple[str, int]] = []  # node and life of each completed handshake
        self.up: list[Link] = []
        self.events: list[tuple[str, Link, str]] = []
        self.messages: list[tuple[Link, Message]] = []
        self.on_message: Callable[[Link, Message], object] = lambda link, message: None
        self.threads: set[str] = set()
        settings = TcpSettings("127.0.0.1", 0, "127.0.0.1", token, tls, pause_seconds_min=0.02, pause_seconds_max=0.1)
        self.network = TcpNetwork(replace(settings, **changes))

    @property
    def store(self) -> str:
        return self.said.store

    def start(self) -> str:
        self.address = self.network.start(self)
        return self.address

    def link(self, store: str, *, is_ours: bool) -> Link | None:
        return next((link for link in self.up if link.member.store == store and link.is_ours is is_ours), None)

    def wait_link(self, store: str, *, is_ours: bool) -> Link:
        eventually(lambda: self.link(store, is_ours=is_ours), f"a link to {store}")
        found = self.link(store, is_ours=is_ours)
        assert found is not None, "it stays up"
        return found

    def received_on(self, link: Link) -> list[Message]:
        return [message for on, message in list(self.messages) if on is link]

    # ---- the listener

    def link_up(self, link: Link) -> None:
        self.threads.add(threading.current_thread().name)
        self.events.append(("up", link, ""))
        self.up = [*self.up, link]

    def link_down(self, link: Link, reason: str) -> None:
        self.threads.add(threading.current_thread().name)
        assert link in self.up, "a link that was up goes down, once"
        self.events.append(("down", link, reason))
        self.up = [other for other in self.up if other is not link]

    def received(self, link: Link, message: Message) -> None:
        assert link in self.up, "messages come while it is up"
        self.threads.add(threading.current_thread().name)
        self.messages.append((link, message))
        self.on_message(link, message)

    def hello(self) -> Hello:
        return self.said

    def knows(self, store: str) -> bool:
        return store in self.known

    def admits(self, hello: Hello, is_proved: bool) -> str | None:
        self.heard.append((hello.node, hello.life))
        return self.refuses


class RawPeer:
    """A member with a plain socket, which reads only on request. ``is_former``: it has a former version."""

    def __init__(
        self,
        address: str,
        hello: Hello,
        *,
        token: bytes = b"secret",
        tls: ssl.SSLContext | None = None,
        source: str | None = None,
        is_former: bool = False,
    ) -> None:
        own = None if source is None else (source, 0)
        self.sock: socket.socket = socket.create_connection(split_address(address), PATIENCE_SECONDS, own)
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock, server_hostname="127.0.0.1")
        challenge = None if is_former else "3" * 64
        self.handshake = handshake_of(replace(hello, nonce="1" * 64), token, True, challenge=challenge)
        self.reader = FrameReader(FRAME_BYTES_MAX)

    def greet(self) -> RawPeer:
        self.send(*self.handshake.start())
        while self.handshake.peer is None:
            self.send(*self.handshake.receive(self.read()))
            assert self.handshake.refused is None, self.handshake.refused
        return self

    def send(self, *messages: Message) -> None:
        self.sock.sendall(b"".join(map(encode, messages)))

    def read(self) -> Message:
        while (message := self.reader.next_message()) is None:
            data = self.sock.recv(1 << 20)
            if not data:
                raise EOFError
            self.reader.feed(data)
        return message

    def close(self) -> None:
        self.sock.close()
