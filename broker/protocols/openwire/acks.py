"""Acknowledgements of OpenWire (MessageAck; openwire.md 10.4) as commands of the broker. Pure.

A range of an acknowledgement is in the order of dispatch to one consumer. If it matches no delivery, it is refused and
the connection stays. Exception: the consumer existed before a failover, got no dispatch on this connection yet, or has
ended. Then the acknowledgement is for a message of another connection (a thread of the client can be so late), and it
becomes an AckOfNothing; the message is redelivered. In a transaction the broker refuses it (AbstractRegion.acknowledge,
PrefetchSubscription).
"""

from __future__ import annotations

from tandemmq.broker.core.commands import (
    Ack,
    AckOfNothing,
    ClientError,
    Command,
    Delivered,
    GiveUp,
    Receipt,
    Redelivered,
    refusal,
)
from tandemmq.broker.protocols.openwire.consumers import Consumer
from tandemmq.broker.protocols.openwire.errors import text_of
from tandemmq.broker.protocols.openwire.schema import MessageAck
from tandemmq.store.records.acknowledgements import AckType


def command_of(ack: MessageAck, consumer: Consumer, receipt: Receipt | None) -> Command | None:
    """Return the command for ``ack``; None: there is none. Raises ClientError for an ack that cannot be matched.

    ``consumer`` is not changed: the caller removes the acknowledged deliveries from it when the acknowledgement is
    certain.
    """
    type = ack.ack_type
    if ack.message_count < 0:
        raise _unmatched(ack, f"a count of {ack.message_count} is impossible")
    if type == AckType.STANDARD:
        found = _range(ack, consumer)
        if found is None:
            return of_nothing(ack, receipt, consumer)
        first, last = found
        if consumer.is_lenient:
            return Ack(consumer.id, last, _transaction(ack), receipt, first=first)
        count = consumer.count(first, last)
        # In a transaction there may be more, because deliveries that were acknowledged before are still in the list.
        if count < ack.message_count or (count > ack.message_count and ack.transaction_id is None):
            if consumer.is_restored:
                return of_nothing(ack, receipt, consumer)
            raise _unmatched(ack, f"the dispatched list has {count} messages in that range")
        return Ack(consumer.id, last, _transaction(ack), receipt, first=first, count=ack.message_count)
    if type == AckType.INDIVIDUAL:
        tag = _tag(ack, consumer)
        if tag is None:
            return of_nothing(ack, receipt, consumer)  # not an error (PrefetchSubscription)
        return Ack(consumer.id, tag, _transaction(ack), receipt)
    if type == AckType.DELIVERED:
        if consumer.is_lenient or _range(ack, consumer, from_oldest=True) is not None:
            # At most the number of deliveries that exist, because it raises the number that the consumer may hold.
            return Delivered(consumer.id, min(ack.message_count, len(consumer)), receipt)
        return None
    if type in (AckType.POISON, AckType.EXPIRED):
        is_expired = type == AckType.EXPIRED
        if not is_expired and ack.transaction_id is not None:
            raise _unmatched(ack, "a poison acknowledgement cannot be part of a transaction")
        found = _range(ack, consumer)
        if found is None:
            return of_nothing(ack, receipt, consumer)
        cause = text_of(ack.poison_cause)
        if not cause:
            cause = "Message expired by its consumer's clock" if is_expired else "Poison acknowledgement"
        return GiveUp(consumer.id, *found, cause, is_expired=is_expired, receipt=receipt)
    if type == AckType.REDELIVERED:
        # The client redelivers the messages that it holds, and reports it from the second time on
        # (ActiveMQMessageConsumer).
        tag = _tag(ack, consumer)
        if tag is None:
            return None
        first_tag = None if ack.first_message_id is None else consumer.tag(ack.first_message_id.key)
        return Redelivered(consumer.id, tag if first_tag is None else first_tag, tag, receipt)
    raise _unmatched(ack, "there is no such type of acknowledgement")


def of_nothing(ack: MessageAck, receipt: Receipt | None, consumer: Consumer | None = None) -> AckOfNothing | None:
    """Return the command for ``ack``, which names no delivery of its connection; None: it has no effect. ``consumer``
    None: it is gone."""
    if ack.ack_type in (AckType.DELIVERED, AckType.REDELIVERED) or (consumer is not None and consumer.is_lenient):
        return None  # it takes nothing, or a message that no other consumer can get (TopicSubscription)
    where = "there is no such consumer" if consumer is None else "this connection did not dispatch it"
    takes = ack.ack_type != AckType.EXPIRED  # which no application saw
    return AckOfNothing(_unmatched(ack, where), _transaction(ack) if takes else None, receipt)


def _range(ack: MessageAck, consumer: Consumer, *, from_oldest: bool = False) -> tuple[int, int] | None:
    """Return the first and the last delivery that ``ack`` names; None: ignore it."""
    last = _tag(ack, consumer)
    first_id = None if from_oldest else ack.first_message_id
    if first_id is None:
        first: int | None = 0
    else:
        is_one = first_id == ack.last_message_id and ack.message_count <= 1
        first = last if is_one else consumer.tag(first_id.key)
    if consumer.is_lenient:
        if last is None:
            last = consumer.oldest(ack.message_count)
        return (first or 0, last) if last else None
    if first is None or last is None:
        if consumer.is_restored or not consumer.dispatched:
            return None
        missing = ack.last_message_id if last is None else first_id
        raise _unmatched(ack, f"{None if missing is None else missing.key} is not in the dispatched list")
    return first, last


def _tag(ack: MessageAck, consumer: Consumer) -> int | None:
    return None if ack.last_message_id is None else consumer.tag(ack.last_message_id.key, ack.destination)


def _transaction(ack: MessageAck) -> str | None:
    return None if ack.transaction_id is None else ack.transaction_id.key


def _unmatched(ack: MessageAck, why: str) -> ClientError:
    last = None if ack.last_message_id is None else ack.last_message_id.key
    return refusal(
        f"Unmatched acknowledge: type {ack.ack_type}, {ack.message_count} messages up to {last}, consumer"
        f" {ack.consumer_id}: {why}"
    )
