"""Durable subscriptions of bridges that are not in the settings any more."""

from __future__ import annotations

import logging

import pytest

from tandemmq.broker.bridges.left import LeftSubscriptions, sentence
from tandemmq.broker.core.commands import Connect, Unsubscribe
from tests.support.broker.bridge_world import Client, World


async def test_they_are_found_by_the_next_master_with_what_waits(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    former = await world.begin()
    world.flow.went(former)
    await world.send("up/a", "one")
    world.flow.end()
    world.begin_engine()
    with caplog.at_level(logging.WARNING):
        left = LeftSubscriptions(world.engine, ["another"])
    await world.send("up/a", "two")
    assert left.status() == [{"client_id": "local.b", "name": "up/#", "messages": 2}]
    assert [(each.event, "holds 1 messages" in each.message) for each in caplog.records] == [("bridge-left", True)]
    assert "up/# of local.b" in sentence(left.status()[0])


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


async def test_those_of_bridges_that_there_are_and_of_others_are_none(world: World) -> None:
    await world.begin()
    other = Client(world.engine)
    await other.do(Connect("local.mine"))
    await other.subscribe_durably("up/a")
    assert LeftSubscriptions(world.engine, ["b"]).status() == []
