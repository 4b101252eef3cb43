"""Output of settings: as a file that gives the same settings again, and for a program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from pydantic.fields import FieldInfo

from tandemmq.config.kahadb import FIXED
from tandemmq.config.load import TABLE_LISTS
from tandemmq.config.locker import LockerSettings
from tandemmq.config.replication_conflicts import LOCKER_KEYS
from tandemmq.config.secrets import masked
from tandemmq.config.section import Section, meanings, show_milliseconds, show_size, unit_of
from tandemmq.config.settings import Settings


def show(settings: Settings) -> str:
    """Return the settings as a TOML file that gives the same settings again, except for passwords, which are not shown;
    each line has the source of its value."""
    lines: list[str] = []
    for section in Settings.model_fields:
        if getattr(settings, section) is None:
            lines += [f"# [{section}] is not set", ""]
        elif section not in TABLE_LISTS:
            lines += [f"[{section}]", *_lines(section, getattr(settings, section), settings)]
            lines += [*_fixed_lines(section, settings), ""]
            lines += _tables(section, getattr(settings, section), settings)
        for name in lists_in(section):
            for entry in attrgetter(name)(settings):
                lines += [*_entry(name, entry, settings), ""]
    if not settings.connectors:
        # A list without tables can only be in front of all tables.
        lines.insert(0, f"connectors = []  # {settings.origin('connectors') or 'default'}\n")
    return "\n".join(lines)


def lists_in(section: str) -> list[str]:
    """Return the lists of tables that a section is, or that are in it."""
    return [name for name in TABLE_LISTS if name.partition(".")[0] == section]


def _lines(section: str, values: Section, settings: Settings) -> Iterator[str]:
    for key, field in type(values).model_fields.items():
        value = masked(getattr(values, key), key)
        origin = settings.origin(f"{section}.{key}") or settings.origin(section) or "default"
        if f"{section}.{key}" in TABLE_LISTS or isinstance(value, Section) or not _is_read(values, key, settings):
            continue
        if value is None:
            yield f"# {key} is not set: {meanings(type(values))[key]}"
        elif isinstance(value, dict):
            pairs = ", ".join(f"{toml(name)} = {toml(text)}" for name, text in value.items())
            origins = [settings.origin(f"{section}.{key}.{name}") for name in value]
            yield f"{key} = {{{pairs}}}  # {', '.join(sorted({one or origin for one in origins})) or origin}"
        else:
            yield f"{key} = {value_of(value, field)}  # {origin}"


def _tables(section: str, values: Section, settings: Settings) -> Iterator[str]:
    """Yield the tables inside a table that are read and have values."""
    for key in type(values).model_fields:
        value = getattr(values, key)
        if isinstance(value, Section) and _is_read(values, key, settings):
            yield from (f"[{section}.{key}]", *_lines(f"{section}.{key}", value, settings), "")


def _is_read(values: Section, key: str, settings: Settings) -> bool:
    """Return whether the key is read. A key that the chosen kind of lock does not read is refused in a file, so it is
    not shown; nor are the keys of a lock in a set."""
    if not isinstance(values, LockerSettings):
        return True
    return key in LOCKER_KEYS if settings.replication is not None else values.reads(key)


def _fixed_lines(section: str, settings: Settings) -> Iterator[str]:
    """Yield the settings of ActiveMQ that have a fixed value here."""
    for found in FIXED:
        table, _, key = found.key.rpartition(".")
        if table == section:
            origin = settings.origin(found.key)
            yield f"{key} = {toml(found.values[0])}  # always{f', as in {origin}' if origin else ''}"


def _entry(name: str, values: Section, settings: Settings) -> Iterator[str]:
    """Yield a table of a list, with its given values, and the tables inside it."""
    origin = settings.origin(name) or "default"
    yield f"[[{name}]]"
    given = [(key, field) for key, field in type(values).model_fields.items() if key in values.model_fields_set]
    inner = [(key, getattr(values, key)) for key, _ in given if isinstance(getattr(values, key), Section)]
    for key, field in given:
        if not isinstance(getattr(values, key), Section):
            yield f"{key} = {value_of(masked(getattr(values, key), key), field)}  # {origin}"
    for key, table in inner:
        yield f"[{name}.{key}]"
        for part, field in type(table).model_fields.items():
            if getattr(table, part) is not None:
                yield f"{part} = {value_of(getattr(table, part), field)}  # {origin}"


def value_of(value: object, field: FieldInfo) -> str:
    """Return the value in the form of a file, with its unit."""
    unit = unit_of(field)
    if unit is not None and unit.is_time and isinstance(value, int) and value >= 0:
        return toml(show_milliseconds(value))
    if unit is not None and unit.name == "bytes" and isinstance(value, int):
        return toml(show_size(value))
    return toml(value)


def toml(value: object) -> str:
    """Return the value as TOML."""
    if isinstance(value, tuple | list) and value and isinstance(value[0], Section):
        return f"[{', '.join(map(_inline, value))}]"
    # A JSON string, number or boolean is a TOML one, except for the character DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _inline(values: Section) -> str:
    """Return a table in one line, with its given values."""
    given = (key for key in type(values).model_fields if getattr(values, key) is not None)
    return f"{{{', '.join(f'{key} = {toml(getattr(values, key))}' for key in given)}}}"


def as_json(settings: Settings) -> dict[str, Any]:
    """Return the settings for a program: plain numbers in ms and bytes, the sources of values that are not defaults,
    and the fixed values. A store among several has only its given values; a password is masked."""
    shown: dict[str, Any] = masked(settings.model_dump(mode="json"))
    shown["store"]["filtered_persistence_adapters"] = [
        adapter.model_dump(mode="json", exclude_unset=True) for adapter in settings.store.filtered_persistence_adapters
    ]
    fixed = {found.key: found.values[0] for found in FIXED if shown[found.key.partition(".")[0]] is not None}
    return {**shown, "fixed": fixed, "origins": dict(settings.origins)}
