"""The table [replication]: its settings, invalid values, and settings that cannot be combined with it."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable
from typing import Any

import pytest

from tandemmq.config.errors import RefusedSetting, SettingsError, UnknownSetting
from tandemmq.config.kahadb import SPECIAL
from tandemmq.config.kahadb_property import Outcome, Property
from tandemmq.config.leveldb_properties import GROUPS, PAGE_SIZE
from tandemmq.config.load import load
from tandemmq.config.replication import QUORUM, SYNC_WORDS, ReplicationSettings, Sync, sync_of
from tandemmq.config.settings import Settings
from tandemmq.config.show import as_json, show
from tandemmq.index.page import PAGE_SIZE_DEFAULT

ALL = [found for group in GROUPS.values() for found in group]


def by_set(*overrides: str) -> Settings:
    return load(None, {}, ["broker.name=orders", *overrides])


def replication(*overrides: str) -> ReplicationSettings:
    table = by_set("replication.replicas=3", *overrides).replication
    assert table is not None
    return table


# ---- settings with and without a set


def test_without_the_table_there_is_no_set() -> None:
    assert load(None, {}).replication is None


@pytest.mark.parametrize(
    "override", ["replication.weight=1", "replication.directory=x", "replication.verify_checksums=true"]
)
def test_any_key_of_the_table_makes_a_set(override: str) -> None:
    assert by_set(override).replication is not None


def test_an_empty_table_is_a_set_with_the_defaults_of_document_004(file: Callable[[str], str]) -> None:
    table = load(file("[broker]\nname = 'orders'\n[replication]\n"), {}).replication
    assert table is not None
    assert (table.replicas, table.zk_address, table.zk_path, table.weight) == (3, "127.0.0.1:2181", "/default", 1)
    assert table.zk_session_timeout == 2_000
    assert str(table.bind_address) == "0.0.0.0:61619"
    assert (table.security_token, table.zk_password, table.hostname, table.node) == ("", "", None, None)
    assert table.sync_parts == Sync(local_disk=True, remote="disk")  # stronger than quorum_mem, which it was there
    assert (table.catch_up_rate, table.prefer_weight) == (0, False)


def test_the_environment_makes_one_and_holds_its_secrets() -> None:
    environment = {"TANDEMMQ_REPLICATION__SECURITY_TOKEN": "s3cret", "TANDEMMQ_BROKER__NAME": "orders"}
    settings = load(None, environment)
    assert settings.replication is not None
    assert settings.replication.security_token == "s3cret"
    for shown in (show(settings), str(as_json(settings))):
        assert "s3cret" not in shown
        assert "***" in shown


def test_a_set_has_a_name_that_was_said(file: Callable[[str], str]) -> None:
    with pytest.raises(SettingsError, match=r"broker\.name = '': expected the name of the set, the same on all"):
        load(None, {}, ["replication.replicas=3"])


# ---- sync


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("local_mem", Sync(False, "none")),
        ("local_disk", Sync(True, "none")),
        ("remote_mem", Sync(False, "memory")),
        ("remote_disk", Sync(False, "disk")),
        ("quorum_mem", Sync(False, "memory")),
        ("quorum_disk", Sync(True, "disk")),
        ("local_mem, local_disk", Sync(True, "none")),
        ("quorum_mem,local_disk", Sync(True, "memory")),
        (" Remote_Disk ,LOCAL_MEM", Sync(False, "disk")),
    ],
)
def test_the_words_of_sync_have_the_meaning_of_document_004(text: str, expected: Sync) -> None:
    assert sync_of(text) == expected
    assert replication(f"replication.sync={text}").sync_parts == expected


def test_of_any_words_the_stronger_holds_in_whatever_order() -> None:
    strength = ("none", "memory", "disk")
    for size in (1, 2, 3):
        for words in itertools.product(SYNC_WORDS, repeat=size):
            each = [sync_of(word) for word in words]
            remote = max((one.remote for one in each), key=strength.index)
            assert sync_of(",".join(words)) == Sync(any(one.local_disk for one in each), remote)
    for word, parts in QUORUM.items():
        assert sync_of(word) == sync_of(",".join(parts))


@pytest.mark.parametrize("text", ["", ",", "disk", "quorum", "local_disk,", "local_disk remote_disk", "all_disk"])
def test_unknown_words_are_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(SettingsError, match=r"replication\.sync = .*expected some of local_mem, local_disk"):
        replication(f"replication.sync={text}")


# ---- the other values


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("replication.replicas=1", "replicas", 1),
        ("replication.replicas=9", "replicas", 9),
        ("replication.zk_session_timeout=5s", "zk_session_timeout", 5_000),
        ("replication.zk_session_timeout=3000", "zk_session_timeout", 3_000),
        ("replication.zk_session_tmeout=3s", "zk_session_timeout", 3_000),
        ("replication.zk_address=a:1, b ,[::1]:3/root/of", "zk_address", "a:1, b ,[::1]:3/root/of"),
        ("replication.zk_path=/activemq/leveldb-stores", "zk_path", "/activemq/leveldb-stores"),
        ("replication.hostname=fe80::1", "hostname", "fe80::1"),
        ("replication.catch_up_rate=20mb", "catch_up_rate", 20 << 20),
        ("replication.weight=0", "weight", 0),
        ("replication.prefer_weight=true", "prefer_weight", True),
    ],
)
def test_values_are_taken(override: str, key: str, value: object) -> None:
    assert getattr(replication(override), key) == value


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("replicas=0", "at least 1"),
        ("replicas=10", "at most 9"),
        ("zk_session_timeout=10", "at least 100"),
        ("zk_session_timeout=soon", "a time"),
        ("zk_address=", "the ZooKeeper servers"),
        ("zk_address=a:1,,b:2", "the ZooKeeper servers"),
        ("zk_address=tcp://a:1", "the ZooKeeper servers"),
        ("zk_address=a:port", "the ZooKeeper servers"),
        ("zk_path=default", "pattern"),
        ("zk_path=/default/", "pattern"),
        ("bind=61619", "HOST:PORT"),
        ("bind=udp://0.0.0.0:61619", "HOST:PORT"),
        ("bind=tcp://0.0.0.0:70000", "HOST:PORT"),
        ("hostname=one:61619", "without a port"),
        ("hostname=", "without a port"),
        ("node=a b", "a name of letters"),
        ("weight=-1", "a whole number"),
        ("catch_up_rate=fast", "a size"),
        ("prefer_weight=maybe", "true or false"),
    ],
)
def test_an_invalid_value_is_refused_with_the_expected_form(override: str, expected: str) -> None:
    with pytest.raises(SettingsError, match=expected) as refused:
        replication(f"replication.{override}")
    assert refused.value.key == f"replication.{override.partition('=')[0]}"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("tcp://0.0.0.0:61619", "0.0.0.0", 61_619), ("127.0.0.1:0", "127.0.0.1", 0), ("tcp://[::]:7", "::", 7)],
)
def test_bind_may_be_written_as_activemq_does(text: str, host: str, port: int) -> None:
    address = replication(f"replication.bind={text}").bind_address
    assert (address.host, address.port) == (host, port)


def test_a_node_is_called_as_it_is_reached_unless_it_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda: "one.example.org")
    assert (replication().advertised_hostname, replication().node_name) == ("one.example.org", "one.example.org")
    told = replication("replication.hostname=10.0.0.1")
    assert (told.advertised_hostname, told.node_name) == ("10.0.0.1", "10.0.0.1")
    named = replication("replication.hostname=10.0.0.1", "replication.node=b1")
    assert (named.advertised_hostname, named.node_name) == ("10.0.0.1", "b1")


@pytest.mark.parametrize("key", ["security_token", "zk_password"])
def test_a_secret_is_said_or_in_a_file(key: str) -> None:
    with pytest.raises(SettingsError, match=f"expected {key} or {key}_file, not both") as refused:
        replication(f"replication.{key}=hush", f"replication.{key}_file=/secret")
    assert "hush" not in str(refused.value)


# ---- settings that cannot be combined


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ("[locker]\ntype = 'shared-file'", "locker.type", "chooses its master itself"),
        ("[locker]\ntype = 'zookeeper'\nzookeeper = {hosts = 'a:1'}", "locker.type", "chooses its master itself"),
        ("[locker]\nuse_lock = false", "locker.use_lock", "chooses its master itself"),
        ("[locker]\ndirectory = '/locks'", "locker.directory", "chooses its master itself"),
        (
            "[store]\ndatabase_locked_wait_delay = '3s'",
            "locker.lock_acquire_sleep_interval",
            "chooses its master itself",
        ),
        ("[[store.filtered_persistence_adapters]]\nqueue = '>'", "store.filtered_persistence_adapters", "one journal"),
        ("[store]\nignore_missing_journalfiles = true", "store.ignore_missing_journalfiles", "from the others"),
        ("[store]\njournal_disk_sync_strategy = 'periodic'", "store.journal_disk_sync_strategy", "replication.sync"),
        ("[store]\nenable_journal_disk_syncs = false", "store.journal_disk_sync_strategy", "replication.sync"),
    ],
)
def test_a_conflicting_setting_is_refused_with_the_reason(
    file: Callable[[str], str], text: str, key: str, reason: str
) -> None:
    assert load(file(text), {}).replication is None
    path = file(f"[broker]\nname = 'orders'\n[replication]\n{text}")
    with pytest.raises(RefusedSetting) as refused:
        load(path, {})
    assert refused.value.key == key
    assert str(refused.value).startswith(f"{key} = ")
    assert path in str(refused.value)
    assert reason in refused.value.reason


def test_how_long_a_demoted_broker_waits_is_no_matter_of_a_lock() -> None:
    assert by_set("replication.replicas=3", "locker.retry_interval=3s").locker.retry_interval == 3_000


# ---- ActiveMQ's properties


@pytest.mark.parametrize("found", ALL, ids=lambda found: found.name)
def test_every_property_becomes_what_the_table_says(found: Property) -> None:
    if found.outcome is Outcome.ACCEPTED:
        assert found.key.removeprefix("replication.") in ReplicationSettings.model_fields
    elif found.outcome is Outcome.MAPPED:
        value = {"directory": "/x", "zkSessionTmeout": "7s"}.get(found.name, "104857600")
        assert by_set(f"{found.key}={value}").origin(found.target) == f"--set, as {found.key}"
    elif found.outcome is Outcome.FIXED:
        for value in found.values:
            by_set(f"{found.key}={str(value).lower()}")
        with pytest.raises(RefusedSetting) as refused:
            by_set(f"{found.key}={'false' if found.values[0] is True else 'snappy'}")
        assert found.here in str(refused.value)
    else:
        with pytest.raises(RefusedSetting) as refused:
            by_set(f"{found.key}={found.default.strip('`')}")
        assert str(refused.value).endswith(f"refused: {found.here}")


def test_every_property_of_document_004_has_its_fate() -> None:
    store = (
        "directory readThreads logSize verifyChecksums paranoidChecks indexFactory indexMaxOpenFiles "
        "indexBlockRestartInterval indexWriteBufferSize indexBlockSize indexCacheSize indexCompression logCompression"
    )
    own = (
        "replicas securityToken zkAddress zkPassword zkPath zkSessionTimeout zkSessionTmeout sync bind hostname weight"
    )
    assert [found.name for found in list(GROUPS.values())[-1]] == store.split()
    assert [found.name for found in ALL] == [*own.split(), *store.split()]
    assert not {key for key in SPECIAL if key.removeprefix("replication.") in ReplicationSettings.model_fields}


def test_a_mapped_setting_is_converted_to_its_unit() -> None:
    settings = by_set(
        "replication.log_size=104857600", "replication.index_cache_size=256mb", "replication.directory=/var/lib/set"
    )
    assert settings.store.journal_max_file_length == 100 << 20
    assert settings.store.index_cache_size == (256 << 20) // PAGE_SIZE
    assert settings.store.directory == "/var/lib/set"
    assert by_set("replication.index_cache_size=1").store.index_cache_size == 16
    assert PAGE_SIZE == PAGE_SIZE_DEFAULT


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("zkAddress", "zk_address"),
        ("zkSessionTimeout", "zk_session_timeout"),
        ("securityToken", "security_token"),
        ("logSize", "log_size"),
        ("indexMaxOpenFiles", "index_max_open_files"),
        ("replica", "replicas"),
    ],
)
def test_activemqs_own_spelling_is_shown_ours(name: str, near: str) -> None:
    with pytest.raises(UnknownSetting, match=rf"Did you mean replication\.{near}\?"):
        replication(f"replication.{name}=1")


def test_the_table_itself_may_be_misspelt() -> None:
    with pytest.raises(UnknownSetting, match=r"Did you mean replication\?"):
        by_set("replicaton.replicas=3")


# ---- shown


def test_a_set_is_shown_and_reads_back(file: Callable[[str], str]) -> None:
    settings = by_set(
        "replication.replicas=5", "replication.sync=quorum_mem", "replication.verify_checksums=true",
        "locker.retry_interval=3s", "replication.log_size=64mb",
    )  # fmt: skip
    text = show(settings)
    assert "\n[replication]\nreplicas = 5  # --set\n" in text
    assert "verify_checksums = true  # always, as in --set" in text
    assert "lock_acquire_sleep_interval" not in text
    again = load(file(text), {})
    assert again.model_dump(exclude={"locker"}) == settings.model_dump(exclude={"locker"})
    assert again.locker == settings.locker
    shown: Any = as_json(settings)
    assert shown["replication"]["zk_session_timeout"] == 2_000
    assert shown["fixed"]["replication.paranoid_checks"] is True


def test_no_set_is_shown_as_none_and_reads_back(file: Callable[[str], str]) -> None:
    text = show(load(None, {}))
    assert "# [replication] is not set" in text
    assert load(file(text), {}).replication is None
    shown: Any = as_json(load(None, {}))
    assert shown["replication"] is None
    assert "replication.paranoid_checks" not in shown["fixed"]
