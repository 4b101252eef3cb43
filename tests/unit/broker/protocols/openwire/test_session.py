"""The OpenWire session: greetings, input in any pieces, answers, deliveries, and refusals."""

# proves: fields-of-a-command-are-bounded, properties-of-a-message-are-bounded

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.core.commands import (
    Ack,
    AckMode,
    AddProducer,
    ClientError,
    Connect,
    Disconnect,
    ErrorKind,
    GiveUp,
    Prepare,
    ProtocolFailure,
    Pull,
    Recover,
    Send,
    Subscribe,
    Unsubscribe,
)
from tandemmq.broker.protocols.openwire import consumers, schema
from tandemmq.broker.protocols.openwire.codec import STORED
from tandemmq.broker.protocols.openwire.sends import (
    MESSAGE_SIZE_MIN,
    PAIRS_MAX,
    PROPERTIES_BYTES_MAX,
    PROPERTIES_MAX,
    Window,
)
from tandemmq.broker.protocols.openwire.session import FIELDS_MAX
from tandemmq.broker.protocols.openwire.types import (
    BrokerId,
    ConnectionId,
    ConsumerId,
    MessageId,
    ProducerId,
    SessionId,
)
from tandemmq.broker.protocols.openwire.wireformat import Greeting, properties_of
from tandemmq.broker.protocols.session import RECEIVED_BYTES_MAX
from tandemmq.store.records.message import BodyKind, Message
from tandemmq.store.records.properties import encode_properties
from tandemmq.store.records.transactions import LocalTransactionId, XaTransactionId
from tandemmq.store.records.utf import encode_modified
from tests.support.protocols.commands import one
from tests.support.protocols.openwire.peer import (
    CONNECTION,
    CONSUMER,
    LOCAL,
    NOW,
    PRODUCER,
    QUEUE,
    TOPIC,
    XA,
    Peer,
    ack,
    connected,
    info,
    opened,
    sent,
    text,
)
from tests.support.protocols.openwire.vectors import vectors

# ---- the handshake


def test_the_broker_greets_before_it_heard_anything_and_names_itself_as_soon_as_the_client_greeted() -> None:
    peer = Peer()
    assert peer.session.pending_bytes > 0
    assert peer.hear(schema.WireFormatInfo).version == 12
    assert peer.session.pending_bytes == 0
    assert peer.say(info()) == []
    heard = peer.hear(schema.BrokerInfo)
    assert (heard.broker_name, heard.broker_id, heard.broker_url) == ("b1", BrokerId("ID:broker-1"), "tcp://b1:61616")
    assert (heard.fault_tolerant_configuration, heard.peer_broker_infos) == (False, ())


@pytest.mark.parametrize(("theirs", "agreed"), [(13, 12), (12, 12), (11, 11), (10, 10), (6, 6), (1, 1)])
def test_the_lower_version_is_spoken(theirs: int, agreed: int) -> None:
    peer = Peer()
    peer.shake_hands(theirs)
    assert peer.session.version == agreed


def test_a_connection_without_greeting_is_no_connection() -> None:
    """A connection that sent its greeting counts: a failover client's backup transport greets and waits (openwire.md
    16.5)."""
    peer, spare = Peer(), Peer()
    spare.shake_hands()
    assert (peer.session.is_connected, spare.session.is_connected) == (False, True)
    failure = one(ProtocolFailure, peer.say(schema.KeepAliveInfo()))
    assert failure.error.is_fatal
    assert "came before WireFormatInfo" in failure.error.message


def test_a_client_that_did_not_greet_gets_no_output() -> None:
    peer = Peer()
    peer.session.take()
    peer.session.fail(ClientError("No CONNECT came"))
    assert peer.session.take() == b""


@pytest.mark.parametrize(
    ("theirs", "initial", "silence"),
    [(30_000, 10_000, 30_000), (9_000, 4_000, 9_000), (0, 10_000, 0), (3_000, 500, 3_000)],
)
def test_both_sides_hold_to_the_shorter_silence(theirs: int, initial: int, silence: int) -> None:
    peer = Peer()
    peer.say(info(inactivity_ms=theirs, initial_delay_ms=initial))
    assert peer.session.receive_interval_ms == silence
    assert peer.session.send_interval_ms == silence // 3


