"""KahaDB's commands: what the payload of each journal record says.

    i1 command number, varint length, protobuf message           (journal-data.proto, class of that name)

Bytes behind the message are ignored, as ActiveMQ does; :func:`trailing` returns them. Fields are written in order,
present or absent exactly as ActiveMQ writes them; unknown ones are damage. Everything is decoded; written is what
a message store needs. The bodies of messages, acknowledgements, audits and maps stay bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from store.records.acknowledgements import SubscriptionInfo, decode_subscription_info, encode_subscription_info
from store.records.errors import RecordDamaged
from store.records.loose import CACHE_ENTRIES_MAX, producer_key
from store.records.message import Destination, DestinationKind, Message
from store.records.protobuf import bytes_field, decode_varint, read_fields, signed, varint, varint_field
from store.records.transactions import LocalTransactionId, TransactionId, XaTransactionId, transaction_of_key

__all__ = [
    "AckMap",
    "AddMessage",
    "Command",
    "Commit",
    "LocalTransactionId",
    "Prepare",
    "ProducerAudit",
    "RecordDamaged",
    "RemoveDestination",
    "RemoveMessage",
    "Rewritten",
    "Rollback",
    "Schedule",
    "Subscription",
    "SubscriptionInfo",
    "Trace",
    "TransactionId",
    "UpdateMessage",
    "XaTransactionId",
    "decode",
    "encode",
    "encode_add",
    "encode_commit",
    "encode_prepare",
    "encode_remove",
    "encode_remove_destination",
    "encode_rewritten",
    "encode_rollback",
    "encode_subscription",
    "encode_trace",
    "encode_unsubscribe",
    "encode_update",
    "trailing",
    "transaction_of_key",
]

TRACE, ADD, REMOVE, PREPARE, COMMIT, ROLLBACK, REMOVE_DESTINATION, SUBSCRIPTION, AUDIT, ACK_MAP, UPDATE = range(11)
SCHEDULE_FIRST, SCHEDULE_LAST = 11, 15
REWRITTEN = 16

DEFAULT_PRIORITY = 4


class Trace(NamedTuple):
    """KahaTraceCommand: a remark. ActiveMQ writes it at each start, and without text to force a sync."""

    message: str | None


class AddMessage(NamedTuple):
    """KahaAddMessageCommand. ``message`` is the OpenWire frame."""

    destination: Destination
    message_id: str
    message: bytes
    transaction: TransactionId | None = None
    priority: int = DEFAULT_PRIORITY
    priority_supported: bool = False


class UpdateMessage(NamedTuple):
    """KahaUpdateMessageCommand: a full new copy of a stored message."""

    add: AddMessage


class RemoveMessage(NamedTuple):
    """KahaRemoveMessageCommand. With a subscription key it concerns that durable subscription only.

    ``ack`` is an OpenWire MessageAck; empty when a selector passed the message over; None when left out.
    """

    destination: Destination
    message_id: str
    transaction: TransactionId | None = None
    subscription_key: str | None = None
    ack: bytes | None = None


class Prepare(NamedTuple):
    transaction: TransactionId


class Commit(NamedTuple):
    transaction: TransactionId


class Rollback(NamedTuple):
    transaction: TransactionId


class RemoveDestination(NamedTuple):
    """KahaRemoveDestinationCommand: a destination and all its messages are gone."""

    destination: Destination


class Subscription(NamedTuple):
    """KahaSubscriptionCommand. Without ``info`` the subscription is gone."""

    destination: Destination
    subscription_key: str
    info: SubscriptionInfo | None = None
    retroactive: bool = False


class ProducerAudit(NamedTuple):
    """KahaProducerAuditCommand: a Java object that nothing but ActiveMQ needs."""

    audit: bytes


class AckMap(NamedTuple):
    """KahaAckMessageFileMapCommand: a Java object that can be had from the journal."""

    map: bytes


class Schedule(NamedTuple):
    """A command of the scheduler's store (numbers 11 to 15), which has its own journal. ``fields`` by field number."""

    kind: int
    fields: dict[int, str | int | bytes]


class Rewritten(NamedTuple):
    """KahaRewrittenDataFileCommand: this file holds copies of the removes and commits of another."""

    source_file: int
    rewrite_type: int | None = None
    skip_if_source_exists: bool = True


Command = (
    Trace
    | AddMessage
    | RemoveMessage
    | Prepare
    | Commit
    | Rollback
    | RemoveDestination
    | Subscription
    | ProducerAudit
    | AckMap
    | UpdateMessage
    | Schedule
    | Rewritten
)


# ---- writing


def _destination_body(destination: Destination) -> bytes:
    return varint_field(0x08, destination.kind) + bytes_field(0x12, destination.name.encode("utf-8", "surrogatepass"))


# Destination -> the bytes of field 2 of Add and Remove
_destination_fields: dict[Destination, bytes] = {}


def _destination_field(destination: Destination) -> bytes:
    if len(_destination_fields) >= CACHE_ENTRIES_MAX:
        _destination_fields.clear()
    field = _destination_fields[destination] = bytes_field(0x12, _destination_body(destination))
    return field


def _transaction_field(transaction: TransactionId) -> bytes:
    """Field 1 of every command that may belong to a transaction: KahaTransactionInfo."""
    if isinstance(transaction, LocalTransactionId):
        connection_id = transaction.connection_id.encode("utf-8", "surrogatepass")
        info = bytes_field(0x0A, bytes_field(0x0A, connection_id) + varint_field(0x08, transaction.value))
    else:
        info = bytes_field(
            0x12,
            varint_field(0x08, transaction.format_id)
            + bytes_field(0x12, transaction.branch)
            + bytes_field(0x1A, transaction.global_id),
        )
    return bytes_field(0x0A, info)


def _message_id_bytes(message_id: str) -> bytes:
    last = message_id.rpartition(":")[2]
    if last.isdecimal() and last[0] != "0" and message_id.count(":") >= 3 and len(last) < 19:
        pass
    return producer_key(message_id).encode("utf-8", "surrogatepass")


_PRIORITIES = tuple(varint_field(0x28, priority) + b"\x30\0" for priority in range(10))


def _add_body(message: Message, openwire: bytes, transaction: TransactionId | None) -> bytes:
    destination = message.destination
    message_id = producer_key(message.message_id).encode("utf-8", "surrogatepass")
    return b"".join(
        (
            b"" if transaction is None else _transaction_field(transaction),
            _destination_fields.get(destination) or _destination_field(destination),
            b"\x1a",
            varint(len(message_id)),
            message_id,
            b"\x22",
            varint(len(openwire)),
            openwire,
            _PRIORITIES[message.priority],
        )
    )
