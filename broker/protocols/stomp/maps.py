"""The body of a map message as XML and as JSON, in the form that XStream gives a java.util.Map in ActiveMQ. Pure.

    <map>                                {"map": {"entry": [
      <entry>                              {"string": ["name", "Dejan"]},
        <string>name</string>              {"string": "age", "int": 30}
        <string>Dejan</string>           ]}}
      </entry>
      ...

The JSON is Jettison's reading of the XML: elements of one name that stand beside each other are an array, a single one
is none, and an empty element is "". It loses facts (the order of a list's items of different types, texts that look
like numbers) that the broker's documents keep: texts stay texts.

Only maps, lists and plain values are read, each by its name in a table; other names are refused. XML with a document
type is refused, because its entities can grow. A document may be DOCUMENT_BYTES_MAX long, and have VALUES_MAX values:
they are freed in one step.

A long document is read or written on a thread. No step of it keeps the interpreter from other threads for more than a
few milliseconds: JSON of more than PIECE_BYTES_MAX is read by Python's own code, not by that in C, and XML in pieces.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable, Iterable
from io import BytesIO
from json.decoder import JSONArray, JSONObject, py_scanstring  # type: ignore[attr-defined]  # typeshed lacks them
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any
from xml.parsers import expat

from tandemmq.broker.core.numbers import java_text, whole_number
from tandemmq.store.records.properties import NESTING_MAX, Byte, Char, Float, Long, Short

#: A map takes 30 times as much memory while it is read.
DOCUMENT_BYTES_MAX = 1 << 20
PIECE_BYTES_MAX = 16 * 1024
#: Elements of XML or values of JSON, those within others included.
VALUES_MAX = 50_000
#: A tag of XML that is too long: values have no attributes, and expat reads all attributes of an element at once.
_LONG_TAG = re.compile(rb"<[^!<>][^<>]{1024}")
#: Sections without tags in them.
_SECTIONS = ((b"<![CDATA[", b"]]>"), (b"<!--", b"-->"), (b"<?", b"?>"))

_F32 = struct.Struct(">f")
_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1


# ---- names and texts of values


def _plain(value: Any) -> tuple[str, str]:
    """Return the name and the text of a value that is neither a map nor a list with something in it."""
    if isinstance(value, str):
        return _name(value), value
    if value is None or isinstance(value, (dict, list)):
        return _name(value), ""
    if isinstance(value, bytes):
        return "byte-array", base64.b64encode(value).decode()
    return _name(value), java_text(value)


def _name(value: Any) -> str:
    name = _NAMES.get(type(value))
    if name is not None:
        return name
    return "int" if _INT_MIN <= value <= _INT_MAX else "long"


_NAMES: dict[type, str] = {
    Char: "char",
    str: "string",
    bool: "boolean",
    Byte: "byte",
    Short: "short",
    Long: "long",
    Float: "float",
    float: "double",
    dict: "map",
    list: "list",
    bytes: "byte-array",
    type(None): "null",
}
_MAPS = frozenset(("map", "linked-hash-map", "tree-map"))
_LISTS = frozenset(("list", "linked-list"))


def _integer(bits: int, make: Callable[[int], int]) -> Callable[[str], int]:
    end = 1 << bits - 1

    def read(text: str) -> int:
        value = whole_number(text)
        if not -end <= value < end:
            raise ValueError(f"{text[:40]!r} has more than {bits} bits")
        return make(value)

    return read


def _float(text: str) -> Float:
    """Return the nearest number of 32 bits."""
    value = _double(text)
    try:
        return Float(*_F32.unpack(_F32.pack(value)))
    except OverflowError:
        raise ValueError(f"{text[:40]!r} is too large for 32 bits") from None


def _double(text: str) -> float:
    if not text.isascii() or "_" in text:  # which float() takes
        raise ValueError(f"{text[:40]!r} is not a number")
    return float(text)


def _boolean(text: str) -> bool:
    return text.strip().lower() in ("true", "yes", "1")  # XStream's BooleanConverter reads any other text as false


def _character(text: str) -> Char:
    if len(text) != 1 or ord(text) > 0xFFFF:
        raise ValueError(f"{text[:40]!r} is not one character")
    return Char(text)


_VALUES: dict[str, Callable[[str], Any]] = {
    "string": str,
    "int": _integer(32, int),
    "long": _integer(64, Long),
    "short": _integer(16, Short),
    "byte": _integer(8, Byte),
    "double": _double,
    "float": _float,
    "boolean": _boolean,
    "char": _character,
    "null": lambda text: None,
    "byte-array": lambda text: base64.b64decode(text, validate=True),
}


class _Open:
    """Element that has no end yet: its name, its texts, and its contents: the entries of a map, the items of a list,
    the key and the value of an entry."""

    __slots__ = ("entries", "items", "name", "texts")

    def __init__(self, name: str) -> None:
        self.name = name
        self.texts: list[str] = []
        self.entries: dict[str, Any] = {}
        self.items: list[Any] = []


class _Building:
    """Makes a map of elements in the order of their text. No element is kept beyond its end, only its value. Raises
    ValueError for elements that make no map."""

    def __init__(self) -> None:
        self._open: list[_Open] = []
        self.result: dict[str, Any] = {}

    def start(self, name: str) -> None:
        opened = self._open
        if not opened:
            if name not in _MAPS:
                raise ValueError(f"{name[:80]!r} is not a map")
        else:
            outer = opened[-1]
            if outer.name in _MAPS:
                if name != "entry":
                    raise _no_entry()
            elif outer.name == "entry" and opened[-2].name in _MAPS:
                if len(outer.items) > 1 or (not outer.items and name != "string"):
                    raise _no_entry()
            elif outer.name not in _LISTS:
                raise _no_value(outer.name)
        if len(opened) > NESTING_MAX and self._depth > NESTING_MAX:
            raise ValueError(f"nested deeper than {NESTING_MAX}")
        opened.append(_Open(name))

    @property
    def _depth(self) -> int:
        """Number of maps and lists that are open."""
        return sum(1 for each in self._open if each.name in _MAPS or each.name in _LISTS)

    def text(self, text: str) -> None:
        self._open[-1].texts.append(text)

    def end(self) -> None:
        inner = self._open.pop()
        name = inner.name
        if not self._open:
            self.result = inner.entries
            return
        outer = self._open[-1]
        if outer.name in _MAPS:
            if len(inner.items) != 2:
                raise _no_entry()
            outer.entries[inner.items[0]] = inner.items[1]
        elif name in _MAPS:
            outer.items.append(inner.entries)
        elif name in _LISTS:
            outer.items.append(inner.items)
        else:
            read = _VALUES.get(name)
            if read is None:
                raise _no_value(name)
            outer.items.append(read("".join(inner.texts)))


def _no_entry() -> ValueError:
    return ValueError("a map has entries, each of a string and a value")


def _no_value(name: str) -> ValueError:
    return ValueError(f"{name[:80]!r} is not a value of a map message")


def _check_size(data: bytes) -> None:
    if len(data) > DOCUMENT_BYTES_MAX:
        raise ValueError(f"a map of {len(data)} bytes is too long: the maximum is {DOCUMENT_BYTES_MAX}")


def _too_many() -> ValueError:
    return ValueError(f"the map has more than {VALUES_MAX} values")


def _write_text(out: BytesIO, text: str, escaped: Callable[[str], str]) -> None:
    """Write a text, ``escaped`` piece by piece: the copies of all of it would take four times its length."""
    for first in range(0, len(text), PIECE_BYTES_MAX):
        out.write(escaped(text[first : first + PIECE_BYTES_MAX]).encode("utf-8", "replace"))


# ---- XML


def write_xml(entries: dict[str, Any]) -> bytes:
    """Return the map as XML, in the form of XStream's PrettyPrintWriter."""
    out = BytesIO()
    _write_xml(out, entries, "")
    out.truncate(out.tell() - 1)  # the end of the last line
    return out.getvalue()


