"""Acknowledgements of OpenWire: ranges in the order of dispatch, transactions, topics, and what cannot be matched."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.core.commands import (
    Abort,
    Ack,
    AckOfNothing,
    ClientError,
    Command,
    Commit,
    Delivered,
    ErrorKind,
    GiveUp,
    ProtocolFailure,
    Redelivered,
)
from tandemmq.broker.protocols.openwire import schema
from tandemmq.broker.protocols.openwire.consumers import Consumer
from tandemmq.broker.protocols.openwire.schema import TransactionType
from tandemmq.broker.protocols.openwire.types import ConnectionId, Throwable
from tandemmq.store.records.acknowledgements import AckType
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tests.support.protocols.commands import one
from tests.support.protocols.openwire.peer import CONNECTION, CONSUMER, LOCAL, QUEUE, TOPIC, Peer, ack, sent

KINDS = AckType.STANDARD, AckType.DELIVERED, AckType.POISON, AckType.EXPIRED


def holding(count: int, *, is_restored: bool = False, **options: Any) -> tuple[Peer, list[Message]]:
    """A consumer to which messages were dispatched, under the tags 1, 2, 3 ..."""
    peer = Peer()
    peer.connect(failover_reconnect=is_restored)
    peer.open(**options)
    messages = sent(peer, *range(1, count + 1))
    for tag, message in enumerate(messages, 1):
        peer.deliver(tag, message)
    peer.hear_all()
    return peer, messages


def unmatched(peer: Peer, command: schema.MessageAck) -> str:
    """Return the reason why an acknowledgement is refused; the connection stays."""
    failure = one(ProtocolFailure, peer.say(command))
    assert not failure.error.is_fatal
    assert failure.error.kind is ErrorKind.GENERAL
    assert failure.error.receipt == (command.command_id if command.response_required else None)
    return failure.error.message


def only(peer: Peer, command: schema.Command, kind: type = Command) -> Any:
    return one(kind, peer.say(command))


def is_passed_over(peer: Peer, command: schema.MessageAck) -> bool:
    """Return whether the only effect is an answer to a waiting sender, by the session or the engine."""
    command.response_required = True
    asked = peer.say(command)
    if asked:
        nothing = one(AckOfNothing, asked)
        return (nothing.transaction, nothing.receipt) == (None, command.command_id)
    return peer.hear_all() == [schema.Response(correlation_id=command.command_id)]


# ---- one by one, and ranges


def test_each_message_is_acknowledged_by_its_id() -> None:
    peer, messages = holding(3)
    for tag, message in enumerate(messages, 1):
        asked = only(peer, ack(AckType.STANDARD, message, message, 1, is_awaited=True), Ack)
        assert (asked.id, asked.first, asked.tag, asked.receipt, asked.transaction) == ("1:1", tag, tag, 40, None)


S_0, S_1 = Destination(DestinationKind.QUEUE, "s.0"), Destination(DestinationKind.QUEUE, "s.1")


def holding_twins() -> tuple[Peer, list[Message]]:
    """A consumer of two queues, to which a message that was sent to both came from each (tags 1 and 3)."""
    peer = Peer()
    peer.connect()
    peer.open()
    message, other, twin = sent(peer, 1, 2, 1)
    twin.destination, message.destination, other.destination = S_1, S_0, S_0
    messages = [message, other, twin]
    for tag, each in enumerate(messages, 1):
        peer.deliver(tag, each)
    peer.hear_all()
    return peer, messages


@pytest.mark.parametrize("type", [AckType.INDIVIDUAL, AckType.STANDARD])
@pytest.mark.parametrize("order", [(2, 0), (0, 2)])
def test_the_copies_of_a_message_from_two_queues_are_told_apart(type: AckType, order: tuple[int, int]) -> None:
    peer, messages = holding_twins()
    for place in order:
        asked = only(peer, ack(type, messages[place], messages[place], 1), Ack)
        assert asked.tag == place + 1


@pytest.mark.parametrize("first", [0, None])
def test_a_range_may_end_with_another_copy_of_its_first_message(first: int | None) -> None:
    peer, messages = holding_twins()
    asked = only(peer, ack(AckType.STANDARD, None if first is None else messages[0], messages[2], 3))
    assert asked.tag == 3


def test_a_range_without_a_first_begins_at_the_oldest() -> None:
    peer, messages = holding(5)
    asked = only(peer, ack(AckType.STANDARD, None, messages[3], 4))
    assert (asked.first, asked.tag) == (0, 4)
    assert "dispatched list" in unmatched(peer, ack(AckType.STANDARD, messages[0], messages[4], 5))
    assert only(peer, ack(AckType.STANDARD, None, messages[4], 1)).tag == 5


def test_a_range_must_have_as_many_as_it_says() -> None:
    peer, messages = holding(5)
    three = ack(AckType.STANDARD, messages[1], messages[3], 2, is_awaited=True)
    assert "has 3 messages in that range" in unmatched(peer, three)
    assert "impossible" in unmatched(peer, ack(AckType.STANDARD, messages[1], messages[3], -1))
    # Nothing of it was taken.
    asked = only(peer, ack(AckType.STANDARD, messages[1], messages[3], 3))
    assert (asked.first, asked.tag) == (2, 4)


def test_individual_acknowledgements_are_in_any_order_and_may_come_twice() -> None:
    peer, messages = holding(3)
    for tag in (2, 3, 1):
        asked = only(peer, ack(AckType.INDIVIDUAL, None, messages[tag - 1], 1), Ack)
        assert (asked.first, asked.tag) == (tag, tag)
    assert is_passed_over(peer, ack(AckType.INDIVIDUAL, None, messages[0], 1))


def test_deliveries_that_reached_the_application_widen_what_it_may_hold() -> None:
    peer, messages = holding(4)
    asked = only(peer, ack(AckType.DELIVERED, messages[0], messages[1], 2, transaction=LOCAL), Delivered)
    assert (asked.id, asked.count) == ("1:1", 2)
    assert only(peer, ack(AckType.DELIVERED, messages[0], messages[3], 1 << 30)).count == 4
    # They still wait.
    assert only(peer, ack(AckType.STANDARD, messages[0], messages[3], 4)).tag == 4


def test_a_redelivery_of_the_clients_own_is_counted() -> None:
    peer, messages = holding(2)
    asked = only(peer, ack(AckType.REDELIVERED, messages[0], messages[1], 2, is_awaited=True), Redelivered)
    assert (asked.first, asked.tag, asked.receipt) == (1, 2, 40)
    assert is_passed_over(peer, ack(AckType.REDELIVERED, None, Message(QUEUE, f"{CONNECTION}:1:1:99"), 1))
    assert only(peer, ack(AckType.STANDARD, messages[0], messages[1], 2)).tag == 2


@pytest.mark.parametrize(
    ("type", "cause", "text"),
    [
        (AckType.EXPIRED, None, "expired"),
        (AckType.POISON, None, "Poison acknowledgement"),
        (
            AckType.POISON,
            Throwable("java.lang.Throwable", "exceeds redelivery policy limit"),
            "java.lang.Throwable: exceeds redelivery policy limit",
        ),
        (AckType.POISON, Throwable("java.lang.Throwable", None), "java.lang.Throwable"),
    ],
)
def test_expired_and_poison_deliveries_are_given_up_with_their_cause(
    type: AckType, cause: Throwable | None, text: str
) -> None:
    peer, messages = holding(3)
    command = ack(type, messages[0], messages[1], 2)
    command.poison_cause = cause
    asked = only(peer, command, GiveUp)
    assert (asked.id, asked.first, asked.tag, asked.is_expired) == ("1:1", 1, 2, type is AckType.EXPIRED)
    assert text in asked.cause
    assert "dispatched list" in unmatched(peer, command)


def test_an_acknowledgement_of_no_known_type_is_refused() -> None:
    peer, messages = holding(1)
    for type in (AckType.UNMATCHED, 77, -1):
        assert "no such type" in unmatched(peer, ack(type, messages[0], messages[0], 1))


# ---- deliveries that the broker does not know


@pytest.mark.parametrize("type", KINDS)
def test_acknowledgements_of_deliveries_before_a_failover_or_of_a_consumer_that_left_are_ignored(type: AckType) -> None:
    former, messages = holding(1)
    peer, _ = holding(0)
    assert is_passed_over(peer, ack(type, messages[0], messages[0], 1))
    former.say(schema.RemoveInfo(8, False, CONSUMER, -1))
    assert is_passed_over(former, ack(type, messages[0], messages[0], 1))


@pytest.mark.parametrize("type", KINDS)
def test_acknowledgements_of_what_was_never_dispatched_are_refused(type: AckType) -> None:
    peer, messages = holding(2)
    stranger = Message(QUEUE, f"{CONNECTION}:1:1:99")
    assert ":1:1:99" in unmatched(peer, ack(type, messages[0], stranger, 1))
    if type is not AckType.DELIVERED:
        assert ":1:1:99" in unmatched(peer, ack(type, stranger, messages[1], 1))


@pytest.mark.parametrize("type", KINDS)
def test_an_acknowledgement_from_before_a_failover_may_come_after_new_dispatches(type: AckType) -> None:
    """A thread of the client that was late with it: it takes nothing, and is no error that ends a consumer."""
    peer, messages = holding(2, is_restored=True)
    from_before = Message(QUEUE, f"{CONNECTION}:1:1:99")
    assert is_passed_over(peer, ack(type, from_before, from_before, 1))
    if type is not AckType.DELIVERED:
        assert is_passed_over(peer, ack(type, from_before, messages[1], 3))
    if type is AckType.STANDARD:
        assert is_passed_over(peer, ack(type, None, messages[1], 3))
    asked = only(peer, ack(AckType.STANDARD, messages[0], messages[1], 2))
    assert (asked.first, asked.tag) == (1, 2)


# ---- topics and browsers


@pytest.mark.parametrize("options", [{"destination": TOPIC}, {"browser": True}], ids=["topic", "browser"])
def test_of_topics_and_browsers_only_the_count_matters(options: dict[str, Any]) -> None:
    peer, messages = holding(5, **options)
    stranger = Message(QUEUE, f"{CONNECTION}:1:1:99")
    asked = only(peer, ack(AckType.STANDARD, None, stranger, 2))
    assert (asked.first, asked.tag) == (0, 2)
    asked = only(peer, ack(AckType.STANDARD, stranger, messages[3], 1))
    assert (asked.first, asked.tag) == (0, 4)
    asked = only(peer, ack(AckType.STANDARD, None, stranger, 100))
    assert asked.tag == 5
    assert is_passed_over(peer, ack(AckType.STANDARD, None, messages[0], 1))


def test_a_durable_subscription_is_as_strict_as_a_queue() -> None:
    peer, messages = holding(2, destination=TOPIC, subscription_name="durable")
    assert "has 2 messages in that range" in unmatched(peer, ack(AckType.STANDARD, messages[0], messages[1], 1))


# ---- transactions


def transaction(type: TransactionType, command_id: int = 30) -> schema.TransactionInfo:
    return schema.TransactionInfo(command_id, True, ConnectionId(CONNECTION), LOCAL, type)


def begun(peer: Peer) -> None:
    peer.session.receipt(only(peer, transaction(TransactionType.BEGIN)).receipt)
    peer.hear_all()


def test_deliveries_acknowledged_in_a_rolled_back_transaction_wait_again() -> None:
    peer, messages = holding(3)
    for _ in range(2):
        begun(peer)
        asked = only(peer, ack(AckType.STANDARD, messages[0], messages[1], 2, transaction=LOCAL))
        assert (asked.first, asked.tag, asked.transaction) == (1, 2, LOCAL.key)
        assert isinstance(only(peer, transaction(TransactionType.ROLLBACK)), Abort)


def test_deliveries_acknowledged_in_a_committed_transaction_are_removed() -> None:
    peer, messages = holding(3)
    begun(peer)
    only(peer, ack(AckType.STANDARD, messages[0], messages[1], 2, transaction=LOCAL))
    committed = only(peer, transaction(TransactionType.COMMIT_ONE_PHASE), Commit)
    peer.session.receipt(committed.receipt)
    assert peer.hear() == schema.Response(correlation_id=30)
    assert "dispatched list" in unmatched(peer, ack(AckType.STANDARD, messages[0], messages[0], 1))
    assert only(peer, ack(AckType.STANDARD, messages[2], messages[2], 1)).tag == 3


def test_deliveries_acknowledged_in_a_failed_commit_wait_again() -> None:
    peer, messages = holding(1)
    begun(peer)
    only(peer, ack(AckType.STANDARD, messages[0], messages[0], 1, transaction=LOCAL))
    committed = only(peer, transaction(TransactionType.COMMIT_ONE_PHASE))
    peer.session.fail(ClientError("rolled back", is_fatal=False, kind=ErrorKind.ROLLED_BACK, receipt=committed.receipt))
    heard = peer.hear(schema.ExceptionResponse)
    assert heard.correlation_id == 30
    assert only(peer, ack(AckType.STANDARD, messages[0], messages[0], 1)).tag == 1


def test_a_range_in_a_transaction_has_as_many_as_it_says_or_more() -> None:
    peer, messages = holding(3)
    begun(peer)
    asked = only(peer, ack(AckType.STANDARD, messages[0], messages[2], 1, transaction=LOCAL))
    assert (asked.tag, asked.count) == (3, 1)
    failure = one(ProtocolFailure, peer.say(ack(AckType.STANDARD, None, messages[2], 4, transaction=LOCAL)))
    assert failure.transaction == LOCAL.key


@pytest.mark.parametrize("state", ["nothing dispatched", "restored", "consumer gone"])
@pytest.mark.parametrize("type", list(AckType))
def test_an_acknowledgement_of_another_connections_delivery_in_a_transaction_is_passed_on(
    state: str, type: AckType
) -> None:
    peer, messages = holding(int(state != "nothing dispatched"), is_restored=state == "restored")
    if state == "consumer gone":
        peer.say(schema.RemoveInfo(8, False, CONSUMER, -1))
    begun(peer)
    other = messages[0] if state == "consumer gone" else Message(QUEUE, f"{CONNECTION}:1:1:99")
    asked = peer.say(ack(type, other, other, 1, transaction=LOCAL))
    dooms = [each.transaction for each in asked if isinstance(each, AckOfNothing | ProtocolFailure)]
    if type in (AckType.DELIVERED, AckType.REDELIVERED):
        assert dooms == []
    else:
        assert dooms == [None if type is AckType.EXPIRED else LOCAL.key]


# ---- deliveries that a consumer remembers


@given(st.lists(st.tuples(st.sampled_from("dfr"), st.integers(1, 12), st.integers(0, 3)), max_size=60))
def test_a_consumer_remembers_what_a_plain_list_would(steps: list[tuple[str, int, int]]) -> None:
    """Deliveries, some of the same message again, and ranges forgotten, beside a list of pairs."""
    consumer = Consumer(CONSUMER)
    naive: list[tuple[int, str]] = []
    tag = 0
    for step, number, length in steps:
        if step == "d":
            tag += 1
            message = Message(QUEUE, f"{CONNECTION}:1:1:{number}")
            consumer.remember(tag, message)
            naive.append((tag, message.message_id))
        elif step == "f":
            consumer.forget(number, number)
            naive = [pair for pair in naive if pair[0] != number]
        else:
            first, last = number, number + length
            assert consumer.count(first, last) == sum(first <= each <= last for each, _ in naive)
            consumer.forget(first, last)
            naive = [pair for pair in naive if not first <= pair[0] <= last]
        assert len(consumer) == len(naive)
        for sequence in range(1, 13):
            id = f"{CONNECTION}:1:1:{sequence}"
            assert consumer.tag(id) == min((each for each, text in naive if text == id), default=None)
        for count in (1, 2, 100):
            assert consumer.oldest(count) == max((each for each, _ in naive[:count]), default=0)
    assert consumer.dispatched == tag
