"""Messages over their OpenWire frames: only the header is decoded, and only a few bytes of the frame are changed.

A message of a JMS producer is stored, read and sent to JMS consumers as the same bytes (``Message.raw``). Its body and
properties are decoded only when they are needed: for selectors, and for clients of other protocols.
"""

from __future__ import annotations

import logging
import struct
from functools import lru_cache
from io import BytesIO
from typing import Final

from tandemmq.limited_log import LimitedLog
from tandemmq.store.records import loose
from tandemmq.store.records.errors import RecordDamaged, RecordTooLarge
from tandemmq.store.records.fields import PRODUCER_AT, RAW_VERSIONS, check_end, read_fields
from tandemmq.store.records.loose import OPENWIRE_VERSION
from tandemmq.store.records.message import BodyKind, Message, PropertyValue
from tandemmq.store.records.openwire import (
    INFLATED_BYTES_MAX,
    decode_message,
    encode_message,
    read_body,
    read_properties,
)
from tandemmq.store.records.properties import has_at_most
from tandemmq.store.records.transactions import TransactionId
from tandemmq.store.records.utf import is_quick, is_quickly_written, is_utf8, utf8_of_modified

# Limited, because any client can send messages of which only the header is valid.
UNREADABLE: Final = LimitedLog(logging.getLogger(__name__))

_SIZE: Final = struct.Struct(">i")
# Size and type, then zeros: command id 0, no response required.
_HEAD: Final = struct.Struct(">iBxxxxx")
_TYPE_END: Final[int] = loose.FRAME_SIZE
_NO_COMMAND: Final = bytes(PRODUCER_AT - _TYPE_END)


# Limit of the brokers in the broker path or cluster of a client's message.
PATH_MAX: Final = 1_000
# Limit of the properties, with the values in lists and maps, that the event loop decodes: this takes some milliseconds.
# Texts are limited by ``utf.is_quick``. Properties of up to _QUICK_BYTES are always below the limit. Clients of STOMP
# and MQTT may set 1,000 properties, and the broker adds some.
QUICK_PROPERTIES_MAX: Final = 1_100
# A frame of at least this size is sliced as a memoryview, to avoid copies.
VIEWED_BYTES_MIN: Final = 64 * 1024
_QUICK_BYTES: Final = 1024


class OpenedMessage(Message):
    """Message over its frame, ``raw``. Body and properties are decoded at each access, so the memory of a message is
    that of its frame. Only the last decoded properties are cached.

    A body or properties that cannot be decoded count as empty, and this is logged, once a minute at most. The header is
    valid, so the message can be routed, stored and sent to clients that decode it themselves.
    """

    __slots__ = ("_body_at", "_content_at", "_frame", "_has_properties", "_is_compressed")

    _frame: bytes
    _body_at: int | None  # offset of a body that is the rest of the frame: of a blob, or an empty, unreadable body
    _content_at: int
    _has_properties: bool
    _is_compressed: bool

    def __init__(self) -> None:
        """Initialise the fields that are not in a frame. ``open_message`` sets the others."""
        self.holders = self.held_bytes = 0
        self.shared_body = None
        self.sender = None

    @property
    def raw(self) -> bytes:
        return self._frame

    @property  # type: ignore[misc]  # a message is not changed
    def body(self) -> bytes:
        if self._body_at is not None:
            return self.raw[self._body_at :]
        try:
            return read_body(self.raw, self._content_at, self.body_kind, is_compressed=self._is_compressed)
        except (RecordDamaged, IndexError, struct.error) as error:
            text = f"the body of message {self.message_id} cannot be read, and counts as empty: {error}"
            UNREADABLE.warning("messages", "body", text, level=logging.ERROR)
            self._body_at = len(self.raw)
            return b""

    @property
    def is_compressed(self) -> bool:
        """True if the body is compressed. Each access to ``body`` then decompresses it."""
        return self._is_compressed

    def inflated(self, bytes_max: int) -> bytes:
        """Return ``body`` if it has at most ``bytes_max`` bytes. Raises RecordTooLarge if it is longer; not more than
        ``bytes_max`` bytes are decompressed. Raises RecordDamaged."""
        limit = min(bytes_max, INFLATED_BYTES_MAX)
        try:
            return read_body(
                self.raw, self._content_at, self.body_kind, is_compressed=self._is_compressed, inflated_bytes_max=limit
            )
        except (IndexError, struct.error):
            raise RecordDamaged("a compressed body is truncated") from None

    def beginning(self, bytes_max: int) -> tuple[bytes, bool]:
        """Return (the first ``bytes_max`` bytes of ``body``, whether there are more). The body must not be compressed.
        A text is cut between two characters. Raises RecordDamaged."""
        try:
            start, stop = self._body_at, len(self.raw)
            if start is None:
                start, stop = self._content_at + 5, loose.skip_blob(self.raw, self._content_at)
            if self.body_kind is BodyKind.TEXT:
                start += 4  # the length of the text
            stop = max(start, stop)  # a message without a body ends before
            if self.body_kind is not BodyKind.TEXT:
                return self.raw[start : min(stop, start + bytes_max)], start + bytes_max < stop
            end = min(stop, start + bytes_max)
            while start < end < stop and self.raw[end] & 0xC0 == 0x80:
                end -= 1
        except IndexError:
            raise RecordDamaged("a body has no end") from None
        return utf8_of_modified(self.raw, start, end), end < stop

    @property
    def properties_bytes(self) -> int:
        """Length in bytes of the encoded properties, which are not decoded."""
        start = loose.skip_blob(self.raw, self._content_at)
        return loose.skip_blob(self.raw, start) - start

    @property
    def marshalled_properties(self) -> bytes:
        """Encoded properties."""
        start = loose.skip_blob(self.raw, self._content_at)
        return loose.read_blob(self.raw, start)[0] or b""

    def has_property(self, entry: bytes) -> bool:
        """Return whether the encoded properties have these bytes of a name and its value. They are not decoded: a text
        with these bytes counts, too."""
        start = loose.skip_blob(self.raw, self._content_at)
        return self.raw.find(entry, start, loose.skip_blob(self.raw, start)) >= 0

    @property
    def deflated(self) -> bytes:
        """Compressed body as its producer sent it. It is a zlib stream, if it is valid."""
        content, _ = loose.read_blob(self.raw, self._content_at)
        # ActiveMQBytesMessage writes the length of the body before the stream; other messages do not.
        return content[4:] if self.body_kind is BodyKind.BYTES and content is not None else content or b""

    @property  # type: ignore[misc]  # a message is not changed
    def properties(self) -> dict[str, PropertyValue] | None:
        if not self._has_properties:
            return None
        try:
            return _properties(self)
        except (RecordDamaged, IndexError, struct.error) as error:
            text = f"the properties of message {self.message_id} cannot be read, and count as none: {error}"
            UNREADABLE.warning("messages", "properties", text, level=logging.ERROR)
            self._has_properties = False
            return None

    @property
    def quick_properties(self) -> dict[str, PropertyValue] | None:
        if self._has_properties and len(self._frame) > _QUICK_BYTES and not _is_quick(self):
            raise RecordTooLarge("the properties are too many to be decoded by the event loop")
        return self.properties

    @property
    def may_have_properties(self) -> bool:
        return self._has_properties

    @property
    def is_quick(self) -> bool:
        """True if the event loop can decode body and properties in a few milliseconds. The time for decompression is
        not included."""
        frame = self._frame
        if len(frame) <= _QUICK_BYTES:
            return True
        if self._has_properties and not _is_quick(self):
            return False
        return self.body_kind is not BodyKind.TEXT or is_quick(frame)

    @property
    def size(self) -> int:
        return len(self.raw)


