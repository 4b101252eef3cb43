"""Deliveries to clients: QoS, packet ids, limits, resumed sessions, and messages that MQTT cannot express."""

# proves: id-of-a-lost-message-is-released, id-of-another-is-not-given, message-ends-with-its-release
# proves: begun-message-does-not-expire, one-pubrec-counts, qos-as-it-was-begun, release-waits-for-its-record
# proves: room-for-a-free-id

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tandemmq.broker.core.commands import Send
from tandemmq.broker.protocols.mqtt.packets import (
    Acknowledgement,
    Disconnect,
    Filter,
    PacketType,
    PingRequest,
    Publish,
    Subscribe,
    Unsubscribe,
)
from tandemmq.broker.protocols.mqtt.properties import NONE, Properties
from tandemmq.broker.protocols.mqtt.qos2 import Flight, Outgoing, OutgoingRecord, Phase
from tandemmq.broker.protocols.mqtt.session_records import KeptRecords
from tandemmq.broker.protocols.mqtt.stored_session import GATHERED_MAX
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tests.support.broker.mqtt_wire import (
    ALL,
    LIMITS,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    MqttLimits,
    MqttWire,
    payloads,
    types,
)
from tests.support.protocols.mqtt.client_packets import decode_all, encode
from tests.unit.broker.protocols.mqtt.conftest import LASTING

pytestmark = pytest.mark.promise("mqtt-conforms", "mqtt-sessions-go-on")


def send(writer: MqttWire, topic: str, *payloads: str, qos: int = 1) -> None:
    writer.say(
        *(
            Publish(topic, payload.encode(), qos, False, False, number if qos else 0, NONE)
            for number, payload in enumerate(payloads, 1)
        ),
    )
    writer.heard()
    if qos == 2:
        writer.say(*(Acknowledgement(PUBREL, number, 0, NONE) for number in range(1, 1 + len(payloads))))


@LASTING
@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("subscribed", [0, 1, 2])
def test_a_message_comes_with_the_lower_qos(come, writer, clean, version, published, subscribed):
    """MQTT-3.8.4-8."""
    wire = come(clean=clean, version=version)
    assert wire.subscribe("t", qos=subscribed)[0].codes == [subscribed]
    send(writer, "t", "x", qos=published)

    (message,) = wire.heard()

    assert (message.topic, message.payload, message.retain, message.dup) == ("t", b"x", False, False)
    assert message.qos == min(published, subscribed)
    if message.qos == 1:
        assert wire.answer(PUBACK, message.packet_id) == []
    if message.qos == 2:
        assert [(each.type, each.packet_id) for each in wire.answer(PUBREC, message.packet_id)] == [
            (PUBREL, message.packet_id)
        ]
        assert wire.answer(PUBCOMP, message.packet_id) == []
    wire.vanish()
    again = come(clean=clean, version=version)
    assert again.rest == []
    assert again.heard() == []


@pytest.mark.parametrize("version", ALL)
def test_an_unacknowledged_message_is_sent_again(lasting, writer, version):
    """MQTT-4.4.0-1: with its packet id."""
    wire = lasting(version=version, to="t", qos=1)
    send(writer, "t", "w", "x", "y")
    first = {each.payload: each.packet_id for each in wire.heard()}
    assert list(first) == [b"w", b"x", b"y"]
    wire.answer(PUBACK, first[b"w"])
    for _ in range(2):
        wire.vanish()
        wire = lasting(version=version)
        assert [(each.payload, each.packet_id, each.dup) for each in wire.rest] == [
            (b"x", first[b"x"], True),
            (b"y", first[b"y"], True),
        ]
    wire.answer(PUBACK, first[b"y"])
    wire.vanish()
    send(writer, "t", "z")

    again = lasting(version=version)

    assert [(each.payload, each.dup) for each in again.rest] == [(b"x", True), (b"z", False)]
    assert again.rest[0].packet_id == first[b"x"] != again.rest[1].packet_id


