"""Errors in the bytes of an OpenWire peer, and values that have no place in its format."""

from __future__ import annotations


class WireError(Exception):
    """Bytes of the peer that are no OpenWire, or that break a limit; the text says what, where and by how much.

    There is no place after such bytes from which reading could continue: the connection ends (OpenWireFormat does the
    same). Raised for writing too, where a version has no room for a value.
    """


class FrameTooLong(WireError):
    """Frame of ``size`` bytes, more than ``limit``. ``head``: its beginning, the size included. Its rest is passed
    over."""

    def __init__(self, head: bytes, size: int, limit: int) -> None:
        super().__init__(f"a frame of {size} bytes; 1 to {limit} are allowed")
        self.head = head
        self.size = size
        self.limit = limit
