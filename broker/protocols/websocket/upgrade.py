"""HTTP request by which a client opens a WebSocket (RFC 6455, 4), and the answers to it. Pure.

Any other request gets an HTTP response with the reason, and the connection ends. No extension is ever accepted, so
nothing is compressed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final, NamedTuple

#: Limit of the whole request. Browsers send 500 bytes, and their cookies for the host.
REQUEST_BYTES_MAX: Final = 16 * 1024
HEADERS_MAX: Final = 100
_END: Final = b"\r\n\r\n"
_METHOD: Final = b"GET "
_VERSION: Final = "13"
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LINE: Final = re.compile(r"([A-Z]+) (\S+) HTTP/(\d\.\d)")
# RFC 6455, 1.3.
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_ONCE: Final = frozenset(("host", "origin", "sec-websocket-key", "sec-websocket-version", "upgrade", "content-length"))


class Refusal(Exception):
    """Refusal of a WebSocket. ``answer``: the HTTP response."""

    def __init__(self, status: HTTPStatus, reason: str, headers: str = "") -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason
        self._headers = headers

    @property
    def answer(self) -> bytes:
        body = f"{self.reason}\n".encode()
        return (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\nConnection: close\r\n{self._headers}"
            f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body


class Request(NamedTuple):
    """Request of a client. ``protocols``: the subprotocols that it offers, the preferred one first."""

    host: str
    origin: str | None
    protocols: tuple[str, ...]
    key: str

    def choose(self, known: Sequence[str]) -> str | None:
        """Return the first name of ``known``, the best one first, that the client offers; None: it offers none.
        Refusal: none of them is known. Several clients offer the oldest version first."""
        if not self.protocols:
            return None
        for protocol in known:
            if protocol in self.protocols:
                return protocol
        raise Refusal(HTTPStatus.BAD_REQUEST, f"The subprotocols of this port are {', '.join(known)}.")


class RequestParser:
    """Parser of the request: ``feed`` returns it when it is complete; then ``rest`` has the bytes after it."""

    __slots__ = ("_data", "rest")

    def __init__(self) -> None:
        self._data = bytearray()
        self.rest = b""

    @property
    def waiting_bytes(self) -> int:
        """Number of bytes of the request so far."""
        return len(self._data)

    def feed(self, data: bytes) -> Request | None:
        """Return the request when it is complete; None: more bytes are needed. Raises Refusal; after that the parser
        must not be used."""
        searched = max(0, len(self._data) - len(_END) + 1)
        self._data += data[: REQUEST_BYTES_MAX + 1]
        if not _METHOD.startswith(bytes(self._data[: len(_METHOD)])):
            raise _bad("This port serves WebSocket, which begins with GET.")
        end = self._data.find(_END, searched)
        if end < 0:
            if len(self._data) > REQUEST_BYTES_MAX:
                raise Refusal(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                    f"A request must have at most {REQUEST_BYTES_MAX} bytes.",
                )
            return None
        whole = end + len(_END)
        self.rest = data[whole - (len(self._data) - min(len(data), REQUEST_BYTES_MAX + 1)) :]
        text = self._data[:end].decode("latin-1")
        self._data.clear()
        return _request(text)


def _request(text: str) -> Request:
    line, *lines = text.split("\r\n")
    found = _LINE.fullmatch(line)
    if found is None:
        raise _bad("The first line is not an HTTP request.")
    if found[3] != "1.1":
        raise Refusal(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "WebSocket needs HTTP/1.1.")
    headers = _headers(lines)
    if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
        raise _bad("A request for a WebSocket must have no body.")
    if "host" not in headers:
        raise _bad("The header Host is missing.")
    is_upgrade = "upgrade" in _tokens(headers.get("connection", "").lower())
    if not is_upgrade or "websocket" not in _tokens(headers.get("upgrade", "").lower()):
        raise Refusal(HTTPStatus.UPGRADE_REQUIRED, "This port serves WebSocket.", "Upgrade: websocket\r\n")
    if headers.get("sec-websocket-version") != _VERSION:
        raise Refusal(
            HTTPStatus.UPGRADE_REQUIRED,
            f"Only WebSocket version {_VERSION}.",
            f"Upgrade: websocket\r\nSec-WebSocket-Version: {_VERSION}\r\n",
        )
    key = headers.get("sec-websocket-key", "")
    try:
        is_key = len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        is_key = False
    if not is_key:
        raise _bad("Sec-WebSocket-Key must be 16 bytes in Base64.")
    protocols = tuple(_tokens(headers.get("sec-websocket-protocol", "")))
    return Request(headers["host"], headers.get("origin"), protocols, key)


def _headers(lines: list[str]) -> dict[str, str]:
    if len(lines) > HEADERS_MAX:
        raise Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"A request must have at most {HEADERS_MAX} headers.")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _NAME.fullmatch(name) or any(each in value for each in "\r\n\0"):
            raise _bad("A header must be a name, a colon and a value on one line.")
        name, value = name.lower(), value.strip(" \t")
        if name in headers:
            if name in _ONCE:
                raise _bad(f"The header {name} occurs twice.")
            value = f"{headers[name]}, {value}"
        headers[name] = value
    return headers


def _tokens(text: str) -> list[str]:
    return [part for part in (part.strip() for part in text.split(",")) if part]


def _bad(reason: str) -> Refusal:
    return Refusal(HTTPStatus.BAD_REQUEST, reason)


def accepted(request: Request, protocol: str | None) -> bytes:
    """Return the answer that makes it a WebSocket, with the subprotocol that was chosen (4.2.2)."""
    proof = base64.b64encode(hashlib.sha1(request.key.encode() + _GUID, usedforsecurity=False).digest()).decode()
    chosen = "" if protocol is None else f"Sec-WebSocket-Protocol: {protocol}\r\n"
    return (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {proof}\r\n{chosen}\r\n"
    ).encode()
