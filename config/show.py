"""Settings printed: as a file that reads back as the same, and as the tables of the documentation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic.fields import FieldInfo

from config import policy_entries
from config.destinations import DestinationSettings
from config.kahadb import FIXED
from config.kahadb_properties import GROUPS
from config.kahadb_property import Outcome, Property
from config.load import ADAPTERS, AUTHORIZATION, DESTINATIONS, SECTIONS, TABLE_LISTS
from config.locker import LockerSettings
from config.secrets import masked
from config.section import Section, section_of
from config.security import AuthorizationSettings
from config.settings import ConnectorSettings, Settings
from config.store import FilteredStoreSettings
from config.units import Unit, show_milliseconds, show_size


def show(settings: Settings) -> str:
    """The settings as a TOML file that reads back as the same but for passwords, which are not shown; each line with
    where its value was read."""
    lines: list[str] = []
    for section in Settings.model_fields:
        if section == "connectors":
            origin = settings.origin("connectors") or "default"
            for connector in settings.connectors:
                lines += ["[[connectors]]", f"uri = {_toml(connector.uri)}  # {origin}", ""]
            if not settings.connectors:
                # A list without tables can stand in front of all tables only.
                lines.insert(0, f"connectors = []  # {origin}\n")
        elif section == DESTINATIONS:
            for entry in settings.destinations:
                lines += [*_entry(DESTINATIONS, entry, settings), ""]
        else:
            lines += [f"[{section}]", *_lines(section, getattr(settings, section), settings)]
            lines += [*_fixed_lines(section, settings), ""]
            lines += _tables(section, getattr(settings, section), settings)
        if section == "store":
            for adapter in settings.store.filtered_persistence_adapters:
                lines += [f"[[{ADAPTERS}]]", *_adapter_lines(adapter, settings), ""]
        if section == "security":
            for rights in settings.security.authorization:
                lines += [*_entry(AUTHORIZATION, rights, settings), ""]
    return "\n".join(lines)


def _lines(section: str, values: Section, settings: Settings) -> Iterator[str]:
    for key, field in type(values).model_fields.items():
        value = masked(getattr(values, key), key)
        origin = settings.origin(f"{section}.{key}") or settings.origin(section) or "default"
        if f"{section}.{key}" in TABLE_LISTS or isinstance(value, Section) or not _is_read(values, key):
            continue
        if value is None:
            yield f"# {key} is not set: {field.description}"
        elif isinstance(value, dict):
            pairs = ", ".join(f"{_toml(name)} = {_toml(text)}" for name, text in value.items())
            origins = [settings.origin(f"{section}.{key}.{name}") for name in value]
            yield f"{key} = {{{pairs}}}  # {', '.join(sorted({one or origin for one in origins})) or origin}"
        else:
            yield f"{key} = {_value(value, field)}  # {origin}"


def _tables(section: str, values: Section, settings: Settings) -> Iterator[str]:
    """The tables inside a table that mean something and say something."""
    for key in type(values).model_fields:
        value = getattr(values, key)
        if isinstance(value, Section) and _is_read(values, key):
            yield from (f"[{section}.{key}]", *_lines(f"{section}.{key}", value, settings), "")


def _is_read(values: Section, key: str) -> bool:
    """What the chosen kind of lock does not read is refused in a file, so it is not shown as one."""
    return not isinstance(values, LockerSettings) or values.reads(key)


def _fixed_lines(section: str, settings: Settings) -> Iterator[str]:
    """What ActiveMQ lets one choose and is always so here."""
    for found in FIXED:
        table, _, key = found.key.rpartition(".")
        if table == section:
            origin = settings.origin(found.key)
            yield f"{key} = {_toml(found.values[0])}  # always{f', as {origin} says' if origin else ''}"


def _adapter_lines(adapter: FilteredStoreSettings, settings: Settings) -> Iterator[str]:
    origin = settings.origin(ADAPTERS) or "default"
    for key, field in FilteredStoreSettings.model_fields.items():
        value = getattr(adapter, key)
        if key in adapter.model_fields_set and value is not None:
            yield f"{key} = {_value(value, field)}  # {origin}"


def _entry(name: str, values: Section, settings: Settings) -> Iterator[str]:
    """A table of a list, with what was said in it, and the tables inside of it."""
    origin = settings.origin(name) or "default"
    yield f"[[{name}]]"
    said = [(key, field) for key, field in type(values).model_fields.items() if key in values.model_fields_set]
    inner = [(key, getattr(values, key)) for key, _ in said if isinstance(getattr(values, key), Section)]
    for key, field in said:
        if not isinstance(getattr(values, key), Section):
            yield f"{key} = {_value(masked(getattr(values, key), key), field)}  # {origin}"
    for key, table in inner:
        yield f"[{name}.{key}]"
        for part, field in type(table).model_fields.items():
            yield f"{part} = {_value(getattr(table, part), field)}  # {origin}"


def _unit(field: FieldInfo) -> str:
    # Of a key that may be left out, the mark stands inside the union with None.
    inner = (mark for one in get_args(field.annotation) for mark in getattr(one, "__metadata__", ()))
    return next((mark.name for mark in (*field.metadata, *inner) if isinstance(mark, Unit)), "")


def _value(value: object, field: FieldInfo) -> str:
    unit = _unit(field)
    if unit in ("ms", "s", "ms or -1") and isinstance(value, int) and value >= 0:
        return _toml(show_milliseconds(value))
    if unit == "bytes" and isinstance(value, int):
        return _toml(show_size(value))
    return _toml(value)


def _toml(value: object) -> str:
    # A JSON string, number or boolean is a TOML one, but for the character DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def as_json(settings: Settings) -> dict[str, Any]:
    """The settings for a machine: plain numbers in ms and bytes, the origins of what is not a default, and what is
    always so. A store among several shows what was said of it; of a password, that there is one."""
    shown: dict[str, Any] = masked(settings.model_dump(mode="json"))
    shown["store"]["filtered_persistence_adapters"] = [
        adapter.model_dump(mode="json", exclude_unset=True) for adapter in settings.store.filtered_persistence_adapters
    ]
    fixed = {found.key: found.values[0] for found in FIXED}
    return {**shown, "fixed": fixed, "origins": dict(settings.origins)}


def table() -> str:
    """Every setting, its default, unit and meaning, as Markdown; docs/settings.md holds it."""
    lines = ["| key | default | unit | meaning |", "| --- | --- | --- | --- |"]
    for section in Settings.model_fields:
        if section == "connectors":
            lines += _rows("[[connectors]] ", ConnectorSettings, "stomp://127.0.0.1:61613")
        elif section == DESTINATIONS:
            lines += _rows("[[destinations]] ", DestinationSettings)
        else:
            lines += _rows(f"{section}.", SECTIONS[section])
        if section == "store":
            lines += _rows(f"[[{ADAPTERS}]] ", FilteredStoreSettings, own_only=True)
        if section == "security":
            lines += _rows(f"[[{AUTHORIZATION}]] ", AuthorizationSettings)
    return "\n".join(lines) + "\n"


def _rows(prefix: str, model: type[Section], default: str = "", *, own_only: bool = False) -> Iterator[str]:
    for key, field in model.model_fields.items():
        if own_only and key not in model.__annotations__:
            continue
        if f"{prefix}{key}" in TABLE_LISTS:
            continue
        inner = section_of(field.annotation)
        if inner is not None:
            yield from _rows(f"{prefix}{key}.", inner)
            continue
        shown = _default(default or field.get_default(call_default_factory=True), field)
        unit = _unit(field)
        yield f"| `{prefix}{key}` | {shown} | {unit} | {field.description} |"


def _default(value: object, field: FieldInfo) -> str:
    return "–" if isinstance(value, Section) or value in (None, "", {}, ()) else f"`{_value(value, field)}`"


def kahadb_tables() -> str:
    """What becomes of each of ActiveMQ's settings of a store, as Markdown; docs/kahadb-settings.md holds it."""
    return _property_tables(GROUPS)


