"""State of a conversion: each element and attribute is converted to a setting, or omitted with the reason.

By construction nothing is forgotten: at the end, each element and attribute without a rule is reported as unknown. Each
result is verified: a value that the loader of the settings refuses is removed again, with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tandemmq.config import kahadb
from tandemmq.config.errors import RefusedSetting, SettingsError
from tandemmq.config.from_xml.document import Element, fill_in
from tandemmq.config.kahadb_property import Outcome, Property
from tandemmq.config.load import ENVIRONMENT_PREFIX, ENVIRONMENT_SEPARATOR, TABLE_LISTS
from tandemmq.config.secrets import is_secret
from tandemmq.config.section import Listed, Section, listed, section_of, unit_of
from tandemmq.config.settings import Settings

#: Key in place of an attribute's name: the text between an element's tags.
TEXT: Final = "#text"
UNKNOWN: Final = "This command does not know this part of the configuration."
SECRET: Final = "A password is never written."
#: Keys of an element that only contains others, and of a value that is fixed here.
INSIDE: Final = "its content"
ANYWAY: Final = "always the case here"
#: Namespace of attributes that only name the schema for an editor.
_SCHEMA: Final = "{http://www.w3.org/2001/XMLSchema-instance}"
#: Attributes that name an object for Spring.
_SPRING: Final = ("id", "lazy-init", "depends-on")

#: Name of an ActiveMQ broker without a configured name.
ACTIVEMQ_NAME: Final = "localhost"

Source = tuple[Element, str | None]


@dataclass(frozen=True, slots=True)
class Fate:
    """Result of one element or attribute. ``attribute`` None: the element itself. ``key``: the setting, "" if it is not
    converted. ``reason``: why not, or a remark."""

    element: Element
    attribute: str | None
    key: str
    reason: str


class Missing(Exception):
    """Placeholders without a value: name -> first line with it."""

    def __init__(self, names: Mapping[str, int]) -> None:
        super().__init__(names)
        self.names = dict(names)


@dataclass(slots=True, eq=False)
class Table:
    """Table of settings in progress: values by key, and the sources of each."""

    model: type[Section]
    name: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, list[Source]] = field(default_factory=dict)
    comment: str = ""

    def table(self, key: str) -> Table:
        """Return the table inside it, which is created if it does not exist."""
        found = self.values.get(key)
        if found is None:
            model = section_of(self.model.model_fields[key].annotation)
            assert model is not None, f"{key} is a table"
            found = self.values[key] = Table(model, self.dotted(key))
        assert isinstance(found, Table)
        return found

    def add(self, key: str, source: Source, model: type[Section] | None = None) -> Table:
        """Add a table to a list."""
        made = Table(model or TABLE_LISTS[self.dotted(key)], self.dotted(key))
        self.values.setdefault(key, []).append(made)
        made.sources[""] = [source]
        return made

    def dotted(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key

    def copy(self) -> Table:
        values = {key: value.copy() if isinstance(value, Table) else value for key, value in self.values.items()}
        sources = {key: list(found) for key, found in self.sources.items()}
        return Table(self.model, self.name, values, sources, self.comment)

    def every_source(self) -> Iterator[Source]:
        for found in self.sources.values():
            yield from found
        for value in self.values.values():
            yield from _sources(value)


def _sources(value: object) -> Iterator[Source]:
    if isinstance(value, Table):
        yield from value.every_source()
    elif isinstance(value, list):
        for each in value:
            yield from _sources(each)


class Conversion:
    """Conversion of one document."""

    def __init__(self, defined: Mapping[str, str]) -> None:
        self.settings: Final = Table(Settings)
        self.fates: Final[dict[tuple[int, str | None], Fate]] = {}
        self.missing: Final[dict[str, int]] = {}
        self._defined: Final = defined

    # ---- interface for rules

    def value(self, element: Element, attribute: str) -> str:
        """Return the value to convert, with its placeholders filled in."""
        raw = element.text if attribute == TEXT else element.attributes[attribute]
        filled, without = fill_in(raw, self._defined)
        for name in without:
            self.missing.setdefault(name, element.line)
        return filled.strip()

    def carry(
        self, element: Element, attribute: str | None, table: Table, key: str, value: object = None, remark: str = ""
    ) -> None:
        """Convert to a key of ``table``, with the attribute's own value unless another one is given."""
        dotted = table.dotted(key)
        if is_secret(key):
            variable = ENVIRONMENT_PREFIX + dotted.upper().replace(".", ENVIRONMENT_SEPARATOR)
            file = f"{key}_file, or " if f"{key}_file" in table.model.model_fields else ""
            self.leave(element, attribute, f"{SECRET} Give it by {file}{dotted}, or the environment: {variable}.")
            return
        if value is None:
            assert attribute is not None, "an element has no value of its own"
            value = self.value(element, attribute)
        table.values[key] = typed(table.model, key, value) if isinstance(value, str) else value
        table.sources.setdefault(key, []).append((element, attribute))
        self.became(element, attribute, dotted, remark)

    def became(self, element: Element, attribute: str | None, key: str, remark: str = "") -> None:
        """Record a conversion to these settings, or to a behaviour that is fixed here."""
        before = self.fates.get((element.number, attribute))
        if before is not None and before.key:
            key = ", ".join(dict.fromkeys([*before.key.split(", "), key]))
            remark = " ".join(dict.fromkeys(each for each in (before.reason, remark) if each))
        self.fates[element.number, attribute] = Fate(element, attribute, key, remark)
        self.fates.setdefault((element.number, None), Fate(element, None, INSIDE, ""))

    def leave(self, element: Element, attribute: str | None, reason: str) -> None:
        """Record that the element or attribute is not converted; an element includes its content."""
        self.fates[element.number, attribute] = Fate(element, attribute, "", reason)
        if attribute is None:
            for part in element.walk():
                for name in _parts(part):
                    if (part, name) != (element, None):
                        self.fates[part.number, name] = Fate(part, name, "", "")

    def wrap(self, element: Element) -> Element:
        """Record an element that only contains others."""
        self.became(element, None, INSIDE)
        return element

    def children(self, element: Element, *names: str) -> Iterator[Element]:
        """Yield the children of these names of an element that only contains others; any other is unknown."""
        self.wrap(element)
        yield from (child for child in element.children if child.name in names)

    def carry_all(self, element: Element, known: Mapping[str, Property], table: Table, prefix: str = "") -> None:
        """Convert all attributes that are known settings of ActiveMQ. ``prefix``: the prefix of their keys, for the
        keys in ``table``."""
        for name in element.attributes:
            found = known.get(name)
            if found is not None:
                self.carry_known(element, name, found, table, prefix)

    def carry_known(self, element: Element, name: str, found: Property, table: Table, prefix: str = "") -> None:
        if found.outcome is Outcome.REFUSED:
            self.leave(element, name, found.here)
            return
        value: Any = self.value(element, name)
        if found.outcome is not Outcome.ACCEPTED:
            try:
                value = kahadb.check(found, value, None)
            except RefusedSetting as error:
                self.leave(element, name, error.reason)
                return
            except SettingsError as error:
                self.leave(element, name, f"Expected {error.expected}.")
                return
            if found.outcome is Outcome.FIXED:
                self.became(element, name, ANYWAY)
                return
        *path, key = (found.target or found.key).removeprefix(prefix).split(".")
        for part in path:
            if part not in table.model.model_fields:
                break
            table = table.table(part)
        if key not in table.model.model_fields:
            self.leave(element, name, f"One value for all stores: set {found.target or found.key}.")
            return
        self.carry(element, name, table, key, value if found.outcome is Outcome.MAPPED else None)

    # ---- the end

    def settle(self, roots: Sequence[Element], refusal: Callable[[], SettingsError | None]) -> None:
        """Remove the values that the loader refuses, and record the rest as unknown. Raises Missing."""
        if self.missing:
            raise Missing(self.missing)
        while (error := refusal()) is not None:
            reason = error.reason if isinstance(error, RefusedSetting) else f"Expected {error.expected}."
            broker = self.settings.table("broker").values
            if error.key == "broker.name" and "name" not in broker:
                broker["name"] = ACTIVEMQ_NAME  # a replicated set must have one
            else:
                self._take_out(error.key, reason)
        for element in _every(roots):
            for name in _parts(element):
                if (element.number, name) in self.fates:
                    continue
                if name is not None and name.startswith(_SCHEMA):
                    self.became(element, name, "a declaration of XML")
                elif name in _SPRING:
                    self.fates[element.number, name] = Fate(element, name, "", "An attribute of Spring.")
                elif name is not None:
                    self.fates[element.number, name] = Fate(element, name, "", UNKNOWN)
                elif any((part.number, each) in self.fates for part in element.walk() for each in _parts(part)):
                    self.wrap(element)
                else:
                    self.leave(element, None, UNKNOWN)

    def every_fate(self, roots: Sequence[Element]) -> list[Fate]:
        """Return all results in the order of the documents: each element, then its attributes and its text."""
        return [self.fates[element.number, name] for element in _every(roots) for name in _parts(element)]

    def _take_out(self, key: str, reason: str) -> None:
        """Remove the value of that key; if it has none, remove the table that lacks it."""
        holder: Any = self.settings
        above: list[tuple[Any, Any]] = []
        for word in re.findall(r"[^.\[\]]+", key):
            part: Any = int(word) if isinstance(holder, list) and word.isdigit() else word
            values = holder.values if isinstance(holder, Table) else holder
            if not isinstance(values, dict | list) or not (
                part in values if isinstance(values, dict) else isinstance(part, int)
            ):
                break
            above.append((holder, part))
            holder = values[part]
        assert above, f"the loader refuses {key}, which was not set: {reason}"
        table, part = above[-1]
        if isinstance(table, Table):
            removed = table.values.pop(part)
            sources = [*table.sources.pop(part, []), *_sources(removed)]
        else:
            sources = list(_sources(table.pop(part)))
        for element, attribute in sources:
            self.fates[element.number, attribute] = Fate(element, attribute, "", reason)


def _every(roots: Sequence[Element]) -> Iterator[Element]:
    for root in roots:
        yield from root.walk()


def _parts(element: Element) -> list[str | None]:
    return [None, *element.attributes, *([TEXT] if element.text else [])]


def typed(model: type[Section], key: str, text: str) -> object:
    """Convert a text to the type of the key. A text that does not fit stays text, for the loader to refuse."""
    found = model.model_fields[key]
    if found.annotation is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if unit_of(found) is not None and re.fullmatch(r"-1|\d+", text):
        return int(text)
    if Listed in found.metadata:
        return listed(text)
    return text
