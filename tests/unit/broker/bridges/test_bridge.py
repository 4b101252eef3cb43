"""Bridges need an installed library and report its absence; former bridges leave subscriptions that are reported."""

# proves: bridges-are-known-at-once

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import cast

import pytest
from paho.mqtt import client as paho

from tandemmq.broker.bridges.bridge import plan_of
from tandemmq.broker.bridges.bridges import LeftSubscriptions, left_sentence
from tandemmq.broker.bridges.link import principal_of, user_of
from tandemmq.broker.bridges.remote import Unusable, check
from tandemmq.broker.core.commands import Connect, Unsubscribe
from tandemmq.broker.engine.slicing import Slices
from tandemmq.broker.ha.service import AnyStore
from tandemmq.broker.wiring import Parts
from tandemmq.config.bridges import BridgeSettings
from tandemmq.config.errors import RefusedSetting
from tandemmq.config.load import load
from tests.support.broker.bridge_world import Client, World
from tests.support.security.passwords import cheap
from tests.support.store.memory_store import MemoryStore

BRIDGE = '[[bridges]]\nname = "b"\naddresses = ["mqtt://127.0.0.1:1883"]\ntopics = [{pattern = "#"}]\n'


def test_without_aiomqtt_the_start_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("remote", "bridge", "setup"):
        monkeypatch.delitem(sys.modules, f"tandemmq.broker.bridges.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "aiomqtt", None)  # as Python has it for what cannot be imported
    file = tmp_path / "tandemmq.toml"
    file.write_text(BRIDGE)
    with pytest.raises(RefusedSetting, match=r"tandemmq\[mqtt\]"):
        Parts(load(file, {}, [f"store.directory={tmp_path}"]))


def test_a_library_without_what_is_needed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check()
    monkeypatch.delattr(paho.Client, "_handle_pubrec")
    with pytest.raises(Unusable, match="_handle_pubrec"):
        check()


NAMED = {"name": "b", "addresses": ["mqtt://a:1"], "topics": [{"pattern": "#"}]}


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("name", "c", "name"), ("addresses", ["mqtts://z:2"], "addresses"), ("client_id", "me", "client_id"),
        ("username", "anna", "username"), ("protocol_version", "3.1.1", "is_version_5"),
        ("keep_alive", 7_000, "keep_alive_seconds"), ("max_inflight_messages", 9, "window"),
        ("restart_timeout", 300, "restart_seconds"), ("restart_timeout_max", 90_000, "restart_seconds_max"),
        ("topics", [{"pattern": "a/+", "direction": "in"}], "topics"),
    ],
)  # fmt: skip
def test_each_setting_reaches_the_bridge(key: str, value: object, field: str) -> None:
    usual, changed = (plan_of(BridgeSettings.model_validate(given)) for given in (NAMED, NAMED | {key: value}))
    assert getattr(usual, field) != getattr(changed, field)


def test_a_bridge_identifies_itself_if_configured() -> None:
    assert plan_of(BridgeSettings.model_validate(NAMED | {"bridge_mode": True, "protocol_version": "3.1.1"})).is_bridge


def test_a_password_in_a_file_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "password"
    plan = plan_of(BridgeSettings.model_validate(NAMED | {"username": "anna", "password_file": str(file)}))
    with pytest.raises(FileNotFoundError):
        plan.password()
    file.write_text("wonderland\n")
    assert plan.password() == "wonderland"


async def test_the_principal_of_a_bridge_is_known_before_it_begins(tmp_path: Path) -> None:
    """Messages that a bridge received for later sending may be due before the bridge begins."""
    file, users = tmp_path / "tandemmq.toml", tmp_path / "users"
    users.write_text(f"anna:{cheap('secret')}:\n")
    users.chmod(0o600)
    file.write_text(f'{BRIDGE}[security]\nusers_file = "{users}"\n')
    parts = Parts(load(file, {}, [f"store.directory={tmp_path}"]))
    loop = asyncio.get_running_loop()
    engine = await parts.engine(cast(AnyStore, MemoryStore(loop.call_soon)), Slices(loop))
    client = Client(engine)
    engine.act_as_now(client, user_of("b"))
    assert client.client.principal == principal_of("b")
    parts.access.close()


# ---- subscriptions of bridges that are not in the settings any more


async def test_they_are_found_by_the_next_term_with_what_waits(world: World, caplog: pytest.LogCaptureFixture) -> None:
    former = await world.begin()
    world.flow.detach(former)
    await world.send("up/a", "one")
    world.flow.end()
    world.begin_engine()
    with caplog.at_level(logging.WARNING):
        left = LeftSubscriptions(world.engine, ["another"])
    await world.send("up/a", "two")
    assert left.status() == [{"client_id": "local.b", "name": "up/#", "messages": 2}]
    assert [(each.event, "holds 1 messages" in each.message) for each in caplog.records] == [("bridge-left", True)]
    assert "up/# of local.b" in left_sentence(left.status()[0])


async def test_they_are_no_more_when_they_were_deleted(world: World) -> None:
    await world.begin()
    await world.send("up/a", "one")
    world.flow.end()
    world.begin_engine()
    left = LeftSubscriptions(world.engine, [])
    operator = Client(world.engine)
    await operator.do(Connect("local.b"))
    await operator.do(Unsubscribe(None, durable_name="up/#"))
    assert left.status() == []
    assert not world.engine.inventory.destinations.durables


async def test_principals_exist_only_for_configured_bridges(world: World) -> None:
    await world.begin()
    other = Client(world.engine)
    await other.do(Connect("local.mine"))
    await other.subscribe_durably("up/a")
    assert LeftSubscriptions(world.engine, ["b"]).status() == []
