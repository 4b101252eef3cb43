"""Tree of the elements of an ActiveMQ configuration, each with its line, and the values of Spring's ``${…}`` in it.

An attacker's XML has no effect: a document type is refused, and with it every entity, so nothing expands and no other
file is read. Bytes and depth are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Final

# Only exceptions and the interface of a handler; the parser is defusedxml's.
from xml.sax import SAXException, SAXParseException  # nosec B406
from xml.sax.handler import ContentHandler, feature_namespaces  # nosec B406

from defusedxml.common import DefusedXmlException
from defusedxml.sax import make_parser

from tandemmq.config.section import show_size

XML_BYTES_MAX: Final = 1 << 20
DEPTH_MAX: Final = 64
#: Maximum depth of placeholders in the values of placeholders.
PLACEHOLDER_DEPTH_MAX: Final = 8

#: Namespaces of elements that are known by their plain names: ActiveMQ's of all versions, and Spring's.
_KNOWN: Final = re.compile(r"https?://([\w.-]+\.)?(activemq\.(apache\.)?org|springframework\.org)/.*")
_PLACEHOLDER: Final = re.compile(r"\$\{([^${}:]+)(?::([^${}]*))?\}")
#: Defaults of ActiveMQ's own start script.
_DERIVED: Final = {
    "activemq.base": "${activemq.home}",
    "activemq.conf": "${activemq.base}/conf",
    "activemq.data": "${activemq.base}/data",
}


class UnreadableXml(Exception):
    """The document is not readable XML; the message is for the operator."""


@dataclass(slots=True, eq=False)
class Element:
    """``path`` is its name in the document: the second of several with one name is `name[2]`. Elements of other
    namespaces have the namespace in front of their name, in braces."""

    name: str
    line: int
    path: str
    number: int
    attributes: dict[str, str]
    parent: Element | None = None
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def walk(self) -> Iterator[Element]:
        """Yield the element and all elements inside it, in document order."""
        waiting = [self]
        while waiting:
            element = waiting.pop()
            yield element
            waiting += reversed(element.children)


def read(raw: bytes) -> Element:
    """Return the root element. Raises UnreadableXml with the line and the error."""
    if len(raw) > XML_BYTES_MAX:
        raise UnreadableXml(f"a configuration has at most {show_size(XML_BYTES_MAX)}")
    parser: Any = make_parser()
    parser.forbid_dtd = True
    parser.setFeature(feature_namespaces, True)
    reader = _Reader()
    parser.setContentHandler(reader)
    try:
        parser.parse(BytesIO(raw))
    except DefusedXmlException as error:
        raise UnreadableXml(
            "a document type (<!DOCTYPE …>) is refused: entities in it can read other files, or take all memory. "
            "Remove it."
        ) from error
    except SAXParseException as error:
        raise UnreadableXml(f"line {error.getLineNumber()}: not XML: {error.getMessage()}") from error
    except (SAXException, ValueError, LookupError) as error:
        raise UnreadableXml(f"not XML: {error}") from error
    assert reader.root is not None, "a document without a root is an error of the parser"
    return reader.root


class _Reader(ContentHandler):
    def __init__(self) -> None:
        super().__init__()
        self.root: Element | None = None
        self._open: list[Element] = []
        self._counts: list[dict[str, int]] = []
        self._texts: list[list[str]] = []
        self._number = 0
        self._locator: Any = None

    def setDocumentLocator(self, locator: Any) -> None:
        self._locator = locator

    def startElementNS(self, name: tuple[str | None, str], qname: str | None, attrs: Any) -> None:
        line = self._locator.getLineNumber()
        if len(self._open) == DEPTH_MAX:
            raise UnreadableXml(f"line {line}: more than {DEPTH_MAX} nested elements")
        plain = _plain(name)
        path = plain
        if self._open:
            count = self._counts[-1][plain] = self._counts[-1].get(plain, 0) + 1
            path = f"{self._open[-1].path}/{plain}{f'[{count}]' if count > 1 else ''}"
        self._number += 1
        attributes = {_plain(each): attrs.getValue(each) for each in attrs.getNames()}
        parent = self._open[-1] if self._open else None
        element = Element(plain, line, path, self._number, attributes, parent)
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)
        self._counts.append({})
        self._texts.append([])

    def endElementNS(self, name: tuple[str | None, str], qname: str | None) -> None:
        element = self._open.pop()
        element.text = "".join(self._texts.pop()).strip()
        self._counts.pop()

    def characters(self, content: str) -> None:
        self._texts[-1].append(content)


def _plain(name: tuple[str | None, str]) -> str:
    namespace, local = name
    return local if namespace is None or _KNOWN.fullmatch(namespace) else f"{{{namespace}}}{local}"


def fill_in(text: str, values: Mapping[str, str], depth: int = 0) -> tuple[str, list[str]]:
    """Return the text with its placeholders replaced, and the names of those without a value."""
    missing: list[str] = []

    def value(found: re.Match[str]) -> str:
        name, default = found[1].strip(), found[2]
        said = values.get(name, _DERIVED.get(name) if default is None else default)
        if said is None or depth == PLACEHOLDER_DEPTH_MAX:
            missing.append(name)
            return found[0]
        filled, without = fill_in(said, values, depth + 1)
        missing.extend([name] if without else [])
        return filled

    return _PLACEHOLDER.sub(value, text), missing


def properties_of(text: str) -> dict[str, str]:
    """Parse a Java properties file."""
    text = re.sub(r"\\\r?\n[ \t]*", "", re.sub(r"(?m)^[ \t]*[#!].*$", "", text))
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = re.match(r"\s*((?:\\.|[^\s=:\\])+)\s*[=:]?\s*(.*)", line)
        if match is not None:
            found[_unescaped(match[1])] = _unescaped(match[2])
    return found


def _unescaped(text: str) -> str:
    letters = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
    return re.sub(
        r"\\(?:u([0-9A-Fa-f]{4})|(.))",
        lambda found: chr(int(found[1], 16)) if found[1] else letters.get(found[2], found[2]),
        text,
    )