def test_a_next_master_gives_messages_of_qos_1_other_packet_ids(lasting, writer, harness, hooks):
    """docs/mqtt-conformance.md: what is there for them is in no journal. None has that of another message."""
    wire = lasting(to="t", qos=2)
    send(writer, "t", "1")
    writer.publish("t", "2", qos=2, id=9)
    first = {each.payload: each.packet_id for each in wire.heard()}
    harness.fail_over()
    again = lasting()
    ids = {each.payload: each.packet_id for each in again.rest}
    assert ids[b"2"] == first[b"2"] != ids[b"1"]
    assert all(each.dup for each in again.rest)
    again.vanish()
    # Told late, by a connection that was taken over: the ids are others' by then.
    assert len(hooks.sent_["me"]) == 1
    hooks.sent_["me"] = dict.fromkeys(hooks.sent_["me"], first[b"2"])
    last = lasting()
    ids = {each.payload: each.packet_id for each in last.rest}
    assert ids[b"2"] == first[b"2"] != ids[b"1"]


def test_messages_that_a_former_master_may_have_sent_with_qos_1_have_dup(lasting, writer, harness, hooks):
    """In each topic, as many as may have been in flight have DUP. A message of QoS 2 has a record of its delivery."""
    limits = replace(LIMITS, receive_maximum=2)
    lasting(to="t/#", qos=2, limits=limits)
    send(writer, "t/a", "a0", "a1", "a2")
    send(writer, "t/b", "b0")
    writer.publish("t/b", "once", qos=2, id=9)
    harness.fail_over()
    hooks.sent_.clear()  # the former master knew what its clients left
    wire = lasting(limits=limits)
    wire.publish("t/b", "later", qos=1)
    dups: dict[str, bool] = {}
    heard = [*wire.rest, *wire.heard()]
    while heard:
        messages = [each for each in heard if each.type is PacketType.PUBLISH]
        dups |= {each.payload.decode(): each.dup for each in messages}
        answers = {PacketType.PUBLISH: PUBREC, PUBREL: PUBCOMP}
        heard = wire.say(
            *(
                Acknowledgement(PUBACK if each.qos == 1 else answers[each.type], each.packet_id, 0, NONE)
                for each in heard
                if each.type in answers
            )
        )
    assert dups == {"a0": True, "a1": True, "a2": False, "b0": True, "once": False, "later": False}


def test_a_message_whose_qos_changed_from_1_to_2_is_recorded(lasting, writer, harness):
    wire = lasting(to="t", qos=1)
    writer.publish("t", "x", qos=2)
    (message,) = wire.heard()
    assert message.qos == 1
    wire.vanish()
    again = lasting(receive_maximum=1)
    assert again.rest[0].packet_id == message.packet_id
    again.subscribe("t", qos=2)
    again.vanish()
    last = lasting()
    assert [each.qos for each in last.rest] == [2]
    assert harness.stored() == 4  # the session, its subscription, the message and its packet id


@pytest.mark.parametrize("version", ALL)
def test_a_message_of_qos_2_comes_again_with_its_packet_id(lasting, writer, version):
    wire = lasting(version=version, to="t", qos=2)
    send(writer, "t", "x", "y", "z", qos=2)
    first = {each.payload: each.packet_id for each in wire.heard()}
    wire.answer(PUBREC, first[b"x"])
    wire.vanish()

    again = lasting(version=version)

    heard = [(each.type, each.packet_id, each.payload, each.dup) for each in again.rest]
    assert (PUBREL, first[b"x"], b"", False) in heard
    assert (PacketType.PUBLISH, first[b"y"], b"y", True) in heard
    assert (PacketType.PUBLISH, first[b"z"], b"z", True) in heard
    assert len(heard) == 3
    assert again.answer(PUBCOMP, first[b"x"]) == []
    for packet_id in (first[b"y"], first[b"z"]):
        assert types(again.answer(PUBREC, packet_id)) == ["PUBREL"]
        assert again.answer(PUBCOMP, packet_id) == []
    again.vanish()
    last = lasting(version=version)
    assert last.rest == []


def test_pubrec_may_come_again(lasting, writer):
    wire = lasting(to="t", qos=2)
    send(writer, "t", "x", qos=2)
    (message,) = wire.heard()
    rec = Acknowledgement(PUBREC, message.packet_id, 0, NONE)
    assert types(wire.say(rec, rec)) == ["PUBREL"]
    assert types(wire.say(rec)) == ["PUBREL"]


