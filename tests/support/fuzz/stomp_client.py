"""A STOMP client over a plain socket that waits for the answer to each frame; for the fuzzer of valid frames."""

from __future__ import annotations

import itertools
import re
import socket
import struct
from dataclasses import dataclass, field

from tests.support.fuzz.books import TRACE, Delivered, Known, Work

#: Timeout for an answer that must come.
SECONDS_MAX = 20.0
BODY = re.compile(rb"m\d+")

_ESCAPED = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", ":": "\\c"}
_MEANT = {"\\\\": "\\", "\\n": "\n", "\\r": "\r", "\\c": ":"}


class Refused(Exception):
    """An ERROR; the connection may have ended."""


@dataclass(slots=True)
class Frame:
    command: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Subscription:
    id: str
    ack: str
    is_browser: bool
    unacknowledged: list[Delivered] = field(default_factory=list)


class Stomp:
    """A connection to ``port``, or over an open socket. ConnectionError: the broker closed the connection;
    TimeoutError: it does not answer."""

    def __init__(self, port: int | socket.socket, version: str, **headers: str) -> None:
        self.version = version
        self.subscriptions: dict[str, Subscription] = {}
        self.transactions: dict[str, Work] = {}
        self.delivered: list[Frame] = []
        self.is_half_closed = False
        self._numbers = itertools.count(1)
        self._buffer = b""
        is_open = isinstance(port, socket.socket)
        self._socket = port if is_open else socket.create_connection(("127.0.0.1", port), SECONDS_MAX)
        self.write("CONNECT", {"accept-version": version, "host": "x", **headers})
        frame = self._read()
        if frame.command != "CONNECTED":
            self.close()
            raise Refused(frame.headers.get("message", ""))

    def name(self) -> str:
        return f"n{next(self._numbers)}"

    # ---- frames

    def write(self, command: str, headers: dict[str, str], body: bytes = b"") -> None:
        TRACE.append(f"{id(self) % 10_000:4} > {command} {headers} {body[:8]!r}")
        lines = "".join(f"{self._escaped(key)}:{self._escaped(value)}\n" for key, value in headers.items())
        self._socket.sendall(f"{command}\n{lines}\n".encode() + body + b"\0")

    def ask(self, command: str, headers: dict[str, str], body: bytes = b"") -> None:
        """Send a frame, and wait for its receipt. Messages delivered in the meantime are kept. Raises Refused."""
        receipt = self.name()
        self.write(command, {**headers, "receipt": receipt}, body)
        self.wait_for(receipt)

    def wait_for(self, receipt: str) -> None:
        while True:
            frame = self._read()
            if frame.command == "MESSAGE":
                self.delivered.append(frame)
            elif frame.headers.get("receipt-id") == receipt or frame.command == "ERROR":
                if frame.command == "RECEIPT":
                    return
                raise Refused(frame.headers.get("message", ""))

    def next_delivered(self) -> Frame:
        while not self.delivered:
            frame = self._read()
            assert frame.command == "MESSAGE", frame
            self.delivered.append(frame)
        return self.delivered.pop(0)

    def _escaped(self, text: str) -> str:
        return text if self.version == "1.0" else re.sub(r"[\\\n\r:]", lambda found: _ESCAPED[found[0]], text)

    def _read(self) -> Frame:
        while self._buffer[:1] == b"\n":
            self._buffer = self._buffer[1:]
        command, *lines = self._until(b"\n\n").decode().split("\n")
        headers: dict[str, str] = {}
        for line in lines:
            key, _, value = line.partition(":")
            if self.version != "1.0":
                value = re.sub(r"\\[\\nrc]", lambda found: _MEANT[found[0]], value)
            headers.setdefault(key, value)
        if "content-length" in headers:
            size = int(headers["content-length"])
            while len(self._buffer) <= size:
                self._more()
            body, self._buffer = self._buffer[:size], self._buffer[size + 1 :]
        else:
            body = self._until(b"\0")
        TRACE.append(f"{id(self) % 10_000:4} < {command} {headers} {body[:40]!r}")
        return Frame(command, headers, body)

    def _until(self, mark: bytes) -> bytes:
        while (at := self._buffer.find(mark)) < 0 or not self._buffer.lstrip(b"\n"):
            self._more()
            while self._buffer[:1] == b"\n":
                self._buffer = self._buffer[1:]
        found, self._buffer = self._buffer[:at], self._buffer[at + len(mark) :]
        return found

    def _more(self) -> None:
        data = self._socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the broker closed the connection")
        self._buffer += data

    # ---- the end

    def lost(self) -> None:
        """The connection has ended: open transactions are rolled back."""
        for work in self.transactions.values():
            work.end(Known.NO)
        self.transactions = {}

    def half_close(self) -> None:
        self.is_half_closed = True
        self._socket.shutdown(socket.SHUT_WR)

    def close(self, *, with_reset: bool = False) -> None:
        if with_reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()
        self.lost()


def body_of(content: bytes) -> str:
    """Return the name of a message from a body of any form; empty if it is not from the fuzzer."""
    found = BODY.search(content)
    return "" if found is None else found[0].decode()
