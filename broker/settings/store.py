"""Conversion of the operator's settings for a store."""

from __future__ import annotations

from typing import Final

from tandemmq.broker.settings.copying import SettingsCopy
from tandemmq.broker.settings.engine import memory_limit
from tandemmq.config.settings import Settings
from tandemmq.config.store import StoreOptions
from tandemmq.config.store import StoreSettings as StoreTable
from tandemmq.store.settings import StoreSettings

# Maximum interval at which an idle storage thread shows life and makes a fence check; a shorter interval of keep-alives
# applies instead.
FENCE_CHECK_SECONDS_MAX: Final = 2.0

STORE: Final = SettingsCopy(
    StoreOptions,
    StoreSettings,
    computed={
        "disk_reserve": "its default depends on the length of a journal file",
        "fence_check_interval": "it is that of the lock",
        "pending_bytes_max": "it is a part of the broker's memory",
    },
)


def store_settings(table: StoreTable, settings: Settings) -> StoreSettings:
    """Return the settings of a store. ``table`` is [store], or one of several stores with [store] as defaults."""
    return STORE(
        table,
        disk_reserve=table.disk_reserve_bytes,
        fence_check_interval=min(
            settings.locker.lock_keep_alive_period / 1000 or FENCE_CHECK_SECONDS_MAX, FENCE_CHECK_SECONDS_MAX
        ),
        # Each byte that waits for the disk exists twice, in the message and in its record.
        pending_bytes_max=min(StoreSettings().pending_bytes_max, memory_limit(settings) // 8),
    )
