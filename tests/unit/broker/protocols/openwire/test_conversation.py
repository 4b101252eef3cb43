"""Operations that an OpenWire client's commands request, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core.commands import (
    Abort,
    AckMode,
    AddDestination,
    AddProducer,
    Begin,
    ClientError,
    Command,
    Commit,
    Connect,
    ErrorKind,
    Prepare,
    ProtocolFailure,
    Pull,
    RemoveDestination,
    RemoveProducer,
    SetPrefetch,
    Subscribe,
    Unsubscribe,
)
from tandemmq.broker.protocols.openwire import conversation, schema
from tandemmq.broker.protocols.openwire.schema import TransactionType
from tandemmq.broker.protocols.openwire.types import ConnectionId, ConsumerId, ProducerId, SessionId
from tandemmq.broker.protocols.openwire.wireformat import Greeting
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.transactions import LocalTransactionId
from tests.support.protocols.commands import one
from tests.support.protocols.openwire.peer import (
    CONNECTION,
    CONSUMER,
    LOCAL,
    PRODUCER,
    QUEUE,
    TOPIC,
    XA,
    Peer,
    ack,
    command_id_of,
    connected,
    opened,
    sent,
)

pytestmark = pytest.mark.promise("jms-works-unmodified")

CONNECTION_ID = ConnectionId(CONNECTION)
TEMP_QUEUE = Destination(DestinationKind.TEMP_QUEUE, f"{CONNECTION}:1")


def only(peer: Peer, command: schema.Command, kind: type = Command) -> Any:
    """Return the one operation that ``command`` requests; the sender of the command waits for it."""
    asked = one(kind, peer.say(command))
    assert command_id_of(asked.receipt) == (command.command_id if command.response_required else None)
    return asked


def refusal(peer: Peer, command: schema.Command, kind: ErrorKind, *, is_fatal: bool = False) -> ClientError:
    """Return the reason why ``command`` is refused, as its sender gets it."""
    failure = one(ProtocolFailure, peer.say(command))
    error = failure.error
    assert (error.kind, error.is_fatal) == (kind, is_fatal)
    assert error.receipt == (command.command_id if command.response_required else None)
    return error


# ---- connections and sessions


def test_a_connection_without_a_client_id_is_refused() -> None:
    peer = Peer()
    peer.shake_hands()
    refusal(peer, schema.ConnectionInfo(1, True, CONNECTION_ID), ErrorKind.CLIENT_ID, is_fatal=True)


@pytest.mark.parametrize("steals_links", [False, True])
def test_a_connector_says_whether_client_ids_are_taken_over(steals_links: bool) -> None:
    peer = Peer(Greeting("b1", "ID:broker-1", "tcp://b1:61616", steals_links=steals_links))
    peer.shake_hands()
    connect = one(Connect, peer.say(schema.ConnectionInfo(1, True, CONNECTION_ID, "me")))
    assert connect.steals_client_id is steals_links


def test_a_socket_carries_one_connection() -> None:
    peer = connected()
    error = refusal(peer, schema.ConnectionInfo(9, True, ConnectionId("ID:other"), "c"), ErrorKind.STATE)
    assert CONNECTION in error.message


def test_a_network_bridge_is_refused_by_name() -> None:
    peer = connected()
    error = refusal(peer, schema.BrokerInfo(9, True, broker_name="other"), ErrorKind.GENERAL, is_fatal=True)
    assert "'other'" in error.message


def test_a_command_between_brokers_ends_the_connection() -> None:
    refusal(connected(), schema.ReplayCommand(9, True), ErrorKind.GENERAL, is_fatal=True)
    refusal(connected(), schema.MessageDispatch(9, True, CONSUMER), ErrorKind.GENERAL, is_fatal=True)


@pytest.mark.parametrize("says", [None, "ConnectionInfo", "ConnectionControl"])
def test_a_failover_client_gets_the_addresses_at_connect_and_at_a_handover(says: str | None) -> None:
    """A Java client's first connection says it in ConnectionInfo alone."""
    uris = ["tcp://a:1"]
    peer = Peer(Greeting("b1", "ID:broker-1", "tcp://b1:61616", failover_uris=uris))
    peer.shake_hands()
    if says == "ConnectionControl":
        assert peer.say(schema.ConnectionControl(0, False, fault_tolerant=True)) == []
    info = schema.ConnectionInfo(1, True, CONNECTION_ID, "me", fault_tolerant=says == "ConnectionInfo")
    peer.session.connected(one(Connect, peer.say(info)), "ID:session")
    uris[:] = ["tcp://a:1", "tcp://c:3"]
    peer.session.tell_brokers()
    told = [each.connected_brokers for each in peer.hear_all() if isinstance(each, schema.ConnectionControl)]
    assert told == (["tcp://a:1", "tcp://a:1,tcp://c:3"] if says else [])
    assert peer.session.is_fault_tolerant is (says is not None)