def test_a_client_may_be_silent_for_its_initial_delay_once() -> None:
    peer = Peer()
    peer.say(info(inactivity_ms=3_000))
    assert peer.session.receive_interval_ms == 10_000
    peer.say(schema.KeepAliveInfo())
    assert peer.session.receive_interval_ms == 3_000


def test_keep_alives_are_answered_when_they_ask_and_never_by_a_response() -> None:
    peer = connected()
    assert peer.say(schema.KeepAliveInfo(5, False)) == []
    assert peer.session.pending_bytes == 0
    assert peer.say(schema.KeepAliveInfo(6, True)) == []
    assert peer.hear() == schema.KeepAliveInfo(0, False)
    peer.session.heart_beat()
    assert peer.hear() == schema.KeepAliveInfo(0, False)


# ---- bytes, however they come

# A conversation of a Java client, with a stranger's bytes behind its end.
CONVERSATION = (
    schema.ConnectionInfo(1, True, ConnectionId(CONNECTION), "client-1", "secret", "system", manageable=True),
    schema.SessionInfo(3, False, SessionId(CONNECTION, 1)),
    schema.ProducerInfo(4, True, PRODUCER, QUEUE),
    schema.ConsumerInfo(5, True, CONSUMER, destination=QUEUE, prefetch_size=1000, selector="colour = 'red'"),
    text(1, command_id=6, is_awaited=True),
    text(2, b"x" * 5000, command_id=7),
    schema.RemoveInfo(8, False, CONSUMER, -1),
    schema.RemoveInfo(9, True, ConnectionId(CONNECTION), -1),
    schema.ShutdownInfo(10, False),
)
EXPECTED = ["Connect", "AddProducer", "Subscribe", "Send", "Send", "Unsubscribe", "Disconnect", "Disconnect"]


def described(commands: list[Any]) -> list[str]:
    return [type(command).__name__ for command in commands]


@given(st.lists(st.integers(0, 6500), max_size=12) | st.just(list(range(6500))))
def test_a_conversation_is_the_same_however_its_bytes_are_cut(cuts: list[int]) -> None:
    data = b"".join(map(STORED.encode, (info(), *CONVERSATION))) + b"\xffa stranger's bytes"
    session = Peer().session
    commands: list[Any] = []
    places = [0, *sorted(cuts), len(data)]
    for start, stop in itertools.pairwise(places):
        commands += session.receive(data[start:stop])
        while session.has_more:
            commands += session.receive(b"")
    assert described(commands) == EXPECTED
    assert session.receive(b"more") == []


def test_others_may_have_their_turn_after_a_selector() -> None:
    session = Peer().session
    assert described(session.receive(b"".join(map(STORED.encode, (info(), *CONVERSATION))))) == EXPECTED[:3]
    assert session.has_more
    assert described(session.receive(b"")) == EXPECTED[3:]


OURS = [
    vector.frames[0] for vector in vectors() if vector.version == 12 and not vector.is_tight and not vector.is_cached
]
CHANGES = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4)


@given(st.sampled_from(OURS), CHANGES)
def test_receive_returns_commands_for_any_bytes(sample: bytes, changes: list[tuple[int, int]]) -> None:
    """Frames of ActiveMQ's own with a few bytes changed: commands, or the connection's end and silence."""
    peer = connected()
    frame = bytearray(sample)
    for place, byte in changes:
        frame[4 + place % (len(frame) - 4)] = byte
    commands = peer.session.receive(bytes(frame))
    peer.hear_all()
    alive = schema.KeepAliveInfo(1, True)
    ends = [
        (isinstance(command, ProtocolFailure) and command.error.is_fatal)
        or (isinstance(command, Disconnect) and not command.is_awaited)
        for command in commands
    ]
    assert True not in ends[:-1]
    assert peer.say(alive) == []
    assert peer.hear_all() == ([] if ends and ends[-1] else [schema.KeepAliveInfo(0, False)])


