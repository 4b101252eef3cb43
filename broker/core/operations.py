"""Operations of the store for messages: store one, remove one, and copy one for very many destinations. Pure."""

from __future__ import annotations

from tandemmq.broker.core.commands import ClientError, ErrorKind, refusal
from tandemmq.broker.core.delivery import Entry, QueueBase
from tandemmq.broker.core.memory import ENTRY_OVERHEAD_BYTES, Holder, Kind
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.topics.topic import Topic
from tandemmq.store.operations import AddMessage, RemoveMessage
from tandemmq.store.records.acknowledgements import AckType, MessageAck, encode_ack
from tandemmq.store.records.commands import encode_remove
from tandemmq.store.records.errors import Unencodable
from tandemmq.store.records.message import Message
from tandemmq.store.records.stored import encode_stored
from tandemmq.store.records.transactions import TransactionId

Target = Queue | Topic


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


class Copies:
    """Copies of messages for very many queues and subscriptions, made in steps. ``parts``: for each the queue or topic,
    its durable subscriptions at that time, and the operation for the store (None: not stored). The copies of a message
    that takes more than one step count for ``holder``."""

    __slots__ = ("_counted", "_held", "_holder", "parts")

    def __init__(self, holder: Holder | None) -> None:
        self.parts: list[tuple[Message, Target, tuple[int, ...], AddMessage | None]] = []
        self._holder = holder
        self._counted = self._held = 0

    def begin(self) -> None:
        """Start the copies of a message."""
        self._counted = len(self.parts)

    def count(self) -> None:
        """Count the copies of a step that ends. ClientError when the client may not hold so much."""
        holder = self._holder
        if holder is None:
            return
        adds = [add for *_, add in self.parts[self._counted :] if add is not None]
        more = sum(len(add.payload) + ENTRY_OVERHEAD_BYTES for add in adds)
        first = self.parts[self._counted][0]
        self._counted = len(self.parts)
        self._held += more
        holder.add(Kind.TRANSACTIONS, more)
        if holder.by_kind[Kind.TRANSACTIONS] > holder.memory.held_max:
            raise refusal(
                f"The copies of message {first.message_id} take more than {self._held} bytes",
                f"A client may hold at most the free part of memory_limit, {holder.memory.limit} bytes for the broker.",
                ErrorKind.RESOURCE,
            )

    def give_back(self) -> None:
        """Stop counting the copies."""
        if self._holder is not None:
            self._holder.add(Kind.TRANSACTIONS, -self._held)
            self._held = 0