@pytest.mark.parametrize(
    "command",
    [
        schema.SessionInfo(9, True, SessionId(CONNECTION, 1)),
        schema.ProducerInfo(9, True, PRODUCER, QUEUE),
        schema.ConsumerInfo(9, True, CONSUMER, destination=QUEUE),
        schema.DestinationInfo(9, True, CONNECTION_ID, TEMP_QUEUE),
        schema.TransactionInfo(9, True, CONNECTION_ID, LOCAL, TransactionType.BEGIN),
        schema.TransactionInfo(9, True, CONNECTION_ID, None, TransactionType.RECOVER),
        schema.TransactionInfo(9, True, None, None, TransactionType.RECOVER),
        schema.RemoveSubscriptionInfo(9, True, CONNECTION_ID, "durable", "client-1"),
        schema.RemoveInfo(9, True, CONNECTION_ID, -1),
        schema.MessagePull(9, True, CONSUMER, QUEUE),
    ],
    ids=lambda command: type(command).__name__,
)
def test_a_command_of_an_unknown_client_is_refused(command: schema.Command) -> None:
    peer = Peer()
    peer.shake_hands()
    error = refusal(peer, command, ErrorKind.STATE)
    assert "had not been registered" in error.message


@pytest.mark.parametrize(
    "command",
    [
        schema.ProducerInfo(9, True, ProducerId(CONNECTION, 1, 2), QUEUE),
        schema.ConsumerInfo(9, True, ConsumerId(CONNECTION, 2, 1), destination=QUEUE),
        schema.ConsumerInfo(9, True, ConsumerId("ID:other", 1, 1), destination=QUEUE),
        schema.RemoveInfo(9, True, SessionId(CONNECTION, 2), -1),
        schema.RemoveInfo(9, True, CONSUMER, -1),
        schema.RemoveInfo(9, True, PRODUCER, -1),
        schema.MessagePull(9, True, CONSUMER, QUEUE),
    ],
    ids=lambda command: type(command).__name__,
)
def test_an_object_that_was_never_opened_is_named(command: schema.Command) -> None:
    assert "had not been registered" in refusal(connected(), command, ErrorKind.STATE).message


@pytest.mark.parametrize(
    "command",
    [
        schema.SessionInfo(9, True),
        schema.ProducerInfo(9, True),
        schema.ConsumerInfo(9, True),
        schema.RemoveInfo(9, True),
        schema.DestinationInfo(9, True, CONNECTION_ID),
        schema.DestinationInfo(9, True, CONNECTION_ID, QUEUE, operation_type=7),
        schema.RemoveSubscriptionInfo(9, True, CONNECTION_ID),
        schema.TransactionInfo(9, True, CONNECTION_ID, None, TransactionType.BEGIN),
        schema.TransactionInfo(9, True, CONNECTION_ID, LOCAL, 99),
        schema.ConsumerInfo(9, True, CONSUMER, destination=QUEUE, prefetch_size=-1),
    ],
    ids=repr,
)
def test_an_incomplete_command_is_refused_and_the_connection_stays(command: schema.Command) -> None:
    refusal(connected(), command, ErrorKind.GENERAL)


