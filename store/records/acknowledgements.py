"""Codecs of MessageAck and SubscriptionInfo, OpenWire frames in KahaDB's commands. Loose encoding; version 11 is
written."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from tandemmq.store.records import loose
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.loose import OPENWIRE_VERSION
from tandemmq.store.records.message import Destination
from tandemmq.store.records.transactions import TransactionId, XaTransactionId

_HEAD = struct.pack(">iB", 0, 0)


class AckType(IntEnum):
    """Constants of MessageAck. A frame may have other values."""

    DELIVERED = 0
    POISON = 1
    STANDARD = 2
    REDELIVERED = 3
    INDIVIDUAL = 4
    UNMATCHED = 5
    EXPIRED = 6


class SubscriptionInfo(NamedTuple):
    """Request of a client for a durable subscription. ``subscribed_destination`` may have wildcards. ``no_local`` None:
    unknown, because the OpenWire version is older than 11."""

    client_id: str
    destination: Destination
    name: str
    selector: str | None = None
    subscribed_destination: Destination | None = None
    no_local: bool | None = False


class MessageAck(NamedTuple):
    """Acknowledgement of a consumer. KahaDB needs it only to recover prepared XA transactions."""

    destination: Destination
    last_message_id: str | None
    consumer_id: str | None = None
    transaction: TransactionId | None = None
    ack_type: int = AckType.STANDARD
    first_message_id: str | None = None
    message_count: int = 1
    poison_cause: tuple[str | None, str | None] | None = None


def encode_subscription_info(info: SubscriptionInfo) -> bytes:
    """Return the frame for KahaSubscriptionCommand."""
    return loose.frame(
        loose.SUBSCRIPTION_INFO,
        loose.string(info.client_id),
        loose.destination(info.destination),
        loose.string(info.selector),
        loose.string(info.name),
        loose.destination(info.subscribed_destination or info.destination),
        b"" if info.no_local is None else b"\1" if info.no_local else b"\0",
    )


def decode_subscription_info(data: bytes) -> SubscriptionInfo:
    """Decode a frame of any OpenWire version: later versions only add fields at the end. Raises RecordDamaged."""
    try:
        data_type, position, end = loose.open_frame(data)
        if data_type != loose.SUBSCRIPTION_INFO:
            raise RecordDamaged(f"OpenWire type {data_type} is no SubscriptionInfo")
        client_id, position = loose.read_text(data, position)
        destination, position = loose.read_destination(data, position)
        selector, position = loose.read_string(data, position)
        name, position = loose.read_text(data, position)
        subscribed: Destination | None = None
        if position < end:
            subscribed, position = loose.read_destination(data, position)
        no_local = data[position] != 0 if position < end else None
        if destination is None or end - position > 1:
            raise RecordDamaged("an OpenWire SubscriptionInfo has no destination, or bytes follow it")
        return SubscriptionInfo(client_id, destination, name, selector, subscribed, no_local)
    except (IndexError, struct.error):
        raise RecordDamaged("an OpenWire SubscriptionInfo is truncated") from None


def encode_ack(ack: MessageAck) -> bytes:
    """Return the frame for KahaRemoveMessageCommand."""
    cause = loose.NULL
    if ack.poison_cause is not None:
        name, text = ack.poison_cause
        cause = b"\1" + loose.string(name) + loose.string(text)
    return loose.frame(
        loose.MESSAGE_ACK,
        _HEAD,
        loose.destination(ack.destination),
        loose.transaction_id(ack.transaction),
        loose.consumer_id(ack.consumer_id),
        struct.pack(">b", ack.ack_type),
        loose.message_id(ack.first_message_id),
        loose.message_id(ack.last_message_id),
        loose.I32.pack(ack.message_count),
        cause,
    )


def ack_of_branch(
    destination: Destination, message_id: str, transaction: XaTransactionId, *, is_unmatched: bool = False
) -> bytes:
    """Return the frame for one message that an XA branch acknowledged, as KahaDB writes it
    (Queue.convertToNonRangedAck).

    ActiveMQ needs the frame when it starts with a prepared branch (KahaDBTransactionStore.recover). ``is_unmatched``:
    the message did not match a selector; KahaDB itself writes an empty frame then, after the commit.
    """
    ack_type = AckType.UNMATCHED if is_unmatched else AckType.STANDARD
    return encode_ack(MessageAck(destination, message_id, None, transaction, ack_type, message_id))


def decode_ack(data: bytes, version: int = OPENWIRE_VERSION) -> MessageAck:
    """Decode a frame of this OpenWire version. Raises RecordDamaged."""
    try:
        data_type, position, end = loose.open_frame(data)
        if data_type != loose.MESSAGE_ACK:
            raise RecordDamaged(f"OpenWire type {data_type} is no MessageAck")
        destination, position = loose.read_destination(data, position + len(_HEAD))
        transaction, position = loose.read_transaction_id(data, position)
        consumer, position = loose.read_consumer_id(data, position)
        ack_type = data[position]
        first, position = loose.read_message_id(data, position + 1, version)
        last, position = loose.read_message_id(data, position, version)
        (count,) = loose.I32.unpack_from(data, position)
        position += 4
        cause: tuple[str | None, str | None] | None = None
        if version >= 7:
            has_cause = data[position]
            position += 1
            if has_cause:
                name, position = loose.read_string(data, position)
                text, position = loose.read_string(data, position)
                cause = (name, text)
        if destination is None or position != end:
            raise RecordDamaged("an OpenWire MessageAck has no destination, or bytes follow it")
        return MessageAck(destination, last, consumer, transaction, ack_type, first, count, cause)
    except (IndexError, struct.error):
        raise RecordDamaged("an OpenWire MessageAck is truncated, or of another version") from None