@pytest.mark.parametrize("version", [12, 9, 1])
@pytest.mark.parametrize("transaction", [None, LOCAL, XA])
@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_message_over_the_limit_is_refused_alone_with_its_transaction(
    version: int, transaction: LocalTransactionId | XaTransactionId | None, is_awaited: bool
) -> None:
    peer = limited(version)
    long = text(1, b"x" * 20_000, command_id=77, is_awaited=is_awaited, transaction=transaction)
    failure = one(ProtocolFailure, peer.say(long, text(2)))
    assert (failure.error.is_fatal, failure.error.kind) == (False, ErrorKind.RESOURCE)
    assert "the maximum is 10000" in failure.error.message
    assert failure.error.receipt == (77 if is_awaited else None)
    assert failure.transaction == (None if transaction is None else transaction.key)
    assert peer.session.has_more
    assert one(Send, peer.session.receive(b"")).message.message_id == f"{PRODUCER}:2"


def test_a_message_over_the_limit_opens_the_window_of_its_producer() -> None:
    peer = limited(window=1 << 20)
    failure = one(ProtocolFailure, peer.say(text(1, b"x" * 20_000)))
    peer.session.fail(failure.error)
    acknowledged, told = peer.hear_all()
    assert isinstance(acknowledged, schema.ProducerAck)
    assert acknowledged.size >= MESSAGE_SIZE_MIN + 4 + 20_000, "no less than a Java producer counted"
    assert isinstance(told, schema.ConnectionError)


@pytest.mark.parametrize(
    "frame",
    [
        STORED.encode(schema.ControlCommand(1, True, "x" * 20_000)),
        STORED.encode(text(1, b"x" * 20_000, destination=QUEUE._replace(name="q" * 10_000))),
    ],
    ids=["no message", "a head without end"],
)
def test_any_other_frame_over_the_limit_ends_the_connection(frame: bytes) -> None:
    failure = one(ProtocolFailure, limited().session.receive(frame))
    assert failure.error.is_fatal
    assert "10000 are allowed" in failure.error.message


def limited(version: int = 12, window: int = 0) -> Peer:
    """A client of a connector that takes 10,000 bytes a frame."""
    peer = Peer(Greeting("b1", "ID:b", "tcp://b", frame_bytes_max=10_000))
    peer.connect(version)
    peer.open(window=window)
    return peer


@pytest.mark.parametrize("version", [12, 9])
def test_a_message_too_long_for_its_consumer_is_given_up(version: int) -> None:
    peer = Peer()
    peer.connect(version, max_frame_size=1_000)
    peer.open()
    short, long = [command.message for command in peer.say(text(1), text(2, b"x" * 1_000))]
    woken: list[bool] = []
    peer.session.set_wake(lambda: woken.append(True))
    peer.deliver(1, long)
    assert (peer.hear_all(), woken, peer.session.has_more) == ([], [True], True)
    given_up = one(GiveUp, peer.session.receive(b""))
    assert (given_up.first, given_up.tag, "at most 1000" in given_up.cause) == (1, 1, True)
    peer.deliver(2, short)
    peer.hear(schema.MessageDispatch)


def test_a_pull_continues_after_a_message_that_is_too_long() -> None:
    """The client waits without a limit until the broker answers, with another message or with the end."""
    peer = Peer()
    peer.connect(max_frame_size=1_000)
    peer.open(prefetch_size=0)
    long = one(Send, peer.say(text(1, b"x" * 1_000))).message
    peer.say(schema.MessagePull(50, False, CONSUMER, QUEUE, 2500))
    peer.deliver(1, long)
    _, again = peer.session.receive(b"")
    assert isinstance(again, Pull)
    assert (again.id, again.timeout_ms) == ("1:1", 2500)


def test_a_message_that_the_broker_just_takes_is_short_enough_for_a_consumer() -> None:
    """A Java client reads no frame that is longer than the limit of either side."""
    greeting = Greeting("b1", "ID:b", "tcp://b", frame_bytes_max=10_000)
    peer = Peer(greeting)
    said = peer.hear(schema.WireFormatInfo)
    peer.connect()
    peer.open()
    least = len(STORED.encode(text(1, b"")))
    message = one(Send, peer.say(text(1, b"x" * (10_000 + 4 - least)))).message
    peer.deliver(1, message)
    frame = peer.session.take()
    assert 10_000 < len(frame) - 4 <= properties_of(said)["MaxFrameSize"]


