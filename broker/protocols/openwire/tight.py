"""Tight encoding: flags and small values are bits before the body, all those of a frame together.

    u1 n, or C0 u1 n, or 80 u2 n       n <= 32767: number of bytes of bits
    n bytes                            bit k is bit k % 8 of byte k / 8, the least first
    body                               fields without their bits

Bits and body hold the fields in the same order, so that one pass reads both, and one writes both.
(BooleanStream, BaseDataStreamMarshaller; openwire.md 4.2)
"""

from __future__ import annotations

import struct

from tandemmq.broker.protocols.openwire.errors import WireError
from tandemmq.broker.protocols.openwire.loose import LooseReader, LooseWriter
from tandemmq.store.records.utf import encode_modified

BIT_BYTES_MAX = 0x7FFF  # Java counts them in a short
STRING_BYTES_MAX = 0x7FFF
_ESCAPE_U8 = 0xC0
_ESCAPE_U16 = 0x80
_PLAIN_MAX = 63

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U8_COUNT = struct.Struct(">BB")
_U16_COUNT = struct.Struct(">BH")


class TightReader(LooseReader):
    """Reader with the methods of LooseReader; the frame's bits are at ``position``."""

    __slots__ = ("_bit", "_bits", "_stop")

    def __init__(self, data: bytes, position: int, work_max: int) -> None:
        super().__init__(data, position, work_max)
        count = self.number()
        if count == _ESCAPE_U8:
            count = self.number()
        elif count == _ESCAPE_U16:
            count = self.uint16()
        if count > BIT_BYTES_MAX:
            raise WireError(f"{count} bytes of booleans, at most {BIT_BYTES_MAX}")
        self._bits = self.octets(count)
        self._bit = 0
        self._stop = count * 8

    def boolean(self) -> bool:
        bit = self._bit
        if bit >= self._stop:
            raise WireError("the booleans end too early")
        self._bit = bit + 1
        return self._bits[bit >> 3] >> (bit & 7) & 1 == 1

    def int64(self) -> int:
        if self.boolean():
            return super().int64() if self.boolean() else self._uint32()
        return self.uint16() if self.boolean() else 0

    def text(self) -> str | None:
        if not self.boolean():
            return None
        is_ascii = self.boolean()
        data = self.octets(self.uint16())
        # Java makes one character of each byte there, whatever it is.
        return data.decode("latin-1") if is_ascii else self.decoded(data)

    def is_marshalled(self) -> bool:
        return self.boolean()

    def _uint32(self) -> int:
        value: int = _U32.unpack_from(self.data, self.position)[0]
        self.position += 4
        return value


class TightWriter(LooseWriter):
    """The inverse of TightReader."""

    __slots__ = ("_bits",)

    def __init__(self) -> None:
        super().__init__()
        self._bits = bytearray()  # one byte for each

    def boolean(self, value: bool) -> None:
        self._bits.append(1 if value else 0)

    def int64(self, value: int) -> None:
        is_wide = not 0 <= value <= 0xFFFF
        self.boolean(is_wide)
        if not is_wide:
            self.boolean(value != 0)
            if value:
                self.body += _U16.pack(value)
        elif 0 <= value <= 0xFFFFFFFF:
            self.boolean(False)
            self.body += _U32.pack(value)
        else:
            self.boolean(True)
            super().int64(value)

    def text(self, value: str | None) -> None:
        self.boolean(value is not None)
        if value is not None:
            self.boolean(value.isascii() and "\0" not in value)
            data = encode_modified(value)
            if len(data) > STRING_BYTES_MAX:
                raise WireError(f"a string of {len(data)} bytes, at most {STRING_BYTES_MAX}")
            self.body += _U16.pack(len(data))
            self.body += data

    def unmarshalled(self) -> None:
        self.boolean(False)

    def take(self) -> bytes:
        """Return the bits, then the body."""
        count = (len(self._bits) + 7) // 8
        if count > BIT_BYTES_MAX:
            raise WireError(f"{count} bytes of booleans, at most {BIT_BYTES_MAX}")
        if count <= _PLAIN_MAX:
            head = bytes((count,))
        elif count <= 0xFF:
            head = _U8_COUNT.pack(_ESCAPE_U8, count)
        else:
            head = _U16_COUNT.pack(_ESCAPE_U16, count)
        # As digits of one number, the last bit first: the fastest way in Python.
        digits = self._bits[::-1].translate(_DIGITS)
        bits = int(digits, 2).to_bytes(count, "little") if digits else b""
        return head + bits + self.body


_DIGITS = bytes.maketrans(b"\0\1", b"01")
