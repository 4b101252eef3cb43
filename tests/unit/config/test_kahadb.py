"""ActiveMQ's settings of a store: each is accepted and takes effect, or is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tandemmq.cli.config import config
from tandemmq.config.errors import RefusedSetting, SettingsError, UnknownSetting
from tandemmq.config.kahadb import FIXED, SPECIAL
from tandemmq.config.kahadb_properties import GROUPS, KAHADB, LOCKER, LOCKER_KINDS, MKAHADB
from tandemmq.config.kahadb_property import Outcome, Property, snake_case
from tandemmq.config.load import ADAPTERS, SECTIONS, load
from tandemmq.config.settings import Settings
from tandemmq.config.show import as_json, show
from tandemmq.config.store import BROKER, HANDLER, SECTION, FilteredStoreSettings

ALL = [found for group in GROUPS.values() for found in group]


def by_set(*overrides: str) -> Settings:
    return load(None, {}, overrides)


def text_of(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# ---- the table


@pytest.mark.parametrize("found", ALL, ids=lambda found: f"{found.key}-{found.outcome.value}")
def test_every_property_becomes_what_the_table_says(found: Property) -> None:
    if found.outcome is Outcome.ACCEPTED:
        *path, name = found.key.split(".")
        model: Any = FilteredStoreSettings if len(path) > 1 else SECTIONS[path[0]]
        assert name in model.model_fields
    elif found.outcome is Outcome.MAPPED:
        *path, name = found.target.split(".")
        assert name in SECTIONS[path[0]].model_fields
    elif found.outcome is Outcome.FIXED:
        for value in found.values:
            assert by_set(f"{found.key}={text_of(value)}").origin(found.key) == "--set"
        others = [text_of(not found.values[0])] if isinstance(found.values[0], bool) else ["5"]
        for other in others:
            with pytest.raises(RefusedSetting) as refused:
                by_set(f"{found.key}={other}")
            assert f"{found.key} = {other!r} (from --set): refused: only " in str(refused.value)
            assert found.here in str(refused.value)
    else:
        with pytest.raises(RefusedSetting) as refused:
            by_set(f"{found.key}={found.default.strip('`')}")
        assert str(refused.value).endswith(f"refused: {found.here}")


def test_a_key_has_one_fate() -> None:
    fates: dict[str, Outcome] = {}
    for found in ALL:
        assert fates.setdefault(found.key, found.outcome) is found.outcome, found.key
    assert not {key for key in SPECIAL if key.split(".")[1] in SECTIONS[key.split(".")[0]].model_fields}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("journalMaxFileLength", "journal_max_file_length"),
        ("ignoreMissingJournalfiles", "ignore_missing_journalfiles"),
        ("purgeRecoveredXATransactionStrategy", "purge_recovered_xa_transaction_strategy"),
        ("compactAcksAfterNoGC", "compact_acks_after_no_gc"),
        ("useIndexLFRUEviction", "use_index_lfru_eviction"),
        ("indexLFUEvictionFactor", "index_lfu_eviction_factor"),
        ("persistJMSRedelivered", "persist_jms_redelivered"),
        ("storeOpenWireVersion", "store_open_wire_version"),
        ("maxKahaDBTxSize", "max_kaha_db_tx_size"),
        ("org.apache.kahadb.journal.CALLER_BUFFER_APPENDER", "caller_buffer_appender"),
    ],
)
def test_names_are_turned_into_keys(name: str, key: str) -> None:
    assert snake_case(name) == key


# ---- the real thing


@pytest.fixture(scope="session")
def activemq_properties(properties_of: Callable[..., dict[str, dict[str, str]]]) -> dict[str, dict[str, str]]:
    package = "org.apache.activemq.store"
    return properties_of(
        f"{package}.kahadb.KahaDBPersistenceAdapter",
        f"{package}.kahadb.MultiKahaDBPersistenceAdapter",
        f"{package}.kahadb.FilteredKahaDBPersistenceAdapter",
        f"{package}.SharedFileLocker",
        f"{package}.jdbc.LeaseDatabaseLocker",
        f"{package}.jdbc.DefaultDatabaseLocker",
    )


def test_every_property_of_the_real_activemq_is_in_the_table(activemq_properties: dict[str, dict[str, str]]) -> None:
    groups = {
        "KahaDBPersistenceAdapter": (KAHADB, LOCKER),
        "MultiKahaDBPersistenceAdapter": (MKAHADB, LOCKER, KAHADB),
        "FilteredKahaDBPersistenceAdapter": (MKAHADB,),
        "SharedFileLocker": (LOCKER, KAHADB, LOCKER_KINDS),
        "LeaseDatabaseLocker": (LOCKER, LOCKER_KINDS),
        "DefaultDatabaseLocker": (LOCKER, LOCKER_KINDS),
    }
    wiring = {
        # Set by ActiveMQ's own code when it wires its parts, in no documentation.
        "MultiKahaDBPersistenceAdapter": {"adapters"},
        "FilteredKahaDBPersistenceAdapter": {"adapter", "destination"},
        "SharedFileLocker": {"lockable", "name"},
        "LeaseDatabaseLocker": {"lockable", "name"},
        "DefaultDatabaseLocker": {"lockable", "name"},
    }
    for type_name, tables in groups.items():
        known = {found.name for table in tables for found in table} | wiring.get(type_name, set())
        assert set(activemq_properties[type_name]) - known == set(), type_name


def test_the_defaults_of_the_real_activemq_are_those_of_the_table(
    activemq_properties: dict[str, dict[str, str]],
) -> None:
    real = activemq_properties["KahaDBPersistenceAdapter"] | activemq_properties["SharedFileLocker"]
    compared = 0
    for found in (*KAHADB, *LOCKER):
        text = found.default.strip("`")
        if text in ("–", "directory") or text.startswith(("<", "activemq-data", "shared-file")):
            continue
        if real.get(found.name, "?") == "?":
            continue
        expected = {"32mb": str(32 << 20), "4mb": str(4 << 20)}.get(text, text)
        assert real[found.name] == expected, found.name
        compared += 1
    assert compared > 25


# ---- read as another


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("store.enable_journal_disk_syncs=false", "journal_disk_sync_strategy", "never"),
        ("store.enable_journal_disk_syncs=true", "journal_disk_sync_strategy", "always"),
        ("store.enable_ack_compaction=false", "enable_compaction", False),
        ("store.journal_disk_sync_strategy=PERIODIC", "journal_disk_sync_strategy", "periodic"),
        (
            "store.purge_recovered_xa_transaction_strategy=ROLLBACK",
            "purge_recovered_xa_transaction_strategy",
            "rollback",
        ),
    ],
)
def test_activemqs_other_names_and_spellings_are_read(override: str, key: str, value: object) -> None:
    assert getattr(by_set(override).store, key) == value


def test_the_old_wait_of_a_locked_database_is_the_lockers() -> None:
    settings = by_set("store.database_locked_wait_delay=3s")
    assert settings.locker.lock_acquire_sleep_interval == 3_000
    assert settings.origin("locker.lock_acquire_sleep_interval") == "--set, as store.database_locked_wait_delay"


def test_an_invalid_mapped_value_is_reported_with_the_name_that_was_used() -> None:
    with pytest.raises(SettingsError, match=r"store\.enable_journal_disk_syncs = 'maybe' .*: expected true or false"):
        by_set("store.enable_journal_disk_syncs=maybe")


def test_two_names_of_one_setting_must_agree_in_one_place_and_the_later_place_wins(file: Callable[[str], str]) -> None:
    path = file("[store]\njournal_disk_sync_strategy = 'always'\nenable_journal_disk_syncs = false")
    with pytest.raises(SettingsError, match=r"the same as store\.journal_disk_sync_strategy"):
        load(path, {})
    agreeing = file("[store]\nenable_journal_disk_syncs = true\njournal_disk_sync_strategy = 'ALWAYS'")
    assert load(agreeing, {}).store.journal_disk_sync_strategy == "always"
    settings = load(agreeing, {}, ["store.enable_journal_disk_syncs=false"])
    assert settings.store.journal_disk_sync_strategy == "never"
    assert settings.notes == (
        "store.enable_journal_disk_syncs = 'false' (from --set) is read as store.journal_disk_sync_strategy = 'never'",
    )
    settings = load(file("[store]\nenable_journal_disk_syncs = false"), {}, ["store.journal_disk_sync_strategy=always"])
    assert (settings.store.journal_disk_sync_strategy, settings.notes) == ("always", ())


@pytest.mark.parametrize(
    ("override", "near"),
    [
        ("store.use_lock=false", "locker.use_lock"),
        ("store.lockKeepAlivePeriod=5000", "locker.lock_keep_alive_period"),
        ("store.checksumJournalFiles=true", "store.checksum_journal_files"),
        ("store.concurrent_store_and_dispatch_queue=true", "store.concurrent_store_and_dispatch_queues"),
    ],
)
def test_a_key_in_the_wrong_place_or_spelling_is_shown_the_right_one(override: str, near: str) -> None:
    with pytest.raises(UnknownSetting) as unknown:
        by_set(override)
    assert unknown.value.near == near


# ---- shown


def test_a_fixed_setting_is_shown_and_can_be_loaded_again(file: Callable[[str], str]) -> None:
    settings = by_set("store.checksum_journal_files=true", "store.disk_reserve=100mb")
    text = show(settings)
    for found in FIXED:
        table, _, key = found.key.rpartition(".")
        assert (f"\n{key} = " in text) is (table != "replication")  # a table that is not there
    assert "checksum_journal_files = true  # always, as in --set" in text
    assert 'disk_reserve = "100mb"  # --set' in text
    again = load(file(text), {})
    assert again.model_dump() == settings.model_dump()
    assert as_json(again)["fixed"]["broker.store_open_wire_version"] == 11


def test_check_says_what_was_read_as_something_else_and_why_something_is_refused() -> None:
    runner = CliRunner()
    environment = {"TANDEMMQ_CONFIG": None}
    result = runner.invoke(config, ["check", "--set", "store.enable_ack_compaction=false"], env=environment)
    assert result.exit_code == 0
    assert "store.enable_ack_compaction = 'false' (from --set) is read as store.enable_compaction" in result.stdout
    for command in ("check", "show"):
        result = runner.invoke(config, [command, "--set", "store.compact_acks_after_no_gc=10"], env=environment)
        assert result.exit_code == 2
        assert "store.compact_acks_after_no_gc = '10' (from --set): refused: Compaction begins when" in result.stderr


# ---- several stores

SEVERAL = """
[store]
journal_max_file_length = "16mb"
checkpoint_interval = "7s"
[[store.filtered_persistence_adapters]]
queue = "AUDIT.>"
journal_max_file_length = "8mb"
enable_journal_disk_syncs = false
checksum_journal_files = true
disk_reserve = "100mb"
[[store.filtered_persistence_adapters]]
topic = "PRICES.*"
[[store.filtered_persistence_adapters]]
per_destination = true
"""


def test_a_store_among_several_is_as_the_first_table_says_but_for_its_own_keys(file: Callable[[str], str]) -> None:
    settings = load(file(SEVERAL), {})
    audit, prices, others = settings.store.filtered_persistence_adapters
    assert (audit.queue, audit.topic, audit.per_destination) == ("AUDIT.>", None, False)
    assert (prices.queue, prices.topic) == (None, "PRICES.*")
    assert others.per_destination
    one = settings.store.of(audit)
    assert (one.journal_max_file_length, one.journal_disk_sync_strategy) == (8 << 20, "never")
    assert (one.checkpoint_interval, one.disk_reserve_bytes) == (7_000, 100 << 20)
    assert one.filtered_persistence_adapters == ()
    assert settings.store.of(prices).journal_max_file_length == 16 << 20
    assert settings.store.of(prices).disk_reserve_bytes == 32 << 20


def test_several_stores_are_shown_and_read_back(file: Callable[[str], str]) -> None:
    settings = load(file(SEVERAL), {})
    text = show(settings)
    assert f'[[{ADAPTERS}]]\njournal_max_file_length = "8mb"' in text
    assert load(file(text), {}).model_dump() == settings.model_dump()
    assert as_json(settings)["store"]["filtered_persistence_adapters"][1] == {"topic": "PRICES.*"}


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("queue = 'A..B'", r"filtered_persistence_adapters\[0\]\.queue = 'A\.\.B' .*expected words"),
        ("queue = ''", "expected words"),
        ("queue = 'A B'", "expected words"),
        ("queue = 'A'\ntopic = 'B'", "queue or topic, not both"),
        ("queue = 'A'\nper_destination = true", "per_destination without queue and topic"),
        ("directory = 'x'", "there is no such setting"),
        ("journalMaxFileLength = 1", "Did you mean store.filtered_persistence_adapters.0..journal_max_file_length"),
        ("checksum_journal_files = false", r"adapters\[0\]\.checksum_journal_files = False .*refused: only true"),
        ("usage = '1gb'", r"adapters\[0\]\.usage = '1gb' .*refused: .*Set disk_reserve"),
        ("temp_queue = '>'", "Temporary queues are never stored"),
        ("enable_ack_compaction = false\nenable_compaction = true", "two keys are one setting"),
        ("queue = 'A'\n[[store.filtered_persistence_adapters]]\nqueue = 'A'", "a different filter"),
        ("[[store.filtered_persistence_adapters]]", "a different filter"),
    ],
)
def test_a_wrong_table_of_a_store_is_refused_with_its_key(
    file: Callable[[str], str], table: str, expected: str
) -> None:
    with pytest.raises(SettingsError, match=expected):
        load(file(f"[[store.filtered_persistence_adapters]]\n{table}"), {})


def test_stores_stand_in_the_file_alone(file: Callable[[str], str]) -> None:
    with pytest.raises(SettingsError, match=r"tables in the file, \[\[store\.filtered_persistence_adapters\]\]"):
        by_set("store.filtered_persistence_adapters=1")
    with pytest.raises(SettingsError, match=r"a list of tables, \[\[store\.filtered_persistence_adapters\]\]"):
        load(file("[store]\nfiltered_persistence_adapters = 'x'"), {})


# ---- ActiveMQ's IO exception handler settings: each is always so here, or is mapped, or refused with the reason


def test_the_back_off_between_attempts_is_mapped() -> None:
    settings = by_set(f"{SECTION}.resume_check_sleep_period=5000")
    assert settings.locker.retry_interval == 5_000
    assert settings.notes == (
        f"{SECTION}.resume_check_sleep_period = '5000' (from --set) is read as locker.retry_interval = '5000'",
    )


@pytest.mark.parametrize(
    "override",
    [
        "stop_start_connectors=true",
        "ignore_all_errors=false",
        "ignore_no_space_errors=true",
        "ignore_sql_exceptions=false",
        "system_exit_on_shutdown=false",
        "type=leaseLockerIOExceptionHandler",
        "type=org.apache.activemq.util.LeaseLockerIOExceptionHandler",
        "type=jDBCIOExceptionHandler",
        "type=org.apache.activemq.store.jdbc.JDBCIOExceptionHandler",
    ],
)
def test_a_setting_that_matches_the_fixed_behaviour_is_accepted(override: str) -> None:
    key = f"{SECTION}.{override.partition('=')[0]}"
    assert by_set(f"{SECTION}.{override}").origin(key) == "--set"


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        (f"{SECTION}.stop_start_connectors=false", "disconnects its clients"),
        (f"{SECTION}.ignore_all_errors=true", "content of the disk is unknown"),
        (f"{SECTION}.ignore_no_space_errors=false", "store.disk_reserve"),
        (f"{SECTION}.ignore_sql_exceptions=true", "last proof"),
        (f"{SECTION}.no_space_message=no space", "ENOSPC"),
        (f"{SECTION}.sql_exception_message=timeout", "SQLSTATE"),
        (f"{SECTION}.system_exit_on_shutdown=true", "becomes a standby"),
        (f"{SECTION}.type=defaultIOExceptionHandler", "puts ownership in doubt"),
        ("broker.restart_allowed=false", "becomes a standby again"),
        ("broker.system_exit_on_shutdown=true", "only by SIGTERM"),
        ("broker.system_exit_on_shutdown_exit_code=3", "0 after SIGTERM"),
    ],
)
def test_a_setting_that_does_not_match_is_refused_with_the_reason(override: str, reason: str) -> None:
    with pytest.raises(RefusedSetting) as refused:
        by_set(override)
    key, _, value = override.partition("=")
    assert str(refused.value).startswith(f"{key} = {value!r} (from --set): refused: ")
    assert reason in str(refused.value)


def test_the_table_stands_in_a_file_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "tandemmq.toml"
    path.write_text(f"[{SECTION}]\nresume_check_sleep_period = '2s'\nstop_start_connectors = true\n")
    settings = load(path, {})
    assert settings.locker.retry_interval == 2_000
    text = show(settings)
    assert f"stop_start_connectors = true  # always, as in {path}" in text
    path.write_text(text)
    assert load(path, {}).model_dump() == settings.model_dump()


def test_a_wrong_name_or_value_is_said_with_the_right_one() -> None:
    with pytest.raises(UnknownSetting) as unknown:
        by_set(f"{SECTION}.stopStartConnectors=true")
    assert unknown.value.near == f"{SECTION}.stop_start_connectors"
    with pytest.raises(SettingsError, match=r"stop_start_connectors = 'maybe' .*expected true or false"):
        by_set(f"{SECTION}.stop_start_connectors=maybe")
    with pytest.raises(SettingsError, match=r"retry_interval = .*expected a time"):
        by_set(f"{SECTION}.resume_check_sleep_period=soon")


def test_the_documentation_has_the_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "kahadb-settings.md").read_text()
    for found in (*HANDLER, *BROKER):
        assert f"`{found.name}`" in page
        assert f"| {found.here} |" in page


@pytest.mark.service
def test_the_real_handlers_have_no_other_settings(properties_of: Callable[..., dict[str, dict[str, str]]]) -> None:
    real = properties_of(
        "org.apache.activemq.util.DefaultIOExceptionHandler",
        "org.apache.activemq.util.LeaseLockerIOExceptionHandler",
        "org.apache.activemq.store.jdbc.JDBCIOExceptionHandler",
    )
    known = {found.name: found for found in HANDLER}
    for type_name, values in real.items():
        for name, value in values.items():
            if name == "brokerService":
                continue  # ActiveMQ's own code wires it
            assert name in known, f"{type_name}.{name} has no fate"
            # "?": there is no way to ask for it
            if type_name == "DefaultIOExceptionHandler" and value != "?" and known[name].outcome is not Outcome.REFUSED:
                assert known[name].default.startswith(f"`{value}`"), name
    assert len(real) == 3
    assert set(known) - {"ioExceptionHandler"} <= real["DefaultIOExceptionHandler"].keys()
