"""Output of the settings in progress as a TOML file, with the omitted parts as comments in front."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tandemmq.config.from_xml.conversion import Table
from tandemmq.config.settings import Settings
from tandemmq.config.show import toml


def file(settings: Table, comments: Iterable[str] = ()) -> str:
    lines = [f"# {printable(text)}" for text in comments]
    if lines:
        lines.append("")
    if settings.values.get("connectors") == []:
        # A list without tables can only be in front of all tables.
        lines += ["connectors = []", ""]
    for section in Settings.model_fields:
        value = settings.values.get(section)
        if isinstance(value, list):
            for table in value:
                lines += _table(f"[[{section}]]", section, table)
        elif isinstance(value, Table) and (section == "replication" or _has_values(value)):
            lines += _table(f"[{section}]", section, value)
    return "\n".join(lines).rstrip("\n") + "\n"


def _has_values(table: Table) -> bool:
    """Return whether a table has values. An empty one has no effect, except [replication], which makes a set."""
    return any(_has_values(each) if isinstance(each, Table) else True for each in table.values.values())


def _table(head: str, name: str, table: Table) -> Iterator[str]:
    inner = {key: value for key, value in table.values.items() if _is_table(key, value)}
    if table.comment:
        yield f"# {printable(table.comment)}"
    yield head
    for key, value in table.values.items():
        if key not in inner:
            yield f"{key} = {_value(value)}"
    yield ""
    for key, value in inner.items():
        if isinstance(value, Table):
            if _has_values(value):
                yield from _table(f"[{name}.{key}]", f"{name}.{key}", value)
        else:
            for each in value:
                yield from _table(f"[[{name}.{key}]]", f"{name}.{key}", each)


def _is_table(key: str, value: object) -> bool:
    return isinstance(value, Table) or (
        isinstance(value, list) and key != "forward_to" and any(isinstance(each, Table) for each in value)
    )


def _value(value: object) -> str:
    if isinstance(value, Table):
        return f"{{{', '.join(f'{key} = {_value(each)}' for key, each in value.values.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(_value(each) for each in value)}]"
    return toml(value)


def printable(text: str) -> str:
    """Return the text in one line, without characters that move a terminal's cursor."""
    line = re.sub(r"\s+", " ", text)
    return "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in line)