def test_a_damaged_message_ends_the_connection_with_the_reason() -> None:
    peer = opened()
    frame = bytearray(STORED.encode(text(1)))
    frame[0:4] = (len(frame) - 4 - 3).to_bytes(4, "big")
    failure = one(ProtocolFailure, peer.session.receive(bytes(frame[:-3])))
    assert failure.error.is_fatal
    assert "truncated" in failure.error.message


# ---- answers


def test_a_connect_gets_a_response() -> None:
    peer = Peer()
    peer.shake_hands()
    command = one(Connect, peer.say(CONVERSATION[0]))
    assert (command.client_id, command.login, command.passcode) == ("client-1", "system", "secret")
    assert command.connection_id == CONNECTION
    peer.session.connected(command, "c-1")
    assert peer.hear() == schema.Response(correlation_id=1)


@pytest.mark.parametrize(
    "command",
    [
        schema.SessionInfo(70, True, SessionId(CONNECTION, 5)),
        schema.FlushCommand(70, True),
        schema.ControlCommand(70, True, "shutdown"),
        schema.ConnectionControl(70, True, fault_tolerant=True),
        schema.ProducerInfo(70, True, PRODUCER, QUEUE),
        schema.ConsumerInfo(70, True, CONSUMER, destination=QUEUE),
        schema.ConnectionInfo(70, True, ConnectionId(CONNECTION), "client-1"),
        schema.ConsumerControl(70, True, QUEUE, consumer_id=ConsumerId(CONNECTION, 1, 99), prefetch=5),
        schema.TransactionInfo(70, True, ConnectionId(CONNECTION), XA, schema.TransactionType.END),
        schema.MessageDispatchNotification(70, True, CONSUMER, QUEUE),
        schema.Response(70, True, 3),
    ],
    ids=lambda command: type(command).__name__,
)
def test_a_command_without_effect_in_the_broker_is_answered_at_once(command: schema.Command) -> None:
    peer = opened()
    assert peer.say(command) == []
    assert peer.hear() == schema.Response(correlation_id=70)
    command.response_required = False
    assert peer.say(command) == []
    assert peer.session.pending_bytes == 0
    command.response_required = True


def test_a_failure_that_nobody_waits_for_is_the_connections() -> None:
    peer = opened()
    command = one(Send, peer.say(text(1)))
    assert command.receipt is None
    peer.session.fail(ClientError("No room", "Send later.", is_fatal=False, kind=ErrorKind.RESOURCE))
    heard = peer.hear(schema.ConnectionError)
    assert heard.connection_id == ConnectionId(CONNECTION)
    assert heard.exception is not None
    assert heard.exception.class_name == "javax.jms.ResourceAllocationException"
    assert heard.exception.message == "No room. Send later."


@pytest.mark.parametrize(
    ("kind", "class_name"),
    [
        (ErrorKind.GENERAL, "javax.jms.JMSException"),
        (ErrorKind.SECURITY, "java.lang.SecurityException"),
        (ErrorKind.CLIENT_ID, "javax.jms.InvalidClientIDException"),
        (ErrorKind.SELECTOR, "javax.jms.InvalidSelectorException"),
        (ErrorKind.DESTINATION, "javax.jms.InvalidDestinationException"),
        (ErrorKind.RESOURCE, "javax.jms.ResourceAllocationException"),
        (ErrorKind.ROLLED_BACK, "javax.jms.TransactionRolledBackException"),
        (ErrorKind.STATE, "java.lang.IllegalStateException"),
        (ErrorKind.XA, "javax.transaction.xa.XAException"),
    ],
)
def test_each_kind_of_mistake_is_an_exception_of_its_own(kind: ErrorKind, class_name: str) -> None:
    peer = connected()
    peer.session.fail(ClientError("x" * 5000, receipt=3, kind=kind, xa_code=-4))
    heard = peer.hear(schema.ExceptionResponse)
    assert heard.correlation_id == 3
    assert heard.exception is not None
    assert heard.exception.class_name == class_name
    assert heard.exception.message is not None
    assert len(heard.exception.message) <= 1024
    assert heard.exception.message.endswith(" xaErrorCode:-4") == (kind is ErrorKind.XA)


