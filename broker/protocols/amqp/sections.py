"""Sections of an encoded message (AMQP 1.0, 3.2): where they are. Nothing is decoded. Pure.

70 header  71 delivery annotations  72 message annotations  73 properties  74 application properties
75 data (several)  76 sequence (several)  77 value  78 footer
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tandemmq.broker.protocols.amqp.codec import code_of
from tandemmq.broker.protocols.amqp.errors import DecodeError
from tandemmq.broker.protocols.amqp.types import Reader

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES = range(0x70, 0x75)
DATA, SEQUENCE, VALUE, FOOTER = range(0x75, 0x79)
BODY: Final = frozenset((DATA, SEQUENCE, VALUE))
# The constructors of sections that may come more than once: binary, and lists.
_CONSTRUCTORS: Final = {DATA: (0xA0, 0xB0), SEQUENCE: (0x45, 0xC0, 0xD0)}
# Limit of the sections of a message.
SECTIONS_MAX: Final = 1_000
_DESCRIBED: Final = 0
_SMALL_ULONG: Final = 0x53


class Section(NamedTuple):
    """A section: ``start`` is that of its descriptor, ``value`` that of what is described, ``stop`` its end."""

    code: int
    start: int
    value: int
    stop: int


def scan(encoded: bytes) -> list[Section]:
    """Return the sections of a message. Raises DecodeError for bytes that are not a message."""
    found: list[Section] = []
    seen = 0
    reader = Reader(encoded)
    while reader.at < len(encoded):
        start = reader.at
        if encoded[start] != _DESCRIBED or len(encoded) < start + 4:
            raise DecodeError("a section of the message has no descriptor")
        if encoded[start + 1] == _SMALL_ULONG:
            code = encoded[start + 2]
            reader.at = start + 3
        else:
            reader.at = start + 1
            code = code_of_section(reader)
        value = reader.at
        if value >= len(encoded):
            raise DecodeError("a section of the message has no value")
        if encoded[value] == _DESCRIBED and code == VALUE:
            _skip_described(reader)
        else:
            reader.skip()
        if not HEADER <= code <= FOOTER:
            raise DecodeError(f"a message has no section 0x{code & 0xFFFF:x}")
        if code in _CONSTRUCTORS and encoded[value] not in _CONSTRUCTORS[code]:
            raise DecodeError(f"the section 0x{code:x} of a message has another type")
        bit = 1 << (code - HEADER)
        if seen & bit and code not in _CONSTRUCTORS:
            raise DecodeError(f"a message has the section 0x{code:x} twice")
        seen |= bit
        found.append(Section(code, start, value, reader.at))
        if len(found) > SECTIONS_MAX:
            raise DecodeError(f"a message has more than {SECTIONS_MAX} sections")
    if len({each.code for each in found if each.code in BODY}) > 1:
        raise DecodeError("a message has bodies of two kinds")
    return found


_NAMES: Final = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}


def code_of_section(reader: Reader) -> int:
    """Return the number of the descriptor at the place of the reader, which may be a symbol."""
    descriptor = reader.value()
    if isinstance(descriptor, str):
        return _NAMES.get(descriptor, -1)
    return code_of(descriptor)


def _skip_described(reader: Reader) -> None:
    """Skip a described value: the value of a body may have descriptors of its own."""
    while reader.data[reader.at : reader.at + 1] == b"\0":
        reader.at += 1
        reader.skip()
    reader.skip()
