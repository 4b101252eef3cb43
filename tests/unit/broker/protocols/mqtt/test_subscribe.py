"""SUBSCRIBE, UNSUBSCRIBE, retained messages for new subscriptions, and subscriptions of resumed sessions."""

# proves: record-ends-when-it-is-back, retained-position-is-kept, who-left-does-not-end-twice
# proves: begun-message-does-not-expire, former-record-ends-last, session-record-is-replaced-at-once
# proves: unsuback-after-its-record, own-retained-is-retained, own-retained-is-earlier, own-retained-only-if-wanted

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tandemmq.broker.core.access import Credentials, OpenAccess, Operation
from tandemmq.broker.core.commands import ClientError, ErrorKind, refusal
from tandemmq.broker.core.names import MQTT_RETAINED
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.protocols.mqtt.deliver import OWN_BYTES_MAX
from tandemmq.broker.protocols.mqtt.messages import QOS, RETAIN
from tandemmq.broker.protocols.mqtt.packets import (
    Acknowledgement,
    Filter,
    PacketType,
    Publish,
    Subscribe,
    Unsubscribe,
    Version,
)
from tandemmq.broker.protocols.mqtt.properties import NONE
from tandemmq.broker.protocols.mqtt.retained_delivery import AHEAD_MAX, OWN_MAX
from tandemmq.broker.protocols.mqtt.session_records import queue_of
from tandemmq.broker.protocols.mqtt.subscribe import SUBSCRIPTIONS_MAX
from tandemmq.broker.protocols.mqtt.topics import destination_of
from tandemmq.broker.protocols.session import COMMANDS_MAX
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tests.support.broker.mortal_store import Mortal
from tests.support.broker.mqtt_wire import ALL, PUBACK, PUBCOMP, PUBREC, PUBREL, V5, MqttWire, payloads, types
from tests.support.protocols.mqtt.client_packets import ServerPacket
from tests.unit.broker.protocols.mqtt.conftest import LASTING

pytestmark = pytest.mark.promise("mqtt-conforms")

# ---- SUBSCRIBE


@LASTING
@pytest.mark.parametrize("version", ALL)
def test_each_filter_has_its_code(come, writer, version, clean):
    """MQTT-3.8.4-1, 3.8.4-5, 3.8.4-6. One may stand twice in a packet: the last one counts."""
    wire = come(clean=clean, version=version)
    filters = tuple(Filter(topic, qos, False, False, 0) for topic, qos in (("t", 0), ("u", 0), ("t", 2), ("t", 1)))
    (suback,) = wire.say(Subscribe(5, filters, NONE))
    assert (suback.type, suback.packet_id, suback.codes) == (PacketType.SUBACK, 5, [0, 0, 2, 1])
    writer.publish("t", "x", qos=2)
    assert [(each.qos, each.payload) for each in wire.heard()] == [(1, b"x")]


@LASTING
@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("second", [0, 1, 2])
def test_a_later_subscription_takes_the_place_of_the_first(come, writer, clean, first, second):
    """MQTT-3.8.4-3, 3.8.4-4."""
    wire = come(clean=clean, to="t", qos=first)
    assert wire.subscribe("t", qos=second)[0].codes == [second]
    writer.publish("t", "x", qos=2)
    (message,) = wire.heard()
    assert message.qos == second
    assert wire.unsubscribe("t")[0].codes == [0]
    writer.publish("t", "y", qos=2, id=8)
    assert wire.heard() == []


def test_no_message_is_lost_when_a_subscription_is_replaced(lasting, writer):
    """MQTT-3.8.4-4."""
    wire = lasting(receive_maximum=1, to="t", qos=1)
    for number in range(3):
        writer.publish("t", str(number), qos=1)
    (message,) = wire.heard()
    heard = wire.subscribe("t", qos=0)
    assert types(heard) == ["SUBACK"]
    heard = wire.answer(PUBACK, message.packet_id)
    while waiting := [each for each in heard if each.qos]:
        heard += wire.answer(PUBACK, waiting[-1].packet_id)
        if payloads(heard)[-1] == "2":
            break
    assert sorted(set(payloads(heard))) == ["1", "2"]


def test_a_client_with_overlapping_filters_has_a_message_of_each(come, writer):
    """MQTT-3.3.5-1, 3.3.4-3."""
    wire = come()
    wire.subscribe("a/#", qos=2, subscription_ids=(1,))
    wire.subscribe("a/b", qos=1, subscription_ids=(2,))
    writer.publish("a/b", "x", qos=2)
    heard = {each.properties.subscription_ids: each.qos for each in wire.heard()}
    assert heard == {(1,): 2, (2,): 1}


def test_a_subscription_id_may_change_and_is_kept(lasting, writer):
    """MQTT-3.3.4-4."""
    wire = lasting()
    wire.subscribe("t", qos=1, subscription_ids=(5,))
    wire.subscribe("t", qos=1, subscription_ids=(6,))
    wire.vanish()
    again = lasting()
    writer.publish("t", "x", qos=1)
    assert [each.properties.subscription_ids for each in again.heard()] == [(6,)]
    again.subscribe("t", qos=1)
    writer.publish("t", "y", qos=1)
    assert [each.properties.subscription_ids for each in again.heard()] == [()]