@lru_cache(maxsize=1)
def _properties(message: OpenedMessage) -> dict[str, PropertyValue] | None:
    return read_properties(message.raw, loose.skip_blob(message.raw, message._content_at))


@lru_cache(maxsize=1)
def _is_quick(message: OpenedMessage) -> bool:
    try:
        start = loose.skip_blob(message.raw, message._content_at)
        stop = loose.skip_blob(message.raw, start)
        if stop - start <= _QUICK_BYTES:
            return True
        properties = message.raw[start + 5 : stop]
        return is_quick(properties) and has_at_most(properties, QUICK_PROPERTIES_MAX)
    except (RecordDamaged, IndexError, struct.error):
        return True  # the decoder finds and logs the damage


class Accepted:
    """Message that was accepted from a producer, and the fields of its frame that are not in the message.
    ``producer_id``: ``<connection>:<session>:<producer>`` or None."""

    __slots__ = ("command_id", "is_response_required", "message", "producer_id", "transaction")

    def __init__(
        self,
        message: Message,
        command_id: int,
        is_response_required: bool,
        producer_id: str | None,
        transaction: TransactionId | None,
    ) -> None:
        self.message = message
        self.command_id = command_id
        self.is_response_required = is_response_required
        self.producer_id = producer_id
        self.transaction = transaction


def open_message(frame: bytes, version: int = OPENWIRE_VERSION) -> Message:
    """Return the message of a complete frame. With the layout of version 11 it is an OpenedMessage; older layouts are
    decoded completely.

    Raises RecordDamaged unless the frame has the layout of ``version`` and ends at its stated size.
    """
    if version not in RAW_VERSIONS:
        return decode_message(frame, version)
    message = OpenedMessage()
    try:
        marks, stop, _ = read_fields(message, frame, version)
        _open(message, frame, marks[7], marks[8], marks[10], stop)
    except (IndexError, struct.error):
        raise RecordDamaged("an OpenWire message is truncated, or of another version") from None
    return message


