"""The loose encoding: the fields in the order of their description. A presence byte precedes a field that may be null.

Readers and writers of both encodings have the same methods, so that the interpreter (codec.py) need not know which one
it has. A reader raises IndexError or struct.error if the frame ends too early.
"""

from __future__ import annotations

import struct

from tandemmq.broker.protocols.openwire.errors import WireError
from tandemmq.store.records.utf import decode_modified, encode_modified

STRING_BYTES_MAX = 0xFFFF
# Bytes of a text beyond ASCII that take as long to read as a field.
_TEXT_BYTES = 8

_I8 = struct.Struct(">b")
_U16 = struct.Struct(">H")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")


class LooseReader:
    """Reads one field after another from ``data``, from ``position`` on. ``work_max``: maximum number of fields."""

    __slots__ = ("_left", "data", "position", "work_max")

    def __init__(self, data: bytes, position: int, work_max: int) -> None:
        self.data = data
        self.position = position
        self.work_max = self._left = work_max

    def spend(self, fields: int) -> None:
        """Count ``fields`` that will be read. Raises WireError when the sum exceeds ``work_max``."""
        self._left -= fields
        if self._left < 0:  # prove: fields-of-a-command-are-bounded
            raise WireError(f"more than {self.work_max} fields and objects, or as much text")

    def boolean(self) -> bool:
        return self.number() != 0

    def number(self) -> int:
        """Return a data type."""
        value = self.data[self.position]
        self.position += 1
        return value

    def int8(self) -> int:
        value: int = _I8.unpack_from(self.data, self.position)[0]
        self.position += 1
        return value

    def int16(self) -> int:
        value: int = _I16.unpack_from(self.data, self.position)[0]
        self.position += 2
        return value

    def int32(self) -> int:
        value: int = _I32.unpack_from(self.data, self.position)[0]
        self.position += 4
        return value

    def int64(self) -> int:
        value: int = _I64.unpack_from(self.data, self.position)[0]
        self.position += 8
        return value

    def text(self) -> str | None:
        return self.decoded(self.octets(self.uint16())) if self.boolean() else None

    def decoded(self, data: bytes) -> str:
        """Return the text of ``data``, which counts as work if it is not ASCII."""
        if not data.isascii():
            self.spend(len(data) // _TEXT_BYTES)
        return decode_modified(data)

    def blob(self) -> bytes | None:
        return self.octets(self.int32()) if self.boolean() else None

    def is_marshalled(self) -> bool:
        """Return False: only the tight encoding may hold the object as a frame of its own."""
        return False

    def uint16(self) -> int:
        value: int = _U16.unpack_from(self.data, self.position)[0]
        self.position += 2
        return value

    def octets(self, length: int) -> bytes:
        """Return ``length`` bytes unchanged. A length beyond the frame is refused before anything is read."""
        start, stop = self.position, self.position + length
        if not start <= stop <= len(self.data):
            raise WireError(f"a length of {length} bytes where the frame has {len(self.data) - start} left")
        self.position = stop
        return self.data[start:stop]


class LooseWriter:
    """The inverse of LooseReader. Raises struct.error for numbers out of range."""

    __slots__ = ("body",)

    def __init__(self) -> None:
        self.body = bytearray()

    def boolean(self, value: bool) -> None:
        self.body.append(1 if value else 0)

    def number(self, value: int) -> None:
        self.body.append(value)

    def int8(self, value: int) -> None:
        self.body += _I8.pack(value)

    def int16(self, value: int) -> None:
        self.body += _I16.pack(value)

    def int32(self, value: int) -> None:
        self.body += _I32.pack(value)

    def int64(self, value: int) -> None:
        self.body += _I64.pack(value)

    def text(self, value: str | None) -> None:
        self.boolean(value is not None)
        if value is not None:
            data = encode_modified(value)
            if len(data) > STRING_BYTES_MAX:
                raise WireError(f"a string of {len(data)} bytes, at most {STRING_BYTES_MAX}")
            self.body += _U16.pack(len(data))
            self.body += data

    def blob(self, value: bytes | None) -> None:
        self.boolean(value is not None)
        if value is not None:
            self.int32(len(value))
            self.body += value

    def octets(self, value: bytes) -> None:
        self.body += value

    def unmarshalled(self) -> None:
        """Write the flag that ``is_marshalled`` reads as False."""

    def take(self) -> bytes:
        """Return all written bytes, the content of a frame after its data type."""
        return bytes(self.body)