@LASTING
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_no_local_may_change(come, writer, clean, qos):
    """MQTT-3.8.3-3, 3.8.4-3, 3.8.4-4: messages in flight, or waiting for room, are not lost, and not sent again."""
    wire = come(clean=clean, receive_maximum=2, to="t", qos=qos)
    for payload in ("1", "2", "3"):
        writer.publish("t", payload, qos=1)
    heard = wire.heard()

    heard += wire.subscribe("t", qos=qos, no_local=True)
    heard += wire.publish("t", "mine", qos=1)
    writer.publish("t", "another's", qos=1)
    heard += wire.subscribe("t", qos=qos)
    heard += wire.publish("t", "mine again", qos=1)

    for message in heard:
        if message.type is PacketType.PUBLISH and message.qos:
            heard += wire.answer(PUBACK, message.packet_id)
    assert payloads(heard) == ["1", "2", "3", "another's", "mine again"]


@pytest.mark.parametrize("is_first", [False, True])
def test_no_local_may_change_for_what_had_gathered(lasting, writer, harness, is_first):
    wire = lasting()
    wire.subscribe("t", qos=1, no_local=is_first)
    wire.vanish()
    writer.publish("t", "gathered", qos=1)
    harness.fail_over()
    again = lasting(receive_maximum=1)
    assert payloads(again.rest) == ["gathered"]
    assert types(again.subscribe("t", qos=1, no_local=not is_first)) == ["SUBACK"]
    again.publish("t", "mine", qos=1, id=8)
    (message,) = again.rest
    assert payloads(again.answer(PUBACK, message.packet_id)) == (["mine"] if is_first else [])
    again.vanish()
    assert payloads(lasting().rest) == (["mine"] if is_first else [])


@pytest.mark.parametrize("as_published", [False, True])
def test_retain_as_published_is_sent_to_clients_that_want_it(come, writer, as_published):
    """MQTT-3.3.1-12, 3.3.1-13."""
    wire = come()
    wire.subscribe("t", retain_as_published=as_published)
    writer.publish("t", "x", retain=True)
    writer.publish("t", "y")
    assert [each.retain for each in wire.heard()] == [as_published, False]


def _flags(packets: list[ServerPacket]) -> dict[str, bool]:
    """Return the RETAIN flag by payload."""
    return {each.payload.decode(): each.retain for each in packets if each.type is PacketType.PUBLISH}


def _retain(payload: str, id: int, topic: str = "t", qos: int = 0) -> Publish:
    return Publish(topic, payload.encode(), qos, True, False, id if qos else 0, NONE)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("subscribed", [0, 1, 2])
def test_an_own_retained_message_has_the_flag_while_it_is_being_stored(come, qos, subscribed):
    """MQTT-3.3.1-8. A message from after the subscription has none, and another client's none while it is new
    (MQTT-3.3.1-9)."""
    own = [_retain(str(id), id, f"t/{id}", qos) for id in range(1, OWN_MAX + 2)]
    wire, other = come(), come("other")
    other.subscribe("t/#")
    later = _retain("later", OWN_MAX + 2, "t/x", qos)
    subscribe = Subscribe(1, (Filter("t/#", subscribed, False, False, 0),), NONE)
    flags = _flags([*wire.say(*own, subscribe, later), *wire.heard()])
    # The last one takes the place of the oldest one: OWN_MAX are remembered.
    assert flags == {str(id): id > 2 for id in range(1, OWN_MAX + 2)} | {"later": False}
    heard = _flags(other.heard())
    assert len(heard) == OWN_MAX + 2
    assert not any(heard.values())


@pytest.mark.parametrize(("topic_filter", "handling", "has_room", "payloads"), [
    ("t", 0, True, ["x"]),
    ("$share/g/t", 0, True, ["x"]),  # 4.8.2
    ("t", 2, True, ["x"]),  # MQTT-3.3.1-11
    ("t", 0, False, ["x"]),  # sent, but not retained
    ("t", 0, True, ["x", "y"]),
    ("t", 0, True, ["x", ""]),  # MQTT-3.3.1-10
])  # fmt: skip
def test_only_what_was_retained_at_the_subscription_has_the_flag(
    come, hooks, topic_filter, handling, has_room, payloads
):
    hooks.has_room = has_room
    wire = come()
    subscribe = Subscribe(1, (Filter(topic_filter, 0, False, False, handling),), NONE)
    flags = _flags(wire.say(*(_retain(payload, 1) for payload in payloads), subscribe))
    is_retained = topic_filter == "t" and not handling and has_room and payloads[-1]
    assert flags == {payload: bool(is_retained) and payload == payloads[-1] for payload in payloads}


