"""Codec of OpenWire objects in the loose encoding, without cache and stack traces, as in KahaDB.

    string   bool present, u2 length, modified UTF-8
    bytes    bool present, i4 length, bytes
    object   bool present, i1 data type, fields in order; superclass first
    array    bool present, i2 count, objects

Readers take (data, position) and return (value, position after it). They raise IndexError or struct.error if the bytes
end too early; callers that read a frame convert these errors to RecordDamaged.
"""

from __future__ import annotations

import struct
from typing import Final

from tandemmq.store.records.errors import RecordDamaged, RecordTooLarge, Unencodable
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.remembered import remember
from tandemmq.store.records.transactions import LocalTransactionId, TransactionId, XaTransactionId
from tandemmq.store.records.utf import decode_modified, encode_modified

OPENWIRE_VERSION: Final = 11  # of the frames that TandemMQ stores; as in ActiveMQ since 5.12, for all clients

MESSAGE_ACK: Final = 22
SUBSCRIPTION_INFO: Final = 55
DESTINATION_BASE: Final = 100  # + DestinationKind
MESSAGE_ID: Final = 110
LOCAL_TRANSACTION_ID: Final = 111
XA_TRANSACTION_ID: Final = 112
CONNECTION_ID: Final = 120
SESSION_ID: Final = 121
CONSUMER_ID: Final = 122
PRODUCER_ID: Final = 123
BROKER_ID: Final = 124

NULL: Final = b"\0"
STRING_BYTES_MAX: Final = 0xFFFF

I32: Final[struct.Struct] = struct.Struct(">i")
I64: Final[struct.Struct] = struct.Struct(">q")
PAIR: Final[struct.Struct] = struct.Struct(">qq")
_STRING: Final = struct.Struct(">BH")
_BLOB: Final = struct.Struct(">Bi")
FRAME: Final[struct.Struct] = struct.Struct(">iB")
FRAME_SIZE: Final[int] = FRAME.size
# Average length in bytes that is allowed for an element of a broker path or cluster, which contains a host name.
_OBJECT_BYTES: Final = 64


# ---- writing


def has_room_for(text: str) -> bool:
    """Return whether ``text`` is short enough for an OpenWire string, or the name of a property."""
    # A character takes six bytes at most.
    return len(text) <= STRING_BYTES_MAX // 6 or len(encode_modified(text)) <= STRING_BYTES_MAX


def string(text: str | None) -> bytes:
    """Encode a string. Raises Unencodable for more than 64 KiB."""
    if text is None:
        return NULL
    data = encode_modified(text)
    if len(data) > STRING_BYTES_MAX:
        raise Unencodable(f"a string of {len(data)} bytes is longer than OpenWire allows")
    return _STRING.pack(1, len(data)) + data


def blob(data: bytes | None) -> bytes:
    return NULL if data is None else _BLOB.pack(1, len(data)) + data


def destination(value: Destination | None) -> bytes:
    """Encode a destination as an object. The result is cached."""
    if value is None:
        return NULL
    data = destinations.get(value)
    if data is None:
        data = bytes((1, DESTINATION_BASE + value.kind)) + string(value.name)
        remember(destinations, value, data, len(data))
    return data


def producer_id(connection_id: str, session: int, producer: int) -> bytes:
    return bytes((1, PRODUCER_ID)) + string(connection_id) + PAIR.pack(producer, session)  # in this order


def consumer_id(text: str | None) -> bytes:
    """Encode ``<connection>:<session>:<consumer>`` as a ConsumerId object."""
    if text is None:
        return NULL
    connection_id, session, value = text.rsplit(":", 2)
    return bytes((1, CONSUMER_ID)) + string(connection_id) + PAIR.pack(int(session), int(value))


def message_id(key: str | None) -> bytes:
    """Encode a producer key (see ``producer_key``) as a MessageId object."""
    if key is None:
        return NULL
    producer, sequence, text_view = split_key(key)
    return bytes((1, MESSAGE_ID)) + string(text_view) + producer + PAIR.pack(sequence, sequence)


def transaction_id(value: TransactionId | None) -> bytes:
    if value is None:
        return NULL
    if isinstance(value, LocalTransactionId):
        head = bytes((1, LOCAL_TRANSACTION_ID)) + I64.pack(value.value)
        return head + bytes((1, CONNECTION_ID)) + string(value.connection_id)
    head = bytes((1, XA_TRANSACTION_ID)) + I32.pack(value.format_id)
    return head + blob(value.global_id) + blob(value.branch)


def frame(data_type: int, *fields: bytes) -> bytes:
    """Return a complete frame with its size prefix."""
    body = b"".join(fields)
    return FRAME.pack(len(body) + 1, data_type) + body