def test_sessions_and_producers_of_a_connection_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "SESSIONS_MAX", 2)
    monkeypatch.setattr(conversation, "PRODUCERS_MAX", 1)
    peer = opened()
    assert peer.say(schema.SessionInfo(9, False, SessionId(CONNECTION, 2))) == []
    assert (
        "2 sessions" in refusal(peer, schema.SessionInfo(9, True, SessionId(CONNECTION, 3)), ErrorKind.RESOURCE).message
    )
    another = schema.ProducerInfo(9, True, ProducerId(CONNECTION, 2, 1), QUEUE)
    assert "1 producers" in refusal(peer, another, ErrorKind.RESOURCE).message


# ---- producers and consumers


def test_a_producer_is_added_and_removed() -> None:
    peer = connected()
    added = only(peer, schema.ProducerInfo(3, True, PRODUCER, Destination(DestinationKind.QUEUE, "A?x=1")), AddProducer)
    assert (added.id, added.destination) == ("1:1", Destination(DestinationKind.QUEUE, "A"))
    removed = only(peer, schema.RemoveInfo(4, False, PRODUCER), RemoveProducer)
    assert removed.id == "1:1"
    anonymous = only(peer, schema.ProducerInfo(5, True, PRODUCER, None))
    assert anonymous.destination is None


def test_a_consumer_says_all_that_it_wants() -> None:
    wanted = schema.ConsumerInfo(
        4, True, CONSUMER, False, Destination(DestinationKind.TOPIC, "T?consumer.priority=5"), prefetch_size=100,
        selector="colour = 'red'", subscription_name="durable", no_local=True, exclusive=True, retroactive=True,
        priority=127,
    )  # fmt: skip
    asked = only(connected(), wanted, Subscribe)
    assert (asked.id, asked.destination, asked.ack) == ("1:1", Destination(DestinationKind.TOPIC, "T"), AckMode.RANGE)
    assert (asked.prefetch, asked.selector, asked.durable_name) == (100, "colour = 'red'", "durable")
    assert (asked.no_local, asked.is_exclusive, asked.is_retroactive, asked.is_browser) == (True, True, True, False)
    assert asked.priority == 127


def test_only_queues_are_browsed_and_only_topics_have_durable_subscriptions() -> None:
    for destination in (QUEUE, TOPIC):
        wanted = schema.ConsumerInfo(
            4, True, CONSUMER, True, destination, prefetch_size=0, selector="", subscription_name="durable"
        )
        asked = only(connected(), wanted)
        is_queue = destination is QUEUE
        assert (asked.is_browser, asked.durable_name) == (is_queue, None if is_queue else "durable")
        assert (asked.prefetch, asked.selector) == (0, None), "an empty selector is none"


def test_the_advisory_consumer_needs_no_session() -> None:
    both = Destination(DestinationKind.TOPIC, "ActiveMQ.Advisory.TempQueue,ActiveMQ.Advisory.TempTopic")
    asked = only(connected(), schema.ConsumerInfo(2, True, ConsumerId(CONNECTION, -1, 1), destination=both))
    assert (asked.id, asked.destination) == ("-1:1", both)


def test_a_pull_says_how_long_it_waits() -> None:
    peer = opened()
    for timeout in (-1, 0, 2500):
        asked = only(peer, schema.MessagePull(50, False, CONSUMER, QUEUE, timeout), Pull)
        assert (asked.id, asked.timeout_ms) == ("1:1", timeout)


def test_a_consumer_may_change_its_prefetch_and_close_itself() -> None:
    """A failover client subscribes again with a prefetch of 0 and sets the real one later (openwire.md 16.2)."""
    peer = opened(prefetch_size=0)
    asked = only(peer, schema.ConsumerControl(0, False, QUEUE, consumer_id=CONSUMER, prefetch=1000), SetPrefetch)
    assert (asked.id, asked.prefetch) == ("1:1", 1000)
    assert peer.say(schema.ConsumerControl(0, False, QUEUE, consumer_id=CONSUMER, stop=True)) == []
    closed = only(peer, schema.ConsumerControl(7, True, QUEUE, True, CONSUMER), Unsubscribe)
    assert closed.seen is None


