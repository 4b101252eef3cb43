"""Settings of the operator reach the store and the other parts; the other settings are the same everywhere."""

from __future__ import annotations

import dataclasses
import inspect
import math
from pathlib import Path

import pytest

from tandemmq.broker.core.virtual_destinations import Mirrored, VirtualTopic
from tandemmq.broker.ha.mastership import BACK_OFF_SECONDS_MAX
from tandemmq.broker.security.logins import Logins
from tandemmq.broker.settings.engine import virtual_destinations
from tandemmq.broker.settings.replication import security_token, zk_password
from tandemmq.broker.settings.store import FENCE_CHECK_SECONDS_MAX, store_settings
from tandemmq.cli.admin import DEFAULT_ADMIN
from tandemmq.cli.client import DEFAULT_URL
from tandemmq.config.destinations import VirtualDestinationSettings
from tandemmq.config.errors import SettingsError
from tandemmq.config.load import load
from tandemmq.config.locker import KUBERNETES, ZOOKEEPER, LockerSettings
from tandemmq.config.replication import ReplicationSettings
from tandemmq.config.store import StoreSettings as StoreTable
from tandemmq.locker.contract import Holder, LockRequest
from tandemmq.locker.kubernetes.lease import KubernetesSettings
from tandemmq.locker.zookeeper.locker import ZooKeeperSettings
from tandemmq.store.settings import StoreSettings

MIB = 1 << 20

#: key in [store], its value there, and the value for the store: times in seconds there
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


#: Keys of [store] that no store gets, and the part that reads them.
NOT_TOLD = {
    "directory": "broker.wiring",
    "index_directory": "broker.wiring",
    "file_mode": "broker.wiring",
    "ignore_unsafe_volume": "broker.wiring",
    "scrub_rate": "broker.wiring",
    "scrub_interval": "broker.wiring",
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
        "store.checkpoint_interval=0", "store.cleanup_interval=0", "store.clock_mark_interval=0", "store.disk_reserve=0"
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


# ---- if the default of a part is also a setting, both are the same


SETTINGS = load(None, {})


def test_a_broker_that_was_demoted_waits_as_the_settings_say() -> None:
    assert SETTINGS.locker.retry_interval / 1000 == BACK_OFF_SECONDS_MAX


def test_logins_fail_as_the_settings_say() -> None:
    usual = inspect.signature(Logins).parameters
    assert usual["failed_login_delay_seconds"].default == SETTINGS.security.failed_login_delay / 1000
    assert usual["failed_logins_max"].default == SETTINGS.security.failed_logins_max


def test_virtual_destinations_are_called_as_the_settings_say() -> None:
    (topic,) = virtual_destinations([VirtualDestinationSettings(virtual_topic=VirtualTopic().pattern)]).virtual_topics
    assert topic == VirtualTopic()
    assert VirtualDestinationSettings(mirrored_queue=">").named_prefix == Mirrored(">").prefix


def request(options: dict[str, object]) -> LockRequest:
    return LockRequest("/nowhere", Holder("a"), options=options)


def test_zookeeper_and_kubernetes_are_asked_as_the_settings_say() -> None:
    hosts = {"hosts": "127.0.0.1:2181"}
    options = LockerSettings.model_validate({"type": ZOOKEEPER, "zookeeper": hosts}).kind_options()
    assert options.keys() > hosts.keys()
    assert ZooKeeperSettings.of(request(dict(hosts))) == ZooKeeperSettings.of(request(options))
    pod = {"server": "https://127.0.0.1:1", "namespace": "n"}
    options = LockerSettings.model_validate({"type": KUBERNETES, "kubernetes": pod}).kind_options()
    assert options.keys() > pod.keys()
    assert KubernetesSettings.of(request(dict(pod)), {}) == KubernetesSettings.of(request(options), {})


def test_commands_ask_where_a_broker_listens_by_itself() -> None:
    assert SETTINGS.admin.uri == DEFAULT_ADMIN
    assert f"failover:({SETTINGS.connectors[0].uri})" == DEFAULT_URL


# ---- secrets of a set, in the settings or in a file


def table(**values: object) -> ReplicationSettings:
    return ReplicationSettings.model_validate(values)


def test_a_secret_is_what_was_said_or_the_first_line_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("word with blanks \r\nnot this\n")
    assert (security_token(table()), zk_password(table())) == ("", "")
    assert security_token(table(security_token="word")) == "word"
    assert security_token(table(security_token_file=str(path))) == "word with blanks "
    assert zk_password(table(zk_password="word")) == "word"
    assert zk_password(table(zk_password_file=str(path))) == "word with blanks "


@pytest.mark.parametrize(
    ("content", "expected"), [(None, "No such file"), (b"\nword", "it is empty"), (b"\xff\n", "can't decode")]
)
def test_a_file_without_a_secret_is_told_with_its_key(tmp_path: Path, content: bytes | None, expected: str) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=rf"replication\.security_token_file = .*{expected}"):
        security_token(table(security_token_file=str(path)))
    with pytest.raises(SettingsError, match=rf"replication\.zk_password_file = .*{expected}"):
        zk_password(table(zk_password_file=str(path)))
