"""Reader of the header of an OpenWire message: its values, and the offsets of all fields. Body and properties stay
bytes.

    i4 size, i1 data type (23..29: BodyKind)
    i4 command id, bool response required, object producer id, object destination, object transaction id,
    object original destination, object message id, object original transaction id, string group id,
    i4 group sequence, string correlation id, bool persistent, i8 expiration, i1 priority, object reply to,
    i8 timestamp, string type, bytes content, bytes properties, object data structure, object target consumer,
    bool compressed, i4 redelivery counter, array broker path, i8 arrival, string user id, bool by bridge,
    [v2] bool droppable, [v3] array cluster, i8 broker in time, i8 broker out time, [v10] bool first for consumer
    type 29 adds: string url, string mime type, bool deleted by broker

In most messages, most fields are absent, and the others have fixed positions. Then two structs read them at once.
"""

from __future__ import annotations

import struct
from typing import Final

from tandemmq.store.records import loose
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.message import BodyKind, Destination, Message
from tandemmq.store.records.remembered import remember

PRODUCER_AT: Final[int] = loose.FRAME_SIZE + 5  # command id, response required
RAW_VERSIONS: Final = range(10, 13)  # OpenWire versions whose messages have the layout of version 11

# Offsets of 13 fields in the frame: destination, transaction id, original destination, message id, its broker sequence,
# group id, persistent, content, properties, data structure, redelivery counter, arrival, broker in time.
Marks = tuple[int, ...]

_KINDS: Final = {int(kind): kind for kind in BodyKind}
_DELIVERY: Final = struct.Struct(">?qb")
# The fields from the original transaction id to the type, if all objects and strings are absent.
_PLAIN_MIDDLE: Final = struct.Struct(">BBiB?qbBqB")
_PLAIN_MIDDLE_BYTES: Final[int] = _PLAIN_MIDDLE.size
_PLAIN_MIDDLE_PERSISTENT: Final = 7
# The fields from the data structure to the end, if all objects and strings are absent.
_PLAIN_END: Final = struct.Struct(">BBBiBqBBBBqqB")
_PLAIN_END_BYTES: Final[int] = _PLAIN_END.size
_PLAIN_END_COUNTER: Final = 3
_PLAIN_END_ARRIVAL: Final = 8
_PLAIN_END_IN_TIME: Final = 20
# The first OpenWire version whose messages have a broker in time.
BROKER_IN_SINCE: Final = 3
_MESSAGE_ID_HEAD: Final = bytes((1, loose.MESSAGE_ID, 0))  # of a message id without a text
_MESSAGE_ID_HEAD_BYTES: Final = len(_MESSAGE_ID_HEAD)
_PRODUCER_HEAD: Final = bytes((1, loose.PRODUCER_ID, 1))  # of a producer id with a connection id
_PRODUCER_BYTES: Final[int] = 5 + loose.PAIR.size  # length of a producer id without the connection id
# Bytes from the producer id to the end of the same producer id in the message id, if there is no transaction ->
# (destination, producer id). Most messages of a producer have the same bytes here.
_heads: Final[dict[bytes, tuple[Destination, str]]] = {}
# Largest number of elements of an array in a frame. It is the limit for stored messages.
_OBJECTS_MAX: Final = 0xFFFF