def _write_xml(out: BytesIO, value: Any, indent: str) -> None:
    if isinstance(value, dict) and value:
        out.write(f"{indent}<map>\n".encode())
        for key, each in value.items():
            out.write(f"{indent}  <entry>\n".encode())
            _write_xml(out, key, indent + "    ")
            _write_xml(out, each, indent + "    ")
            out.write(f"{indent}  </entry>\n".encode())
        out.write(f"{indent}</map>\n".encode())
    elif isinstance(value, list) and value:
        out.write(f"{indent}<list>\n".encode())
        for each in value:
            _write_xml(out, each, indent + "  ")
        out.write(f"{indent}</list>\n".encode())
    else:
        name, text = _plain(value)
        if text or name == "string":
            out.write(f"{indent}<{name}>".encode())
            _write_text(out, text, _escaped)
            out.write(f"</{name}>\n".encode())
        else:
            out.write(f"{indent}<{name}/>\n".encode())


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES)


_ESCAPES = {number: f"&#x{number:x};" for number in range(0x20) if number not in (0x09, 0x0A)}
_ESCAPES |= {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;", ord('"'): "&quot;", ord("'"): "&apos;"}


def read_xml(data: bytes) -> dict[str, Any]:
    """Return the map of XML, the inverse of :func:`write_xml`. Raises ValueError for anything that is not a map."""
    _check_size(data)
    if _has_long_tag(data):
        raise ValueError("a tag has more than 1 KiB")
    building = _Building()
    left = VALUES_MAX

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise _too_many()
        building.start(name)

    def document_type(*parts: object) -> None:
        raise ValueError("a document type is refused")

    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True
    parser.StartElementHandler = start
    parser.CharacterDataHandler = building.text
    parser.EndElementHandler = lambda name: building.end()
    parser.StartDoctypeDeclHandler = document_type
    try:
        for first in range(0, len(data), PIECE_BYTES_MAX):
            parser.Parse(data[first : first + PIECE_BYTES_MAX], False)
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        raise ValueError(f"not XML: {error}") from None
    return building.result


def _has_long_tag(data: bytes) -> bool:
    at = data.find(b"<")
    while at >= 0:
        if _LONG_TAG.match(data, at) is not None:
            return True
        for begin, end in _SECTIONS:
            if data.startswith(begin, at):
                at = data.find(end, at + len(begin))
                if at < 0:
                    return False  # not XML
                break
        at = data.find(b"<", at + 1)
    return False


# ---- JSON


def write_json(entries: dict[str, Any]) -> bytes:
    """Return the map as JSON, in Jettison's mapped convention."""
    out = BytesIO()
    out.write(b'{"map":')
    _write_json(out, entries)
    out.write(b"}")
    return out.getvalue()


def _write_json(out: BytesIO, value: Any) -> None:
    if isinstance(value, dict) and value:
        out.write(b'{"entry":')
        _write_one_or_more(out, list(value.items()), _write_entry)
        out.write(b"}")
    elif isinstance(value, list) and value:
        _write_by_name(out, value)
    else:
        name, text = _plain(value)
        if name in ("double", "float"):
            number = float(text)
            if abs(number) < float("inf"):  # JSON has neither NaN nor infinity
                out.write(repr(number).encode())
                return
        if name in _WRITTEN_AS_THEY_ARE:
            out.write(text.encode())
        else:
            out.write(b'"')
            _write_text(out, text, _json_escaped)
            out.write(b'"')


def _json_escaped(text: str) -> str:
    return _JSON.encode(text)[1:-1]


def _write_entry(out: BytesIO, entry: tuple[str, Any]) -> None:
    _write_by_name(out, entry)


def _write_by_name(out: BytesIO, values: Iterable[Any]) -> None:
    grouped: dict[str, list[Any]] = {}
    for each in values:
        grouped.setdefault(_name(each), []).append(each)
    start = "{"
    for name, group in grouped.items():
        out.write(f'{start}"{name}":'.encode())
        _write_one_or_more(out, group, _write_json)
        start = ","
    out.write(b"}")


def _write_one_or_more(out: BytesIO, values: list[Any], write: Callable[[BytesIO, Any], None]) -> None:
    if len(values) == 1:
        write(out, values[0])
        return
    start = b"["
    for each in values:
        out.write(start)
        write(out, each)
        start = b","
    out.write(b"]")


_JSON = json.JSONEncoder(ensure_ascii=False)
_WRITTEN_AS_THEY_ARE = frozenset(("boolean", "int", "long", "short", "byte"))


def read_json(data: bytes) -> dict[str, Any]:
    """Return the map of JSON, the inverse of :func:`write_json`. Raises ValueError for anything that is not a map."""
    _check_size(data)
    try:
        document = json.loads(data, cls=None if len(data) <= PIECE_BYTES_MAX else _PythonDecoder)
    except RecursionError:
        raise ValueError(f"nested deeper than {NESTING_MAX}") from None
    if not isinstance(document, dict) or len(document) != 1:
        raise ValueError("an object with only the name 'map' is expected")
    ((name, value),) = document.items()
    del document
    building = _Building()
    _read(building, name, value)
    return building.result


class _PythonDecoder(json.JSONDecoder):
    """Decoder that lets other threads run meanwhile. Raises ValueError for more than VALUES_MAX values."""

    def __init__(self) -> None:
        super().__init__()
        self.parse_object = self._object
        self.parse_array = self._array
        self.parse_string = py_scanstring
        self.scan_once = py_make_scanner(self)
        self._left = VALUES_MAX

    def _object(self, start: Any, strict: bool, scan: _Scan, *hooks: Any) -> Any:
        return JSONObject(start, strict, self._counting(scan), *hooks)

    def _array(self, start: Any, scan: _Scan) -> Any:
        return JSONArray(start, self._counting(scan))

    def _counting(self, scan: _Scan) -> _Scan:
        def counting(text: str, at: int) -> Any:
            self._left -= 1
            if self._left < 0:
                raise _too_many()
            return scan(text, at)

        return counting


_Scan = Callable[[str, int], Any]


def _read(building: _Building, name: str, value: Any) -> None:
    """Read the elements of ``value`` and their contents. Lists are empty afterwards: their elements are
    freed as they are read."""
    building.start(name)
    if isinstance(value, dict):
        for inner, each in value.items():
            if isinstance(each, list):
                each.reverse()
                while each:
                    _read(building, inner, each.pop())
            else:
                _read(building, inner, each)
    elif isinstance(value, list):
        raise ValueError(f"{name[:80]!r} is a list in a list")
    elif value is not None:
        building.text(value if isinstance(value, str) else java_text(value))
    building.end()
