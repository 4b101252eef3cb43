"""What becomes of every setting of ActiveMQ's stores: KahaDB's properties, mKahaDB's, the locker's, the JVM's, and the
Replicated LevelDB Store's.

Tables by which the settings are read, and from which docs/kahadb-settings.md and docs/replication.md are printed. A
property is

    ACCEPTED  a setting of ours by the same name in snake_case, and does what it says
    MAPPED    read as another setting of ours
    FIXED     taken with the values that hold here anyway, refused with the reason otherwise
    REFUSED   refused with the reason, and with what to set instead

Nothing is taken and then ignored: who relies on a setting learns at start that it does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tandemmq.config import leveldb_properties
from tandemmq.config.errors import RefusedSetting, SettingsError
from tandemmq.config.kahadb_properties import GROUPS
from tandemmq.config.kahadb_property import Outcome, Property, read_as

_ALL: Final = [found for groups in (GROUPS, leveldb_properties.GROUPS) for group in groups.values() for found in group]
#: By key, those that are not plain settings of ours.
SPECIAL: Final[Mapping[str, Property]] = {found.key: found for found in _ALL if found.outcome is not Outcome.ACCEPTED}
FIXED: Final = [found for found in _ALL if found.outcome is Outcome.FIXED]


def check(found: Property, value: Any, source: str | None) -> Any:
    """What is to be read instead: the MAPPED one's value for its target, the FIXED one's own.

    Raises RefusedSetting for a value that does not hold here, SettingsError for one that means nothing.
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
    return f"only {' or '.join(shown)} holds here"
