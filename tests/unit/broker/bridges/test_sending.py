"""Out: packet ids, and what the other broker answers."""

from __future__ import annotations

from tandemmq.broker.bridges.mapping import Topic
from tandemmq.broker.protocols.mqtt.packets import PacketType
from tandemmq.store.records.message import Destination, DestinationKind
from tests.support.broker.bridge_world import IN, OUT, World


async def test_a_message_goes_out_and_nothing_is_left_of_it(world: World) -> None:
    remote = await world.begin()
    await world.send("up/a", "one")
    assert remote.told == [("PUBLISH", "site/up/a", "one", 2, 1, False)]
    await world.answer(PacketType.PUBREC, 1)
    assert remote.told[1:] == [("PUBREL", 1)]
    await world.answer(PacketType.PUBCOMP, 1)
    assert world.records == 0
    assert world.counts.sent == 1
    assert world.flow.waiting == 0


async def test_an_unconfirmed_message_goes_out_again_under_its_packet_id(world: World) -> None:
    await world.begin()
    await world.send("up/a", "one")
    await world.send("up/a", "two")
    remote = await world.begin()
    assert remote.told == [
        ("PUBLISH", "site/up/a", "one", 2, 1, True),
        ("PUBLISH", "site/up/a", "two", 2, 2, True),
    ]
    await world.send("up/a", "three")
    assert remote.told[2:] == [("PUBLISH", "site/up/a", "three", 2, 3, False)]


async def test_what_is_sent_while_there_is_no_connection_goes_later(world: World) -> None:
    remote = await world.begin()
    world.flow.went(remote)
    await world.send("up/a", "one")
    again = await world.reconnect()
    assert again.told == [("PUBLISH", "site/up/a", "one", 2, 1, False)]
    assert remote.told == []


async def test_what_expires_while_there_is_no_connection_does_not_go(world: World) -> None:
    former = await world.begin()
    world.flow.went(former)
    await world.send("up/a", "one", expiration=2_000)
    await world.send("up/a", "two", expiration=20_000)
    world.now = 2_000
    remote = await world.reconnect()
    assert remote.told == [("PUBLISH", "site/up/a", "two", 2, 1, False)]
    assert world.flow.waiting == 1


async def test_no_more_is_on_its_way_than_the_other_broker_takes(world: World) -> None:
    remote = await world.begin(receive_maximum=2)
    for number in range(5):
        await world.send("up/a", str(number))
    assert [each[2] for each in remote.told] == ["0", "1"]
    assert world.flow.waiting == 5
    await world.answer(PacketType.PUBREC, 1)
    await world.answer(PacketType.PUBCOMP, 1)
    assert [each[2] for each in remote.told if each[0] == "PUBLISH"] == ["0", "1", "2"]


async def test_a_message_that_the_other_broker_refuses_is_a_dead_letter(world: World) -> None:
    await world.begin()
    await world.send("up/a", "one")
    await world.answer(PacketType.PUBREC, 1, 0x97)
    assert world.kept(Destination(DestinationKind.QUEUE, "ActiveMQ.DLQ.Topic.up.a")) == 1
    assert world.counts.refused == 1
    assert world.records == 0


async def test_a_message_goes_with_the_lower_of_both_qos(world: World) -> None:
    remote = await world.begin()
    for qos in (0, 1, 2):
        await world.send("up/a", "x", properties={"ActiveMQ.MQTT.QoS": qos}, persistent=qos > 0)
    await world.send("up/a", "by a client of JMS, stored")
    await world.send("up/a", "not stored", persistent=False)
    assert [each[3] for each in remote.told] == [0, 1, 2, 2, 0]


async def test_of_qos_0_what_has_no_room_is_dropped_and_counted(world: World) -> None:
    remote = await world.begin(Topic("up/#", 0, "", "", is_in=False, is_out=True))
    await world.send("up/a", "one")
    remote.has_room = False
    await world.send("up/a", "two")
    world.flow.went(remote)
    await world.send("up/a", "three")
    assert [each[2] for each in remote.told] == ["one"]
    assert (world.counts.sent, world.counts.dropped) == (1, 2)


async def test_pubrec_of_an_unknown_packet_id_is_answered(world: World) -> None:
    remote = await world.begin()
    world.flow.acknowledged(PacketType.PUBREC, 7)
    world.flow.acknowledged(PacketType.PUBCOMP, 7)
    assert remote.told == [("PUBREL", 7)]


async def test_a_session_that_the_other_broker_lost_is_begun_again(world: World) -> None:
    await world.begin()
    await world.send("up/a", "received")
    await world.answer(PacketType.PUBREC, 1)
    await world.send("up/a", "sent")
    remote = await world.begin(is_resumed=False)
    assert [each[:3] for each in remote.told] == [("PUBLISH", "site/up/a", "sent")]


async def test_the_packet_id_of_a_message_that_expired_is_given_back(world: World) -> None:
    await world.begin()
    await world.send("up/a", "one", expiration=2_000)
    world.now = 2_000
    remote = await world.begin()
    assert remote.told == [("PUBREL", 1)]
    await world.answer(PacketType.PUBCOMP, 1)
    assert world.records == 0


async def test_the_packet_id_of_a_message_that_was_deleted_is_given_back(world: World) -> None:
    await world.begin()
    await world.send("up/a", "one")
    await world.begin(IN)  # its topic is not in the settings
    remote = await world.begin(OUT)
    assert remote.told == [("PUBREL", 1)]
    await world.send("up/a", "two")
    assert remote.told[1:] == [("PUBLISH", "site/up/a", "two", 2, 2, False)]
    for type, packet_id in ((PacketType.PUBCOMP, 1), (PacketType.PUBREC, 2), (PacketType.PUBCOMP, 2)):
        await world.answer(type, packet_id)
    assert world.records == 0


async def test_a_packet_id_is_given_back_once_nothing_waits_any_more(world: World) -> None:
    """Which of those that wait has it is not known before."""
    await world.begin()
    await world.send("up/a", "one")
    await world.begin(IN)
    world.flow.end()
    await world.begin_term(OUT)
    await world.send("up/a", "two")
    remote = await world.reconnect()
    assert remote.told == [("PUBLISH", "site/up/a", "two", 2, 2, False)]
    await world.answer(PacketType.PUBREC, 2)
    await world.answer(PacketType.PUBCOMP, 2)
    assert remote.told[1:] == [("PUBREL", 2), ("PUBREL", 1)]


async def test_packet_ids_of_a_session_that_the_other_broker_lost_are_free(world: World) -> None:
    await world.begin()
    await world.send("up/a", "one")
    await world.send("up/a", "two", expiration=2_000)
    world.now = 2_000
    remote = await world.begin(is_resumed=False)
    assert remote.told == [("PUBLISH", "site/up/a", "one", 2, 1, False)]
    assert world.records == 1
