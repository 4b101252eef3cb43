"""A backup by the API: into the directory that the settings say, by a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.acceptance.broker_process import BrokerProcess, tandemmq
from tests.unit.broker.admin.api.conftest import Clients, Operator


def test_a_backup_is_made_restored_and_served(tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    backups.mkdir()
    broker = BrokerProcess(tmp_path / "data", "a", "--set", f"admin.backup_directory={backups}").start()
    try:
        broker.wait_role("master")
        operator = Operator(broker)
        Clients(broker).send("orders", "a", "b")
        task = operator.change("POST", "backup", {"name": "monday", "wait": 30})
        assert (task["state"], task["counts"]["messages"]) == ("done", 2)
        again = operator.change("POST", "backup", {"name": "monday", "wait": 30})
        assert again["state"] == "failed"
        assert "is not empty" in again["error"]
    finally:
        broker.stop()
    done = tandemmq("restore", str(backups / "monday"), "--data", str(tmp_path / "again"))
    assert done.returncode == 0, done.stderr
    restored = BrokerProcess(tmp_path / "again", "b").start()
    try:
        restored.wait_role("master")
        assert Clients(restored).answer("orders", 2) == ["a", "b"]
    finally:
        restored.stop()


def test_where_nothing_was_set_none_is_made(broker: BrokerProcess, operator: Operator) -> None:
    status, answer = operator.ask("POST", "backup", {"name": "monday"})
    assert (status, "admin.backup_directory" in answer["error"]) == (409, True)


@pytest.mark.parametrize("name", ["", "..", "a/b", "/etc/x", ".hidden", "a\n"])
def test_it_goes_nowhere_else(operator: Operator, name: str) -> None:
    assert operator.ask("POST", "backup", {"name": name})[0] == 400
