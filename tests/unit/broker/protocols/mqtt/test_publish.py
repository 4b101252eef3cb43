"""Messages from clients: QoS 0 to 2, packet ids, aliases, limits, and refusals."""

# proves: packet-id-with-its-message, newest-record-counts, pubrec-after-the-store
# proves: refused-packet-id-is-free, repeated-publish-waits-for-the-store

from __future__ import annotations

import pytest

from tandemmq.broker.core.commands import Send
from tandemmq.broker.core.memory import DESTINATION_BYTES, Kind
from tandemmq.broker.core.names import MQTT_RETAINED, NAME_BYTES_MAX
from tandemmq.broker.protocols.mqtt.packets import Acknowledgement, PacketType, Publish, Version
from tandemmq.broker.protocols.mqtt.properties import NONE, Properties
from tandemmq.broker.protocols.mqtt.publish import EXCHANGE_BYTES, EXCHANGES_COUNTED
from tandemmq.broker.protocols.mqtt.session_records import Kind as RecordKind
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.stored import encode_stored
from tests.support.broker.mqtt_wire import ALL, PUBACK, PUBCOMP, PUBREC, PUBREL, V5, MqttLimits, Pieces, payloads, types
from tests.support.protocols.mqtt.client_packets import encode
from tests.unit.broker.protocols.mqtt.conftest import LASTING

pytestmark = pytest.mark.promise("mqtt-conforms")


@pytest.fixture
def reader(come):
    return come("reader", to="#")


@pytest.mark.parametrize("pieces", Pieces)
@pytest.mark.parametrize("version", ALL)
def test_each_qos_is_answered_as_it_should(come, reader, version, pieces):
    wire = come(version=version, pieces=pieces)

    assert wire.publish("t", "0") == []
    assert [(each.type, each.packet_id) for each in wire.publish("t", "1", qos=1, id=9)] == [(PUBACK, 9)]
    assert [(each.type, each.packet_id) for each in wire.publish("t", "2", qos=2, id=10)] == [(PUBREC, 10)]
    assert [(each.type, each.packet_id) for each in wire.answer(PUBREL, 10)] == [(PUBCOMP, 10)]
    assert payloads(reader.heard()) == ["0", "1", "2"]


@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize("topic", ["a/b", "a:b", "a%20c", "<img src=x>", "..", "a?x=1", "{x}", "__proto__", "a.b*c,d"])
def test_every_topic_goes_and_comes_under_its_name(come, topic, version):
    readers = [come(f"reader of {each}", to=each, version=version) for each in (topic, "#")]
    writer = come("writer", version=version)
    for retain in (False, True):
        assert types(writer.publish(topic, "x", qos=1, retain=retain)) == ["PUBACK"]
    for reader in readers:
        assert [(each.topic, each.payload) for each in reader.heard()] == 2 * [(topic, b"x")]


@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize("topic", ["a+b%20c", "a?x=1#y", "#/__proto__", "+" * 9_000])
def test_an_invalid_topic_is_refused_by_its_name(come, caplog, topic, version):
    caplog.set_level("INFO")
    for say in (lambda wire: wire.publish(topic, "x"), lambda wire: wire.subscribe(topic)):
        wire = come(version=version)
        told = [(each.type.name, topic[:200] in str(each.properties.reason_string)) for each in say(wire)]
        assert told == ([("DISCONNECT", True)] if version is V5 else [])
        assert wire.is_closed
    assert caplog.text.count(f"was disconnected: '{topic[:60]}") == 1, "one line a minute"


@LASTING
def test_a_message_of_qos_2_that_comes_again_is_one_message(come, reader, clean):
    """MQTT-4.3.3-10."""
    wire = come(clean=clean)

    assert types(wire.publish("t", "x", qos=2)) == ["PUBREC"]
    assert types(wire.publish("t", "x", qos=2, dup=True)) == ["PUBREC"]
    assert types(wire.answer(PUBREL, 7)) == ["PUBCOMP"]
    assert types(wire.publish("t", "y", qos=2)) == ["PUBREC"]
    assert payloads(reader.heard()) == ["x", "y"]