# ---- UNSUBSCRIBE


@LASTING
@pytest.mark.parametrize("version", ALL)
def test_unsubscribing_is_answered_by_filter(come, writer, version, clean):
    """MQTT-3.10.4-4, 3.11.3-2."""
    wire = come(clean=clean, version=version, to="t", qos=1)
    (unsuback,) = wire.unsubscribe("t", "u")
    assert unsuback.codes == ([0, 0x11] if version is V5 else [])
    assert types(wire.unsubscribe("t")) == ["UNSUBACK"]
    writer.publish("t", "x", qos=1)
    assert wire.heard() == []
    wire.vanish()
    again = come(clean=clean, version=version)
    writer.publish("t", "x", qos=1)
    assert again.rest == again.heard() == []


def test_subscribing_and_unsubscribing_at_once_leaves_nothing(lasting, writer, harness):
    wire = lasting()
    for _ in range(3):
        heard = wire.say(
            Subscribe(1, (Filter("t", 1, False, False, 0),), NONE),
            Unsubscribe(2, ("t",), NONE),
        )
        assert types(heard) == ["SUBACK", "UNSUBACK"]
    assert harness.figures(queue_of("me").name)["messages"] == 1
    wire.vanish()
    again = lasting()
    writer.publish("t", "x", qos=1)
    assert again.heard() == []


@pytest.mark.parametrize("left", range(1, 4))
def test_unsuback_comes_when_nothing_is_kept_of_the_subscription(lasting, harness, left):
    wire = lasting(to="t", qos=1)
    mortal = Mortal(harness, left, is_told=True)
    heard = wire.unsubscribe("t")
    mortal.end()
    assert harness.stored() == (1 if heard else 2)


def test_a_waiting_message_of_an_ended_subscription_is_not_sent(come, writer):
    """MQTT-3.10.4-2."""
    wire = come(receive_maximum=1)
    wire.subscribe("t", "u", qos=1)
    for topic in ("t", "t", "u"):
        writer.publish(topic, topic, qos=1)
    (message,) = wire.heard()
    wire.unsubscribe("t")
    assert payloads(wire.answer(PUBACK, message.packet_id)) == ["u"]


# ---- sessions


@pytest.mark.parametrize("version", ALL)
def test_a_session_knows_its_subscriptions(lasting, writer, version):
    """MQTT-3.1.2-4 (3.1.1), MQTT-3.1.2-5 (5.0)."""
    wire = lasting(version=version, to="0", qos=0)
    wire.subscribe("1", qos=1)
    wire.subscribe("2", qos=2)
    wire.vanish()
    for topic in "012":
        writer.publish(topic, topic, qos=2, id=ord(topic))

    again = lasting(version=version)
    assert sorted(payloads(again.rest)) == ["1", "2"]
    writer.publish("0", "now", qos=2, id=3)
    assert [(each.qos, each.payload) for each in again.heard()] == [(0, b"now")]


def test_a_new_master_gathers_from_topics_that_no_filter_had_met(come, lasting, harness):
    lasting().subscribe("a/#", qos=1)
    harness.fail_over()
    other = come("other")
    other.publish("a/x", "1", qos=1)
    assert payloads(lasting().rest) == ["1"]


def test_a_new_master_knows_them_too(come, lasting, writer, harness):
    wire = lasting()
    wire.subscribe("a/#", qos=1, subscription_ids=(9,), no_local=True)
    wire.subscribe("b", qos=2)
    writer.publish("a/x", "0", qos=1)
    (message,) = wire.heard()
    wire.answer(PUBACK, message.packet_id)
    harness.fail_over()
    other = come("other")
    other.publish("a/x", "1", qos=1)
    other.publish("b", "2", qos=2, id=8)

    again = lasting()

    assert sorted((each.payload, each.properties.subscription_ids) for each in again.rest) == [(b"1", (9,)), (b"2", ())]


@LASTING
def test_a_clean_start_ends_the_old_session(come, lasting, writer, harness, clean):
    """MQTT-3.1.2-4."""
    wire = lasting(to="t", qos=2)
    writer.publish("t", "x", qos=2)
    (message,) = wire.heard()
    wire.answer(PUBREC, message.packet_id)
    wire.publish("t", "y", qos=2, id=3)
    wire.vanish()

    fresh = come(expiry=None if clean else 100)

    assert not fresh.connack.session_present
    assert fresh.rest == fresh.heard() == []
    writer.publish("t", "z", qos=1)
    assert fresh.heard() == []
    assert harness.stored() == (0 if clean else 1)
    fresh.vanish()
    assert lasting().rest == []


def test_a_session_may_go_on_for_one_connection_more(lasting, writer, hooks):
    """MQTT 5.0: no clean start, and no expiry."""
    wire = lasting(to="t", qos=1)
    wire.vanish()
    writer.publish("t", "x", qos=1)

    last = lasting(expiry=0)
    assert last.connack.session_present
    assert payloads(last.rest) == ["x"]
    last.vanish()
    assert (hooks.left_[-1].expiry, hooks.left_[-1].state) == (0, queue_of("me"))


