"""STOMP connection of the driver: made with blocking calls, then used without blocking.

The connect is not measured, so it is simple; once made, a connection is non-blocking and belongs to an epoll loop
(bench/worker.py).
"""

import socket
import ssl
import time
from dataclasses import dataclass
from typing import Any

from tandemmq.bench.frames import command_frame, header_of
from tandemmq.client.tls import TlsFiles

CONNECT_TIMEOUT_SECONDS = 10.0
HANDSHAKE_BYTES_MAX = 64 * 1024
SOCKET_BUFFER_BYTES = 1024 * 1024


class BenchError(Exception):
    """The measurement cannot go on; the message has the answer or action of the broker."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of the broker, and our login; without a login the name of our certificate counts."""

    host: str
    port: int
    login: str = "guest"
    passcode: str = "guest"
    virtual_host: str = "/"
    version: str = "1.2"
    tls: TlsFiles | None = None  # None: no TLS


class TlsSocket(ssl.SSLSocket):
    """A non-blocking TLS socket that can be polled like a plain one: ``recv`` reads all that came, because no poll
    reports what TLS keeps; an incomplete record counts as nothing."""

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
    """Return a blocking socket on which CONNECTED has been read. Raises OSError or BenchError."""
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
    """Send a frame and wait for its receipt, which is the next frame on a quiet connection."""
    peer.sendall(command_frame(command, [*headers, ("receipt", receipt)]))
    answer = read_frame(peer)
    if not answer.startswith(b"RECEIPT"):
        raise BenchError(f"{command} failed: {error_text(answer)}")


def read_frame(peer: socket.socket) -> bytes:
    """Return the next frame without its final NUL, read byte by byte so that nothing behind it is taken."""
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
    """Request the receipt of DISCONNECT, so that all frames sent before are processed; then close.

    Frames still on their way to us are dropped. A broker that does not answer in time is not waited for.
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
    """Return the text of an ERROR frame in one line."""
    message = (header_of(frame, b"message") or b"").decode(errors="replace")
    body = frame.partition(b"\n\n")[2].decode(errors="replace").strip().splitlines()
    return " – ".join(filter(None, (message, body[0] if body else ""))) or repr(frame[:80])
