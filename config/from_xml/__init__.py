"""Conversion of ActiveMQ's configuration, an XML file for Spring, to a file of settings that the loader accepts.

Each element and attribute is converted, or named in a note with the reason. Passwords are never written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tandemmq.config.errors import VALUE_CHARACTERS_MAX, SettingsError
from tandemmq.config.from_xml import security, write
from tandemmq.config.from_xml.broker import Rules
from tandemmq.config.from_xml.conversion import TEXT, Conversion, Fate, Missing
from tandemmq.config.from_xml.document import Element, UnreadableXml, properties_of, read
from tandemmq.config.from_xml.security import USERS_FILE, Logins, keep_closed
from tandemmq.config.load import FILE_BYTES_MAX, load_text
from tandemmq.config.secrets import MASK, is_secret, masked_text
from tandemmq.config.section import show_size

__all__ = ["USERS_FILE", "Converted", "Logins", "Missing", "Note", "UnreadableXml", "convert", "properties_of"]


@dataclass(frozen=True, slots=True)
class Note:
    """Note for the operator about an element that was not converted (``key`` is ""), or was converted with a
    difference. ``parts``: the attributes concerned, or the content of an element that was omitted as a whole."""

    line: int
    path: str
    parts: tuple[str, ...]
    key: str
    reason: str

    def __str__(self) -> str:
        name = self.path.rpartition("/")[2]
        parts = f" {' '.join(self.parts)}" if self.parts else ""
        file = f"{security.NAME}, " if self.path.startswith(f"{security.NAME}/") else ""
        return write.printable(f"{file}line {self.line}: {name}{parts}: {self.reason}")


@dataclass(frozen=True, slots=True)
class Converted:
    """``text``: the file. ``users``: lines of the file of users. ``carried``: line, path, attribute and key of each
    converted value."""

    text: str
    users: tuple[str, ...]
    notes: tuple[Note, ...]
    carried: tuple[tuple[int, str, str | None, str], ...]


def convert(raw: bytes, name: str, defined: Mapping[str, str], logins: Logins | None = None) -> Converted:
    """Convert an ActiveMQ configuration to settings. ``defined``: values of its ``${…}``. ``logins``: other known facts
    about its users.

    Raises UnreadableXml, or Missing when a placeholder has no value in a converted part.
    """
    root = read(raw)
    work = Conversion(defined)
    logins = logins or Logins()
    rules = Rules(work, logins)
    rules.document(root)

    def refusal() -> SettingsError | None:
        try:
            load_text(write.file(work.settings), name)
        except SettingsError as error:
            return error
        return None

    roots = [root] if logins.config is None else [root, logins.config]
    work.settle(roots, refusal)
    keep_closed(work, root)
    fates = work.every_fate(roots)
    notes = tuple(_notes(fates))
    heading = [f"From {name}, by `tandemmq config from-xml`."]
    if notes:
        heading += ["Parts that could not be converted unchanged, with the reasons:", *(f"  {note}" for note in notes)]
    carried = tuple((fate.element.line, fate.element.path, fate.attribute, fate.key) for fate in fates if fate.key)
    text = write.file(work.settings, heading)
    if len(text.encode()) > FILE_BYTES_MAX:
        raise UnreadableXml(f"the result is too large: a settings file has at most {show_size(FILE_BYTES_MAX)}")
    return Converted(text, tuple(rules.users), notes, carried)


def _notes(fates: list[Fate]) -> list[Note]:
    """Return one note for each element and reason; a part omitted with an element above it is in that element's
    note."""
    grouped: dict[tuple[int, str, bool], list[Fate]] = {}
    for fate in fates:
        if fate.reason:
            grouped.setdefault((fate.element.number, fate.reason, bool(fate.key)), []).append(fate)
    mute = {(fate.element.number, fate.attribute) for fate in fates if not fate.reason and not fate.key}
    found: list[Note] = []
    for group in grouped.values():
        first = group[0]
        parts = [_shown(first.element, each) for fate in group if (each := fate.attribute) is not None]
        if first.attribute is None and not first.key:
            parts += _inside(first.element, mute)
        found.append(Note(first.element.line, first.element.path, tuple(dict.fromkeys(parts)), first.key, first.reason))
    return found


def _inside(element: Element, mute: set[tuple[int, str | None]]) -> list[str]:
    shown: list[str] = []
    for part in element.walk():
        if part is not element and (part.number, None) in mute:
            shown.append(f"<{part.path.removeprefix(f'{element.path}/')}>")
        names = [*part.attributes, *([TEXT] if part.text else [])]
        shown += [_shown(part, name) for name in names if (part.number, name) in mute]
    return shown


def _shown(element: Element, attribute: str) -> str:
    """Return an attribute with its value, without passwords."""
    value = element.text if attribute == TEXT else element.attributes[attribute]
    hidden = is_secret(attribute) or (attribute in (TEXT, "value") and _is_of_secret(element))
    shown = MASK if hidden else write.printable(masked_text(value))
    if len(shown) > VALUE_CHARACTERS_MAX:
        shown = shown[:VALUE_CHARACTERS_MAX] + "…"
    return f'{attribute}="{shown}"'


def _is_of_secret(element: Element) -> bool:
    """Return whether it is the value of a password, by its own name or by the name of an enclosing element."""
    above: Element | None = element
    while above is not None:
        if any(is_secret(each) for each in (above.name, *(above.attributes.get(key, "") for key in ("name", "key")))):
            return True
        above = above.parent
    return False