def read_fields(
    message: Message, data: bytes, version: int, objects_max: int = _OBJECTS_MAX
) -> tuple[Marks, int, str | None]:
    """Set the header fields of ``message`` from the frame ``data``. Return (offsets of the fields, end of the last
    field, producer id ``<connection>:<session>:<producer>`` or None).

    Body, properties and raw are not set. Raises RecordDamaged, IndexError or struct.error if ``data`` is no complete
    frame; the fields that only type 29 has are not checked. Raises RecordTooLarge if the broker path or the cluster has
    more than ``objects_max`` elements.
    """
    size, type = loose.FRAME.unpack_from(data)
    if size + 4 != len(data):
        raise RecordDamaged(f"an OpenWire frame claims {size + 4} bytes and has {len(data)}")
    kind = _KINDS.get(type)
    if kind is None:
        raise RecordDamaged(f"OpenWire type {type} is no message")
    message.body_kind = kind

    producer: str | None = None
    known = None
    if version >= 10 and data.startswith(_PRODUCER_HEAD, PRODUCER_AT):
        # Offsets for a message without a transaction. If these bytes were read before, their values are cached.
        producer_bytes = _PRODUCER_BYTES + (data[PRODUCER_AT + 3] << 8 | data[PRODUCER_AT + 4])
        destination_at = PRODUCER_AT + producer_bytes
        transaction_at = destination_at + 5 + (data[destination_at + 3] << 8 | data[destination_at + 4])
        original_at = transaction_at + 1
        message_id_at = transaction_at + 2
        broker_sequence_at = message_id_at + _MESSAGE_ID_HEAD_BYTES + producer_bytes + 8
        known = _heads.get(data[PRODUCER_AT : broker_sequence_at - 8])
    if known is not None:
        message.destination, producer = known
        message.original_destination = None
        sequence, message.broker_sequence = loose.PAIR.unpack_from(data, broker_sequence_at - 8)
        message.message_id = f"{producer}:{sequence}"
        message.text_view = None
    else:
        producer, destination_at, transaction_at, original_at, message_id_at, broker_sequence_at = _read_head(
            message, data, version
        )

    position = broker_sequence_at + 8
    (
        original_transaction,
        group,
        message.group_sequence,
        correlation,
        message.persistent,
        message.expiration,
        message.priority,
        reply_to,
        message.timestamp,
        jms_type,
    ) = _PLAIN_MIDDLE.unpack_from(data, position)
    if original_transaction or group or correlation or reply_to or jms_type:
        group_at, delivery_at, content_at = _read_middle(message, data, position, version)
    else:
        group_at = position + 1
        delivery_at = position + _PLAIN_MIDDLE_PERSISTENT
        content_at = position + _PLAIN_MIDDLE_BYTES
        message.group_id = message.correlation_id = message.type = None
        message.reply_to = None

    properties_at = loose.skip_blob(data, content_at)
    structure_at = loose.skip_blob(data, properties_at) if data[properties_at] else properties_at + 1
    if version >= 10:
        (structure, target, _, message.redelivery_counter, path, _, user, _, _, cluster, _, _, _) = (
            _PLAIN_END.unpack_from(data, structure_at)
        )
        if not (structure or target or path or user or cluster):
            message.user_id = None
            counter_at = structure_at + _PLAIN_END_COUNTER
            arrival_at = structure_at + _PLAIN_END_ARRIVAL
            in_time_at = structure_at + _PLAIN_END_IN_TIME
            stop = structure_at + _PLAIN_END_BYTES
        else:
            counter_at, arrival_at, in_time_at, stop = _read_end(message, data, structure_at, version, objects_max)
    else:
        counter_at, arrival_at, in_time_at, stop = _read_end(message, data, structure_at, version, objects_max)
    marks = (
        destination_at,
        transaction_at,
        original_at,
        message_id_at,
        broker_sequence_at,
        group_at,
        delivery_at,
        content_at,
        properties_at,
        structure_at,
        counter_at,
        arrival_at,
        in_time_at,
    )
    return marks, stop, producer