def test_pubrel_waits_for_the_record_that_it_replaces(lasting, writer):
    wire = lasting(to="t", qos=2)
    send(writer, "t", "x", qos=2)
    (message,) = wire.heard()
    record = wire.session._delivering.outgoing.flights[message.packet_id].record
    tag, record.tag = record.tag, 0  # it has not come back yet
    assert wire.answer(PUBREC, message.packet_id) == []
    record.tag = tag
    record.then()
    assert types(wire.heard()) == ["PUBREL"]


@LASTING
def test_pubrels_have_the_order_of_pubrecs(come, writer, clean):
    """MQTT-4.6.0-4 of 3.1.1."""
    wire = come(clean=clean, to="t", qos=2)
    send(writer, "t", *map(str, range(50)), qos=2)
    ids = [each.packet_id for each in wire.heard()]
    asked = ids[::2] + ids[::-2]
    heard = wire.say(*(Acknowledgement(PUBREC, packet_id, 0, NONE) for packet_id in asked))
    assert [(each.type, each.packet_id) for each in heard] == [(PUBREL, packet_id) for packet_id in asked]


def test_a_client_may_refuse_a_message(lasting, writer):
    """MQTT 5.0, 4.4: with a reason code of 0x80 or more it is over."""
    wire = lasting(receive_maximum=1, to="t", qos=2)
    send(writer, "t", "x", qos=2)
    send(writer, "t", "y", qos=1)
    send(writer, "t", "z", qos=1)
    (message,) = wire.heard()
    (message,) = wire.answer(PUBREC, message.packet_id, 0x83)
    assert message.payload == b"y"
    assert payloads(wire.answer(PUBACK, message.packet_id, 0x97)) == ["z"]


def test_answers_that_belong_to_nothing_are_no_matter(lasting, writer):
    wire = lasting()
    assert wire.answer(PUBACK, 1) == wire.answer(PUBCOMP, 1) == []
    assert [(each.type, each.codes) for each in wire.answer(PUBREC, 1)] == [(PUBREL, [0x92])]
    assert wire.answer(PUBREC, 1, 0x80) == []
    wire.subscribe("t", qos=2)
    send(writer, "t", "x", qos=2)
    (message,) = wire.heard()
    assert wire.answer(PUBACK, message.packet_id) == wire.answer(PUBCOMP, message.packet_id) == []
    assert types(wire.answer(PUBREC, message.packet_id)) == ["PUBREL"]


# ---- records of several deliveries at once


@pytest.mark.parametrize("topic_filter", ["t", "$share/group/t"])
def test_deliveries_of_one_turn_are_stored_in_few_transactions(lasting, writer, topic_filter):
    count = 5 * GATHERED_MAX
    wire = lasting()
    wire.subscribe(topic_filter, qos=2)
    wanted = [str(number) for number in range(count)]
    before = wire.client.transactions_begun
    send(writer, "t", *wanted, qos=2)
    came = wire.heard()
    assert payloads(came) == wanted
    kept = wire.client.transactions_begun
    ids = [each.packet_id for each in came]
    recs = [Acknowledgement(PUBREC, packet_id, 0, NONE) for packet_id in ids]
    assert [each.packet_id for each in wire.say(*recs) if each.type is PUBREL] == ids
    released = wire.client.transactions_begun
    assert count // GATHERED_MAX <= kept - before < count // 4
    assert released - kept < count // 4

    wire.vanish()
    again = lasting()
    assert sorted((each.type, each.packet_id) for each in again.rest) == [(PUBREL, each) for each in sorted(ids)]
    again.say(*(Acknowledgement(PUBCOMP, packet_id, 0, NONE) for packet_id in ids))
    again.vanish()
    assert lasting().rest == []


@pytest.mark.parametrize(
    "last",
    [encode(Unsubscribe(7, ("t",), NONE)), encode(Disconnect(0, NONE)), b"\xf0\x00"],
    ids=["unsubscribe", "disconnect", "what is not allowed"],
)
def test_a_packet_right_after_pubrec_finds_the_message_at_the_client(lasting, writer, last):
    """Both packets arrive in one piece."""
    wire = lasting(to="t", qos=2)
    send(writer, "t", "x", "y", qos=2)
    ids = [each.packet_id for each in wire.heard()]
    wire.arrive(b"".join(encode(Acknowledgement(PUBREC, packet_id, 0, NONE)) for packet_id in ids) + last)
    wire.heard()

    again = lasting()
    assert sorted((each.type, each.packet_id) for each in again.rest) == [(PUBREL, each) for each in sorted(ids)]


