"""CONNECT, CONNACK and DISCONNECT in MQTT 3.1, 3.1.1 and 5.0."""

# proves: session-record-is-replaced-at-once

from __future__ import annotations

import pytest

from tandemmq.broker.protocols.mqtt.packets import (
    Connect,
    Disconnect,
    Filter,
    PacketType,
    PingRequest,
    Publish,
    Subscribe,
    Version,
    Will,
)
from tandemmq.broker.protocols.mqtt.properties import NONE, Properties
from tandemmq.broker.protocols.session import COMMANDS_MAX, RECEIVED_BYTES_MAX
from tests.support.broker.mortal_store import Mortal
from tests.support.broker.mqtt_wire import ALL, V5, MqttLimits, MqttWire, Pieces, payloads, types
from tests.support.protocols.mqtt.client_packets import decode_all, encode

pytestmark = pytest.mark.promise("mqtt-conforms")

LONG = ("x" * 513, "/" * 200)


@pytest.mark.parametrize("pieces", Pieces)
@pytest.mark.parametrize("version", ALL)
def test_a_client_comes_and_goes(make, hooks, version, pieces):
    wire = make(version=version, pieces=pieces)

    connack = wire.connect()

    assert connack.codes == [0]
    assert not connack.session_present
    assert types(wire.ping()) == ["PINGRESP"]
    assert hooks.came_ == [("me", False)]
    assert wire.disconnect() == []
    assert wire.is_closed
    assert [(left.client_id, left.will, left.state) for left in hooks.left_] == [("me", None, None)]


@pytest.mark.parametrize(("limit", "told"), [(5000, 5000), (1 << 40, 5 + (1 << 28) - 1)])
def test_connack_has_the_limits_of_the_broker(make, limit, told):
    """CONNACK is as long as the packet's size permits."""
    wire = make(limits=MqttLimits(packet_bytes_max=limit, receive_maximum=17, topic_alias_maximum=3))

    said = wire.connect().properties

    assert (said.maximum_packet_size, said.receive_maximum, said.topic_alias_maximum) == (told, 17, 3)
    assert said.assigned_client_id is None
    assert said.session_expiry is None
    assert said.server_keep_alive is None


def test_a_client_without_an_id_is_given_one_that_others_cannot_guess(make):
    """MQTT-3.1.3-6, 3.1.3-7 (3.1.1), 3.2.2-16."""
    one, other = (make().connect("").properties.assigned_client_id for _ in range(2))
    assert one
    assert other
    assert one != other
    assert make(version=Version.V3_1_1).connect("").codes == [0]


@pytest.mark.parametrize(
    ("version", "said", "code"),
    [
        (Version.V3_1_1, {"client_id": "", "clean": False}, 2),  # MQTT-3.1.3-8
        # such ids cannot name a queue
        *((version, {"client_id": each}, code) for version, code in ((Version.V3_1_1, 2), (V5, 0x85)) for each in LONG),
        (V5, {"authentication_method": "SCRAM-SHA-1"}, 0x8C),  # MQTT 5.0, 4.12
        (Version.V3_1_1, {"username": "u", "password": b"\xff"}, 4),
        (V5, {"username": "u", "password": b"\xff"}, 0x86),
    ],
)
def test_a_connect_with_unsupported_features_is_refused(make, version, said, code):
    wire = make(version=version)
    assert wire.connect(**said).codes == [code]
    assert wire.is_closed


@pytest.mark.parametrize("client_id", ["a/b.c*>#+", "é€😀", " x ", "%41", "a,b?c", "x" * 23, "x" * 400])
def test_client_ids_may_have_any_characters(make, client_id):
    wire = make()
    assert wire.connect(client_id, expiry=100).codes == [0]
    wire.subscribe("t", qos=1)
    wire.vanish()

    again = make()
    assert again.connect(client_id, clean=False).session_present


def test_a_second_connect_ends_the_connection(come):
    """MQTT-3.1.0-2."""
    wire = come()

    heard = wire.say(Connect(V5, "me", True, 0, None, None, None, NONE))

    assert [(each.type, each.codes) for each in heard] == [(PacketType.DISCONNECT, [0x82])]
    assert wire.is_closed


def test_anything_before_connect_ends_the_connection_without_a_word(make):
    """MQTT-3.1.0-1."""
    wire = make()
    assert wire.say(PingRequest()) == []
    assert wire.is_closed


def test_packets_after_connect_wait_for_connack(make):
    """MQTT 5.0, 3.1.4: clients need not wait for it."""
    wire = make()
    connect = Connect(V5, "me", True, 0, None, None, None, Properties(session_expiry=100))
    heard = wire.say(
        connect,
        Subscribe(1, (Filter("t", 1, False, False, 0),), NONE),
        Publish("t", b"x", 1, False, False, 2, NONE),
        PingRequest(),
    )

    assert types(heard)[0] == "CONNACK"
    assert sorted(types(heard)[1:]) == ["PINGRESP", "PUBACK", "PUBLISH", "SUBACK"]
    assert payloads(heard) == ["x"]