# ---- message ids


def producer_key(text: str) -> str:
    """Return the producer key of a message id, under which KahaDB stores the message:
    ``<connection>:<session>:<producer>:<sequence>``.

    An id of this form is returned unchanged. Session, producer and sequence 0 are appended to any other text, so that
    ActiveMQ, which computes the key from the numbers, gets the same key. Its clients see the text.
    """
    return text if split_key(text)[2] is None else f"{text}:0:0:0"


def key_bytes(text: str) -> bytes:
    """Return :func:`producer_key` in UTF-8."""
    prefix, _, last = text.rpartition(":")
    if prefix in producers and is_plain_sequence(last):
        return text.encode()
    return producer_key(text).encode("utf-8", "surrogatepass")


def split_key(text: str) -> tuple[bytes, int, str | None]:
    """Return (encoded ProducerId, sequence, text that clients see) of a message id. The text is None if the id has the
    form of a producer key."""
    prefix, _, last = text.rpartition(":")
    producer = producers.get(prefix)
    if producer is not None and is_plain_sequence(last):
        return producer, int(last), None
    numbers = _numbers(text)
    if numbers is None:
        return producer_id(text, 0, 0), 0, text
    connection_id, session, value, sequence = numbers
    producer = producer_id(connection_id, session, value)
    remember(producers, prefix, producer, len(producer))
    return producer, sequence, None


def is_plain_sequence(text: str) -> bool:
    """Return whether a quick check shows that ``text`` is a positive number in Java's form. False: unknown."""
    return text.isdecimal() and text[0] != "0" and len(text) < 19 and text.isascii()


def _numbers(text: str) -> tuple[str, int, int, int] | None:
    parts = text.rsplit(":", 3)
    if len(parts) != 4:
        return None
    try:
        session, producer, sequence = int(parts[1]), int(parts[2]), int(parts[3])
        PAIR.pack(session, producer)
        I64.pack(sequence)
    except (ValueError, struct.error):
        return None
    # Only Java's form of a number counts: 007 would be read back as 7.
    if f"{parts[0]}:{session}:{producer}:{sequence}" != text:
        return None
    return parts[0], session, producer, sequence


# `<connection>:<session>:<producer>` -> encoded ProducerId, for prefixes of this form
producers: Final[dict[str, bytes]] = {}
destinations: Final[dict[Destination, bytes]] = {}


# ---- reading


def open_frame(data: bytes) -> tuple[int, int, int]:
    """Return (data type, position of the first field, end) of the frame in ``data``. Raises RecordDamaged if its size
    is not that of ``data``."""
    size, data_type = FRAME.unpack_from(data)
    if size + 4 != len(data):
        raise RecordDamaged(f"an OpenWire frame claims {size + 4} bytes and has {len(data)}")
    return data_type, FRAME_SIZE, len(data)


def read_string(data: bytes, position: int) -> tuple[str | None, int]:
    if not data[position]:
        return None, position + 1
    start = position + 3
    stop = start + (data[position + 1] << 8 | data[position + 2])
    if stop > len(data):
        raise IndexError
    return decode_modified(data[start:stop]), stop


def read_blob(data: bytes, position: int) -> tuple[bytes | None, int]:
    stop = skip_blob(data, position)
    return data[position + 5 : stop] if data[position] else None, stop


def skip_blob(data: bytes, position: int) -> int:
    """Return the end of the blob at ``position``."""
    if not data[position]:
        return position + 1
    (length,) = I32.unpack_from(data, position + 1)
    stop: int = position + 5 + length
    if length < 0 or stop > len(data):
        raise IndexError
    return stop


def read_text(data: bytes, position: int) -> tuple[str, int]:
    """Read a string that must be present."""
    text, position = read_string(data, position)
    if text is None:
        raise RecordDamaged("a name is missing")
    return text, position


# Encoded object -> value. Most frames have the same objects as the previous frame.
_known_destinations: Final[dict[bytes, Destination]] = {}
_known_producers: Final[dict[bytes, str]] = {}


def read_destination(data: bytes, position: int) -> tuple[Destination | None, int]:
    if not data[position]:
        return None, position + 1
    stop = position + 5 + (data[position + 3] << 8 | data[position + 4])
    key = data[position:stop]
    found = _known_destinations.get(key)
    if found is None:
        kind = key[1] - DESTINATION_BASE
        if not 0 <= kind <= DestinationKind.TEMP_TOPIC:
            raise RecordDamaged(f"OpenWire type {key[1]} is no destination")
        name, stop = read_text(data, position + 2)
        found = Destination(DestinationKind(kind), name)
        remember(_known_destinations, key, found, len(key))
    return found, stop


