"""A working day of an operator by commands, as they are typed, against a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tandemmq.cli import main
from tests.support.acceptance.broker_process import BrokerProcess, serving, wait_until
from tests.unit.broker.admin.api.conftest import Clients

DEAD = "ActiveMQ.DLQ.Queue.orders"


class Shell:
    def __init__(self, broker: BrokerProcess) -> None:
        self._where = ("--admin", f"http://127.0.0.1:{broker.admin}")

    def says(self, *words: str, code: int = 0) -> str:
        done = CliRunner().invoke(main, [*words, *self._where])
        assert done.exit_code == code, done.output
        return done.output

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.says(*words, "--json", code=code))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with serving(BrokerProcess(tmp_path / "data", "a")) as (broker,):
        yield broker


@pytest.mark.promise("daily-work")
def test_the_daily_work_on_queues(broker: BrokerProcess) -> None:
    shell, clients = Shell(broker), Clients(broker)
    assert shell.says("queues", "create", "orders") == "queue://orders is there\n"
    shell.says("topics", "create", "prices")
    clients.send("orders", "red", colour="red")
    clients.send("orders", "blue", "blue too", colour="blue")

    assert [line.split()[:2] for line in shell.says("queues").splitlines()] == [["name", "messages"], ["orders", "3"]]
    assert [row["name"] for row in shell.json("topics")["items"]] == ["prices"]
    page = shell.json("browse", "orders", "--selector", "colour = 'red'")
    (row,) = page["items"]
    assert "colour" in shell.says("browse", "orders", "--id", row["id"])

    assert shell.says("move", "orders", "parked", "--selector", "colour = 'blue'", "--limit", "1") == "1 moved\n"
    assert shell.says("copy", "parked", "audit", "--all") == "1 copied\n"
    assert "paused are consumers" in shell.says("queues", "pause", "orders")
    assert "consumers" in shell.says("queues", "list", "--filter", "ord*").splitlines()[1]
    assert "neither" in shell.says("queues", "resume", "orders")
    assert shell.says("queues", "purge", "orders", "--id", row["id"]) == "1 deleted\n"
    assert shell.says("queues", "purge", "orders") == "1 deleted\n"
    assert shell.json("queues", "delete", "orders")["deleted"]
    assert {row["name"] for row in shell.json("queues")["items"]} == {"parked", "audit"}
    assert [task["kind"] for task in shell.json("tasks")["items"]][:2] == ["purge", "delete"]


@pytest.mark.promise("daily-work")
def test_dead_letters_are_tried_and_retried(broker: BrokerProcess) -> None:
    shell, clients = Shell(broker), Clients(broker)
    clients.send("orders", "a", "b")
    clients.answer("orders", 2, "NACK")
    wait_until(lambda: shell.json("queues", "--filter", DEAD)["items"][0]["messages"] == 2, "both are dead letters")
    assert shell.says("retry", DEAD, "--dry-run") == "2 queue://orders\n"
    failed = shell.json("retry", DEAD, "--all", "--canary", "--canary-wait", "0.3", code=1)
    assert (failed["task"]["state"], failed["task"]["counts"]) == ("stopped", {"retried": 1})
    assert shell.says("retry", DEAD, "--all") == "1 retried\n"
    assert clients.answer("orders", 2) == ["a", "b"]


def test_what_is_wrong_ends_with_a_sentence(broker: BrokerProcess) -> None:
    shell = Shell(broker)
    assert "there is no queue://nothing" in shell.says("queues", "delete", "nothing", code=1)
    assert "or --all" in shell.says("move", "a", "b", code=2)
    assert "goes with no other choice" in shell.says("move", "a", "b", "--all", "--limit", "1", code=2)
    assert shell.json("connections", "close", "nobody", code=1)["code"] == 1
    assert shell.json("top", "--count", "1", "--interval", "0.2") == {"queues": []}
    assert shell.json("consumers")["items"] == []
    assert shell.json("subscriptions")["items"] == []
    assert shell.json("subscriptions", "delete", "nobody", "none", code=1)["code"] == 1
