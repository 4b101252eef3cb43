"""Frames of one connection, in both directions: the interpreter of the table in schema.py.

    u4 size, u1 data type, fields      size counts what follows it

Both encodings use the same walk over a structure's fields. A reader (loose.py, tight.py) knows the encoding of a string
or a number; this module knows the order of the fields, their versions, and which objects may be nested.

    nested      bool present, u1 data type, fields
    cached      bool is new, i2 index, nested if new              where caching was agreed; else as nested
    array       bool present, i2 count, nested ...
    throwable   bool present, class, message, [traces: i2 count, (class, method, file, i4 line) ..., cause]

No memory is allocated beyond the content of the frame: lengths are compared with the rest of it, and each element of an
array takes at least a bit of it. Objects and causes are nested NESTING_MAX deep at most. The caller limits the number
of fields and objects of a frame, and so the time to read it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from operator import methodcaller
from typing import Any, NamedTuple

from tandemmq.broker.protocols.openwire.cache import ReadCache, WriteCache
from tandemmq.broker.protocols.openwire.errors import WireError
from tandemmq.broker.protocols.openwire.hot import ID_TAILS, KNOWN_IDS, READERS, STRING_HEAD, WRITERS
from tandemmq.broker.protocols.openwire.loose import LooseReader, LooseWriter
from tandemmq.broker.protocols.openwire.schema import MAGIC, Command, WireMessage
from tandemmq.broker.protocols.openwire.tight import TightReader, TightWriter
from tandemmq.broker.protocols.openwire.types import (
    DESCRIPTIONS,
    VERSION_MAX,
    ConnectionId,
    Field,
    Kind,
    StackFrame,
    Throwable,
    number_of,
)
from tandemmq.store.records.errors import RecordDamaged, Unencodable
from tandemmq.store.records.fields import RAW_VERSIONS
from tandemmq.store.records.loose import OPENWIRE_VERSION
from tandemmq.store.records.message import BodyKind
from tandemmq.store.records.remembered import remember

NESTING_MAX = 32
# Value of ``work_max`` that means no limit: for frames of the store, whose origin is known.
WORK_UNBOUNDED = 1 << 62
CACHE_SIZE_DEFAULT = 0x3FFF  # OpenWireFormat: the meaning of 0

_SIZE = struct.Struct(">i")
_HEAD = struct.Struct(">iB")
_INDEX = struct.Struct(">h")

# OpenWire's "marshall aware" structures. The tight encoding may hold them as separate frames, marked by one bit.
_MARSHALL_AWARE = frozenset((1, *BodyKind))


class _Layout(NamedTuple):
    """Structure in one version. A field that is not an object comes with its reading and writing functions."""

    name: str
    steps: tuple[tuple[Field, Callable[[Any], Any] | None, Callable[[Any, Any], None] | None], ...]
    make: Callable[..., Any]


@lru_cache(maxsize=VERSION_MAX)
def _layouts(version: int) -> dict[int, _Layout]:
    return {
        number: _Layout(
            row.name,
            tuple((field, _READERS.get(field.kind), _WRITERS.get(field.kind)) for field in row.fields_in(version)),
            row.make,
        )
        for number, row in DESCRIPTIONS.items()
        if row.since <= version
    }


class WireFormat:
    """Agreement of two peers, and the caches of their connection: bytes to commands and back.

    Frames must be decoded and sent in the order of the connection, because with caching later frames refer to earlier
    ones. Without caching a WireFormat has no state, and may serve many connections.

    ``is_stored_form``: a message's frame equals that in the journal, except for ids of the transport; and every other
    command has only one layout.
    """

    __slots__ = (
        "_layouts",
        "_read_cache",
        "_write_cache",
        "has_stack_traces",
        "is_cached",
        "is_stored_form",
        "is_tight",
        "version",
    )

    def __init__(
        self,
        version: int = OPENWIRE_VERSION,
        *,
        is_tight: bool = False,
        is_cached: bool = False,
        has_stack_traces: bool = False,
        cache_size: int = CACHE_SIZE_DEFAULT,
    ) -> None:
        assert 1 <= version <= VERSION_MAX, f"OpenWire {version} is not in the table"
        self.version = version
        self.is_tight = is_tight
        self.is_cached = is_cached
        self.has_stack_traces = has_stack_traces
        self.is_stored_form = version in RAW_VERSIONS and not is_tight and not is_cached
        self._layouts = _layouts(version)
        self._read_cache = ReadCache(cache_size)
        self._write_cache = WriteCache(cache_size)

    # ---- reading

    def decode(self, frame: bytes, work_max: int = WORK_UNBOUNDED) -> Command:
        """Return the command of a whole frame, size included. Raises WireError, and nothing else, for any other bytes,
        and for a frame of more than ``work_max`` fields: elements of arrays count as fields, and so do the bytes
        of text that is not ASCII."""
        if len(frame) < _HEAD.size:
            raise WireError(f"a frame of {len(frame)} bytes holds no command")
        size, number = _HEAD.unpack_from(frame)
        if size != len(frame) - _SIZE.size:
            raise WireError(f"a frame claims {size} bytes and has {len(frame) - _SIZE.size}")
        if self.is_stored_form and (hot := READERS.get(number)) is not None and (short := hot(frame)) is not None:
            return short
        layout = self._layout(number)
        if not issubclass(DESCRIPTIONS[number].cls, Command):
            raise WireError(f"{layout.name} is not a command")
        try:
            reader = (TightReader if self.is_tight else LooseReader)(frame, _HEAD.size, work_max)
        except (IndexError, struct.error):
            raise WireError(f"{layout.name}: the frame ends too early, in its booleans") from None
        except WireError as error:
            raise WireError(f"{layout.name}: {error}") from None
        command: Command = self._read(reader, layout, 0)
        if reader.position != len(frame):
            raise WireError(f"{len(frame) - reader.position} bytes too many after {layout.name}")
        return command

    def _layout(self, number: int) -> _Layout:
        layout = self._layouts.get(number)
        if layout is None:
            raise WireError(f"unknown data type {number} in OpenWire {self.version}")
        return layout

    def _read(self, reader: LooseReader, layout: _Layout, depth: int) -> Any:
        """Return the value of a structure whose fields come next. ``depth`` is 0 for the command itself."""
        if depth > NESTING_MAX:
            raise WireError(f"objects are nested deeper than {NESTING_MAX}")
        values: dict[str, Any] = {}
        reader.spend(len(layout.steps))
        for field, plain, _ in layout.steps:
            try:
                values[field.name] = plain(reader) if plain is not None else self._read_object(reader, field, depth)
            except (IndexError, struct.error):
                raise WireError(f"{layout.name}.{field.name}: the frame ends too early") from None
            except (WireError, RecordDamaged) as error:
                raise WireError(f"{layout.name}.{field.name}: {error}") from None
        return layout.make(**values)

    def _read_object(self, reader: LooseReader, field: Field, depth: int) -> Any:
        kind = field.kind
        if kind is Kind.CACHED:
            return self._expected(self._read_cached(reader, depth), field)
        if kind is Kind.NESTED:
            return self._expected(self._read_nested(reader, depth), field)
        if kind is Kind.ARRAY:
            return self._read_array(reader, field, depth)
        if kind is Kind.THROWABLE:
            return self._read_throwable(reader, depth)
        assert kind is Kind.CONNECTION, f"no reader for {kind}"
        found = self._read_cached(reader, depth)
        if type(found) is not ConnectionId:
            raise WireError(f"ConnectionId expected, {type(found).__name__} found")
        return found.value

    def _expected(self, value: Any, field: Field) -> Any:
        if value is not None and not isinstance(value, field.classes):
            names = " or ".join(cls.__name__ for cls in field.classes)
            raise WireError(f"{names} expected, {type(value).__name__} found")
        return value

    def _read_nested(self, reader: LooseReader, depth: int) -> Any:
        if not reader.boolean():
            return None
        number = reader.number()
        layout = self._layout(number)
        if number in _MARSHALL_AWARE and reader.is_marshalled():
            raise WireError(f"{layout.name} is a frame within a frame, which no peer sends")
        if self.is_tight or (tail := ID_TAILS.get(number)) is None:
            return self._read(reader, layout, depth + 1)
        # Most frames repeat the ids and destinations of earlier frames: these are found by their bytes.
        data, start = reader.data, reader.position
        stop = start + STRING_HEAD + (data[start + 1] << 8 | data[start + 2]) + tail
        key = data[start - 1 : stop]
        value = KNOWN_IDS.get(key)
        if value is not None:
            reader.position = stop
            return value
        return remember(KNOWN_IDS, key, self._read(reader, layout, depth + 1), len(key))

    def _read_cached(self, reader: LooseReader, depth: int) -> Any:
        if not self.is_cached:
            return self._read_nested(reader, depth)
        is_new = reader.boolean()
        index = reader.int16()
        if not is_new:
            return self._read_cache.get(index)
        value = self._read_nested(reader, depth)
        self._read_cache.put(index, value)
        return value

    def _read_array(self, reader: LooseReader, field: Field, depth: int) -> tuple[Any, ...] | None:
        if not reader.boolean():
            return None
        count = reader.int16()
        if count < 0:
            raise WireError(f"an array of {count}")
        reader.spend(count)
        return tuple([self._expected(self._read_nested(reader, depth), field) for _ in range(count)])

    def _read_throwable(self, reader: LooseReader, depth: int) -> Throwable | None:
        if not reader.boolean():
            return None
        if depth > NESTING_MAX:
            raise WireError(f"causes are nested deeper than {NESTING_MAX}")
        class_name, message = reader.text(), reader.text()
        if not self.has_stack_traces:
            return Throwable(class_name, message)
        count = reader.int16()
        if count < 0:
            raise WireError(f"a stack trace of {count}")
        reader.spend(count * len(StackFrame._fields))
        stack = [StackFrame(reader.text(), reader.text(), reader.text(), reader.int32()) for _ in range(count)]
        return Throwable(class_name, message, tuple(stack), self._read_throwable(reader, depth + 1))

    # ---- writing

    def encode(self, command: Command) -> bytes:
        """Return the whole frame, size included. Raises WireError for values that do not fit into the format."""
        if self.is_stored_form and (hot := WRITERS.get(type(command))) is not None:
            try:
                return hot(command)
            except (struct.error, Unencodable) as error:
                raise WireError(f"{type(command).__name__}: {error}") from None
        number = number_of(command)
        assert number is not None, f"{type(command).__name__} is not in the table"
        layout = self._layout(number)
        writer = TightWriter() if self.is_tight else LooseWriter()
        try:
            self._write(writer, layout, command)
            body = writer.take()
        except WireError:
            # The peer does not get this frame, so its cache lacks the objects that the frame would have added.
            self._write_cache.forget()
            raise
        return _HEAD.pack(len(body) + 1, number) + body

    def _write(self, writer: LooseWriter, layout: _Layout, value: Any) -> None:
        for field, _, plain in layout.steps:
            try:
                if plain is not None:
                    plain(writer, getattr(value, field.name))
                else:
                    self._write_object(writer, field, getattr(value, field.name))
            except (WireError, struct.error, Unencodable) as error:
                raise WireError(f"{layout.name}.{field.name}: {error}") from None

    def _write_object(self, writer: LooseWriter, field: Field, value: Any) -> None:
        kind = field.kind
        if kind is Kind.CACHED:
            self._write_cached(writer, value)
        elif kind is Kind.NESTED:
            self._write_nested(writer, value)
        elif kind is Kind.ARRAY:
            writer.boolean(value is not None)
            if value is not None:
                writer.int16(len(value))
                for element in value:
                    self._write_nested(writer, element)
        elif kind is Kind.THROWABLE:
            self._write_throwable(writer, value)
        else:
            assert kind is Kind.CONNECTION, f"no writer for {kind}"
            self._write_cached(writer, ConnectionId(value))

    def _write_nested(self, writer: LooseWriter, value: object | None) -> None:
        writer.boolean(value is not None)
        if value is None:
            return
        number = number_of(value)
        assert number is not None, f"{type(value).__name__} is not in the table"
        writer.number(number)
        if number in _MARSHALL_AWARE:
            writer.unmarshalled()
        self._write(writer, self._layout(number), value)

    def _write_cached(self, writer: LooseWriter, value: object | None) -> None:
        if not self.is_cached:
            self._write_nested(writer, value)
            return
        cache = self._write_cache
        key = (
            None if value is None else number_of(value),
            value,
        )  # ids of different types are equal if their parts are
        index = cache.find(key)
        writer.boolean(index is None)
        if index is not None:
            writer.int16(index)
        elif self.is_tight:
            # Java numbers nested objects before the outer one here, and after it in the loose encoding.
            place = len(writer.body)
            writer.int16(0)
            self._write_nested(writer, value)
            _INDEX.pack_into(writer.body, place, cache.add(key))
        else:
            writer.int16(cache.add(key))
            self._write_nested(writer, value)

    def _write_throwable(self, writer: LooseWriter, value: Throwable | None) -> None:
        writer.boolean(value is not None)
        if value is None:
            return
        writer.text(value.class_name)
        writer.text(value.message)
        if self.has_stack_traces:
            writer.int16(len(value.stack))
            for frame in value.stack:
                writer.text(frame.class_name)
                writer.text(frame.method)
                writer.text(frame.file)
                writer.int32(frame.line)
            self._write_throwable(writer, value.cause)


def _name(reader: LooseReader) -> str:
    text = reader.text()
    if text is None:
        raise WireError("a name is missing")
    return text


def _magic(reader: LooseReader) -> bytes:
    found = reader.octets(len(MAGIC))
    if found != MAGIC:
        raise WireError(f"not OpenWire: {found!r} instead of {MAGIC!r}")
    return found


_READERS: dict[Kind, Callable[[Any], Any]] = {
    Kind.BOOL: methodcaller("boolean"),
    Kind.BYTE: methodcaller("int8"),
    Kind.INT: methodcaller("int32"),
    Kind.LONG: methodcaller("int64"),
    Kind.STRING: methodcaller("text"),
    Kind.NAME: _name,
    Kind.BYTES: methodcaller("blob"),
    Kind.OCTETS: lambda reader: reader.blob() or b"",
    Kind.MAGIC: _magic,
}
_WRITERS: dict[Kind, Callable[[Any, Any], None]] = {
    Kind.BOOL: lambda writer, value: writer.boolean(value),
    Kind.BYTE: lambda writer, value: writer.int8(value),
    Kind.INT: lambda writer, value: writer.int32(value),
    Kind.LONG: lambda writer, value: writer.int64(value),
    Kind.STRING: lambda writer, value: writer.text(value),
    Kind.NAME: lambda writer, value: writer.text(value),
    Kind.BYTES: lambda writer, value: writer.blob(value),
    Kind.OCTETS: lambda writer, value: writer.blob(value),
    Kind.MAGIC: lambda writer, value: writer.octets(value),
}


# ---- between a client's form and the journal's

# Loose, uncached, in the store's version: stateless, so that all may share it. Every connection begins with it too.
STORED = WireFormat()


def stored_frame(message: WireMessage) -> bytes:
    """Return the stored form of a message that came in another form."""
    return STORED.encode(message)


def message_of(frame: bytes) -> WireMessage:
    """Return the message of a stored frame, to be written in another form. Raises WireError."""
    command = STORED.decode(frame)
    if not isinstance(command, WireMessage):
        raise WireError(f"{type(command).__name__} is not a message")
    return command
