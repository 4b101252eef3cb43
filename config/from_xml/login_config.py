"""Java's login.config, where a JAAS plugin of ActiveMQ finds its users: read as elements, so that no part is forgotten.

    LdapConfiguration {
        org.apache.activemq.jaas.LDAPLoginModule required
            connectionURL="ldap://localhost:1024"
            userBase="ou=User,dc=example";
    };

becomes an element `login.config` with an element for each configuration, which contains one for each module: its name
is the last word of the module's class, its attributes are the module's options.
"""

from __future__ import annotations

import re
from typing import Final

from tandemmq.config.from_xml.document import XML_BYTES_MAX, Element, UnreadableXml
from tandemmq.config.units import show_size

NAME: Final = "login.config"
BYTES_MAX: Final = 1 << 16
#: Number after all elements that an XML document may have.
_FIRST: Final = XML_BYTES_MAX
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_TOKEN: Final = re.compile(
    r'(?P<blank>\s+|//[^\n]*|/\*.*?\*/)|"(?P<text>(?:\\.|[^"\\])*)"|(?P<sign>[{};=])|(?P<word>[^\s{};="]+)', re.DOTALL
)


def read(text: str) -> Element:
    """Parse login.config. Raises UnreadableXml with the line and the expected form."""
    if len(text) > BYTES_MAX:
        raise UnreadableXml(f"{NAME} has at most {show_size(BYTES_MAX)}")
    tokens = _tokens(text)
    root = Element(NAME, 1, NAME, _FIRST, {})
    while tokens:
        name, line = tokens.pop(0)
        _expect(tokens, "{", line)
        realm = _inside(root, name, line)
        while tokens and tokens[0][0] != "}":
            _module(tokens, realm)
        _expect(tokens, "}", line)
        _expect(tokens, ";", line)
    return root


def _module(tokens: list[tuple[str, int]], realm: Element) -> None:
    name, line = tokens.pop(0)
    flag = tokens.pop(0)[0].lower() if tokens else ""
    if flag not in _FLAGS:
        raise UnreadableXml(f"{NAME}, line {line}: expected {name} {'|'.join(_FLAGS)}, got {flag!r}")
    module = _inside(realm, name.rpartition(".")[2], line)
    while tokens and tokens[0][0] != ";":
        option, line = tokens.pop(0)
        _expect(tokens, "=", line)
        if not tokens:
            break
        module.attributes[option] = tokens.pop(0)[0]
    _expect(tokens, ";", line)


def _inside(holder: Element, name: str, line: int) -> Element:
    same = sum(child.name == name for child in holder.children)
    path = f"{holder.path}/{name}{f'[{same + 1}]' if same else ''}"
    root = holder.parent or holder
    made = Element(name, line, path, root.number + sum(1 for _ in root.walk()), {}, holder)
    holder.children.append(made)
    return made


def _expect(tokens: list[tuple[str, int]], sign: str, line: int) -> None:
    if not tokens or tokens[0][0] != sign:
        got = f"{tokens[0][0]!r} in line {tokens[0][1]}" if tokens else "its end"
        raise UnreadableXml(f"{NAME}, line {line}: expected {sign!r} behind it, got {got}")
    tokens.pop(0)


def _tokens(text: str) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    at, line = 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise UnreadableXml(f"{NAME}, line {line}: a text without an end")
        if match["blank"] is None:
            quoted = match["text"]
            found.append((re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else match[0], line))
        line += match[0].count("\n")
        at = match.end()
    return found