def test_pubrec_comes_when_the_message_is_stored(come, harness):
    wire = come(expiry=100)
    harness.turn()
    wire.arrive(2 * encode(Publish("t", b"x", 2, False, False, 7, NONE)))
    harness.turn(1)
    assert wire.session.take() == b"", "the store has not reported it"
    assert types(wire.heard()) == ["PUBREC"]


def test_of_two_records_of_a_packet_id_both_end_with_pubrel(come, harness, reader):
    wire = come(expiry=100)
    wire.publish("t", "x", qos=2)
    record, _ = wire.session._stored.keep(RecordKind.INCOMING, b"7")
    harness.engine.handle(wire, Send(record, None, None))
    wire.vanish()

    again = come(clean=False)
    assert types(again.answer(PUBREL, 7)) == ["PUBCOMP"]
    again.vanish()
    assert types(come(clean=False).publish("t", "y", qos=2)) == ["PUBREC"]
    assert payloads(reader.heard()) == ["x", "y"]


@LASTING
def test_a_packet_id_that_is_not_known_is_released_without_a_failure(come, reader, clean):
    """MQTT 5.0, 3.7.2.1: no error during recovery. PUBREL comes behind PUBREC, so the message is stored; a client that
    hears of a failure may publish it again."""
    wire = come(clean=clean)
    wire.publish("t", "x", qos=2)
    wire.receive(encode(Acknowledgement(PUBREL, 7, 0, NONE), V5))
    wire.vanish()  # PUBCOMP is lost

    again = come(clean=clean)
    assert again.connack.session_present is not clean
    assert [(each.type, each.packet_id, each.codes) for each in again.answer(PUBREL, 7)] == [(PUBCOMP, 7, [0])]
    assert payloads(reader.heard()) == ["x"]


def test_a_message_of_qos_2_is_known_when_its_client_comes_back(come, reader):
    wire = come(expiry=100)
    wire.publish("t", "x", qos=2)
    wire.vanish()

    again = come(clean=False)
    assert again.connack.session_present
    assert types(again.publish("t", "x", qos=2, dup=True)) == ["PUBREC"]
    assert types(again.answer(PUBREL, 7)) == ["PUBCOMP"]
    assert payloads(reader.heard()) == ["x"]
    assert types(again.publish("t", "y", qos=2)) == ["PUBREC"]
    assert payloads(reader.heard()) == ["y"]


def test_pubrel_and_the_next_of_that_id_may_come_at_once(come, reader):
    wire = come(expiry=100)
    wire.publish("t", "x", qos=2)
    heard = wire.say(Acknowledgement(PUBREL, 7, 0, NONE), Acknowledgement(PUBREL, 7, 0, NONE))
    assert types(heard)[0] == "PUBCOMP"


def test_the_receive_maximum_counts_what_is_not_settled(come):
    wire = come(limits=MqttLimits(packet_bytes_max=1000, receive_maximum=1))
    for _ in range(3):
        assert types(wire.publish("t", "1", qos=1, id=1)) == ["PUBACK"]
        assert types(wire.publish("t", "1", qos=2, id=1)) == ["PUBREC"]
        assert types(wire.answer(PUBREL, 1)) == ["PUBCOMP"]
        assert types(wire.publish("$x", "1", qos=1, id=1)) == ["PUBACK"]


def test_the_receive_maximum_is_a_connections_own(come, lasting):
    """MQTT 5.0, 3.2.2.3.3 and 4.9: what is left of it is not kept."""
    limits = MqttLimits(packet_bytes_max=1000, receive_maximum=2)
    wire = come(expiry=100, limits=limits)
    wire.publish("t", "1", qos=2, id=1)
    wire.publish("t", "1", qos=2, id=2)
    wire.vanish()

    again = lasting(limits=limits)
    assert types(again.answer(PUBREL, 1)) == types(again.answer(PUBREL, 2)) == ["PUBCOMP"]
    again.publish("t", "1", qos=2, id=1)
    again.publish("t", "1", qos=2, id=2)
    (end,) = again.publish("t", "1", qos=2, id=3)
    assert (end.type, end.codes) == (PacketType.DISCONNECT, [0x93])
    assert again.is_closed


