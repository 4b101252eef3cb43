"""What Java's tests configured of ActiveMQ's broker becomes a settings file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tandemmq.bench.outside.settings import NoSetting, write
from tandemmq.cli.options import load_settings
from tandemmq.config.settings import Settings

POLICIES = "org.apache.activemq.broker.region.policy."
FACTS: dict[str, Any] = {
    "name": "localhost", "repeats": 1000, "userIds": True, "destinations": [], "policies": [],
    "connectors": ["tcp://127.0.0.1:1", "stomp://127.0.0.1:2?transport.soLinger=0&transport.defaultHeartBeat=5,5"],
}  # fmt: skip


def settings(directory: Path, **facts: Any) -> Settings:
    return load_settings(str(write({**FACTS, **facts}, directory)))


def test_connectors_keep_what_a_client_may_see_of_their_options(tmp_path: Path) -> None:
    found = settings(tmp_path)
    assert [connector.scheme for connector in found.connectors] == ["tcp", "stomp"]
    assert found.connectors[1].uri == "stomp://127.0.0.1:2?transport.defaultHeartBeat=5,5"
    assert found.broker.populate_jmsx_user_id


def test_dead_letters_are_activemqs_unless_a_policy_says_otherwise(tmp_path: Path) -> None:
    letters = {"class": f"{POLICIES}IndividualDeadLetterStrategy", "queuePrefix": "Test."}
    own = {"destination": "queue://A.>", "queuePrefetch": 3, "useCache": False, "deadLetterStrategy": letters}
    found = {entry.subject: entry for entry in settings(tmp_path, policies=[own]).destinations}
    assert found["queue", "A.>"].queue_prefetch == 3
    assert found["queue", "A.>"].dead_letter_strategy.queue_prefix == "Test."
    assert found["queue", ">"].dead_letter_strategy.type == "shared"
    assert found["topic", ">"].dead_letter_strategy.type == "shared"


def test_the_default_entry_holds_for_temporary_destinations_too(tmp_path: Path) -> None:
    found = settings(tmp_path, policies=[{"memoryLimit": 5}]).destinations
    assert {entry.subject[0]: entry.memory_limit for entry in found} == {
        "queue": 5, "topic": 5, "temp_queue": 5, "temp_topic": 5,
    }  # fmt: skip


def test_users_and_rights(tmp_path: Path) -> None:
    found = settings(
        tmp_path,
        users=[{"name": "system", "password": "manager", "groups": ["admins"]}],
        rights=[{"destination": "queue://USERS.>", "read": ["users"], "write": ["users"], "admin": []}],
    ).security
    assert found.users_file is not None
    assert found.allow_anonymous == "false"
    assert found.authorization[0].subject == ("queue", "USERS.>")


@pytest.mark.parametrize(
    "facts",
    [
        {"connectors": ["ssl://127.0.0.1:1"]},
        {"memory": 1 << 20},
        {"destinations": ["queue://a"]},
        {"policies": [{"dispatchPolicy": {"class": f"{POLICIES}StrictOrderDispatchPolicy"}}]},
        {"policies": [{"slowConsumerStrategy": {"class": f"{POLICIES}Other"}}]},
    ],
)
def test_what_no_setting_says_is_named(tmp_path: Path, facts: dict[str, Any]) -> None:
    with pytest.raises(NoSetting):
        settings(tmp_path, **facts)
