"""The frames that a STOMP 1.2 client writes. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tandemmq.broker.protocols.stomp.dialects import V10, V12
from tandemmq.broker.protocols.stomp.frames import Limits

# Frames of a broker: those of producers, with headers of the broker added.
LIMITS = Limits(
    header_line_bytes_max=64 * 1024,
    headers_max=2_000,
    head_bytes_max=16 * 1024 * 1024,
    frame_bytes_max=256 * 1024 * 1024,
)
# STOMP 1.2, Body: these commands may have a body, and with content-length it may hold a NUL.
BODIED = frozenset(("MESSAGE", "ERROR"))
HEART_BEAT = b"\n"
# The client writes these itself; a caller's own would break the frame, or the tracking of receipts.
RESERVED = frozenset(("content-length", "destination", "receipt", "transaction"))


def frame(command: str, headers: Mapping[str, str]) -> bytes:
    """Return a frame without a body."""
    return (f"{command}\n{header_lines(headers)}\n\0").encode()


def connect_frame(headers: Mapping[str, str]) -> bytes:
    """Return CONNECT, whose headers are never escaped (STOMP 1.2, Value Encoding)."""
    lines = "".join(f"{name}:{V10.escape(value)}\n" for name, value in headers.items())
    return f"CONNECT\n{lines}\n\0".encode()


def header_lines(headers: Mapping[str, str]) -> str:
    """Return the lines of a header block, escaped."""
    escape = V12.escape
    return "".join(f"{escape(name)}:{escape(value)}\n" for name, value in headers.items())


def send_head(destination: str, headers: Mapping[str, str]) -> bytes:
    """Return the part of a SEND that many messages share. Persistent unless the headers say otherwise."""
    found = RESERVED.intersection(headers)
    if found:
        raise ValueError(f"header {sorted(found)[0]!r}: the client writes it itself")
    return f"SEND\n{header_lines({'destination': destination, 'persistent': 'true', **headers})}".encode()


def send_frame(head: bytes, variable: bytes, body: bytes, *, is_bytes: bool = False) -> bytes:
    """Return a SEND. It has content-length only when ``is_bytes`` or when the body needs it: without one, brokers take
    it for a text message."""
    if is_bytes or b"\0" in body or not _is_text(body):
        return b"%b%bcontent-length:%d\n\n%b\0" % (head, variable, len(body), body)
    return b"%b%b\n%b\0" % (head, variable, body)


def _is_text(body: bytes) -> bool:
    if body.isascii():
        return True
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True