def _read_head(message: Message, data: bytes, version: int) -> tuple[str | None, int, int, int, int, int]:
    """Read the fields from the producer id to the message id. Return the producer id, and the offsets of destination,
    transaction id, original destination, message id and broker sequence."""
    producer: str | None = None
    destination_at = PRODUCER_AT + 1
    if data[PRODUCER_AT] == 1 and data[PRODUCER_AT + 1] == loose.PRODUCER_ID:
        producer, destination_at = loose.read_producer_id(data, PRODUCER_AT)
    elif data[PRODUCER_AT]:
        destination_at = loose.skip_object(data, PRODUCER_AT, version)
    destination, transaction_at = loose.read_destination(data, destination_at)
    original_at = transaction_at + 1
    if data[transaction_at]:
        original_at = loose.skip_object(data, transaction_at, version)
    message.original_destination = None
    message_id_at = original_at + 1
    if data[original_at]:
        message.original_destination, message_id_at = loose.read_destination(data, original_at)

    # Most message ids contain the same producer id as the frame.
    prefix = data[PRODUCER_AT:destination_at]
    producer_at = message_id_at + len(_MESSAGE_ID_HEAD)
    if (
        producer is not None
        and version >= 10
        and data.startswith(_MESSAGE_ID_HEAD, message_id_at)
        and data.startswith(prefix, producer_at)
    ):
        broker_sequence_at = producer_at + len(prefix) + 8
        sequence, message.broker_sequence = loose.PAIR.unpack_from(data, broker_sequence_at - 8)
        message_id: str | None = f"{producer}:{sequence}"
        message.text_view = None
        if message_id_at == transaction_at + 2 and destination is not None:
            head = data[PRODUCER_AT : broker_sequence_at - 8]
            remember(_heads, head, (destination, producer), len(head))
    else:
        message_id, stop = loose.read_message_id(data, message_id_at, version)
        message.text_view = loose.read_text_view(data, message_id_at) if version >= 10 else None
        broker_sequence_at = stop - 8
        if message_id is not None:
            (message.broker_sequence,) = loose.I64.unpack_from(data, broker_sequence_at)
    if destination is None or message_id is None:
        raise RecordDamaged("an OpenWire message has no destination or no id")
    message.destination = destination
    message.message_id = message_id
    return producer, destination_at, transaction_at, original_at, message_id_at, broker_sequence_at


def _read_middle(message: Message, data: bytes, position: int, version: int) -> tuple[int, int, int]:
    """Read the fields from the original transaction id to the type. Return the offsets of group id, persistent and
    content."""
    group_at = loose.skip_object(data, position, version)
    message.group_id, position = loose.read_string(data, group_at)
    (message.group_sequence,) = loose.I32.unpack_from(data, position)
    message.correlation_id, delivery_at = loose.read_string(data, position + 4)
    message.persistent, message.expiration, message.priority = _DELIVERY.unpack_from(data, delivery_at)
    message.reply_to, position = loose.read_destination(data, delivery_at + _DELIVERY.size)
    (message.timestamp,) = loose.I64.unpack_from(data, position)
    message.type, content_at = loose.read_string(data, position + 8)
    return group_at, delivery_at, content_at


def _read_end(
    message: Message, data: bytes, position: int, version: int, objects_max: int
) -> tuple[int, int, int, int]:
    """Read the fields from the data structure to the end. Return the offsets of redelivery counter, arrival and broker
    in time, and the end of the last field."""
    position = loose.skip_object(data, position, version)
    counter_at = loose.skip_object(data, position, version) + 1
    (message.redelivery_counter,) = loose.I32.unpack_from(data, counter_at)
    arrival_at = loose.skip_objects(data, counter_at + 4, version, objects_max)
    message.user_id, position = loose.read_string(data, arrival_at + 8)
    in_time_at = stop = position + (1 if version < 2 else 2)
    if version >= 3:
        in_time_at = loose.skip_objects(data, in_time_at, version, objects_max)
        stop = in_time_at + 16 + (version >= 10)
    return counter_at, arrival_at, in_time_at, stop


def check_end(kind: BodyKind, data: bytes, stop: int) -> None:
    """Raise RecordDamaged, IndexError or struct.error unless the frame ends with its last field. ``stop``: end of the
    fields that all types have."""
    if kind is BodyKind.BLOB:
        stop = loose.read_string(data, stop)[1]
        stop = loose.read_string(data, stop)[1] + 1
    if stop != len(data):
        raise RecordDamaged(f"{len(data) - stop} bytes follow an OpenWire message: truncated or of another version")