def test_packets_that_wait_for_connack_are_counted(make, harness):
    wire = make()
    early = encode(Publish("t", b"x" * 50_000, 0, False, False, 0, NONE))
    connect = encode(Connect(V5, "me", True, 0, None, None, None, Properties(session_expiry=100)))
    for piece in (connect, early, early):
        for command in wire.session.receive(piece):
            wire.engine.handle(wire, command)

    assert wire.session.unfinished_bytes >= 2 * len(early)
    assert types(wire.heard()) == ["CONNACK"]
    assert wire.session.unfinished_bytes == 0


@pytest.mark.parametrize(
    ("rest", "codes"),
    [
        (b"MQTT\x02\x02\x00\x00\x00\x02me", [1]),  # an unknown version: MQTT-3.1.2-2 of 3.1.1
        (b"MQTT\x84\x02\x00\x00\x00\x02me", [1]),  # a bridge of mosquitto, which tries again then
        (b"MQTT\x05\x03\x00\x00\x00\x00\x02me", [0x81]),  # the reserved flag, in MQTT 5
        # MQTT-3.1.4-1 of 3.1.1: without a word
        (b"MQTT\x04\x03\x00\x00\x00\x02me", []),  # the reserved flag
        (b"MQTT\x04\x06\x00\x00\x00\x02me\x00\x01#\x00\x00", []),  # a wildcard as the topic of the will
        (b"MQTT\x04\x02\x00\x00\x00\x02m", []),  # cut off
    ],
)
def test_a_wrong_connect_ends_the_connection_with_what_its_version_can_say(make, rest, codes):
    wire = make(version=V5 if rest[4] == 5 else Version.V3_1_1)
    wire.receive(b"\x10" + bytes([len(rest) + 2]) + b"\x00\x04" + rest)
    assert [(each.type, each.codes) for each in wire.heard()] == [(PacketType.CONNACK, [code]) for code in codes]
    assert wire.is_closed


@pytest.mark.parametrize("level", [6, 9, 0x7F])
def test_a_version_of_the_future_is_refused_in_the_words_of_mqtt_5(make, level):
    """MQTT 5.0, 3.1.2.2."""
    wire = make()
    wire.receive(b"\x10\x0e\x00\x04MQTT" + bytes([level]) + b"\x02\x00\x00\x00\x02me")
    assert [(each.type, each.codes) for each in wire.heard()] == [(PacketType.CONNACK, [0x84])]
    assert wire.is_closed


@pytest.mark.parametrize(("limit", "codes"), [(4, []), (5, [0x95]), (15, [0x95]), (20, [0])])
@pytest.mark.parametrize("expiry", [0, 100])
def test_connack_is_the_first_packet(make, limit, codes, expiry):
    wire = make()
    said = Properties(maximum_packet_size=limit, session_expiry=expiry)
    heard = wire.say(Connect(V5, "me", True, 0, None, None, None, said))
    assert [(each.type, each.codes) for each in heard] == [(PacketType.CONNACK, [code]) for code in codes]
    assert wire.is_closed is (codes != [0])


def test_a_refusal_and_an_end_tell_their_reason_where_there_is_room_for_it(make, come):
    """MQTT-3.2.2-19, 3.14.2-3."""
    method = {"authentication_method": "x"}
    assert make().connect(**method).properties.reason_string
    assert make().connect(maximum_packet_size=100, **method).properties == NONE
    for limit, is_told in ((None, True), (100, False)):
        wire = come(maximum_packet_size=limit)
        wire.receive(b"\xc0\x01\x00")  # PINGREQ with a payload
        (end,) = wire.heard()
        assert (end.type, end.codes) == (PacketType.DISCONNECT, [0x81])
        assert (end.properties.reason_string is not None) is is_told


def test_packets_that_are_no_commands_take_steps_too(come):
    wire = come()
    session = wire.session
    said = encode(PingRequest()) * (3 * COMMANDS_MAX + 1)
    assert session.receive(said) == []
    assert session.has_more
    assert len(decode_all(session.take(), V5)) == COMMANDS_MAX
    turns = 1
    while session.has_more:
        session.receive(b"")
        turns += 1
    assert turns == 4
    assert len(decode_all(session.take(), V5)) == 2 * COMMANDS_MAX + 1


def test_keep_alive_is_the_clients_or_the_connectors(make):
    limits = MqttLimits(packet_bytes_max=1 << 20, default_keep_alive=30)
    wire = make(limits=limits)
    assert wire.connect(keep_alive=5).properties.server_keep_alive is None
    assert wire.session.receive_interval_ms == 5000
    other = make(limits=limits)
    assert other.connect("other").properties.server_keep_alive == 30
    assert other.session.receive_interval_ms == 30_000


def test_a_session_lives_as_long_as_the_operator_lets_it(make, hooks):
    """MQTT 5.0, 3.2.2.3.2."""
    limits = MqttLimits(packet_bytes_max=1 << 20, session_expiry_max=60)
    wire = make(limits=limits)
    assert wire.connect(expiry=100).properties.session_expiry == 60
    wire.vanish()
    assert hooks.left_[0].expiry == 60
    assert make(limits=limits).connect(clean=False, expiry=30).properties.session_expiry is None