def test_prepared_branches_are_answered_by_a_number_and_recovered_ones_by_a_list() -> None:
    peer = connected()
    id = ConnectionId(CONNECTION)
    prepare, recover = peer.say(
        schema.TransactionInfo(32, True, id, XA, schema.TransactionType.PREPARE),
        schema.TransactionInfo(33, True, id, None, schema.TransactionType.RECOVER),
    )
    assert isinstance(prepare, Prepare)
    assert isinstance(recover, Recover)
    for is_read_only, code in ((False, 0), (True, 3)):
        peer.session.prepared(prepare.receipt, is_read_only)
        assert peer.hear() == schema.IntegerResponse(correlation_id=32, result=code)
    for branches in ((), (XA,)):
        peer.session.recovered(recover.receipt, branches)
        assert peer.hear() == schema.DataArrayResponse(correlation_id=33, data=branches)


def test_clients_are_told_where_other_brokers_are() -> None:
    peer = connected()
    peer.session.announce(["tcp://a:1", "tcp://b:2"], is_rebalance=True)
    heard = peer.hear(schema.ConnectionControl)
    assert heard.connected_brokers == "tcp://a:1,tcp://b:2"
    assert heard.rebalance_connection
    peer.session.announce([], reconnect_to="tcp://b:2")
    heard = peer.hear(schema.ConnectionControl)
    assert (heard.reconnect_to, heard.connected_brokers, heard.rebalance_connection) == ("tcp://b:2", "", False)


# ---- messages


def test_a_message_is_stored_as_it_came_but_for_what_is_the_transports() -> None:
    peer = opened()
    came = text(5, command_id=77, is_awaited=True)
    command = one(Send, peer.say(came))
    assert command.receipt == 77
    message = command.message
    assert (message.destination, message.message_id) == (QUEUE, f"{PRODUCER}:5")
    assert (message.body, message.body_kind, message.persistent) == (b"hello", BodyKind.TEXT, True)
    assert message.broker_sequence == 100
    came.command_id, came.response_required = 0, False
    came.message_id = MessageId(None, PRODUCER, 5, 100)
    came.arrival = came.broker_in_time = NOW
    assert message.raw == STORED.encode(came)


def test_each_message_has_a_higher_number_than_those_before() -> None:
    peer = opened()
    assert [message.broker_sequence for message in sent(peer, 1, 2, 3)] == [100, 101, 102]


def test_a_message_in_a_transaction_leaves_its_name_with_the_broker() -> None:
    peer = opened()
    command = one(Send, peer.say(text(1, transaction=XA)))
    assert command.transaction == XA.key
    assert command.message.raw == sent_alone(1)


def sent_alone(sequence: int) -> bytes | None:
    (message,) = sent(opened(), sequence)
    return message.raw


def test_a_message_of_an_unknown_producer_is_refused_and_dooms_its_transaction() -> None:
    peer = connected()
    failure = one(ProtocolFailure, peer.say(text(1, command_id=8, is_awaited=True, transaction=XA)))
    assert not failure.error.is_fatal
    assert failure.error.receipt == 8
    assert failure.transaction == XA.key
    assert str(PRODUCER) in failure.error.message


@pytest.mark.parametrize("version", [1, 2, 3, 5, 9])
def test_messages_of_old_clients_are_stored_alike_and_shown_in_their_version(version: int) -> None:
    peer = Peer()
    peer.connect(version)
    peer.open()
    (message,) = sent(peer, 1)
    assert message.raw == sent_alone(1)
    peer.deliver(1, message)
    heard = peer.hear(schema.MessageDispatch)
    assert heard.message is not None
    assert heard.message.content == b"\0\0\0\5hello"
    acknowledged = one(Ack, peer.say(ack(2, message, message, 1)))
    assert acknowledged.tag == 1


def test_a_producer_with_a_window_is_told_of_what_it_does_not_wait_for() -> None:
    peer = opened(window=10_000)
    for refused in (False, True):
        command = one(Send, peer.say(text(1)))
        assert command.receipt == Window(PRODUCER, 1024 + 9)
        if refused:
            peer.session.fail(ClientError("No room", is_fatal=False, receipt=command.receipt))
        else:
            peer.session.receipt(command.receipt)
        assert peer.hear_all()[0] == schema.ProducerAck(producer_id=PRODUCER, size=1024 + 9)
    command = one(Send, peer.say(text(2, command_id=3, is_awaited=True)))
    assert command.receipt == 3


