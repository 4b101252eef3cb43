"""Codec of AMQP 1.0 types (part 1). Pure.

    40..4f  no bytes        50..5f  1 byte      60..6f  2 bytes     70..7f  4 bytes     80..8f  8 bytes
    90..9f  16 bytes        a0..bf  size, bytes     c0..df  size, count, values
    e0..ff  size, count, constructor, values        00      a descriptor, then the described value

A size has 1 byte in a_, c_, e_, and 4 bytes in b_, d_, f_; it counts the bytes after it. Python types keep the AMQP
types: plain ones for boolean, int, double, string, binary, list and map, the classes below and those of
``store.records.properties`` for the others. Elements of some arrays have no bytes, so the count of an array can be any
number: the reader accepts at most as many values as bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from mypy_extensions import mypyc_attr

from tandemmq.broker.protocols.amqp.errors import DecodeError
from tandemmq.store.records.properties import Byte, Char, Float, Long, Short

# Limits of one read: number of values, including nested ones, and depth of nesting.
VALUES_MAX: Final = 10_000
NESTING_MAX: Final = 32
_INT_MIN, _INT_MAX = -0x80000000, 0x7FFFFFFF


@mypyc_attr(native_class=False)
class UByte(int):
    """An unsigned number of 8 bits."""

    __slots__ = ()


@mypyc_attr(native_class=False)
class UShort(int):
    """An unsigned number of 16 bits."""

    __slots__ = ()


@mypyc_attr(native_class=False)
class UInt(int):
    """An unsigned number of 32 bits."""

    __slots__ = ()


@mypyc_attr(native_class=False)
class ULong(int):
    """An unsigned number of 64 bits."""

    __slots__ = ()


@mypyc_attr(native_class=False)
class Timestamp(int):
    """Milliseconds since 1970."""

    __slots__ = ()


@mypyc_attr(native_class=False)
class Symbol(str):
    """A name of ASCII characters."""

    __slots__ = ()


@mypyc_attr(native_class=False)
class Uuid(bytes):
    """A UUID, 16 bytes."""

    __slots__ = ()


@mypyc_attr(native_class=False)
class Decimal(bytes):
    """A decimal number of 4, 8 or 16 bytes, not decoded."""

    __slots__ = ()


class Array(NamedTuple):
    """An array. The type of its elements determines their constructor."""

    items: tuple[Any, ...]


class Described(NamedTuple):
    """A described value. ``descriptor``: a number or a symbol."""

    descriptor: Any
    value: Any


def _char(code: int) -> Char | str:
    try:
        return Char(chr(code)) if code <= 0xFFFF else chr(code)
    except (ValueError, OverflowError):
        raise DecodeError(f"{code} is no character") from None


def _boolean(value: int) -> bool:
    if value > 1:
        raise DecodeError(f"a boolean has the value {value}")
    return value == 1


_FIXED: Final[dict[int, tuple[struct.Struct, Callable[[Any], Any]]]] = {
    0x50: (struct.Struct(">B"), UByte),
    0x51: (struct.Struct(">b"), Byte),
    0x52: (struct.Struct(">B"), UInt),
    0x53: (struct.Struct(">B"), ULong),
    0x54: (struct.Struct(">b"), int),
    0x55: (struct.Struct(">b"), Long),
    0x56: (struct.Struct(">B"), _boolean),
    0x60: (struct.Struct(">H"), UShort),
    0x61: (struct.Struct(">h"), Short),
    0x70: (struct.Struct(">I"), UInt),
    0x71: (struct.Struct(">i"), int),
    0x72: (struct.Struct(">f"), Float),
    0x73: (struct.Struct(">I"), _char),
    0x74: (struct.Struct(">4s"), Decimal),
    0x80: (struct.Struct(">Q"), ULong),
    0x81: (struct.Struct(">q"), Long),
    0x82: (struct.Struct(">d"), float),
    0x83: (struct.Struct(">q"), Timestamp),
    0x84: (struct.Struct(">8s"), Decimal),
    0x94: (struct.Struct(">16s"), Decimal),
    0x98: (struct.Struct(">16s"), Uuid),
}
_CONSTANTS: Final[dict[int, Any]] = {0x40: None, 0x41: True, 0x42: False, 0x43: UInt(0), 0x44: ULong(0)}
EMPTY_LIST: Final = 0x45
_SIZE: Final = struct.Struct(">I")


class Reader:
    """Reads values of ``data`` from ``at`` on. All methods raise DecodeError for invalid bytes, and if there are more
    values than ``values_max``, or than bytes. ``left``: number of values that it still accepts."""

    __slots__ = ("at", "data", "left")

    def __init__(self, data: bytes, at: int = 0, values_max: int = VALUES_MAX) -> None:
        self.data = data
        self.at = at
        # Elements of an array can have no bytes. This limit bounds the time for them by the number of bytes.
        # prove: amqp-values-cost-bytes "min(values_max, len(data) - at)" -> "values_max"
        self.left = min(values_max, len(data) - at)

    def value(self) -> Any:
        """Return the next value."""
        try:
            return self._value(0)
        except (IndexError, struct.error):
            raise DecodeError("a value is truncated") from None

    def skip(self) -> None:
        """Skip the next value, without its descriptor."""
        try:
            self._skip()
        except (IndexError, struct.error):
            raise DecodeError("a value is truncated") from None

    def _skip(self) -> None:
        data, at = self.data, self.at
        code = data[at]
        width = code >> 4
        if width in (0xA, 0xC, 0xE):
            at += 2 + data[at + 1]
        elif width in (0xB, 0xD, 0xF):
            at += 5 + _SIZE.unpack_from(data, at + 1)[0]
        elif 4 <= width <= 9:
            at += 1 + ((1 << (width - 4)) >> 1)
        else:
            raise DecodeError(f"there is no constructor 0x{code:02x}")
        if at > len(data):
            raise DecodeError("a value is truncated")
        self.at = at

    def _value(self, depth: int) -> Any:
        code = self.data[self.at]
        self.at += 1
        return self._of(code, depth)

    def _of(self, code: int, depth: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise DecodeError("there are too many values")
        fixed = _FIXED.get(code)
        if fixed is not None:
            layout, make = fixed
            at = self.at
            self.at = at + layout.size
            return make(layout.unpack_from(self.data, at)[0])
        if code in _CONSTANTS:
            return _CONSTANTS[code]
        if depth >= NESTING_MAX:
            raise DecodeError(f"values are nested deeper than {NESTING_MAX}")
        if code == 0:
            descriptor = self._value(depth + 1)
            return Described(descriptor, self._value(depth + 1))
        if code == EMPTY_LIST:
            return []
        return self._sized(code, depth + 1)

    def _sized(self, code: int, depth: int) -> Any:
        kind = code & 0xEF if code >= 0xA0 else 0
        is_wide = code & 0x10 != 0
        size = self._count(is_wide)
        stop = self.at + size
        if stop > len(self.data):
            raise DecodeError("a value is truncated")
        found: Any
        if kind == 0xA0:
            found = self.data[self.at : stop]
            self.at = stop
            return found
        if kind == 0xA1 or kind == 0xA3:
            data = self.data[self.at : stop]
            self.at = stop
            return _text(data) if kind == 0xA1 else _symbol(data)
        if kind not in (0xC0, 0xC1, 0xE0):
            raise DecodeError(f"there is no constructor 0x{code:02x}")
        count = self._count(is_wide)
        if kind == 0xE0:
            found = self._array(count, depth)
        elif kind == 0xC0:
            found = [self._value(depth) for _ in range(self._bounded(count))]
        else:
            found = self._map(count, depth)
        if self.at != stop:
            raise DecodeError("the size of a list, map or array differs from the size of its values")
        return found

    def _count(self, is_wide: bool) -> int:
        if is_wide:
            self.at += 4
            return int(_SIZE.unpack_from(self.data, self.at - 4)[0])
        self.at += 1
        return self.data[self.at - 1]

    def _bounded(self, count: int) -> int:
        if count > self.left:
            raise DecodeError("there are too many values")
        return count

    def _map(self, count: int, depth: int) -> dict[Any, Any]:
        if count % 2:
            raise DecodeError("a map has a key without a value")
        found: dict[Any, Any] = {}
        for _ in range(self._bounded(count) // 2):
            key = self._value(depth)
            if isinstance(key, (list, dict, Array, Described)):
                raise DecodeError("a key of a map is a list, a map or an array")
            found[key] = self._value(depth)
        if len(found) * 2 != count:
            raise DecodeError("a map has a key twice")
        return found

    def _array(self, count: int, depth: int) -> Array:
        self._bounded(count)
        code = self.data[self.at]
        self.at += 1
        descriptor = None
        if code == 0:
            descriptor = self._value(depth)
            code = self.data[self.at]
            self.at += 1
            if code == 0:
                raise DecodeError("an array has elements with two descriptors")
            return Array(tuple([Described(descriptor, self._of(code, depth)) for _ in range(count)]))
        return Array(tuple([self._of(code, depth) for _ in range(count)]))


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise DecodeError("a string is not UTF-8") from None


def _symbol(data: bytes) -> Symbol:
    try:
        return Symbol(data.decode("ascii"))
    except UnicodeDecodeError:
        raise DecodeError("a symbol is not ASCII") from None


# ---- writing


def encode(value: Any) -> bytes:
    """Return the bytes of a value, in the shortest form. Raises ValueError for a value without an AMQP type."""
    writer = _WRITERS.get(type(value))
    if writer is None:
        raise ValueError(f"AMQP has no type for a {type(value).__name__}")
    try:
        return writer(value)
    except (struct.error, OverflowError) as error:
        raise ValueError(f"{value!r:.40} does not fit into its AMQP type: {error}") from None


def _sized(code: int, data: bytes) -> bytes:
    """Return bytes with their size: ``code`` is the constructor with a size of one byte."""
    if len(data) < 256:
        return bytes((code, len(data))) + data
    return bytes((code + 0x10,)) + _SIZE.pack(len(data)) + data


def encode_list(items: list[bytes]) -> bytes:
    """Return the bytes of a list of encoded values."""
    if not items:
        return b"\x45"
    return _compound(0xC0, len(items), b"".join(items))


def _compound(code: int, count: int, data: bytes) -> bytes:
    if len(data) < 255 and count < 256:
        return bytes((code, len(data) + 1, count)) + data
    return bytes((code + 0x10,)) + _SIZE.pack(len(data) + 4) + _SIZE.pack(count) + data


def _map(value: dict[Any, Any]) -> bytes:
    return _compound(0xC1, 2 * len(value), b"".join([encode(each) for pair in value.items() for each in pair]))


def _array(value: Array) -> bytes:
    """Return the bytes of an array, whose elements have the widest constructor of their type."""
    items = value.items
    if not items:
        return _compound(0xE0, 0, b"\x40")
    kind = type(items[0])
    if any(type(each) is not kind for each in items):
        raise ValueError("the elements of an array have different types")
    if kind in (str, Symbol, bytes):
        code = {str: 0xB1, Symbol: 0xB3, bytes: 0xB0}[kind]
        texts = [each if kind is bytes else each.encode() for each in items]
        data = b"".join([_SIZE.pack(len(each)) + each for each in texts])
    elif kind is bool:
        code, data = 0x56, bytes(items)
    elif kind in _NUMBERS:
        code, layout = _NUMBERS[kind]
        data = b"".join([layout.pack(each) for each in items])
    elif kind is Uuid:
        code, data = 0x98, b"".join(items)
    else:
        raise ValueError(f"an array of {kind.__name__} is not written")
    return _compound(0xE0, len(items), bytes((code,)) + data)


_NUMBERS: Final[dict[type, tuple[int, struct.Struct]]] = {
    UByte: (0x50, struct.Struct(">B")),
    Byte: (0x51, struct.Struct(">b")),
    UShort: (0x60, struct.Struct(">H")),
    Short: (0x61, struct.Struct(">h")),
    UInt: (0x70, struct.Struct(">I")),
    int: (0x71, struct.Struct(">i")),
    Float: (0x72, struct.Struct(">f")),
    ULong: (0x80, struct.Struct(">Q")),
    Long: (0x81, struct.Struct(">q")),
    float: (0x82, struct.Struct(">d")),
    Timestamp: (0x83, struct.Struct(">q")),
}
_UINT: Final = struct.Struct(">BI")
_ULONG: Final = struct.Struct(">BQ")
_INT: Final = struct.Struct(">Bi")
_LONG: Final = struct.Struct(">Bq")


def _uint(value: int) -> bytes:
    if 0 <= value < 256:
        return bytes((0x52, value)) if value else b"\x43"
    return _UINT.pack(0x70, value)


def _ulong(value: int) -> bytes:
    if 0 <= value < 256:
        return bytes((0x53, value)) if value else b"\x44"
    return _ULONG.pack(0x80, value)


def _int(value: int) -> bytes:
    if not _INT_MIN <= value <= _INT_MAX:
        return _long(value)
    return bytes((0x54, value & 0xFF)) if -128 <= value < 128 else _INT.pack(0x71, value)


def _long(value: int) -> bytes:
    return bytes((0x55, value & 0xFF)) if -128 <= value < 128 else _LONG.pack(0x81, value)


_WRITERS: Final[dict[type, Callable[[Any], bytes]]] = {
    type(None): lambda value: b"\x40",
    bool: lambda value: b"\x41" if value else b"\x42",
    UByte: lambda value: struct.pack(">BB", 0x50, value),
    UShort: lambda value: struct.pack(">BH", 0x60, value),
    UInt: lambda value: _uint(value),
    ULong: lambda value: _ulong(value),
    Byte: lambda value: struct.pack(">Bb", 0x51, value),
    Short: lambda value: struct.pack(">Bh", 0x61, value),
    int: lambda value: _int(value),
    Long: lambda value: _long(value),
    Float: lambda value: struct.pack(">Bf", 0x72, value),
    float: lambda value: struct.pack(">Bd", 0x82, value),
    Char: lambda value: struct.pack(">BI", 0x73, ord(value)),
    Timestamp: lambda value: _LONG.pack(0x83, value),
    Uuid: lambda value: b"\x98" + value,
    Decimal: lambda value: bytes(({4: 0x74, 8: 0x84, 16: 0x94}[len(value)],)) + value,
    bytes: lambda value: _sized(0xA0, value),
    str: lambda value: _sized(0xA1, value.encode("utf-8", "replace")),
    Symbol: lambda value: _sized(0xA3, value.encode("ascii", "replace")),
    list: lambda value: encode_list([encode(each) for each in value]),
    dict: lambda value: _map(value),
    Array: lambda value: _array(value),
    Described: lambda value: b"\0" + encode(value.descriptor) + encode(value.value),
}
