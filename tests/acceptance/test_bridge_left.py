"""A bridge that is taken out of the settings: whoever is master says what it left, until an operator decides."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tandemmq.bench.peers.ports import free_port
from tandemmq.cli import main
from tests.support.acceptance.broker_process import BrokerProcess, serving, wait_until
from tests.support.acceptance.stomp_wire import confirm

BRIDGE = """
[[bridges]]
name = "factory"
addresses = ["mqtt://127.0.0.1:{}"]
topics = [{{pattern = "up/#", direction = "out"}}]
"""


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    return tmp_path / "tandemmq.toml"


@pytest.fixture
def broker(tmp_path: Path, settings: Path) -> Iterator[BrokerProcess]:
    settings.write_text(BRIDGE.format(free_port()))
    with serving(BrokerProcess(tmp_path / "data", "a", "--config", str(settings))) as (broker,):
        yield broker


def ask(broker: BrokerProcess, *words: str) -> Any:
    done = CliRunner().invoke(main, [*words, "--json", "--admin", f"http://127.0.0.1:{broker.admin}"])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def left(broker: BrokerProcess) -> list[tuple[str, str, int]]:
    status = broker.status()
    assert status is not None
    found = status.get("left_by_bridges", [])
    assert len(status["warnings"]) == len(found), "each is a warning"
    return [(each["client_id"], each["name"], each["messages"]) for each in found]


@pytest.mark.promise("bridges")
def test_what_it_left_is_told_until_it_is_deleted(broker: BrokerProcess, settings: Path) -> None:
    ask(broker, "topics", "create", "up.x")
    wait_until(lambda: ask(broker, "subscriptions")["items"], "the bridge gathers")
    asyncio.run(confirm(broker.stomp, "/topic/up.x", "one", 10))
    assert left(broker) == []
    broker.terminate()
    with_bridge = settings.read_text()
    settings.write_text("")
    broker.start().wait_role("master")
    asyncio.run(confirm(broker.stomp, "/topic/up.x", "two", 10))
    assert left(broker) == [("local.tandemmq-factory", "up/#", 2)]
    assert "no bridge of the settings has" in broker.log.read_text()

    broker.terminate()
    settings.write_text(with_bridge)
    broker.start().wait_role("master")
    assert left(broker) == []

    broker.terminate()
    settings.write_text("")
    broker.start().wait_role("master")
    assert ask(broker, "subscriptions", "delete", "local.tandemmq-factory", "up/#")["deleted"]
    assert left(broker) == []
