"""The table [locker]: each kind of lock gets the options that it reads, and no other option can be set."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tandemmq.config.errors import SettingsError
from tandemmq.config.load import load
from tandemmq.config.locker import ALIASES, LockerSettings
from tandemmq.config.secrets import masked, masked_text
from tandemmq.config.show import as_json, show

URL = "postgresql://user:s3cret@h/db"
LEASE = ["locker.type=lease-database", f"locker.data_source={URL}"]


@pytest.mark.parametrize(
    ("kind", "periods"), [("shared-file", (50, 500)), ("database", (500, 500)), ("lease-database", (2_000, 500))]
)
def test_periods_depend_on_the_kind_unless_they_are_set(kind: str, periods: tuple[int, int]) -> None:
    lines = ["locker.type=" + kind] + ([f"locker.data_source={URL}"] if "database" in kind else [])
    locker = load(None, {}, lines).locker
    assert (locker.lock_acquire_sleep_interval, locker.lock_keep_alive_period) == periods
    locker = load(None, {}, [*lines, "locker.lock_acquire_sleep_interval=7s", "locker.lock_keep_alive_period=0"]).locker
    assert (locker.lock_acquire_sleep_interval, locker.lock_keep_alive_period) == (7_000, 0)


@pytest.mark.parametrize(("alias", "kind"), ALIASES.items())
def test_activemqs_names_of_kinds_are_understood(alias: str, kind: str) -> None:
    lines = [f"locker.data_source={URL}"] if "database" in kind else []
    assert load(None, {}, [f"locker.type={alias}", *lines]).locker.type == kind


def test_a_kind_gets_what_was_said_to_it(file: Callable[[str], str]) -> None:
    path = file(
        f"""
        [locker]
        type = "lease-database"
        data_source = "{URL}"
        query_timeout = 3
        create_tables_on_startup = false
        lease_holder_id = "b1"
        max_allowable_diff_from_db_time = "1s"
        [locker.statements]
        lock_table_name = "T"
        create_lock_schema_statements = ["CREATE TABLE T", "INSERT INTO T"]
        """
    )
    environment = {"TANDEMMQ_LOCKER__STATEMENTS__TABLE_PREFIX": "P_"}
    overrides = ["locker.statements.lease_owner_statement=SELECT 1, 2"]
    assert load(path, environment, overrides).locker.kind_options() == {
        "data_source": URL,
        "query_timeout": 3_000,
        "create_tables_on_startup": False,
        "lease_holder_id": "b1",
        "max_allowable_diff_from_db_time": 1_000,
        "statements": {
            "lock_table_name": "T",
            "create_lock_schema_statements": ("CREATE TABLE T", "INSERT INTO T"),
            "table_prefix": "P_",
            "lease_owner_statement": "SELECT 1, 2",
        },
    }


def test_kinds_without_a_word_get_none() -> None:
    assert load(None, {}).locker.kind_options() == {}
    assert load(None, {}, ["locker.directory=/locks"]).locker.kind_options() == {"directory": "/locks"}
    assert load(None, {}, ["locker.type=memory"]).locker.kind_options() == {}
    assert load(None, {}, ["locker.type=mine", "locker.options.a=b"]).locker.kind_options() == {"a": "b"}


def test_the_environment_reaches_a_kind() -> None:
    environment = {"TANDEMMQ_LOCKER__TYPE": "database", "TANDEMMQ_LOCKER__DATA_SOURCE": "sqlite:////l"}
    environment["TANDEMMQ_LOCKER__STATEMENTS__CREATE_LOCK_SCHEMA_STATEMENTS"] = "CREATE A; INSERT B;"
    assert load(None, environment).locker.kind_options() == {
        "data_source": "sqlite:////l",
        "statements": {"create_lock_schema_statements": ("CREATE A", "INSERT B")},
    }


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["locker.type=database"], "locker.data_source = '': expected an SQLAlchemy URL"),
        (
            [LEASE[0], "locker.data_source=oracle://u:pw@h/d"],
            "data_source = 'oracle://u:***@h/d' (from --set): expected",
        ),
        ([f"locker.data_source={URL}"], 'expected no value if type is "shared-file"; only type = "database" or'),
        (["locker.type=database", LEASE[1], "locker.lease_holder_id=a"], "locker.lease_holder_id = 'a' (from --set)"),
        ([*LEASE, "locker.directory=/x"], "locker.directory = '/x' (from --set): expected no value if type is \"le"),
        ([*LEASE, "locker.options.a=b"], "only type = a kind that is installed reads it"),
        (["locker.type=mine", "locker.statements.table_prefix=b"], "locker.statements = "),
        (["locker.zookeeper.path=/x"], 'only type = "zookeeper" reads it'),
        ([*LEASE, "locker.statements.nonsense=1"], "locker.statements.nonsense (from --set): there is no such setting"),
        ([*LEASE, "locker.query_timeout=soon"], "locker.query_timeout = 'soon' (from --set): expected a time: seconds"),
        ([*LEASE, "locker.lease_holder_id=a b"], "locker.lease_holder_id = 'a b'"),
    ],
)
def test_a_key_that_the_kind_does_not_read_is_refused_by_name(overrides: list[str], expected: str) -> None:
    with pytest.raises(SettingsError) as failure:
        load(None, {}, overrides)
    assert expected in str(failure.value)
    assert "pw" not in str(failure.value)
    assert "s3cret" not in str(failure.value)


@pytest.mark.parametrize(
    "overrides",
    [
        [LEASE[0], "locker.data_source=sqlite:////l", "locker.query_timeout=3", "locker.lease_holder_id=x"],
        [*LEASE[:1], "locker.data_source=mysql://h/d", "locker.statements.create_lock_schema_statements=a;b"],
        ["locker.type=zookeeper", "locker.zookeeper.path=/x"],
        ["locker.type=kubernetes-lease", "locker.kubernetes.namespace=x"],
        ["locker.directory=/x"],
    ],
)
def test_shown_settings_can_be_loaded_again(file: Callable[[str], str], overrides: list[str]) -> None:
    settings = load(None, {}, overrides)
    assert load(file(show(settings)), {}).model_dump() == settings.model_dump()


def test_passwords_are_not_shown(file: Callable[[str], str]) -> None:
    settings = load(None, {}, LEASE)
    assert settings.locker.kind_options()["data_source"] == URL
    assert 'data_source = "postgresql://user:***@h/db"' in show(settings)
    assert "s3cret" not in show(settings) + json.dumps(as_json(settings)) + repr(settings.model_dump())
    foreign = load(None, {}, ["locker.type=mine", "locker.options.api_token=s3cret", "locker.options.url=x"])
    assert "s3cret" not in show(foreign) + json.dumps(as_json(foreign))
    assert '"url" = "x"' in show(foreign)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:a@b:c@h:5/d", "postgresql://u:***@h:5/d"),
        ("postgresql://h:5/d?user=u&password=a%20b&x=1", "postgresql://h:5/d?user=u&password=***&x=1"),
        ("http://h:8161/a@b", "http://h:8161/a@b"),
        ("sqlite:////a:b@c", "sqlite:////a:b@c"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_a_url_is_shown_without_its_password(text: str, shown: str) -> None:
    assert masked_text(text) == shown


def test_secrets_inside_of_tables_are_masked() -> None:
    value: Any = {"digest": "u:p", "token_file": "/t", "list": ["mysql://u:p@h/d"], "n": 3, "none": None}
    assert masked(value) == {"digest": "***", "token_file": "/t", "list": ["mysql://u:***@h/d"], "n": 3, "none": None}


def test_a_plain_query_timeout_is_seconds_as_in_activemq() -> None:
    def read(value: object) -> int | None:
        return LockerSettings.model_validate(
            {"type": "database", "data_source": URL, "query_timeout": value}
        ).query_timeout

    assert [read(value) for value in (5, "5", "250ms", -1, "-1")] == [5_000, 5_000, 250, 0, 0]