def test_a_consumer_gets_the_message_as_it_is_stored() -> None:
    peer = opened()
    (message,) = sent(peer, 1)
    peer.deliver(1, message, redeliveries=2)
    data = peer.session.take()
    assert message.raw is not None
    assert message.raw[4:] in data
    heard = STORED.decode(data)
    assert isinstance(heard, schema.MessageDispatch)
    assert (heard.consumer_id, heard.destination, heard.redelivery_counter) == (CONSUMER, QUEUE, 2)
    assert heard.message is not None
    assert heard.message.message_id == MessageId(None, PRODUCER, 1, 100)
    assert not heard.response_required


def test_a_message_of_another_protocol_is_delivered_and_acknowledged() -> None:
    peer = opened()
    message = Message(QUEUE, "a name of its own", b"from STOMP", BodyKind.TEXT, properties={"colour": "red"})
    peer.deliver(1, message)
    heard = peer.hear(schema.MessageDispatch)
    assert isinstance(heard.message, schema.ActiveMQTextMessage)
    id = heard.message.message_id
    assert id is not None
    assert id.text_view == "a name of its own"
    acknowledged = schema.MessageAck(
        1, False, QUEUE, None, CONSUMER, 2, first_message_id=id, last_message_id=id, message_count=1
    )
    command = one(Ack, peer.say(acknowledged))
    assert (command.id, command.tag) == ("1:1", 1)


def firsts(peer: Peer, *messages: Message) -> list[bool]:
    """Return the messages that are marked as the first of their group."""
    for tag, message in enumerate(messages, 1):
        peer.deliver(tag, message)
    found = []
    for heard in peer.hear_all():
        assert isinstance(heard, schema.MessageDispatch)
        assert heard.message is not None
        found.append(heard.message.jmsx_group_first_for_consumer)
    return found


def in_group(number: int, group: str | None, sequence: int = 0, kind: BodyKind = BodyKind.TEXT) -> Message:
    body = b"\0\0\0" if kind is BodyKind.BLOB else b"text"
    return Message(QUEUE, f"{PRODUCER}:{number}", body, kind, group_id=group, group_sequence=sequence)


def test_the_first_message_of_a_group_is_called_so() -> None:
    messages = [in_group(1, "a"), in_group(2, "a", 7), in_group(3, None), in_group(4, "b"), in_group(5, "a", 1)]
    assert firsts(opened(), *messages) == [True, False, False, True, True]
    closed = in_group(1, "a"), in_group(2, "a", -1), in_group(3, "a")
    assert firsts(opened(), *closed) == [True, False, True], "a group that was closed begins anew"
    assert firsts(opened(), in_group(1, "a", kind=BodyKind.BLOB)) == [False], "the bytes of a blob are left alone"


def test_topics_browsers_and_old_clients_have_no_groups() -> None:
    for options in ({"destination": TOPIC}, {"destination": TOPIC, "subscription_name": "durable"}, {"browser": True}):
        assert firsts(opened(**options), in_group(1, "a"), in_group(2, "a")) == [False, False]
    for version, expected in ((9, [False]), (10, [True])):
        peer = Peer()
        peer.connect(version)
        peer.open()
        assert firsts(peer, in_group(1, "a")) == expected


def test_a_consumer_remembers_so_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "GROUPS_MAX", 2)
    groups = ["a", "b", "c", "c", "b", "a"]
    expected = [True, True, True, False, False, True]
    assert firsts(opened(), *(in_group(number, group) for number, group in enumerate(groups))) == expected


def test_a_delivery_for_a_consumer_that_closed_meanwhile_is_not_written() -> None:
    peer = opened()
    (message,) = sent(peer, 1)
    peer.say(schema.RemoveInfo(8, False, CONSUMER, -1))
    peer.deliver(1, message)
    peer.session.nothing("1:1")
    assert peer.session.take() == b""