def accept_frame(frame: bytes | BytesIO, broker_sequence: int, now_ms: int) -> Accepted:
    """Accept a message from a producer. ``frame`` is a complete frame (loose, version 11, with its size prefix).

    The message's ``raw`` has the same bytes as the frame, with these changes: ``broker_sequence`` is set; arrival and
    broker in time are ``now_ms``; command id and response required are 0; both transaction ids are removed. A BytesIO
    is changed in place instead of copied, so the caller must not use it again. Raises RecordDamaged if the structure of
    the frame is invalid, RecordTooLarge if its broker path or cluster has more than PATH_MAX elements. Body and
    properties are not checked.
    """
    message = OpenedMessage()
    data = frame if isinstance(frame, bytes) else frame.getvalue()
    try:
        marks, stop, producer_id = read_fields(message, data, OPENWIRE_VERSION, PATH_MAX)
        (
            _, transaction_at, original_at, _, sequence_at, group_at, _, content_at, properties_at, _, counter_at,
            arrival_at, in_time_at,
        ) = marks  # fmt: skip
        transaction: TransactionId | None = None
        command_id, is_response_required = _COMMAND.unpack_from(data, _TYPE_END)
        removed = original_at - transaction_at + group_at - sequence_at - 10
        time = loose.I64.pack(now_ms)
        head: tuple[bytes, ...]
        if not removed:  # the frame has no transaction ids
            head = data[:_TYPE_END], _NO_COMMAND, data[PRODUCER_AT:sequence_at], _SEQUENCE.pack(broker_sequence)
        else:
            if data[transaction_at]:
                transaction, _ = loose.read_transaction_id(data, transaction_at)
            head = (
                _HEAD.pack(len(data) - 4 - removed, data[4]),
                data[PRODUCER_AT:transaction_at],
                loose.NULL,
                data[original_at:sequence_at],
                _SEQUENCE.pack(broker_sequence),
            )
        if isinstance(frame, bytes):
            # This slice includes the body. Of a long frame it is a view; otherwise there would be three copies.
            content: bytes | memoryview = data if arrival_at < VIEWED_BYTES_MIN else memoryview(data)
            between, end = data[arrival_at + 8 : in_time_at], data[in_time_at + 8 :]
            raw = b"".join([*head, content[group_at:arrival_at], time, between, time, end])
        else:
            # BytesIO copies its buffer on a change if there is another reference to it.
            data = data[:0]  # prove: a-gathered-frame-is-not-copied "data[:0]" -> "data"
            raw = _changed(frame, b"".join(head), group_at, arrival_at, in_time_at, time)
        _open(message, raw, content_at - removed, properties_at - removed, counter_at - removed, stop - removed)
    except (IndexError, struct.error):
        raise RecordDamaged("an OpenWire message is truncated, or of another version") from None
    message.broker_sequence = broker_sequence
    return Accepted(message, command_id, is_response_required, producer_id, transaction)


def _changed(frame: BytesIO, head: bytes, group_at: int, arrival_at: int, in_time_at: int, time: bytes) -> bytes:
    """Change ``frame`` and return its bytes: ``head``, which is not longer, replaces the bytes before ``group_at``, and
    ``time`` is written at ``arrival_at`` and ``in_time_at``."""
    with frame.getbuffer() as view:
        view[arrival_at : arrival_at + 8] = view[in_time_at : in_time_at + 8] = time
        size = len(view) - (group_at - len(head))
        if size < len(view):
            view[len(head) : size] = view[group_at:]
        view[: len(head)] = head
    frame.truncate(size)
    return frame.getvalue()


_COMMAND: Final = struct.Struct(">i?")
_SEQUENCE: Final = struct.Struct(">qx")  # broker sequence; no original transaction id


def _open(message: OpenedMessage, raw: bytes, content_at: int, properties_at: int, counter_at: int, stop: int) -> None:
    kind = message.body_kind
    if kind is BodyKind.BLOB or stop != len(raw):
        check_end(kind, raw, stop)
    message._body_at = stop if kind is BodyKind.BLOB else None
    message._content_at = content_at
    message._is_compressed = raw[counter_at - 1] != 0
    message._has_properties = raw[properties_at] != 0
    message._frame = raw


def is_long_text(message: Message) -> bool:
    """Return whether ``written`` would take too long for the event loop."""
    if message.body_kind is not BodyKind.TEXT or message.raw is not None:
        return False
    return not message.body.isascii() and not is_quickly_written(message.body)


def written(message: Message) -> Message:
    """Encode a text message, and return it as a message over its frame, so that the store and consumers use the same
    bytes. If the text is not UTF-8, ``message`` itself is changed to a bytes message and returned. Raises
    Unencodable."""
    if not is_utf8(message.body):
        message.body_kind = BodyKind.BYTES
        return message
    opened = open_message(encode_message(message))
    opened.broker_sequence = message.broker_sequence
    opened.sender = message.sender
    return opened


def nested_message(message: Message) -> memoryview:
    """Return the bytes of the message in a MessageDispatch, after the presence byte: type and fields.

    The redelivery counter in these bytes is the stored one; the MessageDispatch has its own. Raises Unencodable if the
    message does not fit into OpenWire.
    """
    return memoryview(frame_of(message))[_SIZE.size :]


def frame_of(message: Message) -> bytes:
    """Return the complete frame of a message: ``raw``, or a new encoding. Only the last encoding is cached, for the
    next consumer of the same message. Raises Unencodable."""
    return message.raw or _encoded(message)


_encoded: Final = lru_cache(maxsize=1)(encode_message)
