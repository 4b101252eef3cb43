"""A connection to a member over TCP: bytes that wait to be sent, TLS, and the received messages.

``send`` writes at once when nothing waits, on the thread that calls it: a batch does not wait for another thread. Bytes
that the socket does not take wait in order, and the network's thread sends them. Data is not copied: a message is a
head and its data, given to the socket together.

With TLS one thread at a time uses the socket, for reading, too: OpenSSL requires it.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from itertools import islice
from typing import Final

from tandemmq.broker.replication.frames import encode_parts
from tandemmq.broker.replication.messages import Message
from tandemmq.broker.replication.network import Link, Member

RECEIVED_BYTES_MAX: Final = 256 << 10  # in one call
BUFFERS_MAX: Final = 64  # in one call that sends
# OpenSSL must get the bytes that it did not take again, so pieces are always cut at the same places.
TLS_PIECE_BYTES: Final = 64 << 10


class Stage(Enum):
    CONNECTING = auto()
    ENCRYPTING = auto()  # TLS has its own handshake
    GREETING = auto()
    UP = auto()
    DOWN = auto()


class TcpLink(Link):
    """A connection to a member. ``attend`` makes the network's thread serve this link; from any thread."""

    def __init__(
        self, sock: socket.socket, *, target: str | None, peer: str, attend: Callable[[TcpLink], object]
    ) -> None:
        super().__init__(target, peer)
        self.sock = sock
        self.stage = Stage.CONNECTING
        self.deadline: float | None = None  # time by which the link must be up
        self._attend = attend
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._is_waited_for = 0
        self._waiting: deque[memoryview] = deque()
        self._unsent = 0
        self._must_read_first = False

    def __str__(self) -> str:
        return f"{self.member.node} at {self.peer}" if self.is_up else self.peer

    # ---- any thread

    @property
    def unsent_bytes(self) -> int:
        return self._unsent

    def send(self, message: Message) -> None:
        head, rest = encode_parts(message)
        size = len(head) + len(rest)
        with self._lock:
            if self.ended_by is not None:
                return
            sent = 0
            is_first = not self._waiting
            if is_first and not isinstance(self.sock, ssl.SSLSocket):
                sent = self._transmit([head, rest] if rest else [head])
                if sent == size:
                    return
            if self.ended_by is None:
                self._put((head, rest), sent)
                if is_first and isinstance(self.sock, ssl.SSLSocket):
                    self._flush()
                    if not self._waiting and self.ended_by is None:
                        return
        if is_first:  # otherwise the network's thread waits for the socket anyway
            self._attend(self)

    def wait_sent(self, below: int, timeout: float) -> bool:
        with self._changed:
            self._is_waited_for += 1
            try:
                self._changed.wait_for(lambda: self._unsent < below or self.ended_by is not None, timeout)
                return self._unsent < below and self.ended_by is None
            finally:
                self._is_waited_for -= 1

    def close(self, reason: str) -> None:
        with self._lock:
            self._end(reason)
        self._attend(self)

    # ---- the network's thread

    def come_up(self, member: Member, now: float) -> None:
        super().come_up(member, now)
        self.stage, self.deadline = Stage.UP, None

    @property
    def wants_to_write(self) -> bool:
        """Return whether bytes wait for the socket to take them."""
        return bool(self._waiting) and not self._must_read_first

    def flush(self) -> None:
        """Send the waiting bytes, as many as the socket takes."""
        with self._lock:
            if self.ended_by is None:
                self._flush()

    def receive(self) -> int | None:
        """Feed ``reader`` with received bytes. Return their number, 0 at the end, None if there are none. Raises
        OSError."""
        reader = self.reader
        try:
            if isinstance(self.sock, ssl.SSLSocket):
                data = self._decrypt(self.sock)
            elif (place := reader.place) is not None:
                count = self.sock.recv_into(place)
                reader.filled(count)
                return count
            else:
                data = self.sock.recv(RECEIVED_BYTES_MAX)
            reader.feed(data)
            return len(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        finally:
            self._must_read_first = False

    def _decrypt(self, sock: ssl.SSLSocket) -> bytes:
        """Decrypt the received bytes. One call of ``recv`` returns at most one small TLS record, so it is called
        several times."""
        parts: list[bytes] = []
        have = 0
        with self._lock:
            try:
                while have < RECEIVED_BYTES_MAX and (data := sock.recv(RECEIVED_BYTES_MAX)):
                    parts.append(data)
                    have += len(data)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if not parts:
                    raise
        return b"".join(parts)

    def shut(self, reason: str) -> None:
        """Close the socket: no byte is sent or received after that."""
        with self._lock:
            self._end(reason)
            self.stage = Stage.DOWN
            self.sock.close()

    # ---- under the lock

    def _end(self, reason: str) -> None:
        if self.ended_by is None:
            self.ended_by = reason
        self._waiting.clear()
        self._unsent = 0
        self._changed.notify_all()

    def _put(self, parts: tuple[bytes | bytearray | memoryview, ...], sent: int) -> None:
        """Queue these parts without their first ``sent`` bytes."""
        for part in parts:
            if sent < len(part):
                self._waiting.append(memoryview(part)[sent:])
                self._unsent += len(part) - sent
            sent = max(0, sent - len(part))

    def _transmit(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        """Return how many bytes the socket took."""
        try:
            if isinstance(self.sock, ssl.SSLSocket):
                return self.sock.send(buffers[0][:TLS_PIECE_BYTES])
            return self.sock.sendmsg(buffers)
        except (BlockingIOError, ssl.SSLWantWriteError):
            return 0
        except ssl.SSLWantReadError:
            self._must_read_first = True
            return 0
        except OSError as error:
            self._end(error.strerror or str(error))
            return 0

    def _flush(self) -> None:
        while self._waiting:
            sent = self._transmit(list(islice(self._waiting, BUFFERS_MAX)))
            if not sent:
                return
            self._unsent -= sent
            while sent:
                first = self._waiting[0]
                if sent < len(first):
                    self._waiting[0] = first[sent:]
                    break
                sent -= len(first)
                self._waiting.popleft()
            if self._is_waited_for:
                self._changed.notify_all()