def test_mqtt_3_has_no_receive_maximum(come):
    wire = come(version=Version.V3_1_1, limits=MqttLimits(packet_bytes_max=1000, receive_maximum=1))
    assert types([*wire.publish("t", "1", qos=2, id=1), *wire.publish("t", "1", qos=2, id=2)]) == ["PUBREC"] * 2


@pytest.mark.parametrize("topic", ["t", "$t"])
def test_packet_ids_that_are_not_released_count_as_memory(come, harness, topic):
    memory = harness.engine.memory
    wire = come(version=Version.V3_1_1)
    before = memory.by_kind[Kind.STATE]
    count = 1_000
    for packet_id in range(1, count + 1):
        assert types(wire.publish(topic, "x", qos=2, id=packet_id)) == ["PUBREC"]
    beyond = memory.by_kind[Kind.STATE] - before
    assert (count - EXCHANGES_COUNTED) * EXCHANGE_BYTES <= beyond <= count * EXCHANGE_BYTES + DESTINATION_BYTES
    memory.limit = memory.used
    for packet_id in range(count + 1, count + EXCHANGES_COUNTED):
        wire.publish(topic, "x", qos=2, id=packet_id)
    assert wire.is_closed
    assert memory.by_kind[Kind.STATE] < before


# ---- topic aliases


def test_an_alias_stands_for_its_topic(come, reader):
    """MQTT-3.3.2-7 to 12."""
    wire = come()
    for topic, payload in (("a", "1"), ("", "2"), ("b", "3"), ("", "4")):
        wire.publish(topic, payload, topic_alias=1)
    heard = [(each.topic, each.payload) for each in reader.heard()]
    assert heard == [("a", b"1"), ("a", b"2"), ("b", b"3"), ("b", b"4")]


@pytest.mark.parametrize(("maximum", "alias", "code"), [(16, 17, 0x94), (16, 2, 0x82), (0, 1, 0x94)])
def test_a_wrong_alias_ends_the_connection(come, maximum, alias, code):
    """MQTT-3.2.2-17, 3.2.2-18."""
    wire = come(limits=MqttLimits(packet_bytes_max=1 << 20, topic_alias_maximum=maximum))
    assert wire.connack.properties.topic_alias_maximum == maximum
    (end,) = wire.publish("", "x", topic_alias=alias)
    assert (end.type, end.codes) == (PacketType.DISCONNECT, [code])
    assert wire.is_closed


def test_aliases_end_with_their_connection(come, lasting):
    wire = come(expiry=100)
    wire.publish("a", "1", topic_alias=1)
    wire.vanish()
    again = lasting()
    assert [each.codes for each in again.publish("", "x", topic_alias=1)] == [[0x82]]


def test_an_alias_for_a_topic_that_can_be_none_is_not_kept(come):
    wire = come()
    assert [each.codes for each in wire.publish("x" * (NAME_BYTES_MAX + 1), "1", topic_alias=1)] == [[0x90]]


# ---- topics


@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("clean", [True, False])
def test_topics_that_begin_with_a_dollar_lead_nowhere(come, reader, version, qos, clean):
    """As in ActiveMQ. Such packets are answered as usual."""
    wire = come(clean=clean, version=version)
    heard = wire.publish("$SYS/x", "x", qos=qos)
    if qos == 2:
        heard += wire.answer(PUBREL, 7)
    assert types(heard) == (["PUBACK"] if qos == 1 else ["PUBREC", "PUBCOMP"])
    assert reader.heard() == []


