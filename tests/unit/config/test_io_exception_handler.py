"""ActiveMQ's IO exception handler settings: each is so here anyway, or is mapped, or refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tandemmq.config.errors import RefusedSetting, SettingsError, UnknownSetting
from tandemmq.config.io_exception_handler import BROKER, HANDLER, SECTION
from tandemmq.config.kahadb_property import Outcome
from tandemmq.config.load import load
from tandemmq.config.settings import Settings
from tandemmq.config.show import show


def by_set(*overrides: str) -> Settings:
    return load(None, {}, overrides)


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
def test_what_happens_here_anyway_is_taken(override: str) -> None:
    key = f"{SECTION}.{override.partition('=')[0]}"
    assert by_set(f"{SECTION}.{override}").origin(key) == "--set"


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        (f"{SECTION}.stop_start_connectors=false", "leave them without an answer"),
        (f"{SECTION}.ignore_all_errors=true", "may be lost"),
        (f"{SECTION}.ignore_no_space_errors=false", "store.disk_reserve"),
        (f"{SECTION}.ignore_sql_exceptions=true", "last proof"),
        (f"{SECTION}.no_space_message=no space", "ENOSPC"),
        (f"{SECTION}.sql_exception_message=timeout", "SQLSTATE"),
        (f"{SECTION}.system_exit_on_shutdown=true", "stands by"),
        (f"{SECTION}.type=defaultIOExceptionHandler", "without the database"),
        ("broker.restart_allowed=false", "one broker after the first incident"),
        ("broker.system_exit_on_shutdown=true", "no new process"),
        ("broker.system_exit_on_shutdown_exit_code=3", "ends with 0"),
    ],
)
def test_what_does_not_hold_is_refused_with_the_reason(override: str, reason: str) -> None:
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
    assert f"stop_start_connectors = true  # always, as {path} says" in text
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
        assert f"| `{found.name}` | {found.default} |" in page
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
