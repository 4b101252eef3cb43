"""Finds the sections of an encoded message (AMQP 1.0, 3.2) without decoding them. Pure.

70 header  71 delivery annotations  72 message annotations  73 properties  74 application properties
75 data (several)  76 sequence (several)  77 value  78 footer
"""

from __future__ import annotations

from typing import Final

from tandemmq.broker.protocols.amqp.codec import code_of
from tandemmq.broker.protocols.amqp.errors import DecodeError
from tandemmq.broker.protocols.amqp.types import EMPTY_LIST, Reader, Symbol

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
FOOTER: Final = 0x78
BODY: Final = frozenset((DATA, SEQUENCE, VALUE))
# Constructors of the sections that a message may have more than once: binary, and lists.
_DATA: Final = b"\xa0\xb0"
_SEQUENCE: Final = b"\x45\xc0\xd0"
# Limit of the sections of a message.
SECTIONS_MAX: Final = 1_000
_DESCRIBED: Final = 0
_SMALL_ULONG: Final = 0x53


class Section:
    """Offsets of a section. ``start``: its descriptor; ``value``: the described value; ``stop``: its end."""

    __slots__ = ("code", "start", "stop", "value")

    def __init__(self, code: int, start: int, value: int, stop: int) -> None:
        self.code = code
        self.start = start
        self.value = value
        self.stop = stop


def scan(encoded: bytes) -> list[Section]:
    """Return the sections of a message. Raises DecodeError for bytes that are not a message."""
    found: list[Section] = []
    seen = at = 0
    length = len(encoded)
    while at < length:
        start = at
        if encoded[start] != _DESCRIBED or length < start + 4:
            raise DecodeError("a section of the message has no descriptor")
        if encoded[start + 1] == _SMALL_ULONG:
            code = encoded[start + 2]
            value = start + 3
        else:
            reader = Reader(encoded, start + 1)
            code = code_of_section(reader)
            value = reader.at
        if value >= length:
            raise DecodeError("a section of the message has no value")
        at = _end_of(encoded, value, code)
        if not HEADER <= code <= FOOTER:
            raise DecodeError(f"there is no message section 0x{code & 0xFFFF:x}")
        is_several = code in (DATA, SEQUENCE)
        if is_several and encoded[value] not in (_DATA if code == DATA else _SEQUENCE):
            raise DecodeError(f"the section 0x{code:x} of a message has another type")
        bit = 1 << (code - HEADER)
        if seen & bit and not is_several:
            raise DecodeError(f"a message has the section 0x{code:x} twice")
        if seen >= 2 * bit and (code != HEADER or seen >> 2):
            # Some clients write the delivery annotations before the header (ARTEMIS-4725).
            raise DecodeError(f"the section 0x{code:x} of a message comes too late")
        seen |= bit
        found.append(Section(code, start, value, at))
        if len(found) > SECTIONS_MAX:
            raise DecodeError(f"a message has more than {SECTIONS_MAX} sections")
    bodies = seen >> (DATA - HEADER) & 0b111
    if bodies & (bodies - 1):
        raise DecodeError("a message has bodies of two kinds")
    return found


def _end_of(encoded: bytes, value: int, code: int) -> int:
    """Return the end of the described value. Raises DecodeError."""
    length = len(encoded)
    kind = encoded[value] >> 4
    if encoded[value] == EMPTY_LIST:
        return value + 1
    if kind in (0xA, 0xC) and value + 1 < length:
        stop = value + 2 + encoded[value + 1]
        if stop <= length:
            return stop
    if kind in (0xB, 0xD) and value + 4 < length:
        stop = value + 5 + int.from_bytes(encoded[value + 1 : value + 5], "big")
        if stop <= length:
            return stop
    reader = Reader(encoded, value)
    if encoded[value] == _DESCRIBED and code == VALUE:
        _skip_described(reader)
    else:
        reader.skip()
    return reader.at


# Names of the sections that are not composites. Composites are in schema.BY_NAME.
_NAMES: Final = {
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}


def code_of_section(reader: Reader) -> int:
    """Return the number of the next descriptor, which may be a symbol."""
    descriptor = reader.value()
    code = _NAMES.get(descriptor) if isinstance(descriptor, Symbol) else None
    return code_of(descriptor) if code is None else code


def _skip_described(reader: Reader) -> None:
    """Skip a described value. Its value may be described, too."""
    while reader.data[reader.at : reader.at + 1] == b"\0":
        reader.at += 1
        reader.skip()
    reader.skip()
