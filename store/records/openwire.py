"""Messages as OpenWire frames: loose, version 11, as KahaDB keeps them; read also in versions 1 to 12.

    i4 size, i1 data type (23..29: BodyKind)
    i4 command id, bool response required, object producer id, object destination, object transaction id,
    object original destination, object message id, object original transaction id, string group id,
    i4 group sequence, string correlation id, bool persistent, i8 expiration, i1 priority, object reply to,
    i8 timestamp, string type, bytes content, bytes properties, object data structure, object target consumer,
    bool compressed, i4 redelivery counter, array broker path, i8 arrival, string user id, bool by bridge,
    [v2] bool droppable, [v3] array cluster, i8 broker in time, i8 broker out time, [v10] bool first for consumer
    type 29 adds: string url, string mime type, bool deleted by broker

A message keeps what a receiver sees. Left behind are transaction ids (the journal's commands carry them), the path
through a network of brokers, target consumer and data structure (advisories, which nobody stores).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable

from store.records import loose
from store.records.errors import RecordDamaged, Unencodable
from store.records.loose import OPENWIRE_VERSION
from store.records.message import BodyKind, Destination, Message
from store.records.properties import decode_properties, encode_properties
from store.records.utf import modified_of_utf8, utf8_of_modified

INFLATED_BYTES_MAX = 100 * 1024 * 1024  # ActiveMQ's own bound for bodies that a broker inflates
VERSIONS_TRIED = (11, 6, 2, 1)  # one for each layout; the usual ones first

_NULL = loose.NULL
_SIZE = struct.Struct(">i")
_HEADS = {int(kind): struct.pack(">BiB", kind, 0, 0) for kind in BodyKind}
_IDS = struct.Struct(">qqx")  # sequence, broker sequence; no original transaction
_DELIVERY = struct.Struct(">Bqb")
_CONTENT = struct.Struct(">Bi")
_TEXT_CONTENT = struct.Struct(">Bii")
_TAIL = struct.Struct(">xxxixq")  # data structure, target, compressed, redelivery counter, broker path, arrival
_TAIL_FRESH = _TAIL.pack(0, 0)
_END = struct.Struct(">xxxqqx")  # by bridge, droppable, cluster, broker in and out time, first for consumer
_NO_SEQUENCE = loose.I32.pack(0)

_DELIVERY_READ = struct.Struct(">?qb")
_TIMES = loose.PAIR

_TEXT = int(BodyKind.TEXT)
_BYTES = int(BodyKind.BYTES)
_BLOB = int(BodyKind.BLOB)
_KINDS = {int(kind): kind for kind in BodyKind}


def encode_message(message: Message) -> bytes:
    """The frame that ActiveMQ finds in its store. Raises Unencodable for what OpenWire has no room for.

    Responses are not required and broker-in time is the timestamp. The broker sequence, which ActiveMQ compares only
    within a consumer's unacknowledged messages, is the producer's.
    """
    producer, sequence, foreign = loose.split_key(message.message_id)
    kind = message.body_kind
    body = message.body
    extra = _NULL
    if kind == _TEXT:
        body = modified_of_utf8(body)
        content = _TEXT_CONTENT.pack(1, len(body) + 4, len(body))
    elif kind == _BLOB:
        content, body, extra = _NULL, b"", body
    elif body:
        content = _CONTENT.pack(1, len(body))
    else:
        content = _NULL

    original = message.original_destination
    group = message.group_id
    correlation = message.correlation_id
    reply_to = message.reply_to
    type = message.type
    properties = message.properties
    user = message.user_id
    timestamp = message.timestamp
    try:
        frame = b"".join(
            (
                _HEADS[kind],
                producer,
                loose.destination(message.destination),
                _NULL,
                _NULL if original is None else loose.destination(original),
                b"\1\x6e",
                _NULL if foreign is None else loose.string(foreign),
                producer,
                _IDS.pack(sequence, sequence),
                _NULL if group is None else loose.string(group),
                loose.I32.pack(message.group_sequence) if message.group_sequence else _NO_SEQUENCE,
                _NULL if correlation is None else loose.string(correlation),
                _DELIVERY.pack(message.persistent, message.expiration, message.priority),
                _NULL if reply_to is None else loose.destination(reply_to),
                loose.I64.pack(timestamp),
                _NULL if type is None else loose.string(type),
                content,
                body,
                loose.blob(encode_properties(properties)) if properties else _NULL,
                _TAIL.pack(message.redelivery_counter, 0) if message.redelivery_counter else _TAIL_FRESH,
                _NULL if user is None else loose.string(user),
                _END.pack(timestamp, 0),
                extra if kind == _BLOB else b"",
            )
        )
        return _SIZE.pack(len(frame)) + frame
    except struct.error as error:
        raise Unencodable(f"a number of message {message.message_id} is out of range: {error}") from None


def decode_message(data: bytes, version: int = OPENWIRE_VERSION) -> Message:
    """The message of a frame that fills ``data``; compressed bodies come inflated.

    Raises RecordDamaged unless the frame is whole, has the layout of ``version`` and ends where it says.
    """
    try:
        message, position = _read_message(data, version)
    except (IndexError, struct.error):
        raise RecordDamaged("an OpenWire message is truncated, or of another version") from None
    if position != len(data):
        raise RecordDamaged(f"{len(data) - position} bytes follow an OpenWire message: truncated or of another version")
    return message


def detect_version(frames: Iterable[bytes]) -> int | None:
    """The version (one of 11, 6, 2, 1, standing for its layout) in which all ``frames`` are sound; None if in none.

    KahaDB keeps its store's version in the index only: who lost the index has to try. Versions 3 to 9 are alike, and
    10 to 12.
    """
    samples = list(frames)
    for version in VERSIONS_TRIED:
        try:
            for sample in samples:
                decode_message(sample, version)
        except RecordDamaged:
            continue
        return version
    return None


def _read_message(data: bytes, version: int) -> tuple[Message, int]:
    type, position, _ = loose.open_frame(data)
    kind = _KINDS.get(type)
    if kind is None:
        raise RecordDamaged(f"OpenWire type {type} is no message")
    position += 5  # command id, response required
    position = loose.skip_object(data, position, version) if data[position] else position + 1
    destination, position = loose.read_destination(data, position)
    position = loose.skip_object(data, position, version) if data[position] else position + 1
    original: Destination | None = None
    if data[position]:
        original, position = loose.read_destination(data, position)
    else:
        position += 1
    message_id, position = loose.read_message_id(data, position, version)
    if destination is None or message_id is None:
        raise RecordDamaged("an OpenWire message has no destination or no id")
    position = loose.skip_object(data, position, version) if data[position] else position + 1
    group: str | None = None
    if data[position]:
        group, position = loose.read_string(data, position)
    else:
        position += 1
    (group_sequence,) = loose.I32.unpack_from(data, position)
    position += 4
    correlation: str | None = None
    if data[position]:
        correlation, position = loose.read_string(data, position)
    else:
        position += 1
    persistent, expiration, priority = _DELIVERY_READ.unpack_from(data, position)
    position += 10
    reply_to: Destination | None = None
    if data[position]:
        reply_to, position = loose.read_destination(data, position)
    else:
        position += 1
    (timestamp,) = loose.I64.unpack_from(data, position)
    position += 8
    jms_type: str | None = None
    if data[position]:
        jms_type, position = loose.read_string(data, position)
    else:
        position += 1
    content, position = loose.read_blob(data, position)
    properties = None
    if data[position]:
        marshalled, position = loose.read_blob(data, position)
        assert marshalled is not None, "the byte before it said that it is there"
        properties = decode_properties(marshalled) or None
    else:
        position += 1
    position = loose.skip_object(data, position, version) if data[position] else position + 1
    position = loose.skip_object(data, position, version) if data[position] else position + 1
    is_compressed = data[position]
    (redelivery_counter,) = loose.I32.unpack_from(data, position + 1)
    position = loose.skip_objects(data, position + 5, version) + 8  # broker path, arrival
    user: str | None = None
    if data[position]:
        user, position = loose.read_string(data, position)
    else:
        position += 1
    position += 1 if version < 2 else 2
    if version >= 3:
        position = loose.skip_objects(data, position, version) + _TIMES.size
        if version >= 10:
            position += 1
    if type == _BLOB:
        body = data[position:]
        position = loose.read_string(data, position)[1]
        position = loose.read_string(data, position)[1] + 1
    elif content is None:
        body = b""
    else:
        if is_compressed:
            content = _inflate(content, type)
        body = _text(content) if type == _TEXT else content
    message = Message(
        destination,
        message_id,
        body,
        kind,
        persistent=persistent,
        priority=priority,
        expiration=expiration,
        timestamp=timestamp,
        properties=properties,
        correlation_id=correlation,
        reply_to=reply_to,
        type=jms_type,
        group_id=group,
        group_sequence=group_sequence,
        user_id=user,
        redelivery_counter=redelivery_counter,
        original_destination=original,
    )
    return message, position


def _text(content: bytes) -> bytes:
    (length,) = loose.I32.unpack_from(content)
    if length != len(content) - 4:
        raise RecordDamaged(f"a text body claims {length} bytes and has {len(content) - 4}")
    return utf8_of_modified(content[4:])


def _inflate(content: bytes, type: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        if type == _BYTES:
            # ActiveMQBytesMessage writes the length first, and deflates its whole buffer: what is behind it is noise.
            (length,) = loose.I32.unpack_from(content)
            if not 0 <= length <= INFLATED_BYTES_MAX:
                raise RecordDamaged(f"a compressed body claims {length} bytes")
            inflated = inflater.decompress(content[4:], length) if length else b""
            is_whole = len(inflated) == length
        else:
            inflated = inflater.decompress(content, INFLATED_BYTES_MAX)
            is_whole = inflater.eof
    except zlib.error as error:
        raise RecordDamaged(f"a compressed body cannot be inflated: {error}") from None
    if not is_whole:
        raise RecordDamaged(f"a compressed body is truncated, or longer than {INFLATED_BYTES_MAX} bytes")
    return inflated
