"""Codec of composite types, driven by the table of schema.py. Pure."""

from __future__ import annotations

from typing import Any, Final

from tandemmq.broker.protocols.amqp import hot, types
from tandemmq.broker.protocols.amqp.errors import INVALID_FIELD, AmqpError, DecodeError
from tandemmq.broker.protocols.amqp.schema import (
    BY_NAME,
    CODES,
    ROWS,
    Composite,
    Field,
    Header,
    Kind,
    Properties,
    described_name,
    fields_of,
)
from tandemmq.broker.protocols.amqp.types import Array, Described, Reader, Symbol, Timestamp, UByte, UInt, ULong, UShort
from tandemmq.store.records.remembered import CACHED_BYTES_MAX, remember

# Limit of values in a performative, and in a section that is a composite, nested ones included.
PERFORMATIVE_VALUES_MAX: Final = 2_000
# Types that a field of each kind accepts. Strings and symbols are accepted for each other.
_READ: Final[dict[Kind, tuple[type, ...]]] = {
    Kind.BOOLEAN: (bool,),
    Kind.UBYTE: (UByte,),
    Kind.USHORT: (UShort,),
    Kind.UINT: (UInt,),
    Kind.ULONG: (ULong,),
    Kind.TIMESTAMP: (Timestamp,),
    Kind.STRING: (str, Symbol),
    Kind.SYMBOL: (str, Symbol),
    Kind.BINARY: (bytes,),
    Kind.MAP: (dict,),
}
# Types with which fields of each kind are written.
_WRITTEN: Final[dict[Kind, type]] = {
    Kind.UBYTE: UByte,
    Kind.USHORT: UShort,
    Kind.UINT: UInt,
    Kind.ULONG: ULong,
    Kind.TIMESTAMP: Timestamp,
    Kind.STRING: str,
    Kind.SYMBOL: Symbol,
    Kind.BINARY: bytes,
}
_FIELDS: Final[dict[type[Composite], tuple[Field, ...]]] = {row: fields_of(row) for row in ROWS.values()}
_STARTS: Final[dict[type[Composite], bytes]] = {row: b"\0" + types.encode(ULong(code)) for row, code in CODES.items()}


_HEADER: Final = CODES[Header]
_PROPERTIES: Final = CODES[Properties]
# Headers and properties that many messages have, by the bytes of their lists.
_headers: Final[dict[bytes, Header]] = {}
_properties: Final[dict[bytes, Properties]] = {}


def code_of(descriptor: Any) -> int:
    """Return the number of a descriptor, which may be a symbol; -1 if it is unknown."""
    if isinstance(descriptor, ULong):
        return int(descriptor)
    return BY_NAME.get(descriptor, -1) if isinstance(descriptor, Symbol) else -1


def read_performative(body: bytes) -> tuple[Composite, int]:
    """Return the performative of a frame, and the offset of its payload. Raises AmqpError."""
    transfer = hot.read_transfer(body)
    if transfer is not None:
        return transfer
    disposition = hot.read_disposition(body)
    if disposition is not None:
        return disposition, len(body)
    flow = hot.read_flow(body)
    if flow is not None:
        return flow, len(body)
    reader = Reader(body, 0, PERFORMATIVE_VALUES_MAX)
    return read_composite(reader), reader.at


def read_composite(reader: Reader) -> Composite:
    """Return the next composite. Raises AmqpError."""
    found = composed(reader.value())
    if found is None:
        raise DecodeError("null in place of a composite type")
    return found


def read_section(code: int, data: bytes, at: int, stop: int) -> Composite | None:
    """Return the composite of a message section; None for null. ``at``: offset of its list. Do not change the result:
    other messages may share it. Raises AmqpError."""
    content = data[at:stop]
    if len(content) <= CACHED_BYTES_MAX:
        found = _usual_section(code, content)
        if found is not None:
            return found
    return composed(Described(ULong(code), Reader(content, 0, PERFORMATIVE_VALUES_MAX).value()))


def _usual_section(code: int, content: bytes) -> Composite | None:
    """Return a header or properties in a common form; None for any other section."""
    if code == _HEADER:
        header = _headers.get(content)
        if header is None:
            header = hot.read_header(content)
            if header is not None:
                remember(_headers, content, header, len(content))
        return header
    if code != _PROPERTIES:
        return None
    properties = _properties.get(content)
    if properties is None:
        properties = hot.read_properties(content)
        if properties is not None and properties.message_id is None and properties.creation_time is None:
            remember(_properties, content, properties, len(content))
    return properties


def composed(value: Any) -> Composite | None:
    """Return the composite of a described list; None for null. Raises AmqpError."""
    if value is None:
        return None
    if not isinstance(value, Described) or not isinstance(value.value, list):
        raise DecodeError("a described list is expected")
    row = ROWS.get(code_of(value.descriptor))
    if row is None:
        raise DecodeError(f"there is no composite type {described_name(value.descriptor)}")
    values = value.value
    columns = _FIELDS[row]
    if len(values) > len(columns):
        raise DecodeError(f"{row.__name__} has {len(values)} fields")
    given: dict[str, Any] = {}
    for position, column in enumerate(columns):
        found = values[position] if position < len(values) else None
        if found is not None:
            given[column.name] = _checked(row, column, found)
        elif column.is_mandatory:
            raise AmqpError(INVALID_FIELD, f"{row.__name__} lacks {column.name}")
    return row(**given)


def _checked(row: type[Composite], column: Field, value: Any) -> Any:
    kind = column.kind
    if kind is Kind.ADDRESS:
        return value
    if kind is Kind.COMPOSITE:
        return composed(value)
    if kind is Kind.SYMBOLS:
        if isinstance(value, (str, Symbol)):
            return (value,)
        if isinstance(value, Array) and all(isinstance(each, str) for each in value.items):
            return value.items
    elif type(value) in _READ[kind]:
        return value
    raise AmqpError(INVALID_FIELD, f"{row.__name__}: {column.name} cannot be a {type(value).__name__}")


def write_composite(found: Composite) -> bytes:
    """Return the bytes of a composite. Trailing fields with default values are omitted."""
    row = type(found)
    columns = _FIELDS[row]
    items: list[bytes] = []
    kept = 0
    for column in columns:
        value = getattr(found, column.name)
        if not column.is_mandatory and value == column.default:
            items.append(b"\x40")
            continue
        items.append(_written(column.kind, value))
        kept = len(items)
    return _STARTS[row] + types.encode_list(items[:kept])


def _written(kind: Kind, value: Any) -> bytes:
    if value is None:
        return b"\x40"
    if kind is Kind.COMPOSITE:
        return write_composite(value)
    if kind is Kind.SYMBOLS:
        return types.encode(Array(tuple([Symbol(each) for each in value])))
    written = _WRITTEN.get(kind)
    return types.encode(value if written is None or type(value) is written else written(value))
