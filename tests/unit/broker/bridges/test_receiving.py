"""In: what is confirmed to the other broker, and when."""

from __future__ import annotations

from tandemmq.broker.bridges.mapping import Topic
from tandemmq.store.records.message import Destination, DestinationKind
from tests.support.broker.bridge_world import World, publish


async def test_a_message_is_confirmed_when_it_is_stored(world: World) -> None:
    remote = await world.begin()
    await world.listen("from/#")
    world.flow.published(publish("down/a", "one", 5))
    assert remote.told == []
    await world.quiet()
    assert remote.told == [("PUBREC", 5)]
    assert world.client.bodies == ["one"]
    await world.release(5)
    assert remote.told[1:] == [("PUBCOMP", 5)]
    assert world.records == 0
    assert world.counts.received == 1


async def test_a_packet_id_that_is_known_is_no_new_message(world: World) -> None:
    await world.begin()
    await world.receive("down/a", "one", 5)
    remote = await world.begin()
    await world.listen("from/#")
    await world.receive("down/a", "one", 5, dup=True)
    assert remote.told == [("PUBREC", 5)]
    assert world.client.bodies == []
    await world.release(5)
    await world.receive("down/a", "two", 5)
    assert remote.told[1:] == [("PUBCOMP", 5), ("PUBREC", 5)]
    assert world.client.bodies == ["two"]


async def test_a_packet_id_of_a_session_that_was_lost_is_a_new_message(world: World) -> None:
    await world.begin()
    await world.receive("down/a", "one", 5)
    remote = await world.begin(is_resumed=False)
    await world.listen("from/#")
    await world.receive("down/a", "another", 5)
    assert world.client.bodies == ["another"]
    await world.release(5)
    assert remote.told == [("PUBREC", 5), ("PUBCOMP", 5)]
    assert world.records == 0


async def test_what_was_stored_for_a_former_connection_is_not_confirmed_to_another(world: World) -> None:
    former = await world.begin(Topic("down/#", 1, "from/", "", is_in=True, is_out=False))
    world.flow.published(publish("down/a", "one", 5, qos=1))
    world.flow.went(former)
    remote = await world.reconnect()
    assert former.told == remote.told == []


async def test_pubrel_of_an_unknown_packet_id_is_answered(world: World) -> None:
    remote = await world.begin()
    world.flow.released(7)
    assert remote.told == [("PUBCOMP", 7)]


async def test_what_no_topic_of_the_bridge_matches_is_confirmed_and_goes_nowhere(world: World) -> None:
    remote = await world.begin()
    await world.listen("#")
    await world.receive("elsewhere", "x", 5, qos=1)
    assert remote.told == [("PUBACK", 5)]
    assert world.client.bodies == []


async def test_a_retained_message_is_kept_for_who_subscribes_later(world: World) -> None:
    await world.begin()
    await world.receive("down/a", "one", 5, retain=True)
    assert world.kept(Destination(DestinationKind.QUEUE, "ActiveMQ.MQTT.Retained")) == 1


async def test_what_this_broker_refuses_is_confirmed_and_counted_and_no_record_of_it_is_awaited(world: World) -> None:
    remote = await world.begin()
    await world.receive("down/" + 600 * "x", "one", 5)
    assert remote.told == [("PUBREC", 5)]
    assert (world.counts.refused, world.records) == (1, 0)
    assert not world.flow._kept._sent
    await world.receive("down/a", "two", 5)
    assert remote.told[1:] == [("PUBREC", 5)]
    assert world.records == 1
