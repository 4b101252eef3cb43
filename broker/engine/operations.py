"""What the store is told of a message: that it is to be kept, or forgotten."""

from __future__ import annotations

from tandemmq.broker.core.commands import ClientError, refusal
from tandemmq.broker.core.delivery import Entry, QueueBase
from tandemmq.broker.core.topics.topic import Topic
from tandemmq.store.operations import RemoveMessage
from tandemmq.store.records.acknowledgements import AckType, MessageAck, encode_ack
from tandemmq.store.records.commands import encode_remove
from tandemmq.store.records.errors import Unencodable
from tandemmq.store.records.message import Message
from tandemmq.store.records.stored import encode_stored
from tandemmq.store.records.transactions import TransactionId


def removal(
    queue: QueueBase,
    entry: Entry,
    transaction: TransactionId | None = None,
    context: object = None,
    *,
    kind: AckType | None = None,
) -> RemoveMessage:
    """What has the store forget ``entry``, which it has, of ``queue``. ``kind``: why, where no consumer acknowledged
    it. The record says so, as ActiveMQ's do: POISON, EXPIRED; nothing at all for UNMATCHED, what a selector passed
    over; STANDARD without a consumer for all else."""
    message_id = entry.message.message_id
    ack = None
    if kind is not None:
        is_unmatched = kind is AckType.UNMATCHED
        ack = (
            b"" if is_unmatched else encode_ack(MessageAck(queue.destination, message_id, None, None, kind, message_id))
        )
    payload = encode_remove(queue.destination, message_id, transaction, queue.subscription_key, ack)
    return RemoveMessage(queue.owner, entry.order_key, entry.location, message_id, payload, context, entry.size)


def unmatched_acks(
    message: Message, topic: Topic, owners: tuple[int, ...], transaction: TransactionId | None = None
) -> tuple[bytes, ...]:
    """A Remove for each durable subscription that must not get the message: a replay of the journal gives it to all.
    Empty acknowledgements, as ActiveMQ writes for what a selector passes over."""
    if len(owners) == len(topic.owners):
        return ()
    return tuple(
        encode_remove(message.destination, message.message_id, transaction, key, b"") for key in topic.unmatched(owners)
    )


def encode_payload(message: Message, transaction: TransactionId | None = None) -> bytes:
    """The record that stores ``message``. ClientError if OpenWire has no room for something in it."""
    try:
        return encode_stored(message, transaction)
    except Unencodable as error:
        raise unencodable(error) from error


def unencodable(error: Unencodable) -> ClientError:
    """What a producer is told of it."""
    return refusal(f"The message cannot be stored: {error}")
