"""Which bridges a message has passed, and where it goes no further."""

from __future__ import annotations

from tandemmq.broker.bridges.passed import PASSED, PASSED_MAX, is_at_end, passed, passing
from tandemmq.broker.protocols.mqtt.packets import PacketType
from tandemmq.broker.protocols.mqtt.properties import NONE, Properties
from tests.support.broker.bridge_world import BOTH, IN, OUT, World

A, B = ("a", "1"), ("b", "2")


def test_each_bridge_stands_behind_the_former_ones() -> None:
    once = passing(NONE, "one")
    assert once.user == ((PASSED, "one"),)
    assert passing(Properties(user=(A, (PASSED, "one"), B)), "two").user == (A, B, (PASSED, "one two"))


def test_a_message_ends_at_a_bridge_that_it_has_passed_or_after_too_many() -> None:
    assert not is_at_end(None, "one")
    assert not is_at_end("two oneandmore", "one")
    assert is_at_end("two one", "one")
    assert not is_at_end("x " * (PASSED_MAX - 1), "one")
    assert is_at_end("x " * PASSED_MAX, "one")


async def test_a_message_goes_out_with_the_bridge_and_not_again(world: World) -> None:
    remote = await world.begin()
    await world.send("up/a", "one", properties={PASSED: "elsewhere"})
    text = passed(remote.properties[0])
    assert text.split()[0] == "elsewhere"
    await world.send("up/a", "again", properties={PASSED: text})
    assert len(remote.properties) == 1
    assert world.counts.circled == 1
    assert world.gathered_for_bridge("up/#") == 1  # the first one alone, which is not confirmed


async def test_a_message_comes_in_with_the_bridge_and_not_again(world: World) -> None:
    remote = await world.begin(IN)
    await world.listen("from/#")
    elsewhere = Properties(user=((PASSED, "elsewhere"),))
    await world.receive("down/a", "one", 5, properties=elsewhere)
    assert world.client.properties[0][PASSED] == f"elsewhere {world.flow.begun.id}"
    again = passing(elsewhere, world.flow.begun.id)
    await world.receive("down/a", "two", 6, properties=again, retain=True)
    assert remote.told == [("PUBREC", 5), ("PUBREC", 6)]
    assert world.client.bodies == ["one"]
    world.flow.released(6)
    assert remote.told[2:] == [("PUBCOMP", 6)]


async def test_what_comes_by_one_bridge_and_goes_by_another_has_passed_both(world: World) -> None:
    await world.begin(BOTH)
    await world.receive("both/a", "theirs", 5)
    first = world.flow.begun.id
    world.flow.end()
    remote = await world.begin_as("other", OUT)
    await world.send("up/a", "one", properties={PASSED: first})
    assert passed(remote.properties[0]) == f"{first} {world.flow.begun.id}"


async def test_a_bridge_is_the_same_over_its_terms_and_no_other_one(world: World) -> None:
    await world.begin()
    first = world.flow.begun.id
    await world.begin()
    assert world.flow.begun.id == first
    world.flow.end()
    await world.begin_as("other", OUT)
    assert world.flow.begun.id not in ("", first)


async def test_a_circle_of_qos_1_is_confirmed_with_puback(world: World) -> None:
    remote = await world.begin(IN)
    circled = Properties(user=((PASSED, world.flow.begun.id),))
    await world.receive("down/a", "one", 5, qos=1, properties=circled)
    assert remote.told == [(PacketType.PUBACK.name, 5)]
