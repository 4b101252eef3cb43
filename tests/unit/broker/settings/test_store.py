"""What the operator said reaches the store."""

from __future__ import annotations

import dataclasses
import math

from tandemmq.broker.settings.store import FENCE_CHECK_SECONDS_MAX, store_settings
from tandemmq.config.load import load
from tandemmq.config.store import StoreSettings as StoreTable
from tandemmq.store.settings import StoreSettings

MIB = 1 << 20

#: key in [store], what is said there, and what the store is told: times in seconds there
SAID = {
    "journal_disk_sync_strategy": ("periodic", "periodic"),
    "journal_disk_sync_interval": ("250ms", 0.25),
    "clock_mark_interval": ("2s", 2.0),
    "journal_max_file_length": ("8mb", 8 * MIB),
    "journal_max_write_batch_size": ("1mb", MIB),
    "checkpoint_interval": ("7s", 7.0),
    "cleanup_interval": ("3s", 3.0),
    "checkpoint_records": ("77", 77),
    "checkpoint_bytes": ("7mb", 7 * MIB),
    "recovery_budget": ("2s", 2.0),
    "failover_budget": ("300ms", 0.3),
    "archive_data_logs": ("true", True),
    "directory_archive": ("/elsewhere", "/elsewhere"),
    "check_for_corrupt_journal_files": ("true", True),
    "ignore_missing_journalfiles": ("true", True),
    "failover_producers_audit_depth": ("9", 9),
    "max_failover_producers_to_track": ("8", 8),
    "purge_recovered_xa_transaction_strategy": ("commit", "commit"),
    "enable_compaction": ("false", False),
    "compaction_rate": ("5mb", 5 * MIB),
    "cleanup_on_stop": ("false", False),
    "disk_reserve": ("99mb", 99 * MIB),
    "index_cache_size": ("123", 123),
    "max_async_jobs": ("500", 500),
}


#: Keys of [store] that no store is told, and who reads them.
NOT_TOLD = {
    "directory": "broker.wiring",
    "index_directory": "broker.wiring",
    "file_mode": "broker.wiring",
    "ignore_unsafe_volume": "broker.wiring",
    "filtered_persistence_adapters": "broker.wiring",
}


def settings_of(*overrides: str) -> StoreSettings:
    settings = load(None, {}, overrides)
    return store_settings(settings.store, settings)


def test_every_bound_and_habit_reaches_the_store() -> None:
    found = settings_of(*(f"store.{key}={text}" for key, (text, _) in SAID.items()))
    assert {key: getattr(found, key) for key in SAID} == {key: value for key, (_, value) in SAID.items()}
    others = {field.name for field in dataclasses.fields(StoreSettings)} - set(SAID)
    # The one is the lock's, the other a part of the broker's memory.
    assert others == {"fence_check_interval", "pending_bytes_max"}
    assert StoreTable.model_fields.keys() == SAID.keys() | NOT_TOLD.keys()


def test_the_defaults_of_both_are_the_same() -> None:
    found, expected = settings_of(), StoreSettings()
    for field in dataclasses.fields(StoreSettings):
        assert getattr(found, field.name) == getattr(expected, field.name), field.name


def test_zero_is_never_for_an_interval_and_none_for_a_reserve() -> None:
    found = settings_of(
        "store.checkpoint_interval=0",
        "store.cleanup_interval=0",
        "store.clock_mark_interval=0",
        "store.disk_reserve=0",
    )
    assert found.checkpoint_interval == math.inf
    assert found.cleanup_interval == math.inf
    assert found.clock_mark_interval == math.inf
    assert found.disk_reserve == 0


def test_the_reserve_grows_with_the_journal_files() -> None:
    assert settings_of("store.journal_max_file_length=100mb").disk_reserve == 200 * MIB


def test_an_idle_store_looks_as_often_as_the_lock_is_proved() -> None:
    assert settings_of("locker.lock_keep_alive_period=300ms").fence_check_interval == 0.3
    assert settings_of("locker.lock_keep_alive_period=0").fence_check_interval == FENCE_CHECK_SECONDS_MAX