def test_refused_messages_do_not_count_against_the_receive_maximum(come):
    wire = come(limits=MqttLimits(packet_bytes_max=1000, receive_maximum=1))
    for qos in (1, 2, 1, 2):
        assert [each.codes for each in wire.publish("x" * 600, "x", qos=qos)] == [[0x90]]
    assert types(wire.publish("t", "x", qos=2)) == ["PUBREC"]


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_refused_message_of_mqtt_3_closes_or_is_acknowledged(come, hooks, qos, retain):
    for closes in (True, False):
        hooks.refused_.clear()
        limits = MqttLimits(packet_bytes_max=10_000, closes_on_refused_publish=closes)
        wire = come(f"of-{closes}", version=Version.V3_1_1, limits=limits)
        heard = wire.publish("x" * 600, "y", qos=qos, id=7, retain=retain)
        assert {client for client, _ in hooks.refused_} == {f"of-{closes}"}
        assert wire.is_closed is closes
        if not closes:
            assert types(heard) == [[], ["PUBACK"], ["PUBREC"]][qos]
            if qos == 2:
                assert types(wire.answer(PUBREL, 7)) == ["PUBCOMP"]
            assert types(wire.publish("t", "y", qos=1, id=8)) == ["PUBACK"]


# ---- retained messages


def test_a_retained_message_is_sent_and_stored_at_once(come, harness, reader):
    wire = come()
    assert types(wire.publish("t", "x", qos=1, retain=True)) == ["PUBACK"]
    wire.publish("t", "y", retain=True)
    assert payloads(reader.heard()) == ["x", "y"]
    assert harness.figures(MQTT_RETAINED.name)["messages"] == 2


def test_a_retained_message_that_has_no_room_is_only_sent(come, hooks, harness, reader):
    """The replaced message is removed, because it is outdated."""
    hooks.has_room = False
    wire = come()
    assert types(wire.publish("t", "x", qos=1, retain=True)) == ["PUBACK"]
    assert payloads(reader.heard()) == ["x"]
    assert harness.figures(MQTT_RETAINED.name)["messages"] == 1


# ---- packets that wait


@pytest.mark.parametrize("qos", [1, 2])
def test_many_messages_at_once_are_answered_in_their_order(come, qos):
    """MQTT-4.6.0-2, 4.6.0-3 of 3.1.1."""
    wire = come(expiry=100)
    heard = wire.say(*(Publish("t", b"x", qos, False, False, number, NONE) for number in range(1, 200)))
    assert [each.packet_id for each in heard] == list(range(1, 200))


def test_a_reason_is_sent_to_clients_that_want_it_if_it_fits(come):
    """MQTT-3.1.2-29, 3.4.2-2."""
    assert come("one").publish("x" * 600, "x", qos=1)[0].properties.reason_string
    for client_id, said in (("two", {"maximum_packet_size": 100}), ("three", {"request_problem_information": 0})):
        assert come(client_id, **said).publish("x" * 600, "x", qos=1)[0].properties == NONE


def test_properties_reach_who_subscribes(come, reader):
    said = Properties(
        content_type="text/plain",
        payload_format=1,
        response_topic="answers/here",
        correlation_data=b"\xff\x00",
        user=(("b", "1"), ("a", "2"), ("b", "3")),
        message_expiry=100,
    )
    come().say(Publish("t", b"x", 0, False, False, 0, said))
    assert reader.heard()[0].properties == said


@pytest.mark.parametrize("correlation_data", [bytes(65_000), "\U0001f600".encode() * 16_000])
def test_strings_too_long_for_java_reach_subscribers_and_can_be_stored(come, reader, harness, correlation_data):
    said = Properties(correlation_data=correlation_data, user=(("\U0001f600" * 16_000, "1"), ("a", "2")))
    jms = harness.client()
    jms.subscribe(destination=Destination(DestinationKind.TOPIC, "t"))
    come().say(Publish("t", b"x", 0, False, False, 0, said))
    assert reader.heard()[0].properties == said
    (delivered,) = jms.session.delivered
    message = delivered.message
    assert encode_stored(message)
    assert message.properties["a"] == "2"


def test_a_response_topic_that_java_has_no_room_for_is_left_out(come, reader):
    """No message can be sent there."""
    come().say(Publish("t", b"x", 0, False, False, 0, Properties(response_topic="\U0001f600" * 16_000)))
    assert reader.heard()[0].properties.response_topic is None
