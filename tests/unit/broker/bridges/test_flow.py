"""Both directions, and a bridge's beginning and end."""

from __future__ import annotations

import pytest

from tandemmq.broker.bridges.mapping import Topic
from tests.support.broker.bridge_world import BOTH, OUT, World


async def test_nothing_goes_back_to_where_it_came_from(world: World) -> None:
    remote = await world.begin(BOTH)
    await world.receive("both/a", "theirs", 5)
    assert remote.told == [("PUBREC", 5)]
    remote = await world.begin()
    assert remote.told == []
    await world.send("both/a", "ours")
    assert [each[:3] for each in remote.told] == [("PUBLISH", "both/a", "ours")]


async def test_a_topic_that_is_no_more_in_the_settings_gathers_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.begin(OUT, Topic("more/#", 1, "", "", is_in=False, is_out=True))
    await world.send("up/a", "one")
    await world.send("more/a", "two")
    assert sorted(each.name for each in world.engine.inventory.destinations.durables.values()) == ["more/#", "up/#"]
    await world.begin(OUT)
    assert [each.name for each in world.engine.inventory.destinations.durables.values()] == ["up/#"]
    assert "more/# is not in its topics any more: 1 messages" in caplog.text


async def test_the_connection_is_paused_while_the_engine_takes_nothing(world: World) -> None:
    remote = await world.begin()
    world.flow.stop_reading()
    assert remote.is_paused
    world.flow.resume_reading()
    assert not remote.is_paused


async def test_when_the_engine_hangs_up_whoever_waits_hears_of_it(world: World) -> None:
    await world.begin()
    assert world.engine.hang_up("bridge-b")
    assert world.flow.is_over.is_set()