def test_a_session_of_many_records_is_found_whole(lasting, writer, harness):
    """The session has more records than the engine delivers to a consumer at once."""
    wire = lasting(version=Version.V3_1_1)
    for start in range(1, 1500, 500):
        wire.say(*(Publish("t", b"x", 2, False, False, start + number, NONE) for number in range(500)))
    for start in range(0, 500, 500):
        wire.subscribe(*(str(number) for number in range(start, start + 500)))
    wire.vanish()
    harness.fail_over()

    again = lasting(version=Version.V3_1_1)

    assert len(again.session._publishing._exchanges) == 1500
    assert len(again.session._subscribing._by_filter) == 500
    assert len(again.say(*(Acknowledgement(PacketType.PUBREL, number, 0, NONE) for number in range(1, 1501)))) == 1500
    assert harness.figures(queue_of("me").name)["messages"] == 501


@LASTING
def test_subscriptions_have_a_bound(come, hooks, clean):
    """Beyond which retained messages still come to those that there are."""
    hooks.messages = [retained("0", "x")]
    wire = come(clean=clean)
    codes: list[int] = []
    for start in range(0, SUBSCRIPTIONS_MAX + 500, 500):
        filters = [str(number) for number in range(start, start + 500)]
        codes += wire.subscribe(*filters, qos=1, retain_handling=2)[0].codes
    assert codes == [1] * SUBSCRIPTIONS_MAX + [0x97] * 500
    assert payloads(wire.subscribe("0", qos=1)) == ["x"]


@LASTING
def test_very_many_filters_of_one_packet_give_their_commands_in_turns(come, writer, clean):
    wire = come(clean=clean)
    given: list[int] = []
    receive = wire.session.receive

    class Counted:
        """The session, and how many commands it gives at once."""

        def __getattr__(self, name: str) -> Any:
            return getattr(wire_session, name)

        def receive(self, data: bytes) -> Any:
            commands = receive(data)
            given.append(len(commands))
            return commands

    wire_session = wire.session
    wire.session = Counted()
    topics = [f"t/{number}" for number in range(10 * COMMANDS_MAX + 1)]
    assert wire.subscribe(*topics, qos=1)[0].codes == [1] * len(topics)
    writer.publish(topics[-1], "x", qos=1)
    assert payloads(wire.heard()) == ["x"]
    assert wire.unsubscribe(*topics)[0].codes == [0] * len(topics)
    assert max(given) <= COMMANDS_MAX
    wire.session = wire_session


# ---- rights


class SomeRights(OpenAccess):
    """Access in which each client is the user that it names: each may use names that begin with its own, and all may
    use "shared"."""

    has_rights = True

    def connect(self, credentials: Credentials, then: Callable[[Principal | ClientError], None]) -> None:
        then(Principal(credentials.login or "nobody"))

    def check(self, principal: Principal, operation: Operation, destination: Destination) -> None:
        name = destination.name
        if destination.kind > DestinationKind.TOPIC:
            return
        if not (name.startswith((principal.name, "shared", "ActiveMQ.Advisory")) or name == ">"):
            raise refusal(f"{principal.name} may not {operation.name} {destination}", kind=ErrorKind.SECURITY)


@pytest.fixture
def make_as(harness, lasting):
    """A client that has logged in."""

    harness.access = SomeRights()
    harness.begin_term()

    def make_as(user: str, client_id: str, version: Version = V5) -> MqttWire:
        return lasting(client_id, version=version, username=user, password=b"p")

    return make_as


@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_subscription_without_the_right_to_read_is_refused(make_as, version, qos):
    wire = make_as("ann", "a", version)
    (suback,) = wire.subscribe("bob/x", "ann/x", "bob/x", "shared", qos=qos)
    refused = 0x87 if version is V5 else 0x80
    assert suback.codes == [refused, qos, refused, qos]
    wire.vanish()
    assert make_as("ann", "a", version).connack.codes == [0]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_unsubscribe_of_a_subscription_refused_meanwhile_is_answered(make_as, harness, qos):
    wire = make_as("ann", "a")
    answers = wire.say(Subscribe(5, (Filter("bob/x", qos, False, False, 0),), NONE), Unsubscribe(6, ("bob/x",), NONE))
    assert {each.packet_id: (each.type, each.codes) for each in answers} == {
        5: (PacketType.SUBACK, [0x87]),
        6: (PacketType.UNSUBACK, [0]),
    }
    assert harness.stored() == 1  # its session


