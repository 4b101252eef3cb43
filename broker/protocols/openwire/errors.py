"""What can be wrong with the bytes of an OpenWire peer, or with what one is to be sent."""

from __future__ import annotations


class WireError(Exception):
    """The peer's bytes are no OpenWire, or break a limit; the text says what, where and by how much.

    There is no place behind such bytes from which reading could go on: the connection ends (OpenWireFormat does the
    same). Raised for writing too, where a version has no room for a value.
    """