@pytest.mark.parametrize(
    ("last_delivered", "seen"), [(-2, None), (-1, 0), (0, 0), (101, 2), (102, 3), (999, 0)], ids=str
)
def test_a_closing_consumer_reports_the_last_message_of_its_application(last_delivered: int, seen: int | None) -> None:
    peer = opened()
    for tag, message in enumerate(sent(peer, 1, 2, 3), 1):
        peer.deliver(tag, message)
    asked = only(peer, schema.RemoveInfo(20, False, CONSUMER, last_delivered), Unsubscribe)
    assert (asked.id, asked.seen, asked.durable_name) == ("1:1", seen, None)


def test_a_session_takes_its_consumers_and_producers_with_it() -> None:
    peer = opened()
    peer.say(schema.SessionInfo(9, False, SessionId(CONNECTION, 2)))
    peer.say(schema.ConsumerInfo(9, False, ConsumerId(CONNECTION, 2, 1), destination=QUEUE))
    (message,) = sent(peer, 1)
    peer.deliver(1, message)
    consumer, producer = peer.say(schema.RemoveInfo(20, True, SessionId(CONNECTION, 1), 100))
    assert isinstance(consumer, Unsubscribe)
    assert (consumer.id, consumer.seen, consumer.receipt) == ("1:1", 1, None)
    assert isinstance(producer, RemoveProducer)
    assert (producer.id, producer.receipt) == ("1:1", 20)
    rest = one(Unsubscribe, peer.say(schema.RemoveInfo(21, True, SessionId(CONNECTION, 2), -1)))
    assert (rest.id, rest.receipt) == ("2:1", 21)


def test_an_empty_session_ends_at_once() -> None:
    peer = connected()
    assert peer.say(schema.RemoveInfo(20, True, SessionId(CONNECTION, 1), -1)) == []
    assert peer.hear() == schema.Response(correlation_id=20)


def test_a_durable_subscription_is_deleted_by_its_name() -> None:
    asked = only(
        connected(), schema.RemoveSubscriptionInfo(24, True, CONNECTION_ID, "durable", "client-1"), Unsubscribe
    )
    assert (asked.id, asked.durable_name) == (None, "durable")


# ---- destinations


def test_destinations_are_created_and_deleted() -> None:
    peer = connected()
    made = only(peer, schema.DestinationInfo(8, True, CONNECTION_ID, TEMP_QUEUE, 0), AddDestination)
    assert made.destination == TEMP_QUEUE
    deleted = only(peer, schema.DestinationInfo(9, True, CONNECTION_ID, TOPIC, 1), RemoveDestination)
    assert deleted.destination == TOPIC


def test_a_temporary_destination_with_anothers_name_is_refused() -> None:
    foreign = Destination(DestinationKind.TEMP_QUEUE, f"{CONNECTION}2:1")
    refusal(connected(), schema.DestinationInfo(8, True, CONNECTION_ID, foreign, 0), ErrorKind.SECURITY)


# ---- transactions


def transaction(type: TransactionType, id: Any = LOCAL, command_id: int = 30) -> schema.TransactionInfo:
    return schema.TransactionInfo(command_id, True, CONNECTION_ID, id, type)


@pytest.mark.parametrize("id", [LOCAL, XA], ids=str)
def test_a_transaction_begins_once(id: Any) -> None:
    peer = connected()
    begun = only(peer, transaction(TransactionType.BEGIN, id), Begin)
    assert (begun.transaction, begun.xa) == (id.key, id if id is XA else None)
    again = peer.say(transaction(TransactionType.BEGIN, id))
    if id is XA:
        # Whether the branch is still there, only the broker knows.
        assert [type(command) for command in again] == [Begin]
    else:
        assert again == []
        assert peer.hear() == schema.Response(correlation_id=30)