@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize(("topic", "code"), [("bob/x", 0x87), ("ann" + "x" * 600, 0x90)])
def test_a_publish_without_the_right_to_write_is_refused(make_as, version, qos, retain, topic, code):
    """MQTT-3.3.5-2; told by its name also within a transaction. A topic too long for a destination is no matter of
    rights, and refused all the same."""
    wire = make_as("ann", "a", version)
    heard = wire.publish(topic, "x", qos=qos, retain=retain)
    assert wire.is_closed is (version is not V5)
    if version is V5:
        answer = {0: [], 1: [PUBACK], 2: [PUBREC]}[qos]
        assert [(each.type, each.codes) for each in heard] == [(each, [code]) for each in answer]
        assert [each.type for each in wire.publish("ann/x", "x", qos=qos, retain=retain)] == answer
    else:
        assert heard == []


def test_a_client_id_of_another_user_is_not_taken_over(make_as):
    first = make_as("ann", "a")
    second = make_as("bob", "a")
    assert second.connack.codes == [0x85]
    assert not first.is_closed


@pytest.mark.parametrize("version", ALL)
def test_the_session_of_another_user_is_not_given(make, make_as, version):
    wire = make_as("ann", "a", version)
    wire.subscribe("ann/x", "shared", qos=1)
    wire.vanish()

    thief = make_as("bob", "a", version)
    assert thief.connack.codes == [0x87 if version is V5 else 5]
    assert thief.is_closed
    cleaner = make(version=version)
    assert cleaner.connect("a", clean=True, username="bob", password=b"p").codes == [0x87 if version is V5 else 5]

    again = make_as("ann", "a", version)
    assert again.connack.session_present is (version is not Version.V3_1)
    writer = make_as("ann", "w")
    writer.publish("shared", "x", qos=1)
    assert payloads(again.heard()) == ["x"]


@pytest.fixture
def few_destinations(harness):
    harness.settings = replace(harness.settings, destinations_max=12)


def test_a_client_with_very_many_sessions_leaves_as_many_for_others(few_destinations, make_as):
    codes = []
    for number in range(20):
        wire = make_as("eve", f"eve-{number}")
        codes += wire.connack.codes
        wire.vanish()
    assert codes == [0] * 6 + [0x97] * 14
    for number in range(3):
        assert make_as("ann", f"ann-{number}").connack.codes == [0]
    again = make_as("eve", "eve-0")  # what there is goes on
    assert again.connack.session_present


def test_a_session_keeps_collected_messages_after_its_rights_were_removed(make_as, harness, monkeypatch):
    wire = make_as("ann", "a")
    wire.subscribe("shared", qos=1)
    wire.vanish()
    writer = make_as("bob", "w")
    writer.publish("shared", "x", qos=1)
    with monkeypatch.context() as patch:
        patch.setattr(SomeRights, "check", _nothing_is_allowed)
        again = make_as("ann", "a")
        assert again.connack.session_present
        assert again.rest == again.heard() == []
        assert again.subscribe("shared", qos=1)[0].codes == [0x87]
        again.vanish()


def _nothing_is_allowed(self: object, principal: Principal, operation: Operation, destination: Destination) -> None:
    raise refusal("no", kind=ErrorKind.SECURITY)


# ---- retained messages


def retained(topic: str, body: str, qos: int = 1, **fields: Any) -> Message:

    return Message(
        MQTT_RETAINED,
        f"ID:r:{topic}",
        body.encode(),
        persistent=True,
        properties={QOS: qos, RETAIN: True},
        original_destination=destination_of(topic),
        **fields,
    )


@LASTING
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_retained_messages_come_to_who_subscribes(come, hooks, clean, qos):
    """MQTT-3.3.1-9."""
    hooks.messages = [retained("a/b", "x", 2), retained("c", "no"), retained("a", "y", 0)]
    wire = come(clean=clean)
    heard = wire.subscribe("a/#", qos=qos)
    messages = [each for each in heard if each.type is PacketType.PUBLISH]
    assert sorted((each.topic, each.payload, each.qos, each.retain) for each in messages) == [
        ("a", b"y", 0, True),
        ("a/b", b"x", qos, True),
    ]


def test_retain_handling(come, hooks):
    """MQTT-3.3.1-9 to 11."""
    hooks.messages = [retained("t", "x")]
    wire = come()
    assert payloads(wire.subscribe("t", retain_handling=2)) == []
    assert payloads(wire.subscribe("t", retain_handling=1)) == []
    assert payloads(wire.subscribe("t", retain_handling=0)) == ["x"]
    wire.unsubscribe("t")
    assert payloads(wire.subscribe("t", retain_handling=1)) == ["x"]


def _messages(packets: list[ServerPacket]) -> list[ServerPacket]:
    return [each for each in packets if each.type is PacketType.PUBLISH]