def policy_tables() -> str:
    """The same of its policyEntry's; docs/policies.md holds it."""
    return _property_tables(policy_entries.GROUPS)


def _property_tables(groups: Mapping[str, Sequence[Property]]) -> str:
    lines: list[str] = []
    for group, properties in groups.items():
        lines += [f"## {group}", "", "| ActiveMQ | its default | here | our default | what it does here |"]
        lines += ["| --- | --- | --- | --- | --- |"]
        lines += [
            f"| `{found.name}` | {found.default} | {_outcome(found)} | {_our_default(found)} | {found.here} |"
            for found in properties
        ]
        lines.append("")
    return "\n".join(lines)


def _outcome(found: Property) -> str:
    key, target = (each.removeprefix(f"{DESTINATIONS}.") for each in (found.key, found.target))
    if found.outcome is Outcome.MAPPED:
        return f"`{key}`, mapped to `{target}`"
    if found.outcome is Outcome.REFUSED:
        return f"`{key}` is refused"
    if found.outcome is Outcome.FIXED:
        return f"`{key}`, fixed"
    return f"`{key}`"


def _our_default(found: Property) -> str:
    if found.outcome is Outcome.FIXED:
        return "only " + " or ".join(f"`{_toml(value)}`" for value in found.values)
    if found.outcome is Outcome.REFUSED:
        return "–"
    key = found.target or found.key
    tables = max((each for each in (*SECTIONS, *TABLE_LISTS) if key.startswith(f"{each}.")), key=len)
    *path, name = key.removeprefix(f"{tables}.").split(".")
    model = TABLE_LISTS.get(tables) or SECTIONS[tables]
    for inner in path:
        model = section_of(model.model_fields[inner].annotation) or model
    field = model.model_fields[name]
    if section_of(field.annotation) is not None:
        return "–"
    return _default(field.get_default(call_default_factory=True), field)
