"""What can be wrong with the bytes of an OpenWire peer, or with what one is to be sent."""

from __future__ import annotations


class WireError(Exception):
    """The peer's bytes are no OpenWire, or break a limit; the text says what, where and by how much.

    There is no place behind such bytes from which reading could go on: the connection ends (OpenWireFormat does the
    same). Raised for writing too, where a version has no room for a value.
    """


class FrameTooLong(WireError):
    """A frame has ``size`` bytes, more than ``limit``. ``head``: its beginning, the size included. Its rest is passed
    over."""

    def __init__(self, head: bytes, size: int, limit: int) -> None:
        super().__init__(f"a frame of {size} bytes; 1 to {limit} are allowed")
        self.head = head
        self.size = size
        self.limit = limit