# ---- number of messages in flight


@LASTING
@pytest.mark.parametrize("qos", [1, 2])
def test_so_much_is_on_its_way_as_the_client_takes(come, writer, clean, qos):
    """MQTT-3.3.4-9; MQTT 5.0, 4.9."""
    wire = come(clean=clean, receive_maximum=2, to="t", qos=2)
    wire.subscribe("u", qos=2)
    send(writer, "t", *"abcd", qos=qos)
    send(writer, "u", *"efgh", qos=qos)
    seen = []
    heard = wire.heard()
    while heard:
        assert len(heard) <= 2
        seen += payloads(heard)
        after = []
        for each in heard:
            if qos == 1:
                after += wire.answer(PUBACK, each.packet_id)
            else:
                assert types(wire.answer(PUBREC, each.packet_id)) == ["PUBREL"]
                after += wire.answer(PUBCOMP, each.packet_id)
        heard = after
    assert sorted(seen) == list("abcdefgh")


def test_messages_of_qos_0_do_not_wait_for_others(come, writer):
    wire = come(receive_maximum=1, to="t", qos=1)
    send(writer, "t", "1", "2")
    send(writer, "t", "0", qos=0)
    assert payloads(wire.heard()) == ["1"]
    wire.subscribe("u")
    send(writer, "u", "0", qos=1)
    assert payloads(wire.heard()) == ["0"]


def test_the_packet_id_of_a_message_that_will_come_again_is_no_others(lasting, writer):
    wire = lasting()
    wire.subscribe("first", qos=1)  # begins first when the session goes on
    wire.subscribe("second", qos=2)
    send(writer, "second", "x", qos=2)
    (message,) = wire.heard()
    wire.vanish()
    send(writer, "first", "y")
    again = lasting()
    heard = {each.payload: (each.qos, each.packet_id) for each in [*again.rest, *again.heard()]}
    assert heard[b"x"] == (2, message.packet_id)
    assert heard[b"y"] not in ((1, message.packet_id), (1, 0))


def test_packet_ids_are_used_again_when_they_are_free(come, writer):
    wire = come(to="t", qos=1)
    wire.session._delivering.outgoing._last = 65_533
    ids = []
    for number in range(4):
        send(writer, "t", str(number))
        (message,) = wire.heard()
        ids.append(message.packet_id)
        if number:
            wire.answer(PUBACK, message.packet_id)
    assert ids == [65_534, 65_535, 1, 2]


def test_a_session_without_a_free_packet_id_has_no_room():
    outgoing = Outgoing(KeptRecords(None), 10, last=2)
    outgoing.found(OutgoingRecord(1, "t", "x"), 1)
    assert outgoing.has_room
    outgoing.flights[outgoing.next_id()] = Flight(None, Phase.SENT)
    assert not outgoing.has_room


def test_a_message_that_expired_while_it_waited_is_left_out(come, writer, harness):
    """MQTT-3.3.2-5."""
    wire = come(receive_maximum=1, to="t", qos=1)
    wire.subscribe("u", qos=1)
    send(writer, "t", "1")
    writer.publish("u", "2", qos=1, message_expiry=5)
    writer.publish("u", "3", qos=1)
    (first,) = wire.heard()
    harness.wait(6)
    assert payloads(wire.answer(PUBACK, first.packet_id)) == ["3"]


def test_a_packet_after_room_for_an_expired_message_is_answered_at_once(make, writer, harness):
    """The client's turn ends early with the packet for the expired message, and another turn follows."""
    wire = make()
    wire.connect(receive_maximum=1)
    wire.subscribe("t", qos=1)
    wire.subscribe("u", qos=1)
    send(writer, "t", "1")
    writer.publish("u", "2", qos=1, message_expiry=5)
    (first,) = wire.heard()
    harness.wait(6)
    assert types(wire.say(Acknowledgement(PUBACK, first.packet_id, 0, NONE), PingRequest())) == ["PINGRESP"]


def test_the_remaining_expiry_time_is_sent(lasting, writer, harness):
    """MQTT-3.3.2-6. It began when the message came, not with the connection."""
    wire = lasting(to="t", qos=1)
    harness.wait(50)
    writer.publish("t", "x", qos=1, message_expiry=100)
    assert [each.properties.message_expiry for each in wire.heard()] == [100]
    wire.vanish()
    harness.wait(30)
    assert [each.properties.message_expiry for each in lasting().rest] == [70]


