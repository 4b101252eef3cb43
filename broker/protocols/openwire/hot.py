"""Fast reading and writing of the commands that accompany every message: in the stored form, without the interpreter.

    MessageAck       u4 size, u1 22, i4 command id, bool response required, object destination, object transaction,
                     object consumer id, i1 type, object first id, object last id, i4 count, no cause
    TransactionInfo  u4 size, u1 7, i4 command id, bool response required, object connection id, object transaction,
                     i1 type

A frame is read here as codec.py reads it, or not at all: None leaves it to the interpreter.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from tandemmq.broker.protocols.openwire.schema import (
    Command,
    IntegerResponse,
    KeepAliveInfo,
    MessageAck,
    ProducerAck,
    Response,
    TransactionInfo,
)
from tandemmq.broker.protocols.openwire.types import ConnectionId, ConsumerId, MessageId, ProducerId
from tandemmq.store.records import loose
from tandemmq.store.records.acknowledgements import AckType
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.remembered import remember

# data type -> length of what follows the name in a structure of one name and fixed numbers
ID_TAILS: Final[dict[int, int]] = {
    **{loose.DESTINATION_BASE + kind: 0 for kind in range(4)},
    loose.CONNECTION_ID: 0,
    loose.BROKER_ID: 0,
    loose.SESSION_ID: 8,
    loose.CONSUMER_ID: 16,
    loose.PRODUCER_ID: 16,
}
STRING_HEAD: Final = 3  # present, length
# bytes of such a structure, with its data type -> its values
KNOWN_IDS: Final[dict[bytes, Any]] = {}

_HEAD: Final = struct.Struct(">xxxxxi?")
_HEAD_BYTES: Final[int] = _HEAD.size
_END: Final = struct.Struct(">i?")
_MESSAGE_ID: Final = bytes((1, loose.MESSAGE_ID, 0, 1, loose.PRODUCER_ID))  # no text, a producer
_PRODUCER: Final = 3  # its offset in the bytes above
_SINGLE_END: Final = _END.pack(1, False)
# The bytes of a single ack from its destination to the producer of its first message id -> its consumer, as in the
# frame, and that producer
_ack_heads: Final[dict[bytes, tuple[bytes, str]]] = {}
STANDARD: Final = int(AckType.STANDARD)
TRANSACTION_INFO: Final = 7


def read_message_ack(data: bytes) -> MessageAck | None:
    """Return the ack of a whole frame of that type; None if it holds anything unusual."""
    try:
        command_id, response_required = _HEAD.unpack_from(data)
        destination, position = loose.read_destination(data, _HEAD.size)
        if data[position]:
            transaction, position = loose.read_transaction_id(data, position)
        else:
            transaction = None
            position += 1
        # Only objects that the interpreter made of the same bytes before; it reads all others.
        stop = position + 21 + (data[position + 3] << 8 | data[position + 4])
        consumer = KNOWN_IDS[data[position + 1 : stop]]
        if data[position] != 1 or type(consumer) is not ConsumerId:
            return None
        ack_type = data[stop]
        first, position = _message_id(data, stop + 1)
        following = position + position - stop - 1
        if data[stop + 1 : position] == data[position:following]:  # as in nearly all
            last, position = first, following
        else:
            last, position = _message_id(data, position)
        count, has_cause = _END.unpack_from(data, position)
    except (IndexError, KeyError, struct.error, RecordDamaged):
        return None
    if has_cause or ack_type > 0x7F or position + _END.size != len(data):
        return None
    return MessageAck(command_id, response_required, destination, transaction, consumer, ack_type, first, last, count)


def read_transaction_info(data: bytes) -> TransactionInfo | None:
    """Return the TransactionInfo of a whole frame of that type; None if it holds anything unusual."""
    try:
        command_id, response_required = _HEAD.unpack_from(data)
        stop = _HEAD_BYTES + 2 + STRING_HEAD + (data[_HEAD_BYTES + 3] << 8 | data[_HEAD_BYTES + 4])
        connection = KNOWN_IDS[data[_HEAD_BYTES + 1 : stop]]
        if data[_HEAD_BYTES] != 1 or type(connection) is not ConnectionId:
            return None
        transaction, position = loose.read_transaction_id(data, stop)
        kind = data[position]
    except (IndexError, KeyError, struct.error, RecordDamaged):
        return None
    if kind > 0x7F or position + 1 != len(data):
        return None
    return TransactionInfo(command_id, response_required, connection, transaction, kind)


def read_single_ack(data: bytes) -> tuple[bytes, str, int | None] | None:
    """Return the ack that a consumer with AUTO_ACKNOWLEDGE sends for each message: STANDARD, of one message, in no
    transaction. None: it has another form, or is invalid.

    The result is the consumer's id as it is in the frame, data type before it; the store's message id; and the
    command id, None if no response is required."""
    try:
        command_id, response_required = _HEAD.unpack_from(data)
        transaction = 15 + (data[13] << 8 | data[14])  # after the destination
        stop = transaction + 22 + (data[transaction + 4] << 8 | data[transaction + 5])
        first = stop + 1
        sequence_at = first + 24 + (data[first + 6] << 8 | data[first + 7])
        last = sequence_at + 16
        end = last + last - first
        if data[first:last] != data[last:end] or data[end:] != _SINGLE_END:
            return None
        head = data[_HEAD_BYTES:sequence_at]
        known = _ack_heads.get(head)
        if known is None:
            known = _read_ack_head(data, transaction, stop, sequence_at)
            if known is None:
                return None
            remember(_ack_heads, head, known, len(head))
        (sequence,) = loose.I64.unpack_from(data, sequence_at)
    except (IndexError, struct.error, RecordDamaged):
        return None
    return known[0], f"{known[1]}:{sequence}", command_id if response_required else None


def _read_ack_head(data: bytes, transaction: int, stop: int, sequence_at: int) -> tuple[bytes, str] | None:
    """Return consumer and producer of a single ack whose transaction is null at ``transaction``, whose consumer ends at
    ``stop``, and whose first message id has its numbers at ``sequence_at``. None if the frame has another form."""
    if loose.read_destination(data, _HEAD_BYTES)[1] != transaction or data[transaction] or data[stop] != STANDARD:
        return None
    if not data.startswith(_MESSAGE_ID, stop + 1):
        return None
    producer, end = loose.read_producer_id(data, stop + 1 + _PRODUCER)
    return (data[transaction + 1 : stop], producer) if end == sequence_at else None


def _message_id(data: bytes, position: int) -> tuple[MessageId | None, int]:
    """Return the id, and the position after it. Raises KeyError for one that is not of the usual form, or whose
    producer is not known yet."""
    if not data[position]:
        return None, position + 1
    start = position + 5
    stop = start + 19 + (data[start + 1] << 8 | data[start + 2])
    if data[position:start] != _MESSAGE_ID:
        raise KeyError
    producer = KNOWN_IDS[data[start - 1 : stop]]
    return MessageId(None, producer, *loose.PAIR.unpack_from(data, stop)), stop + 16


# data type -> its reader; each returns None for a frame that the interpreter must read
READERS: Final[dict[int, Callable[[bytes], Command | None]]] = {
    TRANSACTION_INFO: read_transaction_info,
    loose.MESSAGE_ACK: read_message_ack,
}


# ---- writing

_PLAIN: Final = struct.Struct(">iBi?")
_RESPONSE: Final = struct.Struct(">iBi?i")
_INTEGER: Final = struct.Struct(">iBi?ii")
_producers: Final[dict[ProducerId, bytes]] = {}


def _write_keep_alive(command: KeepAliveInfo) -> bytes:
    return _PLAIN.pack(6, 10, command.command_id, command.response_required)


def _write_response(command: Response) -> bytes:
    return _RESPONSE.pack(10, 30, command.command_id, command.response_required, command.correlation_id)


def _write_integer(command: IntegerResponse) -> bytes:
    number, required = command.command_id, command.response_required
    return _INTEGER.pack(14, 34, number, required, command.correlation_id, command.result)


def _write_producer_ack(command: ProducerAck) -> bytes:
    producer = command.producer_id
    data = loose.NULL if producer is None else _producers.get(producer)
    if data is None:
        assert producer is not None, "null is known"
        data = loose.producer_id(producer.connection_id, producer.session_id, producer.value)
        remember(_producers, producer, data, len(data))
    size = 10 + len(data)
    head = _PLAIN.pack(size, 19, command.command_id, command.response_required)
    return head + data + loose.I32.pack(command.size)


# class -> its writer; they raise struct.error and Unencodable as the interpreter does
WRITERS: Final[dict[type[Command], Callable[[Any], bytes]]] = {
    KeepAliveInfo: _write_keep_alive,
    Response: _write_response,
    IntegerResponse: _write_integer,
    ProducerAck: _write_producer_ack,
}
