"""Settings printed: as a file that reads back as the same, and as the table of the documentation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from config.settings import ConnectorSettings, Section, Settings
from config.units import Unit, show_milliseconds, show_size


def show(settings: Settings) -> str:
    """The settings as a TOML file that reads back as the same, each line with where its value was read."""
    lines: list[str] = []
    for section in Settings.model_fields:
        if section == "connectors":
            origin = settings.origin("connectors") or "default"
            for connector in settings.connectors:
                lines += ["[[connectors]]", f"uri = {_toml(connector.uri)}  # {origin}", ""]
            if not settings.connectors:
                # A list without tables can stand in front of all tables only.
                lines.insert(0, f"connectors = []  # {origin}\n")
        else:
            lines += [f"[{section}]", *_lines(section, getattr(settings, section), settings), ""]
    return "\n".join(lines)


def _lines(section: str, values: Section, settings: Settings) -> Iterator[str]:
    for key, field in type(values).model_fields.items():
        value = getattr(values, key)
        unit = next((mark.name for mark in field.metadata if isinstance(mark, Unit)), "")
        origin = settings.origin(f"{section}.{key}") or "default"
        if value is None:
            yield f"# {key} is not set: {field.description}"
        elif unit:
            yield f"{key} = {_toml(show_milliseconds(value) if unit == 'ms' else show_size(value))}  # {origin}"
        elif isinstance(value, dict):
            pairs = ", ".join(f"{_toml(name)} = {_toml(text)}" for name, text in value.items())
            origins = [settings.origin(f"{section}.{key}.{name}") for name in value]
            yield f"{key} = {{{pairs}}}  # {', '.join(sorted({one or origin for one in origins})) or origin}"
        else:
            yield f"{key} = {_toml(value)}  # {origin}"


def _toml(value: object) -> str:
    # A JSON string, number or boolean is a TOML one, but for the character DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def as_json(settings: Settings) -> dict[str, Any]:
    """The settings for a machine: plain numbers in ms and bytes, and the origins of what is not a default."""
    return {**settings.model_dump(mode="json"), "origins": dict(settings.origins)}


def table() -> str:
    """Every setting, its default, unit and meaning, as Markdown; docs/settings.md holds it."""
    lines = ["| key | default | unit | meaning |", "| --- | --- | --- | --- |"]
    defaults = Settings()
    for section in Settings.model_fields:
        values = getattr(defaults, section)
        model = ConnectorSettings if section == "connectors" else type(values)
        prefix = "[[connectors]] " if section == "connectors" else f"{section}."
        example = values[0] if section == "connectors" else values
        for key, field in model.model_fields.items():
            unit = next((mark.name for mark in field.metadata if isinstance(mark, Unit)), "")
            default = _default(getattr(example, key), unit)
            lines.append(f"| `{prefix}{key}` | {default} | {unit} | {field.description} |")
    return "\n".join(lines) + "\n"


def _default(value: object, unit: str) -> str:
    if value in (None, "", {}):
        return "–"
    if isinstance(value, int) and unit == "ms":
        return f"`{_toml(show_milliseconds(value))}`"
    if isinstance(value, int) and unit == "bytes":
        return f"`{_toml(show_size(value))}`"
    return f"`{_toml(value)}`"