# ---- the length of packets


@LASTING
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_packet_is_not_longer_than_the_client_takes(come, writer, clean, qos):
    """MQTT-3.1.2-24, 3.1.2-25: it counts as sent, and what waits behind it comes."""
    wire = come(clean=clean, maximum_packet_size=100, receive_maximum=1, to="t", qos=2)
    send(writer, "t", "x" * 100, "short", "y" * 100, "also", qos=qos)
    seen = []
    while heard := wire.heard():
        seen += payloads(heard)
        for each in heard:
            if each.qos == 1:
                wire.session.receive(b"")
                wire.receive(bytes((0x40, 2, 0, each.packet_id)))
            elif each.type is PacketType.PUBLISH and each.qos == 2:
                wire.receive(bytes((0x50, 2, 0, each.packet_id)))
            elif each.type is PUBREL:
                wire.receive(bytes((0x70, 2, 0, each.packet_id)))
    assert seen == ["short", "also"]


@pytest.mark.parametrize("calls", range(12))
def test_another_subscription_identifier_makes_no_packet_too_long(lasting, writer, harness, calls):
    """However far the message was: what is too long counts as sent, and its packet id is free."""
    wire = lasting(maximum_packet_size=20, receive_maximum=1)
    wire.subscribe("t", qos=2, subscription_ids=(1,))
    writer.arrive(encode(Publish("t", b"123456789", 2, False, False, 1, NONE), V5))
    harness.turn(calls)
    again = Subscribe(2, (Filter("t", 2, False, False, 2),), Properties(subscription_ids=(1_000_000,)))
    wire.arrive(encode(again, V5))
    harness.turn()
    data = wire.session.take()
    seen = []
    while data:
        assert data[1] + 2 <= 20, data
        seen += decode_all(data)
        for each in decode_all(data):
            if each.type is PacketType.PUBLISH:
                wire.receive(bytes((0x50, 2, 0, each.packet_id)))
            elif each.type is PUBREL:
                wire.receive(bytes((0x70, 2, 0, each.packet_id)))
        data = wire.session.take()
    writer.answer(PUBREL, 1)
    send(writer, "t", "also", qos=2)
    seen += wire.heard()
    assert payloads(seen) in (["123456789", "also"], ["also"])


@pytest.mark.parametrize("version", ALL)
def test_unacknowledged_messages_cause_no_work_for_the_session(come, writer, version):
    wire = come(version=version, to="t")
    writer.publish("t", "x")
    assert payloads(wire.heard()) == ["x"]
    turns = []
    wire.session.set_wake(lambda: turns.append(None))
    writer.publish("t", "y")
    assert payloads(wire.heard()) == ["y"]
    assert turns == []


def test_an_answer_that_is_too_long_ends_the_connection(come):
    wire = come(maximum_packet_size=30)
    assert types(wire.subscribe(*(str(number) for number in range(100)))) == ["DISCONNECT"]
    assert wire.is_closed


# ---- aliases


@pytest.mark.parametrize(
    ("maximum", "aliases"),
    [(2, [("a", 1), ("b", 2), ("", 1), ("c", None), ("", 2)]), (None, [(topic, None) for topic in "abacb"])],
)
def test_topics_get_aliases_if_the_client_takes_them(come, writer, maximum, aliases):
    """MQTT-3.3.2-9, 3.1.2-26, 3.1.2-27."""
    wire = come(topic_alias_maximum=maximum, to="#")
    for topic in "abacb":
        writer.publish(topic, "x")
    assert [(each.topic, each.properties.topic_alias) for each in wire.heard()] == aliases


# ---- of other protocols


class Jms:
    """Sends what clients of other protocols do."""

    def __init__(self, harness: Any) -> None:
        self.client = harness.client("jms")

    def send(self, name: str, body: bytes, kind: BodyKind = BodyKind.BYTES, **fields: Any) -> None:
        self.client.sequence += 1
        message = Message(
            Destination(DestinationKind.TOPIC, name), f"ID:jms-1:1:1:{self.client.sequence}", body, kind, **fields
        )
        self.client.handle(Send(message))