@pytest.mark.parametrize("is_sudden", [True, False])
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("qos", [1, 2])
def test_retained_messages_go_on_where_they_were(lasting, hooks, harness, qos, published, is_sudden):
    """However often the client is cut off, and the broker dies: what was completed never comes again, and what was not
    has its packet id, DUP, and its place. What is stored meanwhile does not grow with their number."""
    count, open_max = 24, 4
    hooks.messages = [retained(f"t/{number:03}", str(number), published) for number in range(count)]
    wire = lasting(receive_maximum=open_max)
    came = _messages(wire.subscribe("t/#", qos=qos))
    got: list[str] = []  # without what comes again
    left: dict[int, str] = {}  # of the connection before: what was not completed
    released: list[int] = []
    answer = PUBACK if min(qos, published) == 1 else PUBREC
    for _ in range(count):
        again, new = came[: len(left)], came[len(left) :]
        assert {each.packet_id: each.payload.decode() for each in again if each.dup} == left
        assert [each.packet_id for each in again] == list(left)
        for packet_id in released:
            new += _messages(wire.answer(PUBCOMP, packet_id))
        released, under_way = [], [*again, *new]
        for each in under_way[: max(1, len(under_way) // 2)] if published else []:
            heard = wire.answer(answer, each.packet_id)
            released += [packet.packet_id for packet in heard if packet.type is PUBREL]
            under_way.remove(each)
            new += _messages(heard)
            under_way += _messages(heard)
        assert all(each.retain and each.qos == min(qos, published) and not each.dup for each in new)
        got += payloads(new)
        left = {each.packet_id: each.payload.decode() for each in under_way if published}
        assert harness.stored() <= 2 + 2 * open_max
        wire.vanish()
        if is_sudden:
            harness.fail_over(is_sudden=True)
        wire = lasting(receive_maximum=open_max)
        assert [each.packet_id for each in wire.rest if each.type is PUBREL] == released
        came = _messages(wire.rest)
    assert not came
    assert got == [str(number) for number in range(count)]
    assert harness.stored() == 2  # the session and its subscription


def test_a_retained_message_that_was_replaced_meanwhile_comes_once(lasting, hooks, writer):
    """The subscription, which holds it, delivers it, not the retained copy. The packet id of the old one is free."""
    hooks.messages = [retained(topic, "old", 2) for topic in ("t/a", "t/b", "t/c")]
    wire = lasting(receive_maximum=2)
    first, _ = _messages(wire.subscribe("t/#", qos=2))
    wire.answer(PUBREC, first.packet_id)
    wire.vanish()
    for number, topic in ((1, "t/b"), (2, "t/c")):
        writer.publish(topic, "new", qos=1, retain=True)
        hooks.messages[number] = retained(topic, "new", 2)
        hooks.messages[number].message_id += ":new"
        hooks.messages[number].broker_sequence = hooks.newest

    again = lasting(receive_maximum=10)
    assert [each.packet_id for each in again.rest if each.type is PUBREL] == [1, 2]
    came = [(each.topic, each.payload, each.retain) for each in _messages(again.rest)]
    assert came == [("t/b", b"new", False), ("t/c", b"new", False)]


def test_a_subscription_that_is_made_again_has_all_of_them_again(lasting, hooks):
    """Or what is left, where it asks for none; in both cases also when its client is back."""
    hooks.messages = [retained(f"t/{number}", str(number)) for number in range(6)]
    wire = lasting(receive_maximum=2)
    came = _messages(wire.subscribe("t/#", qos=1))
    for handling, expected in ((2, ["2", "3"]), (0, ["4", "5"]), (2, ["0", "1"])):
        for each in came:
            wire.answer(PUBACK, each.packet_id)
        wire.subscribe("t/#", qos=1, retain_handling=handling)
        wire.vanish()
        wire = lasting(receive_maximum=2)
        came = _messages(wire.rest)
        assert payloads(came) == expected


@pytest.mark.parametrize("qos", [0, 1])
def test_a_subscription_that_is_made_again_as_it_is_costs_no_record(lasting, hooks, harness, qos):
    hooks.messages = [retained("elsewhere", "x")]
    lasting(to="t", qos=qos).vanish()
    wire = lasting()
    before = harness.store.handed_over
    for _ in range(2):
        wire.subscribe("t", qos=qos)
    assert harness.store.handed_over == before


def test_an_unfinished_retained_message_that_a_former_version_sent_is_released(lasting, hooks, harness):
    """The record does not contain the message's id (docs/formats/mqtt-sessions.md)."""
    hooks.messages = [retained("t", "x", 2)]
    wire = lasting()
    (message,) = _messages(wire.subscribe("t", qos=2))
    entries = harness.store._messages[harness.store._queues[queue_of("me")]].values()
    (kept,) = [each.message for each in entries if each.message.type == "out"]
    kept.original_destination = kept.correlation_id = None
    wire.vanish()
    harness.fail_over()
    again = lasting()
    assert [(each.type, each.packet_id) for each in again.rest] == [(PUBREL, message.packet_id)]


def test_very_many_retained_messages_come_a_few_at_a_time(come, hooks, harness):
    hooks.messages = [retained(f"t/{number}", str(number)) for number in range(1000)]
    wire = come(receive_maximum=10)
    heard = wire.subscribe("t/#", qos=1)
    assert len(wire.session._retained._owed) <= AHEAD_MAX
    seen = 0
    messages = [each for each in heard if each.type is PacketType.PUBLISH]
    while messages:
        assert len(messages) <= 10
        seen += len(messages)
        messages = wire.say(*(Acknowledgement(PUBACK, each.packet_id, 0, NONE) for each in messages))
    assert seen == 1000


def test_subscribing_again_and_again_makes_no_heap_of_retained_messages(come, hooks):
    hooks.messages = [retained(f"t/{number}", str(number)) for number in range(1000)]
    wire = come(receive_maximum=1)
    for number in range(50):
        wire.subscribe("t/#", qos=1, id=number + 1)
    assert len(wire.session._retained._owed) <= AHEAD_MAX
    assert len(wire.session._retained._waiting) <= 2


def test_retained_messages_wait_until_all_are_known(lasting, hooks):
    hooks.is_loaded = False
    wire = lasting()
    assert types(wire.subscribe("t", qos=1)) == ["SUBACK"]
    assert not wire.session.has_more
    hooks.messages = [retained("t", "x")]
    hooks.loaded()
    assert payloads(wire.heard()) == ["x"]


def test_retained_messages_of_an_ended_subscription_are_not_sent(lasting, hooks):
    hooks.messages = [retained(f"t/{number}", str(number)) for number in range(5)]
    wire = lasting(receive_maximum=1)
    (message,) = [each for each in wire.subscribe("t/#", qos=1) if each.type is PacketType.PUBLISH]
    assert types(wire.unsubscribe("t/#")) == ["UNSUBACK"]
    assert wire.answer(PUBACK, message.packet_id) == []
    assert wire.session._retained._owed == {}


def test_retained_messages_are_for_who_may_read_them(make_as, hooks):
    hooks.messages = [retained("bob/x", "his"), retained("ann/x", "hers"), retained("shared", "all")]
    wire = make_as("ann", "a")
    assert sorted(payloads(wire.subscribe("#"))) == ["all", "hers"]


# ---- shared subscriptions


@LASTING
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_of_those_who_share(come, writer, clean, qos):
    """MQTT 5.0, 4.8.2; with the QoS that was granted (MQTT-4.8.2-3)."""
    members = [come(f"member{number}", clean=clean) for number in range(2)]
    for wire in members:
        (suback,) = wire.subscribe("$share/g/t/+", qos=qos)
        assert suback.codes == [qos]
    for number in range(6):
        writer.publish("t/1", str(number), qos=2, id=number + 1)
    each = [[message for message in wire.heard() if message.type is PacketType.PUBLISH] for wire in members]
    assert sorted(payloads(each[0] + each[1])) == [str(number) for number in range(6)]
    assert {message.qos for message in each[0] + each[1]} == {qos}
    assert all(each)


def test_a_share_gathers_for_a_session_that_is_away_and_is_no_plain_subscription(lasting, writer):
    """MQTT-4.8.2-4."""
    wire = lasting(to="$share/g/t", qos=1)
    wire.close()
    writer.publish("t", "kept", qos=1)
    again = lasting()
    assert again.connack.session_present
    assert payloads(again.rest) == ["kept"]
    assert again.unsubscribe("$share/g/t")[-1].codes == [0]
    writer.publish("t", "after", qos=1, id=9)
    assert again.heard() == []


def test_retained_messages_are_not_for_who_shares(come, writer, hooks):
    """MQTT 5.0, 4.8.2 and 3.3.1.3."""
    hooks.messages = [retained("t", "old")]
    assert types(come().subscribe("$share/g/t", qos=1)) == ["SUBACK"]


def test_a_shared_message_that_a_member_refused_goes_to_no_other(come, writer):
    """MQTT-4.8.2-6."""
    members = [come(f"member{number}") for number in range(2)]
    for wire in members:
        wire.subscribe("$share/g/t", qos=1)
    writer.publish("t", "x", qos=1)
    ((taker, message),) = ((wire, heard[0]) for wire in members if (heard := wire.heard()))
    taker.answer(PUBACK, message.packet_id, 0x80)
    taker.close()
    assert all(wire.heard() == [] for wire in members if wire is not taker)


def _share_of_two(lasting):
    """Two members whose sessions are kept."""
    members = [lasting(f"member{number}", receive_maximum=2) for number in range(2)]
    for wire in members:
        wire.subscribe("$share/g/t", qos=2, subscription_ids=(9,))
    return members


@pytest.mark.parametrize("fails_over", [False, True])
@pytest.mark.parametrize("answer", [None, PUBREC])
def test_a_shared_message_begun_with_qos_2_stays_with_its_member(lasting, writer, harness, answer, fails_over):
    """MQTT-4.8.2-4: it is completed when its taker is back, and goes to no other meanwhile."""
    one, two = _share_of_two(lasting)
    writer.publish("t", "x", qos=2, content_type="a/b", user=(("k", "1"), ("k", "2")), message_expiry=60)
    ((taker, other, message),) = ((a, b, heard[0]) for a, b in ((one, two), (two, one)) if (heard := a.heard()))
    if answer is not None:
        assert types(taker.answer(PUBREC, message.packet_id)) == ["PUBREL"]
    client_id = f"member{(one, two).index(taker)}"
    taker.vanish()
    assert other.heard() == []
    if fails_over:
        harness.fail_over()
        other = lasting(f"member{(two, one).index(taker)}")
        assert other.rest == []
    harness.now += 100_000  # what was begun does not expire (MQTT-4.3.3-7)

    for _ in range(2):
        again = lasting(client_id)
        (first,) = again.rest
        assert first.packet_id == message.packet_id
        if answer is None:
            assert (first.topic, first.payload, first.qos, first.dup) == ("t", b"x", 2, True)
            assert first.properties.content_type == "a/b"
            assert first.properties.user == (("k", "1"), ("k", "2"))
            assert first.properties.subscription_ids == (9,)
            assert first.properties.message_expiry == 0
        again.vanish()
    again = lasting(client_id)
    if answer is None:
        again.answer(PUBREC, message.packet_id)
    again.answer(PUBCOMP, message.packet_id)
    again.vanish()
    assert lasting(client_id).rest == []
    assert other.heard() == []
    assert harness.stored() == 4  # two sessions, and two subscriptions


def test_a_shared_message_begun_with_qos_2_goes_to_no_other_when_its_session_ends(come, lasting, writer, harness):
    """MQTT-4.8.2-5."""
    members = _share_of_two(lasting)
    writer.publish("t", "x", qos=2)
    ((taker, other),) = ((a, b) for a, b in (members, members[::-1]) if a.heard())
    taker.vanish()
    ended = come(f"member{members.index(taker)}", clean=True)
    assert ended.rest == []
    assert other.heard() == []
    other.unsubscribe("$share/g/t")
    assert harness.stored() == 1  # the other's session


def test_a_waiting_shared_message_goes_to_another_member(lasting, writer):
    members = _share_of_two(lasting)
    for number in range(5):
        writer.publish("t", str(number), qos=2, id=number + 1)
    begun = [payloads(wire.heard()) for wire in members]
    assert [len(each) for each in begun] == [2, 2]
    members[0].vanish()
    members[1].answer(PUBREC, 1)
    came = payloads(members[1].answer(PUBCOMP, 1))
    assert sorted([*begun[0], *begun[1], *came]) == [str(number) for number in range(5)]
    assert payloads(lasting("member0").rest) == begun[0]


def test_a_begun_message_waits_for_room_and_does_not_expire(lasting, writer, harness):
    """MQTT-4.3.3-7."""
    wire = lasting(to="$share/g/t", qos=2)
    for number in (1, 2):
        writer.publish("t", str(number), qos=2, id=number, message_expiry=60)
    assert payloads(wire.heard()) == ["1", "2"]
    wire.vanish()
    again = lasting(receive_maximum=1)
    assert payloads(again.rest) == ["1"]
    harness.now += 100_000
    again.answer(PUBREC, again.rest[0].packet_id)
    assert payloads(again.answer(PUBCOMP, again.rest[0].packet_id)) == ["2"]


def test_a_begun_message_is_completed_after_its_subscription_ended(lasting, writer):
    """MQTT-3.10.4-3."""
    wire = lasting(to="$share/g/t", qos=2)
    writer.publish("t", "x", qos=2)
    (message,) = wire.heard()
    wire.unsubscribe("$share/g/t")
    wire.vanish()
    again = lasting()
    assert [(each.payload, each.packet_id) for each in again.rest] == [(b"x", message.packet_id)]
    assert types(again.answer(PUBREC, message.packet_id)) == ["PUBREL"]
    again.answer(PUBCOMP, message.packet_id)
    again.vanish()
    assert lasting().rest == []


def test_a_long_message_is_not_stored_twice_for_who_shares(lasting, writer, harness):
    """The message is delivered to another client: only small records are written for a client in a full store."""
    members = _share_of_two(lasting)
    writer.publish("t", "x" * (OWN_BYTES_MAX + 1), qos=2)
    ((taker, other),) = ((a, b) for a, b in (members, members[::-1]) if a.heard())
    taker.vanish()
    assert types(other.heard()) == ["PUBLISH"]


# ---- a client that is away


def test_a_message_that_is_not_stored_is_not_kept_for_an_absent_client(come, lasting, writer, harness):
    """MQTT 5.0, 4.1: it would fill the memory, and publishers would wait for who may never come back."""
    wire = lasting(to="t/+", qos=1)
    writer.publish("t/1", "there", qos=0)
    assert payloads(wire.heard()) == ["there"]
    wire.close()
    wire.heard()
    before = harness.engine.memory.used
    for _ in range(100):
        writer.publish("t/1", "x" * 1000, qos=0)
    assert harness.engine.memory.used - before < 10_000
    writer.publish("t/1", "stored", qos=1)
    again = lasting("me")
    assert payloads(again.rest) == ["stored"]