def test_a_delivery_that_openwire_has_no_room_for_is_given_up() -> None:
    peer = opened()
    peer.deliver(1, Message(QUEUE, "ID:x:1:1:1", correlation_id="x" * 70_000))
    assert peer.session.take() == b""
    command = one(GiveUp, peer.say(schema.KeepAliveInfo()))
    assert (command.id, command.first, command.tag) == ("1:1", 1, 1)
    assert "cannot express" in command.cause


def test_an_empty_pull_and_a_finished_browser_are_notified() -> None:
    peer = opened()
    peer.session.nothing("1:1")
    assert peer.hear() == schema.MessageDispatch(consumer_id=CONSUMER)


# ---- the end


def test_a_client_that_removes_its_connection_hangs_up_itself() -> None:
    peer = opened()
    for tag, message in enumerate(sent(peer, 1, 2), 1):
        peer.deliver(tag, message)
    peer.hear_all()
    consumer, disconnect = peer.say(schema.RemoveInfo(9, True, ConnectionId(CONNECTION), 100))
    assert isinstance(consumer, Unsubscribe)
    assert consumer.seen == 1
    assert isinstance(disconnect, Disconnect)
    assert disconnect.is_awaited
    peer.session.receipt(disconnect.receipt)
    assert peer.hear() == schema.Response(correlation_id=9)


def test_after_shutdown_nothing_is_understood() -> None:
    peer = opened()
    disconnect = one(Disconnect, peer.say(schema.ShutdownInfo(5, False), text(1)))
    assert not disconnect.is_awaited
    assert peer.say(text(1)) == []


def test_a_producer_or_consumer_that_the_broker_refused_was_never_there() -> None:
    peer = connected()
    producer, consumer = peer.say(
        schema.ProducerInfo(3, True, PRODUCER, QUEUE), schema.ConsumerInfo(4, True, CONSUMER, destination=QUEUE)
    )
    assert isinstance(producer, AddProducer)
    assert isinstance(consumer, Subscribe)
    assert consumer.ack is AckMode.RANGE
    for command in (producer, consumer):
        peer.session.fail(ClientError("no", is_fatal=False, kind=ErrorKind.SECURITY, receipt=command.receipt))
    assert [type(heard) for heard in peer.hear_all()] == [schema.ExceptionResponse] * 2
    for command in peer.say(text(1), schema.RemoveInfo(8, True, CONSUMER, -1)):
        assert isinstance(command, ProtocolFailure)
        assert not command.error.is_fatal


@pytest.mark.parametrize(
    "id",
    [
        MessageId(None, ProducerId("ID:another-5001-1-1:1", 1, 1), 8, 0),
        MessageId(None, ProducerId(CONNECTION, 2, 1), 8, 0),
        MessageId("ID:another-5001-1-1:1:1:1:8", None, 8, 0),
    ],
    ids=["another connection", "another producer", "text"],
)
def test_a_message_has_an_id_of_its_own_producer(id: MessageId) -> None:
    """Another's would have her messages taken for sent again."""
    peer = opened()
    message = text(8, is_awaited=True)
    message.message_id = id
    failure = one(ProtocolFailure, peer.say(message))
    assert "is not one of its producer" in failure.error.message
    assert not failure.error.is_fatal
    one(Send, peer.say(text(9)))


def test_no_producer_has_the_session_of_a_broker() -> None:
    """The ids of such a producer would not be compared with earlier ones."""
    peer = connected()
    failure = one(ProtocolFailure, peer.say(schema.ProducerInfo(9, True, ProducerId(CONNECTION, 1, -1), QUEUE)))
    assert failure.error.kind is ErrorKind.SECURITY
    one(ProtocolFailure, peer.say(text(8, producer=ProducerId(CONNECTION, 1, -1))))


def test_long_frames_take_a_step_each() -> None:
    peer = opened()
    said = [text(sequence, b"x" * RECEIVED_BYTES_MAX) for sequence in range(3)]
    assert [len(commands) for commands in (peer.say(*said), peer.say(), peer.say(), peer.say())] == [1, 1, 1, 0]


def test_a_long_frame_in_pieces_is_in_memory_once() -> None:
    peer = opened()
    frame = STORED.encode(text(2, b"x" * 1_000_000))
    tracemalloc.start()
    try:
        for start in range(0, len(frame), 10_000):
            commands = peer.session.receive(frame[start : start + 10_000])
        assert tracemalloc.get_traced_memory()[1] < 1.25 * len(frame)
    finally:
        tracemalloc.stop()
    assert one(Send, commands).message.raw == one(Send, opened().say(text(2, b"x" * 1_000_000))).message.raw


