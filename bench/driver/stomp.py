"""STOMP client of the driver: connections, and frames that are built and read in bulk.

A body contains its producer, number and time, and is then padded to the requested size:

    | producer, 4 digits | blank | sequence, 10 digits | blank | microseconds, 16 digits | x ... |

No body contains a NUL, so a stream of MESSAGE frames can be split at NULs: the driver reads only queues that it filled
itself. Header values are returned as received, still escaped, so that the ``ack`` ids of any broker can be sent back
unchanged.

A connection is made with blocking calls, because this is not measured. After that, it is non-blocking and belongs to an
epoll loop (bench/driver/worker.py).
"""

import re
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tandemmq.client.tls import TlsFiles

BODY_SIZE_MIN = 40
SEQUENCE_START = 5
STAMP_START = 16
STAMP_END = 32

CONNECT_TIMEOUT_SECONDS = 10.0
HANDSHAKE_BYTES_MAX = 64 * 1024
SOCKET_BUFFER_BYTES = 1024 * 1024

_receipts = re.compile(rb"receipt-id:(\d+)").findall


class SendStream:
    """SEND frames of one producer to one destination."""

    __slots__ = ("_filler", "_head", "_middle")

    def __init__(self, destination: str, producer: int, body_bytes: int, *, is_persistent: bool) -> None:
        if body_bytes < BODY_SIZE_MIN:
            raise ValueError(f"a body has at least {BODY_SIZE_MIN} bytes, not {body_bytes}")
        persistent = b"persistent:true\n" if is_persistent else b""
        self._head = b"SEND\ndestination:%b\n%bcontent-length:%d\nreceipt:" % (
            destination.encode(),
            persistent,
            body_bytes,
        )
        self._middle = b"\n\n%04d " % producer
        self._filler = b"x" * (body_bytes - STAMP_END) + b"\0"

    def frames(self, first: int, count: int, stamp_microseconds: int) -> bytes:
        """Return the frames ``first`` to ``first + count - 1``. The number of a frame is also its receipt id. All have
        the same time stamp."""
        head, middle = self._head, self._middle
        tail = b" %016d" % stamp_microseconds + self._filler
        numbers = [b"%010d" % number for number in range(first, first + count)]
        return b"%b%b%b" % (head, (tail + head).join([number + middle + number for number in numbers]), tail)


class TransactedStream:
    """SEND frames like those of SendStream, in transactions of ``batch`` messages. Only COMMIT requests a receipt; its
    id is the number of the last message before it."""

    __slots__ = ("_batch", "_filler", "_head")

    def __init__(self, destination: str, producer: int, body_bytes: int, batch: int) -> None:
        head = b"SEND\ndestination:%b\npersistent:true\ntransaction:t\ncontent-length:%d\n\n%04d "
        self._head = head % (destination.encode(), body_bytes, producer)
        self._filler = b"x" * (body_bytes - STAMP_END) + b"\0"
        self._batch = batch

    def frames(self, first: int, count: int, stamp_microseconds: int) -> bytes:
        """Return the frames ``first`` to ``first + count - 1``. The last transaction may be shorter."""
        tail = b" %016d" % stamp_microseconds + self._filler
        parts = []
        for begin in range(first, first + count, self._batch):
            end = min(begin + self._batch, first + count)
            parts.append(b"BEGIN\ntransaction:t\n\n\0")
            parts += [b"%b%010d%b" % (self._head, number, tail) for number in range(begin, end)]
            parts.append(b"COMMIT\ntransaction:t\nreceipt:%010d\n\n\0" % (end - 1))
        return b"".join(parts)


def read_receipts(data: bytes) -> list[int]:
    """Return the numbers of the RECEIPT frames in ``data``. The caller must compare their count with the number of
    NULs."""
    return list(map(int, _receipts(data)))


class Acknowledgement:
    """Acknowledgements in one version of STOMP: the header of a MESSAGE that identifies it, and the ACK frames.

    STOMP 1.2, ACK: ``id`` repeats the ``ack`` header. STOMP 1.1, ACK: ``message-id`` and ``subscription``.
    """

    __slots__ = ("_between", "_end", "_start", "header")

    def __init__(self, version: str, subscription: str) -> None:
        if version == "1.2":
            self.header = b"\nack:"
            self._start = b"ACK\nid:"
        else:
            self.header = b"\nmessage-id:"
            self._start = b"ACK\nsubscription:%b\nmessage-id:" % subscription.encode()
        self._end = b"\n\n\0"
        self._between = self._end + self._start

    def frames(self, identities: Sequence[bytes]) -> bytes:
        """Return one ACK frame for each identity."""
        return self._start + self._between.join(identities) + self._end if identities else b""


def message_identities(frames: Sequence[bytes], header: bytes) -> list[bytes]:
    """Return the raw value of ``header`` in each MESSAGE frame. Raises ValueError at the first frame without it."""
    length = len(header)
    identities: list[bytes] = []
    add = identities.append
    for frame in frames:
        start = frame.index(header) + length
        add(frame[start : frame.index(b"\n", start)])
    return identities


def sent_microseconds(frame: bytes) -> int:
    """Return the time at which the message was sent, in microseconds by the sender's clock."""
    start = frame.index(b"\n\n") + 2
    return int(frame[start + STAMP_START : start + STAMP_END])


def producer_and_sequence(frame: bytes) -> tuple[int, int]:
    """Return the producer of a message, and its number at this producer."""
    start = frame.index(b"\n\n") + 2
    return int(frame[start : start + 4]), int(frame[start + SEQUENCE_START : start + SEQUENCE_START + 10])


