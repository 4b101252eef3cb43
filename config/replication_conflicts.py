"""Conflicts of [replication] with other settings: each is refused with the reason, before anything has started."""

from __future__ import annotations

from typing import Final

from tandemmq.config.errors import RefusedSetting, SettingsError
from tandemmq.config.locker import LockerSettings
from tandemmq.config.settings import Settings

#: Keys of [locker] that also apply to a set of replicas: the pause of a demoted broker does not depend on a lock.
LOCKER_KEYS: Final = frozenset(("retry_interval",))


def check(settings: Settings) -> None:
    """Check for conflicts. Raises RefusedSetting, or SettingsError if only a value is missing."""
    if settings.replication is None:
        return
    said = settings.locker.model_fields_set - LOCKER_KEYS
    for key in (key for key in LockerSettings.model_fields if key in said):
        raise _refused(
            settings,
            f"locker.{key}",
            "A set chooses its master itself, by a quorum of its nodes: a lock beside it could name another one. "
            "Remove [locker] or [replication].",
        )
    if settings.store.filtered_persistence_adapters:
        raise _refused(
            settings,
            "store.filtered_persistence_adapters",
            "A set copies one journal. Several stores have a journal each, and nothing would keep their copies in one "
            "order. Use one store.",
        )
    if settings.store.ignore_missing_journalfiles:
        raise _refused(
            settings,
            "store.ignore_missing_journalfiles",
            "A node with a damaged journal gets it from the others. A node that skipped the damage would lose "
            "confirmed messages.",
        )
    if settings.store.journal_disk_sync_strategy != "always":
        raise _refused(
            settings,
            "store.journal_disk_sync_strategy",
            "In a set, data confirmed as on disk must be there. Remove the setting. replication.sync sets what "
            'a receipt waits for: sync = "quorum_mem" does not wait for a disk.',
        )
    if not settings.broker.name:
        raise SettingsError("broker.name", "", "the name of the set, the same on all of its nodes", None)


def _refused(settings: Settings, key: str, reason: str) -> RefusedSetting:
    section, _, name = key.partition(".")
    value = getattr(getattr(settings, section), name)
    if isinstance(value, tuple):
        value = f"{len(value)} tables"
    return RefusedSetting(key, value, reason, settings.origin(key) or settings.origin(section))
