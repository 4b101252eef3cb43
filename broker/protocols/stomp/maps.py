"""The body of a map message as XML and as JSON: what XStream makes of a java.util.Map in ActiveMQ. Pure.

    <map>                                {"map": {"entry": [
      <entry>                              {"string": ["name", "Dejan"]},
        <string>name</string>              {"string": "age", "int": 30}
        <string>Dejan</string>           ]}}
      </entry>
      ...

The JSON is Jettison's reading of the XML: elements of one name that stand beside each other are an array, a single one
is none, and an empty element is "". It loses facts (the order of a list's items of different types, texts that look
like numbers) that our documents keep: texts stay texts.

Only maps, lists and plain values are read, each by its name in a table; no name ever makes anything else. XML with a
document type is refused, for its entities can grow. A document may be DOCUMENT_BYTES_MAX long, and have VALUES_MAX
values: they are freed in one step.

A long document is read or written on a thread. No step of it keeps the interpreter from other threads for more than a
few milliseconds: JSON of more than PIECE_BYTES_MAX is read by Python's own code, not by that in C, and XML in pieces.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable, Iterable
from json.decoder import JSONArray, JSONObject, py_scanstring  # type: ignore[attr-defined]  # typeshed has them not
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
#: Longer, in XML: values have no attributes, and expat reads all of an element's at once.
_LONG_TAG = re.compile(rb"<[^!<>][^<>]{1024}")
#: Sections without tags in them.
_SECTIONS = ((b"<![CDATA[", b"]]>"), (b"<!--", b"-->"), (b"<?", b"?>"))

_F32 = struct.Struct(">f")
_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1


class Element:
    """Element of XStream: its name, and its text or the elements in it."""

    __slots__ = ("children", "name", "text")

    def __init__(self, name: str, text: str = "", children: list[Element] | None = None) -> None:
        self.name = name
        self.text = text
        self.children: list[Element] = [] if children is None else children


# ---- values and elements


def _element_of(value: Any) -> Element:
    if isinstance(value, dict):
        entries = [
            Element("entry", children=[Element("string", key), _element_of(each)]) for key, each in value.items()
        ]
        return Element("map", children=entries)
    if isinstance(value, list):
        return Element("list", children=[_element_of(item) for item in value])
    if value is None:
        return Element("null")
    if isinstance(value, bytes):
        return Element("byte-array", base64.b64encode(value).decode())
    if isinstance(value, str):
        return Element("char" if isinstance(value, Char) else "string", value)
    return Element(_number_name(value), java_text(value))


def _number_name(value: bool | int | float) -> str:
    for type, name in _NUMBER_NAMES.items():
        if isinstance(value, type):
            return name
    return "int" if _INT_MIN <= value <= _INT_MAX else "long"


_NUMBER_NAMES: dict[type, str] = {
    bool: "boolean",
    Byte: "byte",
    Short: "short",
    Long: "long",
    Float: "float",
    float: "double",
}


def _value_of(element: Element, depth: int = 0) -> Any:
    if depth > NESTING_MAX:
        raise ValueError(f"nested deeper than {NESTING_MAX}")
    if element.name in _MAPS:
        found: dict[str, Any] = {}
        for entry in element.children:
            if entry.name != "entry" or len(entry.children) != 2 or entry.children[0].name != "string":
                raise ValueError("a map has entries, each of a string and a value")
            found[entry.children[0].text] = _value_of(entry.children[1], depth + 1)
        return found
    if element.name in _LISTS:
        return [_value_of(item, depth + 1) for item in element.children]
    read = _VALUES.get(element.name)
    if read is None or element.children:
        raise ValueError(f"{element.name[:80]!r} is no value that a map message holds")
    return read(element.text)


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
        raise ValueError(f"{text[:40]!r} is no number")
    return float(text)


def _boolean(text: str) -> bool:
    return text.strip().lower() in ("true", "yes", "1")  # XStream's BooleanConverter takes anything else for false


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


def _map_of(element: Element) -> dict[str, Any]:
    if element.name not in _MAPS:
        raise ValueError(f"{element.name[:80]!r} is no map")
    found: dict[str, Any] = _value_of(element)
    return found


def _check_size(data: bytes) -> None:
    if len(data) > DOCUMENT_BYTES_MAX:
        raise ValueError(f"a map of {len(data)} bytes is not read; {DOCUMENT_BYTES_MAX} are the most")


def _too_many() -> ValueError:
    return ValueError(f"a map of more than {VALUES_MAX} values is not read")


# ---- XML


def write_xml(entries: dict[str, Any]) -> bytes:
    """Return the map as XML, in the form of XStream's PrettyPrintWriter."""
    lines: list[str] = []
    _write_element(lines, _element_of(entries), "")
    return "\n".join(lines).encode("utf-8", "replace")


