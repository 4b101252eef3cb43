"""Messages in both directions over a bridge, and the time of each confirmation."""

from __future__ import annotations

import pytest

from tandemmq.broker.bridges.link import PASSED, PASSED_MAX, Topic, must_stop, passed_bridges, with_passed
from tandemmq.broker.protocols.mqtt.packets import PacketType
from tandemmq.broker.protocols.mqtt.properties import NONE, Properties
from tandemmq.store.records.message import Destination, DestinationKind
from tests.support.broker.bridge_world import BOTH, IN, OUT, World, publish


async def test_a_message_does_not_return_to_its_origin(world: World) -> None:
    remote = await world.begin(BOTH)
    await world.receive("both/a", "theirs", 5)
    assert remote.told == [("PUBREC", 5)]
    remote = await world.begin()
    assert remote.told == []
    await world.send("both/a", "ours")
    assert [each[:3] for each in remote.told] == [("PUBLISH", "both/a", "ours")]


async def test_a_topic_that_is_not_set_any_more_gathers_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.begin(OUT, Topic("more/#", 1, "", "", is_in=False, is_out=True))
    await world.send("up/a", "one")
    await world.send("more/a", "two")
    assert sorted(each.name for each in world.engine.inventory.destinations.durables.values()) == ["more/#", "up/#"]
    await world.begin(OUT)
    assert [each.name for each in world.engine.inventory.destinations.durables.values()] == ["up/#"]
    assert "more/# is no longer one of its topics: 1 messages" in caplog.text


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


# ---- which bridges a message has passed


A, B = ("a", "1"), ("b", "2")


def test_each_bridge_stands_behind_the_former_ones() -> None:
    assert with_passed(NONE, "one").user == ((PASSED, "one"),)
    assert with_passed(Properties(user=(A, (PASSED, "one"), B)), "two").user == (A, B, (PASSED, "one two"))


def test_a_message_ends_at_a_bridge_that_it_has_passed_or_after_too_many() -> None:
    assert not must_stop(None, "one")
    assert not must_stop("two oneandmore", "one")
    assert must_stop("two one", "one")
    assert not must_stop("x " * (PASSED_MAX - 1), "one")
    assert must_stop("x " * PASSED_MAX, "one")


async def test_a_message_goes_out_with_the_bridge_and_not_again(world: World) -> None:
    remote = await world.begin()
    await world.send("up/a", "one", properties={PASSED: "elsewhere"})
    text = passed_bridges(remote.properties[0])
    assert text.split()[0] == "elsewhere"
    await world.send("up/a", "again", properties={PASSED: text})
    assert (len(remote.properties), world.counts.circled) == (1, 1)
    assert world.gathered_for_bridge("up/#") == 1  # the first one alone, which is not confirmed


async def test_a_name_that_is_no_valid_mqtt_topic_is_not_sent(world: World) -> None:
    # proves: no-wildcard-over-a-bridge
    remote = await world.begin()
    for topic in ("up/a+b", "up/<img>#x", "up/{x}"):
        await world.send(topic, "one")
    assert [each[:3] for each in remote.told] == [("PUBLISH", "site/up/{x}", "one")]
    assert (world.counts.refused, world.gathered_for_bridge("up/#")) == (2, 1)


async def test_a_message_comes_in_with_the_bridge_and_not_again(world: World) -> None:
    remote = await world.begin(IN)
    await world.listen("from/#")
    elsewhere = Properties(user=((PASSED, "elsewhere"),))
    await world.receive("down/a", "one", 5, properties=elsewhere)
    assert world.client.properties[0][PASSED] == f"elsewhere {world.flow.begun.id}"
    again = with_passed(elsewhere, world.flow.begun.id)
    await world.receive("down/a", "two", 6, properties=again, retain=True)
    assert (remote.told, world.client.bodies) == ([("PUBREC", 5), ("PUBREC", 6)], ["one"])
    world.flow.released(6)
    assert remote.told[2:] == [("PUBCOMP", 6)]


async def test_a_message_between_two_bridges_has_passed_both(world: World) -> None:
    await world.begin(BOTH)
    await world.receive("both/a", "theirs", 5)
    first = world.flow.begun.id
    world.flow.end()
    remote = await world.begin_as("other", OUT)
    await world.send("up/a", "one", properties={PASSED: first})
    assert passed_bridges(remote.properties[0]) == f"{first} {world.flow.begun.id}"


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


# ---- in: what is confirmed, and when


