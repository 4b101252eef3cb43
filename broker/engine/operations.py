"""Operations of the store for a message: keep it, or remove it."""

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
    """Return the operation that removes the stored ``entry`` from ``queue``. ``kind``: the reason, if no consumer
    acknowledged it. The record has the same type of acknowledgement as in ActiveMQ: POISON or EXPIRED; none for
    UNMATCHED (no selector matched); STANDARD without a consumer for any other reason."""
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
    """Return a Remove for each durable subscription that must not get the message: a replay of the journal would
    deliver it to all. The acknowledgements are empty, as ActiveMQ writes them if a selector does not match."""
    if len(owners) == len(topic.owners):
        return ()
    return tuple(
        encode_remove(message.destination, message.message_id, transaction, key, b"") for key in topic.unmatched(owners)
    )


def encode_payload(message: Message, transaction: TransactionId | None = None) -> bytes:
    """Return the record that stores ``message``. ClientError if a part of it does not fit into the format."""
    try:
        return encode_stored(message, transaction)
    except Unencodable as error:
        raise unencodable(error) from error


def unencodable(error: Unencodable) -> ClientError:
    """Return the error for the producer."""
    return refusal(f"The message cannot be stored: {error}")