@pytest.mark.parametrize(("persistent", "qos"), [(True, 1), (False, 0)])
def test_a_message_of_another_protocol_has_the_qos_that_its_persistence_means(come, harness, persistent, qos):
    wire = come(to="a/b", qos=2)
    Jms(harness).send("a.b", b"x", persistent=persistent)
    assert [(each.topic, each.qos) for each in wire.heard()] == [("a/b", qos)]


@LASTING
@pytest.mark.parametrize("name", ["a*b", "a>b", "a\0b", "\ud800"])
def test_a_topic_that_mqtt_does_not_have_is_left_out(come, harness, clean, name):
    """MQTT-3.3.2-2 and 3.3.2-14: no wildcards in the topic of a PUBLISH, nor in its response topic."""
    wire = come(clean=clean, to="#", qos=1)
    jms = Jms(harness)
    jms.send(name, b"x", persistent=True)
    jms.send("a.b", b"y", persistent=True, reply_to=Destination(DestinationKind.TOPIC, name))
    told = [(each.topic, each.payload, each.properties.response_topic) for each in wire.heard()]
    assert told == [("a/b", b"y", None)]


def test_a_wildcard_at_the_beginning_means_no_topics_of_the_broker(come, harness, writer):
    """MQTT-4.7.2-1; advisories are as much the broker's own."""
    wire = come(limits=MqttLimits(packet_bytes_max=1000, takes_dollar_topics=True))
    wire.subscribe("#", "+/x", qos=1)
    assert wire.publish("$SYS/x", "1") == []
    wire.subscribe("$SYS/#")
    assert payloads(wire.publish("$SYS/x", "2")) == ["2"]


# ---- deliveries without an effect


@pytest.mark.parametrize("expires", [True, False])
def test_the_packet_id_of_a_qos_2_message_that_is_not_delivered_is_released(lasting, writer, harness, expires):
    """The message expires, or its subscription ended. The client may have it, and would treat the next message with
    that id as the same one."""
    wire = lasting(to="t", qos=2)
    writer.publish("t", "x", qos=2, id=1, message_expiry=5)
    (message,) = wire.heard()
    if expires:
        wire.vanish()
        harness.wait(10)
    else:
        wire.unsubscribe("t")
        wire.vanish()

    again = lasting()

    assert [(each.type, each.packet_id) for each in again.rest] == [(PUBREL, message.packet_id)]
    assert again.answer(PUBCOMP, message.packet_id) == []
    again.vanish()
    assert lasting().rest == []


def test_a_message_of_qos_2_whose_subscription_is_over_is_sent_to_its_end(lasting, writer):
    """MQTT-3.10.4-3."""
    wire = lasting(to="t", qos=2)
    send(writer, "t", "x", qos=2)
    (message,) = wire.heard()
    assert types(wire.unsubscribe("t")) == ["UNSUBACK"]
    assert types(wire.answer(PUBREC, message.packet_id)) == ["PUBREL"]
    assert wire.answer(PUBCOMP, message.packet_id) == []
    wire.vanish()
    assert lasting().rest == []


def test_a_lower_qos_does_not_hold_for_what_was_begun(lasting, writer):
    """MQTT-4.3.3-1: QoS 2 goes to its end as that."""
    wire = lasting(to="t", qos=2)
    send(writer, "t", "x", qos=2)
    (message,) = wire.heard()
    wire.subscribe("t", qos=0)
    wire.vanish()
    again = lasting()
    (resent,) = again.rest
    assert (resent.qos, resent.packet_id, resent.payload) == (2, message.packet_id, b"x")
    assert types(again.answer(PUBREC, resent.packet_id)) == ["PUBREL"]


def test_a_full_store_can_be_emptied_by_clients(lasting, writer, harness):
    """The records of deliveries of a session never wait for room."""
    wire = lasting(to="t", qos=2)
    wire.vanish()
    send(writer, "t", *"abc", qos=2)
    harness.store.bytes_max = harness.store.bytes - 1

    again = lasting()
    harness.wait(1)
    heard = [each for each in [*again.rest, *again.heard()] if each.type is PacketType.PUBLISH]

    assert payloads(heard) == ["a", "b", "c"]
    for each in heard:
        assert types(again.answer(PUBREC, each.packet_id)) == ["PUBREL"]
        assert again.answer(PUBCOMP, each.packet_id) == []
    assert harness.store.bytes < harness.store.bytes_max
