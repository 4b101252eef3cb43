"""Errors in the bytes of an OpenWire peer, and values that the format cannot express."""

from __future__ import annotations


class WireError(Exception):
    """Bytes of the peer that are not OpenWire, or exceed a limit; the text states what, where and by how much.

    Reading cannot continue after such bytes: the connection ends (OpenWireFormat does the same). Also raised by
    writers, if a version cannot express a value.
    """


class FrameTooLong(WireError):
    """Frame of ``size`` bytes, more than ``limit``. ``head``: its beginning, the size included. The rest is skipped."""

    def __init__(self, head: bytes, size: int, limit: int) -> None:
        super().__init__(f"a frame of {size} bytes; 1 to {limit} are allowed")
        self.head = head
        self.size = size
        self.limit = limit