def test_a_long_frame_in_pieces_that_is_no_message_ends_the_connection() -> None:
    peer = opened()
    frame = b"\0\2\0\0" + bytes(1 << 17)
    assert not peer.session.receive(frame[:100_000])
    one(ProtocolFailure, peer.session.receive(frame[100_000:]))


# ---- commands that take long


def test_a_command_of_very_many_objects_ends_its_connection_and_names_the_limit() -> None:
    peer = connected()
    (failure,) = peer.say(schema.DataArrayResponse(data=(None,) * FIELDS_MAX))
    assert isinstance(failure, ProtocolFailure)
    assert failure.error.is_fatal
    assert f"more than {FIELDS_MAX} fields" in failure.error.message
    assert peer.say(schema.KeepAliveInfo(1, True)) == []


def test_commands_that_are_read_field_by_field_have_short_turns() -> None:
    """Each command may consist of thousands of objects, and 32 commands would otherwise be read in one turn."""
    session = connected().session
    infos = [schema.ProducerInfo(0, False, ProducerId(CONNECTION, n, 1), broker_path=(None,) * 9_000) for n in range(5)]
    commands = list(session.receive(b"".join(map(STORED.encode, infos))))
    turns = 1
    while session.has_more:
        turns += 1
        commands += session.receive(b"")
    assert (turns, [type(each) for each in commands]) == (5, [AddProducer] * 5)


@pytest.mark.parametrize("window", [0, 1])
@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({f"p{number}": number for number in range(PROPERTIES_MAX)}, None),
        ({f"p{number}": number for number in range(PROPERTIES_MAX + 1)}, f"more than {PROPERTIES_MAX} values"),
        ({"list": [[None] * 100] * (PROPERTIES_MAX // 100)}, f"more than {PROPERTIES_MAX} values"),
        ({"long": "x" * (1 << 20)}, None),
        ({"long": b"x" * PROPERTIES_BYTES_MAX}, f"the maximum is {PROPERTIES_BYTES_MAX}"),
        ({"faces": ["\U0001f600" * 8] * (PAIRS_MAX // 8)}, None),
    ],
    ids=["most", "more", "nested", "long", "longer", "faces"],
)
def test_a_message_of_very_many_properties_is_refused_alone(
    properties: dict[str, Any], reason: str | None, window: int
) -> None:
    peer = Peer(Greeting("b1", "ID:broker-1", "tcp://b1:61616"))
    peer.connect()
    peer.open(window=window)
    message = text(1, is_awaited=not window, transaction=LOCAL)
    message.marshalled_properties = encode_properties(properties)
    (command,) = peer.say(message)
    if reason is None:
        assert isinstance(command, Send)
        assert command.message.properties == properties
        return
    assert isinstance(command, ProtocolFailure)
    assert reason in command.error.message
    assert (command.error.is_fatal, command.transaction) == (False, LOCAL.key)
    peer.session.fail(command.error)
    assert peer.hear_all(), "who waits is told, and a window opens again"
    assert isinstance(one(Send, peer.say(text(2))), Send)


def test_text_of_pairs_in_properties_is_bounded() -> None:
    """The encoding is Java's modified UTF-8, unlike that of ``encode_properties``."""
    peer = opened()
    message = text(1, is_awaited=True)
    pairs = encode_modified("\U0001f600" * (PAIRS_MAX + 1))
    for content, is_taken in ((pairs[:-6], True), (pairs, False)):
        message.marshalled_properties = b"\0\0\0\1\0\1t\x0d" + len(content).to_bytes(4, "big") + content
        (command,) = peer.say(message)
        assert isinstance(command, Send) is is_taken
        assert is_taken or f"more than {PAIRS_MAX} characters" in command.error.message


def test_damaged_properties_are_taken_as_ever() -> None:
    message = text(1)
    message.marshalled_properties = b"\0\0\0\5\0\1t\x63" + b"x" * PROPERTIES_MAX
    (command,) = opened().say(message)
    assert isinstance(command, Send)
    assert command.message.properties is None
