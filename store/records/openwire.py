"""Codec of messages as OpenWire frames: loose encoding, version 11, as in KahaDB. Versions 1 to 12 can be decoded.

:mod:`store.records.fields` shows the layout. :mod:`store.records.frames` decodes only the necessary parts of a frame.

A decoded message has all fields that a receiver sees. If it has no ``raw``, these fields are lost: transaction ids
(which the commands in the journal have), broker path and cluster, target consumer and data structure.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable

from tandemmq.store.records import loose
from tandemmq.store.records.errors import RecordDamaged, RecordTooLarge, Unencodable
from tandemmq.store.records.fields import check_end, read_fields
from tandemmq.store.records.loose import OPENWIRE_VERSION
from tandemmq.store.records.message import BodyKind, Message, PropertyValue, unread
from tandemmq.store.records.properties import decode_properties, encode_properties
from tandemmq.store.records.utf import modified_of_utf8, utf8_of_modified

INFLATED_BYTES_MAX = 100 * 1024 * 1024  # limit of a decompressed body, as in ActiveMQ
VERSIONS_TRIED = (11, 6, 2, 1)  # one version of each layout, the most frequent first

_NULL = loose.NULL
_NUL = b"\0"
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


_LONG_BYTES_MIN = 64 * 1024
_TEXT = int(BodyKind.TEXT)
_BLOB = int(BodyKind.BLOB)


def encode_message(message: Message) -> bytes:
    """Return the frame of a message: ``message.raw`` if it has one, otherwise a new frame in ActiveMQ's form.

    In a new frame no response is required, and the broker in time is the timestamp. If the message has no broker
    sequence, that of the producer is used: ActiveMQ compares it only between the unacknowledged messages of a consumer.
    Raises Unencodable if a value does not fit into OpenWire.
    """
    if message.raw:
        return message.raw
    producer, sequence, foreign = loose.split_key(message.message_id)
    text = message.text_view if foreign is None else foreign
    kind = message.body_kind
    body = message.body
    extra = _NULL
    if kind == _TEXT:
        if not body.isascii() or _NUL in body:
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
        parts = (
            _HEADS[kind],
            producer,
            loose.destinations.get(message.destination) or loose.destination(message.destination),
            _NULL,
            _NULL if original is None else loose.destination(original),
            b"\1\x6e",
            _NULL if text is None else loose.string(text),
            producer,
            _IDS.pack(sequence, message.broker_sequence or sequence),
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
        if len(body) > _LONG_BYTES_MIN:  # one join, to avoid a second copy of the body
            return b"".join((_SIZE.pack(sum(map(len, parts))), *parts))
        frame = b"".join(parts)
        return _SIZE.pack(len(frame)) + frame
    except struct.error as error:
        raise Unencodable(f"a number of message {message.message_id} is out of range: {error}") from None


def decode_message(data: bytes, version: int = OPENWIRE_VERSION) -> Message:
    """Decode the frame in ``data`` completely. A compressed body is decompressed; the message has no ``raw``.

    Raises RecordDamaged unless the frame is complete, has the layout of ``version``, ends at its stated size, and its
    body and properties can be decoded.
    """
    message = unread()
    try:
        marks, stop, _ = read_fields(message, data, version)
        check_end(message.body_kind, data, stop)
        _, _, _, _, _, _, _, content_at, properties_at, _, counter_at, _, _ = marks
        message.properties = read_properties(data, properties_at)
        if message.body_kind is BodyKind.BLOB:
            message.body = data[stop:]
        else:
            message.body = read_body(data, content_at, message.body_kind, is_compressed=data[counter_at - 1] != 0)
    except (IndexError, struct.error):
        raise RecordDamaged("an OpenWire message is truncated, or of another version") from None
    return message


def detect_version(frames: Iterable[bytes], versions: Iterable[int] = VERSIONS_TRIED) -> int | None:
    """Return the OpenWire version in which all ``frames`` are valid, or None. The result is 11 for versions 10 to 12, 6
    for versions 3 to 9, 2 or 1, because these have the same layouts.

    KahaDB stores the version only in its index, so without the index it must be detected.
    """
    samples = list(frames)
    for version in versions:
        try:
            for sample in samples:
                decode_message(sample, version)
        except RecordDamaged:
            continue
        return version
    return None


def decode_any(data: bytes) -> Message:
    """Decode a frame of unknown version. Raises RecordDamaged."""
    version = detect_version([data])
    if version is None:
        raise RecordDamaged("the message is valid in no version of OpenWire")
    return decode_message(data, version)


def current_frame(data: bytes, version: int) -> bytes:
    """Return a frame of this version, converted to OPENWIRE_VERSION."""
    return data if version == OPENWIRE_VERSION else encode_message(decode_message(data, version))


def read_body(
    data: bytes,
    content_at: int,
    kind: BodyKind,
    *,
    is_compressed: bool,
    inflated_bytes_max: int = INFLATED_BYTES_MAX,
) -> bytes:
    """Return ``Message.body`` from the content at ``content_at``. Raises RecordDamaged, IndexError or struct.error.

    Raises RecordTooLarge if a compressed body is longer than ``inflated_bytes_max``; only that much is decompressed.
    """
    stop = loose.skip_blob(data, content_at)
    if not data[content_at]:
        return b""
    start = content_at + _CONTENT.size
    if is_compressed:
        data = _inflate(data[start:stop], kind, inflated_bytes_max)
        start, stop = 0, len(data)
    return _text(data, start, stop) if kind is BodyKind.TEXT else data[start:stop]


def read_properties(data: bytes, position: int) -> dict[str, PropertyValue] | None:
    """Return ``Message.properties`` from the map at ``position``. Raises RecordDamaged, IndexError or struct.error."""
    marshalled, _ = loose.read_blob(data, position)
    return None if marshalled is None else decode_properties(marshalled) or None


def _text(data: bytes, start: int, stop: int) -> bytes:
    (length,) = loose.I32.unpack_from(data, start)
    start += loose.I32.size
    if length < 0 or length != stop - start:
        raise RecordDamaged(f"a text body claims {length} bytes and has {stop - start}")
    return utf8_of_modified(data, start, stop)


def _inflate(content: bytes, kind: BodyKind, bytes_max: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        if kind is BodyKind.BYTES:
            # ActiveMQBytesMessage writes the length first, and compresses its whole buffer: decompressed bytes after
            # the length are ignored.
            (length,) = loose.I32.unpack_from(content)
            if length < 0:
                raise RecordDamaged(f"a compressed body claims {length} bytes")
            if length > bytes_max:
                raise RecordTooLarge(f"a compressed body claims {length} bytes, and {bytes_max} are allowed")
            inflated = inflater.decompress(content[4:], length) if length else b""
            is_whole = len(inflated) == length
        else:
            inflated = inflater.decompress(content, bytes_max)
            is_whole = inflater.eof
    except zlib.error as error:
        raise RecordDamaged(f"a compressed body cannot be inflated: {error}") from None
    if not is_whole and inflater.unconsumed_tail and kind is not BodyKind.BYTES:
        raise RecordTooLarge(f"a compressed body is longer than {bytes_max} bytes")
    if not is_whole:
        raise RecordDamaged("a compressed body is truncated")
    return inflated