# ---- the same client id


@pytest.mark.parametrize("version", ALL)
def test_a_later_connection_takes_over(make, lasting, hooks, version):
    """MQTT-3.1.4-3; the older client of MQTT 5 is notified."""
    first = lasting(version=version, to="t", qos=1)

    second = make(version=version)
    connack = second.connect(clean=False)

    assert first.is_closed
    assert [each.codes for each in first.heard()] == ([[0x8E]] if version is V5 else [])
    assert connack.session_present is (version is not Version.V3_1)
    assert hooks.came_ == [("me", False), ("me", True)]
    assert len(hooks.left_) == 1
    assert payloads(second.publish("t", "x", qos=1)) == ["x"]


# ---- wills and the end


WILL = Will("w", b"gone", 1, False, NONE)


@pytest.mark.parametrize(
    ("end", "versions", "is_told"),
    [
        (MqttWire.vanish, ALL, True),
        (MqttWire.disconnect, ALL, False),  # MQTT-3.14.4-3
        (lambda wire: wire.disconnect(reason=4), [V5], True),
        (lambda wire: wire.receive(b"\0\0"), ALL, True),  # a packet of no type
    ],
    ids=["vanishes", "leaves", "leaves with its will", "breaks the protocol"],
)
def test_a_will_is_told_unless_its_client_leaves_in_order(come, hooks, end, versions, is_told):
    for number, version in enumerate(versions):
        end(come(str(number), will=WILL, version=version))
        assert hooks.left_[number].will == (WILL if is_told else None)
        assert not hooks.left_[number].is_noted


@pytest.mark.parametrize("version", ALL)
def test_a_will_that_has_no_room_is_refused(make, hooks, version):
    hooks.has_room = False
    wire = make(version=version)
    assert wire.connect("full", clean=False, will=WILL).codes == [0x97 if version is V5 else 3]
    assert wire.is_closed
    assert not make(version=version).connect("full", clean=False).session_present  # nothing was kept of it


@pytest.mark.parametrize("leaves", [False, True])
def test_the_room_of_a_will_is_given_back(come, hooks, leaves):
    wire = come(expiry=100, will=WILL)
    assert hooks.will_bytes > len(WILL.payload)
    if leaves:
        wire.disconnect()
    wire.vanish()
    assert hooks.will_bytes == 0


@pytest.mark.parametrize("expiry", [0, 5])
def test_disconnect_may_change_how_long_the_session_lives(come, hooks, expiry):
    """MQTT 5.0, 3.14.2.2.2."""
    come(expiry=100).disconnect(expiry=expiry)
    assert hooks.left_[0].expiry == expiry
    assert hooks.left_[0].state is not None
    assert hooks.left_[0].is_noted


@pytest.mark.parametrize("left", range(1, 4))
def test_a_session_is_there_wherever_the_broker_dies_as_its_client_leaves(make, come, harness, left):
    wire = come(expiry=100)
    mortal = Mortal(harness, left, is_told=False)
    wire.disconnect()
    mortal.end()
    harness.fail_over(is_sudden=True)
    assert make().connect(clean=False).session_present


def test_a_session_that_is_over_is_not_resumed(make, come):
    """MQTT-3.1.2-23, also if the client reconnects before the broker has ended it."""
    wire = come(expiry=100, to="t", qos=1)
    wire.disconnect(expiry=0)
    again = make()
    assert not again.connect(clean=False).session_present
    assert payloads(again.publish("t", "x", qos=1)) == []


def test_a_session_that_ends_with_its_connection_does_not_begin_to_last(come):
    """MQTT-3.14.2-2."""
    wire = come(expiry=0)
    assert [each.codes for each in wire.disconnect(expiry=5)] == [[0x82]]


def test_a_publish_before_disconnect_is_answered_and_later_packets_are_ignored(come):
    wire = come()
    other = come("other", to="t")
    early, late = (Publish("t", payload, 1, False, False, 3, NONE) for payload in (b"early", b"late"))
    assert types(wire.say(early, Disconnect(0, NONE), late)) == ["PUBACK"]
    assert wire.is_closed
    assert payloads(other.heard()) == ["early"]


def test_a_connection_that_ends_before_connack_leaves_no_state(make, hooks):
    wire = make()
    carried = Properties(session_expiry=100)
    for command in wire.session.receive(encode(Connect(V5, "me", True, 0, WILL, None, None, carried))):
        wire.engine.handle(wire, command)
    assert hooks.will_bytes > len(WILL.payload)
    wire.close()
    assert wire.heard() == []
    assert hooks.came_ == hooks.left_ == []
    assert hooks.will_bytes == 0


def test_long_packets_take_a_step_each(come):
    session = come().session
    said = encode(Publish("t", b"x" * RECEIVED_BYTES_MAX, 0, False, False, 0, NONE)) * 3
    assert [len(session.receive(piece)) for piece in (said, b"", b"", b"")] == [1, 1, 1, 0]