async def test_a_message_is_confirmed_when_it_is_stored(world: World) -> None:
    remote = await world.begin()
    await world.listen("from/#")
    world.flow.published(publish("down/a", "one", 5))
    assert remote.told == []
    await world.quiet()
    assert (remote.told, world.client.bodies) == ([("PUBREC", 5)], ["one"])
    await world.release(5)
    assert (remote.told[1:], world.records, world.counts.received) == ([("PUBCOMP", 5)], 0, 1)


@pytest.mark.parametrize("is_resumed", [True, False])
async def test_a_packet_id_is_no_new_message_unless_its_session_was_lost(world: World, is_resumed: bool) -> None:
    await world.begin()
    await world.receive("down/a", "one", 5)
    remote = await world.begin(is_resumed=is_resumed)
    await world.listen("from/#")
    await world.receive("down/a", "again", 5, dup=is_resumed)
    assert (remote.told, world.client.bodies) == ([("PUBREC", 5)], [] if is_resumed else ["again"])
    await world.release(5)
    assert world.records == 0
    await world.receive("down/a", "two", 5)
    assert remote.told[1:] == [("PUBCOMP", 5), ("PUBREC", 5)]
    assert world.client.bodies[-1:] == ["two"]


async def test_a_message_stored_for_a_former_connection_is_not_confirmed_to_another(world: World) -> None:
    former = await world.begin(Topic("down/#", 1, "from/", "", is_in=True, is_out=False))
    world.flow.published(publish("down/a", "one", 5, qos=1))
    world.flow.detach(former)
    remote = await world.reconnect()
    assert former.told == remote.told == []


async def test_pubrel_and_pubrec_of_an_unknown_packet_id_are_answered(world: World) -> None:
    remote = await world.begin()
    world.flow.released(7)
    world.flow.acknowledged(PacketType.PUBREC, 7)
    world.flow.acknowledged(PacketType.PUBCOMP, 7)
    assert remote.told == [("PUBCOMP", 7), ("PUBREL", 7)]


async def test_a_message_without_a_matching_topic_is_confirmed_and_dropped(world: World) -> None:
    remote = await world.begin()
    await world.listen("#")
    await world.receive("elsewhere", "x", 5, qos=1)
    assert (remote.told, world.client.bodies) == ([("PUBACK", 5)], [])


async def test_a_retained_message_is_kept_for_who_subscribes_later(world: World) -> None:
    await world.begin()
    await world.receive("down/a", "one", 5, retain=True)
    assert world.kept(Destination(DestinationKind.QUEUE, "ActiveMQ.MQTT.Retained")) == 1


async def test_a_message_that_this_broker_refuses_is_confirmed_and_counted_without_a_record(world: World) -> None:
    remote = await world.begin()
    await world.receive("down/" + 600 * "x", "one", 5)
    assert (remote.told, world.counts.refused, world.records) == ([("PUBREC", 5)], 1, 0)
    assert not world.flow._kept._sent
    await world.receive("down/a", "two", 5)
    assert (remote.told[1:], world.records) == ([("PUBREC", 5)], 1)


# ---- out: packet ids, and what the other broker answers


async def test_a_sent_message_leaves_nothing_behind(world: World) -> None:
    remote = await world.begin()
    await world.send("up/a", "one")
    assert remote.told == [("PUBLISH", "site/up/a", "one", 2, 1, False)]
    await world.answer(PacketType.PUBREC, 1)
    assert remote.told[1:] == [("PUBREL", 1)]
    await world.answer(PacketType.PUBCOMP, 1)
    assert (world.records, world.counts.sent, world.flow.waiting) == (0, 1, 0)


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


async def test_a_message_sent_without_a_connection_is_sent_later_unless_it_expires(world: World) -> None:
    former = await world.begin()
    world.flow.detach(former)
    await world.send("up/a", "one", expiration=2_000)
    await world.send("up/a", "two", expiration=20_000)
    world.now = 2_000
    remote = await world.reconnect()
    assert (former.told, remote.told) == ([], [("PUBLISH", "site/up/a", "two", 2, 1, False)])
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
    assert (world.counts.refused, world.records) == (1, 0)


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
    world.flow.detach(remote)
    await world.send("up/a", "three")
    assert [each[2] for each in remote.told] == ["one"]
    assert (world.counts.sent, world.counts.dropped) == (1, 2)


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
    """Until the last waiting message is answered, the bridge cannot know which of them has the packet id."""
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
    assert (remote.told, world.records) == ([("PUBLISH", "site/up/a", "one", 2, 1, False)], 1)