def _write_element(lines: list[str], element: Element, indent: str) -> None:
    name = element.name
    if element.children:
        lines.append(f"{indent}<{name}>")
        for child in element.children:
            _write_element(lines, child, indent + "  ")
        lines.append(f"{indent}</{name}>")
    elif element.text or name == "string":
        lines.append(f"{indent}<{name}>{element.text.translate(_ESCAPES)}</{name}>")
    else:
        lines.append(f"{indent}<{name}/>")


_ESCAPES = {number: f"&#x{number:x};" for number in range(0x20) if number not in (0x09, 0x0A)}
_ESCAPES |= {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;", ord('"'): "&quot;", ord("'"): "&apos;"}


def read_xml(data: bytes) -> dict[str, Any]:
    """Return the map of XML, the inverse of :func:`write_xml`. Raises ValueError for anything that is not a map."""
    _check_size(data)
    if _has_long_tag(data):
        raise ValueError("a tag of more than 1 KiB is not read")
    root = Element("")
    open_elements = [root]
    left = VALUES_MAX

    def start(name: str, attributes: dict[str, str]) -> None:
        if len(open_elements) > 2 * NESTING_MAX + 2:
            raise ValueError(f"nested deeper than {NESTING_MAX}")
        nonlocal left
        left -= 1
        if left < 0:
            raise _too_many()
        element = Element(name)
        open_elements[-1].children.append(element)
        open_elements.append(element)

    def text(data: str) -> None:
        open_elements[-1].text += data

    def end(name: str) -> None:
        element = open_elements.pop()
        if element.children:
            element.text = ""  # the blanks between

    def document_type(*parts: object) -> None:
        raise ValueError("a document type is refused")

    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True
    parser.buffer_size = len(data) + 1
    parser.StartElementHandler = start
    parser.CharacterDataHandler = text
    parser.EndElementHandler = end
    parser.StartDoctypeDeclHandler = document_type
    try:
        for first in range(0, len(data), PIECE_BYTES_MAX):
            parser.Parse(data[first : first + PIECE_BYTES_MAX], False)
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        raise ValueError(f"not XML: {error}") from None
    return _map_of(root.children[0])


def _has_long_tag(data: bytes) -> bool:
    at = data.find(b"<")
    while at >= 0:
        if _LONG_TAG.match(data, at) is not None:
            return True
        for begin, end in _SECTIONS:
            if data.startswith(begin, at):
                at = data.find(end, at + len(begin))
                if at < 0:
                    return False  # it is no XML
                break
        at = data.find(b"<", at + 1)
    return False


# ---- JSON


def write_json(entries: dict[str, Any]) -> bytes:
    """Return the map as JSON, in Jettison's mapped convention."""
    root = _element_of(entries)
    # In pieces, which is by Python's own code: json.dumps keeps the interpreter to itself until it is done.
    pieces = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).iterencode({root.name: _json_of(root)})
    return "".join(pieces).encode("utf-8", "replace")


def _json_of(element: Element) -> Any:
    if not element.children:
        return _JSON_VALUES.get(element.name, str)(element.text)
    grouped: dict[str, list[Any]] = {}
    for child in element.children:
        grouped.setdefault(child.name, []).append(_json_of(child))
    return {name: each[0] if len(each) == 1 else each for name, each in grouped.items()}


def _json_float(text: str) -> float | str:
    value = float(text)
    return value if abs(value) < float("inf") else text  # JSON has neither NaN nor infinity


_JSON_VALUES: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("int", "long", "short", "byte"), int),
    **dict.fromkeys(("double", "float"), _json_float),
    "boolean": lambda text: text == "true",
}


def read_json(data: bytes) -> dict[str, Any]:
    """Return the map of JSON, the inverse of :func:`write_json`. Raises ValueError for anything that is not a map."""
    _check_size(data)
    try:
        document = json.loads(data, cls=None if len(data) <= PIECE_BYTES_MAX else _PythonDecoder)
    except RecursionError:
        raise ValueError(f"nested deeper than {NESTING_MAX}") from None
    if not isinstance(document, dict) or len(document) != 1:
        raise ValueError("an object with the one name 'map' is expected")
    ((name, value),) = document.items()
    return _map_of(_element_in(name, value, 0))


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


def _element_in(name: str, value: Any, depth: int) -> Element:
    if depth > 2 * NESTING_MAX + 2:
        raise ValueError(f"nested deeper than {NESTING_MAX}")
    if isinstance(value, dict):
        return Element(name, children=list(_elements_in(value.items(), depth + 1)))
    if isinstance(value, list):
        raise ValueError(f"{name[:80]!r} is a list in a list")
    if value is None:
        return Element(name)
    if isinstance(value, str):
        return Element(name, value)
    return Element(name, java_text(value))


def _elements_in(members: Iterable[tuple[str, Any]], depth: int) -> Iterable[Element]:
    for name, value in members:
        for each in value if isinstance(value, list) else (value,):
            yield _element_in(name, each, depth)
