"""Tables of the documentation that are generated from the code: docs/settings.md, kahadb-settings.md, policies.md,
metrics.md and logging.md. ``make lists`` writes them (tests/support/lists.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pydantic.fields import FieldInfo

from tandemmq import log_events
from tandemmq.broker.admin.metric_table import GROUPS, LEFT_OUT, OF_DESTINATIONS
from tandemmq.config import leveldb_properties, policy_entries
from tandemmq.config.kahadb_properties import GROUPS as PROPERTIES
from tandemmq.config.kahadb_property import Outcome, Property
from tandemmq.config.load import DESTINATIONS, SECTIONS, TABLE_LISTS
from tandemmq.config.section import Section, meanings, section_of, unit_of
from tandemmq.config.settings import Settings
from tandemmq.config.show import lists_in, toml, value_of
from tandemmq.config.store import FilteredStoreSettings, StoreOptions

#: Text for a connector's URI, which has no default.
_EXAMPLE: Final = "stomp://127.0.0.1:61613"


def settings_table() -> str:
    """Return all settings with default, unit and meaning, as Markdown for docs/settings.md."""
    lines = ["| key | default | unit | meaning |", "| --- | --- | --- | --- |"]
    for section in Settings.model_fields:
        if section not in TABLE_LISTS:
            lines += _rows(f"{section}.", SECTIONS[section])
        for name in lists_in(section):
            lines += _rows(f"[[{name}]] ", TABLE_LISTS[name])
    return "\n".join(lines) + "\n"


def _rows(prefix: str, model: type[Section]) -> Iterator[str]:
    for key, field in model.model_fields.items():
        if f"{prefix}{key}" in TABLE_LISTS or (model is FilteredStoreSettings and key in StoreOptions.model_fields):
            continue
        inner = section_of(field.annotation)
        if inner is not None:
            yield from _rows(f"{prefix}{key}.", inner)
            continue
        value = field.get_default(call_default_factory=True)
        if field.is_required():
            value = _EXAMPLE if key == "uri" else None
        unit = unit_of(field)
        shown = unit.name if unit is not None else ""
        yield f"| `{prefix}{key}` | {_default(value, field)} | {shown} | {meanings(model)[key]} |"


def _default(value: object, field: FieldInfo) -> str:
    return "–" if isinstance(value, Section) or value in (None, "", {}, ()) else f"`{value_of(value, field)}`"


def kahadb_tables() -> str:
    """Return the treatment of each of ActiveMQ's store settings, as Markdown for docs/kahadb-settings.md."""
    return _property_tables(PROPERTIES)


def policy_tables() -> str:
    """Return the same for the attributes of policyEntry, for docs/policies.md."""
    return _property_tables(policy_entries.GROUPS)


def leveldb_tables() -> str:
    """Return the same for the Replicated LevelDB Store, for docs/replication.md."""
    return _property_tables(leveldb_properties.GROUPS)


def metric_tables() -> str:
    """Return all metrics, as Markdown for docs/metrics.md."""
    lines: list[str] = []
    for group, metrics in (GROUPS | {"Single destinations": (LEFT_OUT, *OF_DESTINATIONS)}).items():
        lines += [f"### {group}", "", "| metric | kind | unit | meaning |", "| --- | --- | --- | --- |"]
        for named in metrics:
            labels = f"{{{', '.join(named.labels)}}}" if named.labels else ""
            lines.append(f"| `{named.full_name}{labels}` | {named.kind} | {named.unit} | {named.meaning} |")
        lines.append("")
    return "\n".join(lines)


def event_table() -> str:
    """Return all events of the log, as Markdown for docs/logging.md."""
    rows = [f"| `{name}` | {meaning} |" for name, meaning in log_events.MEANINGS.items()]
    return "\n".join(["| event | meaning |", "| --- | --- |", *rows]) + "\n"


def _property_tables(groups: Mapping[str, Sequence[Property]]) -> str:
    lines: list[str] = []
    for group, properties in groups.items():
        lines += [f"## {group}", ""]
        taken = [found for found in properties if found.outcome is not Outcome.REFUSED]
        if taken:
            lines += ["| ActiveMQ | its default | here | our default | difference |", "| --- | --- | --- | --- | --- |"]
            lines += [
                f"| `{found.name}` | {found.default} | {_outcome(found)} | {_our_default(found)} | {found.here} |"
                for found in taken
            ]
            lines.append("")
        refused: dict[str, list[str]] = {}
        for found in properties:
            if found.outcome is Outcome.REFUSED:
                refused.setdefault(found.here, []).append(f"`{found.name}`")
        if refused:
            lines += ["| refused | reason, or what to set instead |", "| --- | --- |"]
            lines += [f"| {', '.join(names)} | {here} |" for here, names in refused.items()]
            lines.append("")
    return "\n".join(lines)


def _outcome(found: Property) -> str:
    key, target = (each.removeprefix(f"{DESTINATIONS}.") for each in (found.key, found.target))
    if found.outcome is Outcome.MAPPED:
        return f"`{key}`, mapped to `{target}`"
    if found.outcome is Outcome.FIXED:
        return f"`{key}`, fixed"
    return f"`{key}`"


def _our_default(found: Property) -> str:
    if found.outcome is Outcome.FIXED:
        return "only " + " or ".join(f"`{toml(value)}`" for value in found.values)
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