class OrderCheck:
    """Check that the messages of each producer are delivered once, and in the order sent.

    The check succeeds if ``seen`` is the number of sent messages and both other counts are 0.
    """

    __slots__ = ("_next", "late", "seen", "skipped")

    def __init__(self, seen: int = 0, skipped: int = 0, late: int = 0) -> None:
        self._next: dict[int, int] = {}
        self.seen = seen
        self.skipped = skipped
        self.late = late

    def add(self, frames: Sequence[bytes]) -> None:
        """Check MESSAGE frames, in the order of their arrival."""
        expected_of = self._next
        for frame in frames:
            producer, sequence = producer_and_sequence(frame)
            expected = expected_of.get(producer, 0)
            if sequence == expected:
                expected_of[producer] = expected + 1
            elif sequence < expected:  # delivered before, or after a later one
                self.late += 1
            else:
                self.skipped += sequence - expected
                expected_of[producer] = sequence + 1
        self.seen += len(frames)


def header_of(frame: bytes, name: bytes) -> bytes | None:
    """Return the raw first value of a header (STOMP 1.2, Repeated Header Entries); None if absent."""
    head = frame.partition(b"\n\n")[0]
    for line in head.split(b"\n"):
        key, colon, value = line.partition(b":")
        if colon and key == name:
            return value
    return None


def command_frame(command: str, headers: Sequence[tuple[str, str]]) -> bytes:
    """Return a frame without a body."""
    return "".join((command, "\n", *(f"{name}:{value}\n" for name, value in headers), "\n\0")).encode()


# ---- connections


class BenchError(Exception):
    """The measurement cannot continue. The message states the answer or action of the broker."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of the broker, and the login. Without a login, the broker uses the name in the client's certificate."""

    host: str
    port: int
    login: str = "guest"
    passcode: str = "guest"
    virtual_host: str = "/"
    version: str = "1.2"
    tls: TlsFiles | None = None  # None: no TLS


class TlsSocket(ssl.SSLSocket):
    """A non-blocking TLS socket that can be polled like a plain socket. ``recv`` reads all decrypted bytes, because a
    poll does not report them. For an incomplete record it raises BlockingIOError."""

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        if self.gettimeout() != 0.0:
            return super().recv(buflen, flags)
        try:
            data = super().recv(buflen, flags)
            while data and (left := self.pending()):
                data += super().recv(left)
        except ssl.SSLWantReadError:
            raise BlockingIOError from None
        return data

    def send(self, data: Any, flags: int = 0) -> int:
        try:
            return super().send(data, flags)
        except ssl.SSLWantWriteError:
            raise BlockingIOError from None


def connect(
    endpoint: Endpoint, timeout_seconds: float = CONNECT_TIMEOUT_SECONDS, client_id: str | None = None
) -> socket.socket:
    """Return a blocking socket after CONNECTED was read. Raises OSError or BenchError."""
    peer = socket.create_connection((endpoint.host, endpoint.port), timeout_seconds)
    try:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        if endpoint.tls is not None:
            context = endpoint.tls.context()
            context.sslsocket_class = TlsSocket
            peer = context.wrap_socket(peer, server_hostname=endpoint.host)
        headers = [
            ("accept-version", endpoint.version),
            ("host", endpoint.virtual_host),
            ("heart-beat", "0,0"),
        ]
        if endpoint.login:
            headers += [("login", endpoint.login), ("passcode", endpoint.passcode)]
        if client_id is not None:
            headers.append(("client-id", client_id))
        peer.sendall(command_frame("CONNECT", headers))
        answer = read_frame(peer)
        if not answer.startswith(b"CONNECTED"):
            raise BenchError(f"{endpoint.host}:{endpoint.port} refused the connection: {error_text(answer)}")
        return peer
    except BaseException:
        peer.close()
        raise


def request(peer: socket.socket, command: str, headers: list[tuple[str, str]], receipt: str) -> None:
    """Send a frame, and wait for its receipt, which must be the next frame on the connection."""
    peer.sendall(command_frame(command, [*headers, ("receipt", receipt)]))
    answer = read_frame(peer)
    if not answer.startswith(b"RECEIPT"):
        raise BenchError(f"{command} failed: {error_text(answer)}")


def read_frame(peer: socket.socket) -> bytes:
    """Return the next frame without its NUL. It is read byte by byte, so that no bytes after it are read."""
    received = bytearray()
    while True:
        part = peer.recv(1)
        if not part:
            raise BenchError("the broker closed the connection")
        if part == b"\0":
            return bytes(received).lstrip(b"\r\n")
        received += part
        if len(received) > HANDSHAKE_BYTES_MAX:
            raise BenchError(f"no end of frame within {HANDSHAKE_BYTES_MAX} bytes")


def disconnect(peer: socket.socket, timeout_seconds: float) -> None:
    """Send DISCONNECT and wait for its receipt, so that all frames sent before are processed; then close.

    Other frames from the broker are dropped. After ``timeout_seconds`` the socket is closed without the receipt.
    """
    try:
        peer.settimeout(timeout_seconds)
        peer.sendall(command_frame("DISCONNECT", [("receipt", "bye")]))
        until = time.monotonic() + timeout_seconds
        rest = b""
        while b"receipt-id:bye" not in rest and time.monotonic() < until:
            part = peer.recv(1 << 16)
            if not part:
                break
            rest = rest[-64:] + part
    except OSError:
        pass  # the connection ends in any case
    finally:
        peer.close()


def error_text(frame: bytes) -> str:
    """Return the text of an ERROR frame on one line."""
    message = (header_of(frame, b"message") or b"").decode(errors="replace")
    body = frame.partition(b"\n\n")[2].decode(errors="replace").strip().splitlines()
    return " – ".join(filter(None, (message, body[0] if body else ""))) or repr(frame[:80])
