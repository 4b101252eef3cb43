"""Codec of OpenWire's primitive map (MarshallingSupport), the properties of a message.

    i4 count, count x { utf key, typed value }        -1: no map
    typed value = i1 code + payload                   codes in the tables below

Java types are preserved: a short is decoded to Short, and Short is encoded as a short. A Python int is encoded as an
int or, if it is too large, as a long; a Python float is encoded as a double.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from typing import Any

from tandemmq.store.records.errors import RecordDamaged, Unencodable
from tandemmq.store.records.remembered import remember
from tandemmq.store.records.utf import decode_modified, encode_modified

NESTING_MAX = 32
_UTF_BYTES_MAX = 0xFFFF
# Limit of the parts of one join: ``bytes.join`` takes 80 bytes of memory for each part.
_JOINED_MAX = 4096
_SHORT_STRING_CHARS = 8191  # MarshallingSupport writes a big string from here on

_U16 = struct.Struct(">H")
_I32 = struct.Struct(">i")
_INT = struct.Struct(">Bi")
_LONG = struct.Struct(">Bq")
_SHORT = struct.Struct(">Bh")
_BYTE = struct.Struct(">Bb")
_CHAR = struct.Struct(">BH")
_FLOAT = struct.Struct(">Bf")
_DOUBLE = struct.Struct(">Bd")
_STRING = struct.Struct(">BH")

NULL, BOOLEAN, BYTE, CHAR, SHORT, INTEGER, LONG, DOUBLE, FLOAT, STRING, BYTES, MAP, LIST, BIG_STRING = range(14)


class Byte(int):
    """A java.lang.Byte."""

    __slots__ = ()


class Short(int):
    """A java.lang.Short."""

    __slots__ = ()


class Long(int):
    """A java.lang.Long, also for small values."""

    __slots__ = ()


class Float(float):
    """A java.lang.Float: 32 bits."""

    __slots__ = ()


class Char(str):
    """A java.lang.Character: one UTF-16 unit."""

    __slots__ = ()


# Map with one integer only, as in each message of an MQTT client -> its encoding
_single_integers: dict[tuple[str, int], bytes] = {}
# Names of a few properties that are all true, as in each message of an AMQP client -> their encoding
_flags: dict[tuple[str, ...], bytes] = {}
_FLAGS_MAX = 4


def encode_properties(properties: dict[str, Any]) -> bytes:
    """Encode a map. Raises Unencodable for a value without a Java type, or out of range."""
    if len(properties) == 1:
        for one in properties.items():
            if type(one[1]) is int:  # not bool: True equals 1 as a key of the cache
                return _single_integers.get(one) or remember(_single_integers, one, _encoded(properties), len(one[0]))
    if len(properties) <= _FLAGS_MAX:
        for value in properties.values():
            if value is not True:
                break
        else:
            names = tuple(properties)
            return _flags.get(names) or remember(_flags, names, _encoded(properties), sum(map(len, names)))
    return _encoded(properties)


def _encoded(properties: dict[str, Any]) -> bytes:
    parts = [_I32.pack(len(properties))]
    try:
        _write_entries(parts, properties, 0)
    except struct.error as error:
        raise Unencodable(f"a property is out of range: {error}") from None
    if len(parts) <= _JOINED_MAX:
        return b"".join(parts)
    return b"".join([b"".join(parts[at : at + _JOINED_MAX]) for at in range(0, len(parts), _JOINED_MAX)])


def decode_properties(data: bytes) -> dict[str, Any]:
    """Decode the bytes of :func:`encode_properties`. Raises RecordDamaged."""
    try:
        found, position = _read_map(data, 0, 0)
    except (IndexError, struct.error):
        raise RecordDamaged("the properties are truncated") from None
    if position != len(data):
        raise RecordDamaged("bytes follow the properties")
    return found


def encode_entry(name: str, value: Any) -> bytes:
    """Encode a name and its value as they are in a map. Raises Unencodable, as ``encode_properties``."""
    return encode_properties({name: value})[_I32.size :]


def encode_stream(values: Collection[Any]) -> bytes:
    """Encode the body of a stream message. Raises Unencodable for a value without a Java type, or out of range."""
    parts: list[bytes] = []
    try:
        for each in values:
            _write_value(parts, each, 0)
    except struct.error as error:
        raise Unencodable(f"a value is out of range: {error}") from None
    return b"".join(parts)


def decode_stream(data: bytes) -> list[Any]:
    """Decode the body of a stream message: typed values up to its end. Raises RecordDamaged."""
    found = []
    position = 0
    try:
        while position < len(data):
            value, position = _read_value(data, position, 0)
            found.append(value)
    except (IndexError, struct.error):
        raise RecordDamaged("the values of a stream are truncated") from None
    return found


def without(data: bytes, names: Collection[str]) -> bytes:
    """Return the encoded map ``data`` without the entries with these names; the others keep their bytes. ``data`` must
    be valid for ``decode_properties``."""
    (count,) = _I32.unpack_from(data)
    kept: list[bytes] = []
    position = 4
    for _ in range(count):
        start = position
        value_at = start + 2 + _U16.unpack_from(data, start)[0]
        _, position = _read_value(data, value_at, 0)
        if decode_modified(data[start + 2 : value_at]) not in names:
            kept.append(data[start:position])
    return _I32.pack(len(kept)) + b"".join(kept)


def has_at_most(data: bytes, count: int) -> bool:
    """Return whether the encoded map ``data`` has at most ``count`` values, nested values included. Reads at most
    ``count`` values. Raises RecordDamaged, IndexError or struct.error if it finds invalid bytes."""
    if _I32.unpack_from(data)[0] > count:
        return False
    opened = [(_I32.unpack_from(data)[0], True)]  # (values left, whether it is a map) of each open container
    position = 4
    while opened:
        left, is_map = opened.pop()
        if left <= 0:
            continue
        if count <= 0:
            return False
        count -= 1
        opened.append((left - 1, is_map))
        if is_map:
            position += 2 + _U16.unpack_from(data, position)[0]
        code = data[position]
        position += 1
        if code == STRING:
            position += 2 + _U16.unpack_from(data, position)[0]
        elif code in (BYTES, BIG_STRING):
            position += 4 + max(_I32.unpack_from(data, position)[0], 0)
        elif code in (MAP, LIST):
            opened.append((_I32.unpack_from(data, position)[0], code == MAP))
            position += 4
        elif code in _FIXED:
            position += _FIXED[code][0].size
        elif code != NULL:
            raise RecordDamaged(f"unknown property type {code}")
    return True


# ---- writing


# Name of a property -> its encoding with the length. Applications use few names.
_names: dict[str, bytes] = {}


def _write_entries(parts: list[bytes], entries: dict[str, Any], depth: int) -> None:
    for key, value in entries.items():
        parts.append(_names.get(key) or _name(key))
        if type(value) is str:
            parts.append(_string(value, depth))
        else:
            _write_value(parts, value, depth)


def _name(key: str) -> bytes:
    data = encode_modified(key)
    if len(data) > _UTF_BYTES_MAX:
        raise Unencodable(f"a property's name has {len(data)} bytes")
    return remember(_names, key, _U16.pack(len(data)) + data, len(data))


def _write_value(parts: list[bytes], value: Any, depth: int) -> None:
    writer = _WRITERS.get(type(value))
    if writer is not None:
        parts.append(writer(value))
    elif type(value) is str:
        parts.append(_string(value, depth))
    elif depth >= NESTING_MAX:
        raise Unencodable(f"properties are nested deeper than {NESTING_MAX}")
    elif isinstance(value, dict):
        parts.append(_INT.pack(MAP, len(value)))
        _write_entries(parts, value, depth + 1)
    elif isinstance(value, list):
        parts.append(_INT.pack(LIST, len(value)))
        for item in value:
            _write_value(parts, item, depth + 1)
    else:
        raise Unencodable(f"no property can be a {type(value).__name__}")


def _string(value: str, depth: int) -> bytes:
    # ActiveMQ writes these strings in modified UTF-8, but also reads plain UTF-8 (measured with 5.17.2). Exception: it
    # reads a big string inside a nested map only as modified UTF-8.
    data = value.encode() if value.isascii() else value.encode("utf-8", "surrogatepass")
    if len(value) < _SHORT_STRING_CHARS:  # a character takes at most four bytes, so the length fits into 16 bits
        return _STRING.pack(STRING, len(data)) + data
    if depth:
        data = encode_modified(value)
    return _INT.pack(BIG_STRING, len(data)) + data


def _integer(value: int) -> bytes:
    if -0x80000000 <= value <= 0x7FFFFFFF:
        return _INT.pack(INTEGER, value)
    return _LONG.pack(LONG, value)


def _character(value: Char) -> bytes:
    if len(value) != 1:
        raise Unencodable("a character property holds exactly one character")
    return _CHAR.pack(CHAR, ord(value))


_WRITERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda value: b"\0",
    bool: lambda value: b"\1\1" if value else b"\1\0",
    int: _integer,
    float: lambda value: _DOUBLE.pack(DOUBLE, value),
    bytes: lambda value: _INT.pack(BYTES, len(value)) + value,
    Byte: lambda value: _BYTE.pack(BYTE, value),
    Short: lambda value: _SHORT.pack(SHORT, value),
    Long: lambda value: _LONG.pack(LONG, value),
    Float: lambda value: _float(value),
    Char: _character,
}


def _float(value: float) -> bytes:
    try:
        return _FLOAT.pack(FLOAT, value)
    except OverflowError:
        raise Unencodable(f"{value} is no 32-bit float") from None


# ---- reading


def _read_map(data: bytes, position: int, depth: int) -> tuple[dict[str, Any], int]:
    if depth > NESTING_MAX:
        raise RecordDamaged(f"properties are nested deeper than {NESTING_MAX}")
    (count,) = _I32.unpack_from(data, position)
    position += 4
    found: dict[str, Any] = {}
    for _ in range(count):  # a count of -1 is a null map, and is treated as an empty one
        start = position + 2
        position = start + (data[position] << 8 | data[position + 1])
        name = data[start:position]
        found[decode_modified(name)], position = _read_value(data, position, depth)
    return found, position


def _read_value(data: bytes, position: int, depth: int) -> tuple[Any, int]:
    code = data[position]
    position += 1
    if code == STRING:
        start = position + 2
        position = start + (data[position] << 8 | data[position + 1])
        return _text(data, start, position), position
    fixed = _FIXED.get(code)
    if fixed is not None:
        layout, make = fixed
        return make(layout.unpack_from(data, position)[0]), position + layout.size
    if code == NULL:
        return None, position
    if code in (BYTES, BIG_STRING):
        start = position + 4
        (length,) = _I32.unpack_from(data, position)
        position = start + max(length, 0)
        if code == BIG_STRING:
            return _text(data, start, position), position
        if position > len(data):
            raise RecordDamaged("the properties are truncated")
        return data[start:position], position
    if code == MAP:
        return _read_map(data, position, depth + 1)
    if code == LIST:
        return _read_list(data, position, depth + 1)
    raise RecordDamaged(f"unknown property type {code}")


def _read_list(data: bytes, position: int, depth: int) -> tuple[list[Any], int]:
    if depth > NESTING_MAX:
        raise RecordDamaged(f"properties are nested deeper than {NESTING_MAX}")
    (count,) = _I32.unpack_from(data, position)
    position += 4
    items = []
    for _ in range(count):
        item, position = _read_value(data, position, depth)
        items.append(item)
    return items, position


def _text(data: bytes, start: int, stop: int) -> str:
    if stop > len(data):
        raise RecordDamaged("the properties are truncated")
    return decode_modified(data[start:stop])


_FIXED: dict[int, tuple[struct.Struct, Callable[[Any], Any]]] = {
    BOOLEAN: (struct.Struct(">B"), bool),
    BYTE: (struct.Struct(">b"), Byte),
    CHAR: (struct.Struct(">H"), lambda unit: Char(chr(unit))),
    SHORT: (struct.Struct(">h"), Short),
    INTEGER: (_I32, int),
    LONG: (struct.Struct(">q"), lambda value: Long(value)),
    DOUBLE: (struct.Struct(">d"), float),
    FLOAT: (struct.Struct(">f"), Float),
}