def test_so_many_transactions_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "TRANSACTIONS_MAX", 2)
    peer = connected()
    for number in range(3):
        only(peer, transaction(TransactionType.BEGIN, LocalTransactionId(CONNECTION, number)))
    # The first was forgotten, so it may begin: what is open is the broker's to say.
    only(peer, transaction(TransactionType.BEGIN, LocalTransactionId(CONNECTION, 0)))
    assert peer.say(transaction(TransactionType.BEGIN, LocalTransactionId(CONNECTION, 2))) == []


def test_a_transaction_that_the_broker_refused_may_begin_again() -> None:
    peer = connected()
    for _ in range(2):
        begun = only(peer, transaction(TransactionType.BEGIN))
        peer.session.fail(ClientError("too many", is_fatal=False, receipt=begun.receipt))


def test_transactions_end_as_they_are_told_to() -> None:
    peer = connected()
    for type, id, is_two_phase in (
        (TransactionType.COMMIT_ONE_PHASE, LOCAL, False),
        (TransactionType.COMMIT_TWO_PHASE, LOCAL, False),
        (TransactionType.COMMIT_ONE_PHASE, XA, False),
        (TransactionType.COMMIT_TWO_PHASE, XA, True),
    ):
        committed = only(peer, transaction(type, id), Commit)
        assert (committed.transaction, committed.is_two_phase) == (id.key, is_two_phase)
        assert committed.xa == (XA if id is XA else None)
    for id in (LOCAL, XA):
        aborted = only(peer, transaction(TransactionType.ROLLBACK, id), Abort)
        assert (aborted.transaction, aborted.xa) == (id.key, XA if id is XA else None)


def test_only_a_branch_is_prepared_and_none_is_forgotten() -> None:
    peer = connected()
    prepared = only(peer, transaction(TransactionType.PREPARE, XA), Prepare)
    assert (prepared.transaction, prepared.xa) == (XA.key, XA)
    assert refusal(peer, transaction(TransactionType.PREPARE, LOCAL), ErrorKind.XA).xa_code == -6
    assert refusal(peer, transaction(TransactionType.FORGET, XA), ErrorKind.XA).xa_code == -4


def test_a_poison_acknowledgement_in_a_transaction_dooms_it() -> None:
    peer = opened()
    (message,) = sent(peer, 1)
    peer.deliver(1, message)
    failure = one(ProtocolFailure, peer.say(ack(1, message, message, 1, transaction=LOCAL)))
    assert failure.transaction == LOCAL.key
    assert "transaction" in failure.error.message
    assert not failure.error.is_fatal


# ---- objects that the broker ends


def test_a_consumer_that_the_broker_ends_is_closed_by_its_client_without_an_error() -> None:
    peer = opened()
    peer.session.close_consumer("1:1", ClientError("too slow", is_fatal=False))
    (control,) = peer.hear_all()
    assert control == schema.ConsumerControl(consumer_id=CONSUMER, close=True)
    assert peer.say(schema.RemoveInfo(9, True, CONSUMER, -1)) == []
    (response,) = peer.hear_all()
    assert response == schema.Response(correlation_id=9)
    refusal(peer, schema.RemoveInfo(10, True, CONSUMER, -1), ErrorKind.STATE)


def test_ended_consumers_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "ENDED_MAX", 1)
    peer = opened()
    second = ConsumerId(CONNECTION, 1, 2)
    peer.say(schema.ConsumerInfo(5, False, second, destination=QUEUE))
    for id in ("1:1", "1:2", "1:3"):
        peer.session.close_consumer(id, ClientError("too slow", is_fatal=False))
    assert len(peer.hear_all()) == 2
    refusal(peer, schema.RemoveInfo(9, True, CONSUMER, -1), ErrorKind.STATE)
    assert peer.say(schema.RemoveInfo(10, True, second, -1)) == []
