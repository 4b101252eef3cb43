"""Treatment of each setting of ActiveMQ's stores: KahaDB's properties, mKahaDB's, the locker's, the JVM's, and the
Replicated LevelDB Store's.

The tables are used to read the settings, and to generate docs/kahadb-settings.md and docs/replication.md. A property is

    ACCEPTED  a setting here of the same name in snake_case, with the same effect
    MAPPED    read as another setting
    FIXED     accepted only with the values that TandemMQ always uses; others are refused with the reason
    REFUSED   refused with the reason, and the setting to use instead

No setting is accepted and then ignored: the start fails if a setting is not available.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tandemmq.config import leveldb_properties
from tandemmq.config.errors import RefusedSetting, SettingsError
from tandemmq.config.kahadb_properties import GROUPS
from tandemmq.config.kahadb_property import Outcome, Property, read_as

_ALL: Final = [found for groups in (GROUPS, leveldb_properties.GROUPS) for group in groups.values() for found in group]
#: Properties that are not plain settings here, by key.
SPECIAL: Final[Mapping[str, Property]] = {found.key: found for found in _ALL if found.outcome is not Outcome.ACCEPTED}
FIXED: Final = [found for found in _ALL if found.outcome is Outcome.FIXED]


def check(found: Property, value: Any, source: str | None) -> Any:
    """Return the value to use: for a MAPPED property, the converted value for the other setting; for a FIXED one,
    ``value``.

    Raises RefusedSetting for a value that is not available here, SettingsError for an invalid one.
    """
    if found.outcome is Outcome.REFUSED:
        raise RefusedSetting(found.key, value, found.here, source)
    if found.outcome is Outcome.MAPPED:
        try:
            return found.convert(value)
        except ValueError as error:
            raise SettingsError(found.key, value, str(error), source) from error
    kind = type(found.values[0])
    try:
        raw = read_as(kind, value.lower() if isinstance(value, str) else value)
    except ValueError as error:
        raise SettingsError(found.key, value, str(error), source) from error
    if raw not in found.values:
        raise RefusedSetting(found.key, value, f"{_values(found)}. {found.here}", source)
    return raw


def _values(found: Property) -> str:
    shown = [str(value).lower() if isinstance(value, bool) else str(value) for value in found.values]
    return f"only {' or '.join(shown)} is available here"