def _expect(data: bytes, position: int, data_type: int) -> int:
    if data[position] != 1 or data[position + 1] != data_type:
        raise RecordDamaged(f"OpenWire type {data_type} expected, {data[position + 1]} found")
    return position + 2


def read_producer_id(data: bytes, position: int) -> tuple[str, int]:
    """Read ``<connection>:<session>:<producer>``."""
    stop = position + 5 + (data[position + 3] << 8 | data[position + 4]) + PAIR.size
    key = data[position:stop]
    found = _known_producers.get(key)
    if found is None:
        connection_id, after = read_text(data, _expect(data, position, PRODUCER_ID))
        producer, session = PAIR.unpack_from(data, after)
        found = f"{connection_id}:{session}:{producer}"
        remember(_known_producers, key, found, len(key))
    return found, stop


def read_consumer_id(data: bytes, position: int) -> tuple[str | None, int]:
    """Read ``<connection>:<session>:<consumer>``."""
    if not data[position]:
        return None, position + 1
    connection_id, position = read_text(data, _expect(data, position, CONSUMER_ID))
    session, value = PAIR.unpack_from(data, position)
    return f"{connection_id}:{session}:{value}", position + PAIR.size


def read_message_id(data: bytes, position: int, version: int = OPENWIRE_VERSION) -> tuple[str | None, int]:
    """Read a MessageId as a producer key. Without a producer, the key is made from its text."""
    if not data[position]:
        return None, position + 1
    position = _expect(data, position, MESSAGE_ID)
    text: str | None = None
    if version >= 10:
        if data[position]:
            text, position = read_string(data, position)
        else:
            position += 1
    if data[position]:
        producer, position = read_producer_id(data, position)
        sequence, _ = PAIR.unpack_from(data, position)
        return f"{producer}:{sequence}", position + PAIR.size
    if text is None:
        raise RecordDamaged("a message id has neither producer nor text")
    return producer_key(text), position + 1 + PAIR.size


def read_text_view(data: bytes, position: int) -> str | None:
    """Return the text of a MessageId: the id that the client gave the message, if the broker made the other fields."""
    return read_string(data, position + 2)[0] if data[position] else None


def read_transaction_id(data: bytes, position: int) -> tuple[TransactionId | None, int]:
    if not data[position]:
        return None, position + 1
    data_type = data[position + 1]
    position += 2
    if data_type == LOCAL_TRANSACTION_ID:
        (value,) = I64.unpack_from(data, position)
        connection_id, position = read_text(data, _expect(data, position + I64.size, CONNECTION_ID))
        return LocalTransactionId(connection_id, value), position
    if data_type == XA_TRANSACTION_ID:
        (format_id,) = I32.unpack_from(data, position)
        global_id, position = read_blob(data, position + I32.size)
        branch, position = read_blob(data, position)
        return XaTransactionId(format_id, global_id or b"", branch or b""), position
    raise RecordDamaged(f"OpenWire type {data_type} is no transaction id")


def skip_objects(data: bytes, position: int, version: int, objects_max: int) -> int:
    """Skip an array of objects (broker path, cluster). Raises RecordTooLarge for more than ``objects_max`` objects, or
    for more bytes than ``objects_max`` times _OBJECT_BYTES."""
    if not data[position]:
        return position + 1
    count = data[position + 1] << 8 | data[position + 2]
    if count > objects_max:
        raise RecordTooLarge(f"a path or cluster of {count} brokers, and {objects_max} are allowed")
    position += 3
    stop = position + objects_max * _OBJECT_BYTES
    for _ in range(count):
        position = skip_object(data, position, version)
        if position > stop:
            raise RecordTooLarge(f"a path or cluster with more than {objects_max * _OBJECT_BYTES} bytes of names")
    return position


def skip_object(data: bytes, position: int, version: int) -> int:
    """Skip an object whose value is not needed. Raises RecordDamaged for an unknown type."""
    if not data[position]:
        return position + 1
    data_type = data[position + 1]
    if data_type == PRODUCER_ID:
        return read_producer_id(data, position)[1]
    if data_type in (CONNECTION_ID, BROKER_ID):
        return read_string(data, position + 2)[1]
    if data_type == SESSION_ID:
        return read_string(data, position + 2)[1] + I64.size
    if data_type == CONSUMER_ID:
        return read_string(data, position + 2)[1] + PAIR.size
    if data_type == MESSAGE_ID:
        return read_message_id(data, position, version)[1]
    if data_type in (LOCAL_TRANSACTION_ID, XA_TRANSACTION_ID):
        return read_transaction_id(data, position)[1]
    return read_destination(data, position)[1]
