"""Codec of protocol buffers in the form of ActiveMQ's compiler (activemq-protobuf), as far as KahaDB uses it.

    field = tag varint (number << 3 | wire type) + value        wire type 0: varint        2: varint length + bytes

Unlike in standard protobuf, there are no unknown fields, because ActiveMQ would read their bytes as tags. So an unknown
or repeated tag is damage. All field numbers are below 16, so a tag is one byte.
"""

from __future__ import annotations

from typing import Any, Final

from tandemmq.store.records.errors import RecordDamaged

# Numbers below this have an entry in SHORT.
SHORT_SIZE: Final = 1 << 12
_VARINT_BITS: Final = 64
_MASK: Final = (1 << _VARINT_BITS) - 1
_SIGN: Final = 1 << (_VARINT_BITS - 1)


def encode_varint(value: int) -> bytes:
    """Encode a varint. Negative numbers are sign-extended to 64 bits and take ten bytes."""
    value &= _MASK
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# The varints of small numbers. Hot paths read it, because a call costs more.
SHORT: Final = tuple(encode_varint(value) for value in range(SHORT_SIZE))


def varint(value: int) -> bytes:
    """Encode a varint, with a table for small values."""
    return SHORT[value] if 0 <= value < SHORT_SIZE else encode_varint(value)


def decode_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return (unsigned value, position after it) of the varint at ``position``. Raises IndexError if the bytes end too
    early, RecordDamaged if it is longer than ten bytes."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK, position
        shift += 7
        if shift >= _VARINT_BITS + 6:
            raise RecordDamaged("a varint is longer than ten bytes")


def signed(value: int) -> int:
    """Return the int32 or int64 whose two's complement is ``value``, an unsigned varint."""
    return value - (1 << _VARINT_BITS) if value & _SIGN else value


def varint_field(tag: int, value: int) -> bytes:
    """Encode a field of wire type 0."""
    return SHORT[tag] + varint(value)


def bytes_field(tag: int, value: bytes) -> bytes:
    """Encode a field of wire type 2."""
    return SHORT[tag] + varint(len(value)) + value


def read_fields(data: bytes, position: int, end: int, known: frozenset[int]) -> dict[int, Any]:
    """Return {tag: value} of all fields between ``position`` and ``end``. A value is an unsigned int for wire type 0,
    bytes for wire type 2.

    Raises RecordDamaged for a tag that is not in ``known`` or is repeated, or if a field is longer than ``end`` allows.
    Raises IndexError if ``data`` ends too early.
    """
    found: dict[int, Any] = {}
    while position < end:
        tag = data[position]
        value = data[position + 1]
        position += 2
        if value > 0x7F:
            value, position = decode_varint(data, position - 1)
        if tag in found or tag not in known:
            raise RecordDamaged(f"unexpected field tag 0x{tag:02x}")
        if tag & 7:
            start = position
            position += value
            found[tag] = data[start:position]
        else:
            found[tag] = value
    if position > end:
        raise RecordDamaged("a field reaches over the end of its message")
    return found
