"""Java object serialization, as far as KahaDB needs it: for producer audits, and for sets of strings. Pure.

    stream       AC ED 00 05, one object
    object       73, class description, for each class from the topmost down: fields, [custom data, 78]
    class        72, utf name, i8 uid, u1 flags, u2 fields, (u1 type, utf name, [string type])*, 78, superclass
    string       74, utf                         7C, i8 length, modified UTF-8
    reference    71, i4 handle                   null 70
    block        77, u1 length, bytes            7A, i4 length, bytes      (custom data)

Handles count from 0x7E0000. A class gets its handle after its uid, an object after its class, a string when it begins
(Java Object Serialization Specification, chapter 6).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.utf import decode_modified, encode_modified

HEADER = b"\xac\xed\x00\x05"
NULL, REFERENCE, CLASS, OBJECT, STRING = 0x70, 0x71, 0x72, 0x73, 0x74
BLOCK, END, BLOCK_LONG, STRING_LONG = 0x77, 0x78, 0x7A, 0x7C
FIRST_HANDLE = 0x7E0000

# Flags of a class.
SERIALIZABLE = 0x02
WRITES_ITSELF = 0x01

# Limit of nested objects and superclasses. A producer audit has five levels.
DEPTH_MAX = 16

_PRIMITIVES = {
    "B": struct.Struct(">b"),
    "D": struct.Struct(">d"),
    "F": struct.Struct(">f"),
    "I": struct.Struct(">i"),
    "J": struct.Struct(">q"),
    "S": struct.Struct(">h"),
    "Z": struct.Struct(">?"),
}


class JavaField(NamedTuple):
    """Field of a class. ``type``: the letter of a primitive, or the signature of a class: ``Ljava/util/List;``."""

    type: str
    name: str


class JavaClass(NamedTuple):
    name: str
    uid: int
    fields: tuple[JavaField, ...] = ()
    parent: JavaClass | None = None
    flags: int = SERIALIZABLE

    def lineage(self) -> list[JavaClass]:
        """Return this class and its parents, the topmost first: the order of an object's data. Raises RecordDamaged if
        there are more than DEPTH_MAX."""
        found: list[JavaClass] = []
        above: JavaClass | None = self
        while above is not None:
            if len(found) > DEPTH_MAX:
                raise RecordDamaged(f"Java class {self.name} has more than {DEPTH_MAX} superclasses")
            found.append(above)
            above = above.parent
        return found[::-1]


@dataclass(slots=True, eq=False)
class JavaObject:
    """Object that was read: its ``fields`` by name, and the custom data of its classes in their order. A block of
    custom data is bytes."""

    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    custom: list[Any] = field(default_factory=list)


# These classes declare fields, but write them as custom data.
_WITHOUT_DEFAULT_FIELDS = frozenset({"org.apache.activemq.util.BitArray"})


def read_object(data: bytes) -> JavaObject:
    """Return the object of a stream. Raises RecordDamaged for any invalid bytes."""
    try:
        return _Reader(data).read_stream()
    except (IndexError, struct.error):
        raise RecordDamaged("a Java object is truncated") from None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._handles: list[Any] = []

    def read_stream(self) -> JavaObject:
        if not self._data.startswith(HEADER):
            raise RecordDamaged("a Java stream does not begin with its header")
        self._at = len(HEADER)
        found = self._content(0)
        if not isinstance(found, JavaObject):
            raise RecordDamaged("a Java stream holds no object")
        if self._at != len(self._data):
            raise RecordDamaged(f"{len(self._data) - self._at} bytes follow a Java object")
        return found

    def _content(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise RecordDamaged(f"Java objects are nested more than {DEPTH_MAX} deep")
        tag = self._byte()
        if tag == NULL:
            return None
        if tag == REFERENCE:
            return self._referred()
        if tag == STRING:
            return self._remember(self._utf())
        if tag == STRING_LONG:
            return self._remember(decode_modified(self._take(self._number("J"))))
        if tag == OBJECT:
            return self._object(depth)
        if tag == BLOCK:
            return self._take(self._byte())
        if tag == BLOCK_LONG:
            return self._take(self._number("I"))
        raise RecordDamaged(f"a Java stream has an unexpected tag 0x{tag:02x}")

    def _object(self, depth: int) -> JavaObject:
        described = self._class(depth)
        if described is None:
            raise RecordDamaged("a Java object has no class")
        found: JavaObject = self._remember(JavaObject(described.name))
        for level in described.lineage():
            if level.name not in _WITHOUT_DEFAULT_FIELDS:
                for each in level.fields:
                    is_primitive = each.type in _PRIMITIVES
                    found.fields[each.name] = self._number(each.type) if is_primitive else self._content(depth + 1)
            if level.flags & WRITES_ITSELF:
                while self._data[self._at] != END:
                    found.custom.append(self._content(depth + 1))
                self._at += 1
        return found

    def _class(self, depth: int) -> JavaClass | None:
        if depth > DEPTH_MAX:
            raise RecordDamaged(f"Java classes are nested more than {DEPTH_MAX} deep")
        tag = self._byte()
        if tag == NULL:
            return None
        if tag == REFERENCE:
            known = self._referred()
            if not isinstance(known, JavaClass):
                raise RecordDamaged("the class of a Java object is a reference to something else")
            return known
        if tag != CLASS:
            raise RecordDamaged(f"a Java class description has the tag 0x{tag:02x}")
        name, uid = self._utf(), self._number("J")
        handle = len(self._handles)
        self._handles.append(None)
        flags = self._byte()
        if not flags & SERIALIZABLE or flags & ~(SERIALIZABLE | WRITES_ITSELF):
            raise RecordDamaged(f"Java class {name} has the flags 0x{flags:02x}")
        fields = tuple(self._field(depth) for _ in range(self._number("S")))
        if self._byte() != END:
            raise RecordDamaged(f"Java class {name} is annotated")
        described = JavaClass(name, uid, fields, self._class(depth + 1), flags)
        self._handles[handle] = described
        return described

    def _field(self, depth: int) -> JavaField:
        letter, name = chr(self._byte()), self._utf()
        if letter in _PRIMITIVES:
            return JavaField(letter, name)
        signature = self._content(depth + 1)
        if letter != "L" or not isinstance(signature, str):
            raise RecordDamaged(f"Java field {name} has the type {letter}")
        return JavaField(signature, name)

    def _remember(self, value: Any) -> Any:
        self._handles.append(value)
        return value

    def _referred(self) -> Any:
        handle = self._number("I") - FIRST_HANDLE
        if not 0 <= handle < len(self._handles):
            raise RecordDamaged(f"a Java stream refers to handle {handle} of {len(self._handles)}")
        return self._handles[handle]

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _number(self, letter: str) -> Any:
        layout = _PRIMITIVES[letter]
        self._at += layout.size
        return layout.unpack_from(self._data, self._at - layout.size)[0]

    def _utf(self) -> str:
        length = int.from_bytes(self._take(2), "big")
        return decode_modified(self._take(length))

    def _take(self, length: int) -> bytes:
        if not 0 <= length <= len(self._data) - self._at:
            raise RecordDamaged("a Java object is truncated")
        self._at += length
        return self._data[self._at - length : self._at]


class JavaWriter:
    """Writer of a stream. The caller writes the parts of an object, in the order of the format."""

    def __init__(self) -> None:
        self._out = bytearray(HEADER)
        self._next_handle = FIRST_HANDLE
        self._classes: dict[JavaClass, int] = {}
        self._signatures: dict[str, int] = {}

    def stream(self) -> bytes:
        """Return the bytes written."""
        return bytes(self._out)

    def begin(self, described: JavaClass) -> None:
        """Begin an object. The caller writes its data next."""
        self._out.append(OBJECT)
        self._class(described)
        self._handle()

    def numbers(self, letters: str, *values: float) -> None:
        """Write primitive fields, each with the letter of its type."""
        for letter, value in zip(letters, values, strict=True):
            self._out += _PRIMITIVES[letter].pack(value)

    def block(self, data: bytes) -> None:
        """Write custom data, at most 255 bytes."""
        self._out += bytes((BLOCK, len(data))) + data

    def end(self) -> None:
        """End the custom data of a class."""
        self._out.append(END)

    def null(self) -> None:
        self._out.append(NULL)

    def reference(self, handle: int) -> None:
        self._out += struct.pack(">Bi", REFERENCE, handle)

    def string(self, text: str) -> int:
        data = encode_modified(text)
        if len(data) > 0xFFFF:
            self._out += struct.pack(">Bq", STRING_LONG, len(data)) + data
        else:
            self._out += struct.pack(">BH", STRING, len(data)) + data
        return self._handle()

    def _class(self, described: JavaClass | None) -> None:
        if described is None:
            self.null()
            return
        known = self._classes.get(described)
        if known is not None:
            self.reference(known)
            return
        self._out.append(CLASS)
        self._utf(described.name)
        self._out += struct.pack(">q", described.uid)
        self._classes[described] = self._handle()
        self._out += struct.pack(">BH", described.flags, len(described.fields))
        for each in described.fields:
            self._out += each.type[0].encode()
            self._utf(each.name)
            if each.type not in _PRIMITIVES:
                self._signature(each.type)
        self._out.append(END)
        self._class(described.parent)

    def _signature(self, text: str) -> None:
        known = self._signatures.get(text)
        if known is None:
            self._signatures[text] = self.string(text)
        else:
            self.reference(known)

    def _utf(self, text: str) -> None:
        data = text.encode()
        self._out += struct.pack(">H", len(data)) + data

    def _handle(self) -> int:
        self._next_handle += 1
        return self._next_handle - 1
