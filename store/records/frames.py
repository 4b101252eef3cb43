"""Messages that stay the frames they came as: what is read is the header, what changes is a few bytes of it.

A message from a JMS producer is accepted, stored, paged and given to JMS consumers as one and the same bytes
(``Message.raw``). Its body and properties are decoded only for those who ask: selectors, clients of other protocols.
"""

from __future__ import annotations

import logging
import struct
from typing import NamedTuple

from store.records import loose
from store.records.errors import RecordDamaged
from store.records.fields import PRODUCER_AT, RAW_VERSIONS, check_end, read_fields
from store.records.loose import OPENWIRE_VERSION
from store.records.message import BodyKind, Message, PropertyValue
from store.records.openwire import INFLATED_BYTES_MAX, decode_message, encode_message, read_body, read_properties
from store.records.transactions import TransactionId

log = logging.getLogger(__name__)

_SIZE = struct.Struct(">i")
# size, type, and in place of the producer's command id and wish for a response: none
_HEAD = struct.Struct(">iBxxxxx")
_NOT_READ: dict[str, PropertyValue] = {}  # in place of properties that nobody asked for yet


class OpenedMessage(Message):
    """A message over its frame, ``raw``. Body and properties are decoded when first asked for.

    What cannot be decoded reads as empty, and is logged: the header was sound, so the message can be routed, stored
    and given to clients that read for themselves. A compressed body is inflated anew each time: what it inflates to
    may be a thousand times as large, and is not for a broker to hold.
    """

    __slots__ = ("_body", "_content_at", "_is_compressed", "_properties")

    raw: bytes
    _body: bytes | None
    _content_at: int
    _is_compressed: bool
    _properties: dict[str, PropertyValue] | None

    @property
    def body(self) -> bytes:  # type: ignore[override]  # a message is not changed
        if self._body is not None:
            return self._body
        try:
            body = read_body(self.raw, self._content_at, self.body_kind, is_compressed=self._is_compressed)
        except (RecordDamaged, IndexError, struct.error) as error:
            log.error("the body of message %s cannot be read, and counts as empty: %s", self.message_id, error)
            self._body = b""
            return b""
        if not self._is_compressed:
            self._body = body
        return body

    @property
    def is_compressed(self) -> bool:
        """Whether the body is inflated each time that it is asked for."""
        return self._is_compressed

    def inflated(self, bytes_max: int) -> bytes:
        """``body``, if that has ``bytes_max`` bytes at most: what is beyond is not inflated. Raises RecordDamaged."""
        limit = min(bytes_max, INFLATED_BYTES_MAX)
        try:
            return read_body(
                self.raw, self._content_at, self.body_kind, is_compressed=self._is_compressed, inflated_bytes_max=limit
            )
        except (IndexError, struct.error):
            raise RecordDamaged("a compressed body has an end before its beginning") from None

    @property
    def deflated(self) -> bytes:
        """The body as its producer sent it: a stream of zlib, as far as that is sound."""
        content, _ = loose.read_blob(self.raw, self._content_at)
        # ActiveMQBytesMessage writes the length before the stream, all others into it.
        return content[4:] if self.body_kind is BodyKind.BYTES and content is not None else content or b""

    @property
    def properties(self) -> dict[str, PropertyValue] | None:  # type: ignore[override]  # a message is not changed
        if self._properties is _NOT_READ:
            self._properties = None
            try:
                _, position = loose.read_blob(self.raw, self._content_at)
                self._properties = read_properties(self.raw, position)
            except (RecordDamaged, IndexError, struct.error) as error:
                log.error("the properties of message %s cannot be read, and count as none: %s", self.message_id, error)
        return self._properties

    @property
    def may_have_properties(self) -> bool:
        return self._properties is not None

    @property
    def size(self) -> int:
        return len(self.raw)


class Accepted(NamedTuple):
    """A producer's frame, taken apart. ``producer_id``: ``<connection>:<session>:<producer>`` or None."""

    message: Message
    command_id: int
    is_response_required: bool
    producer_id: str | None
    transaction: TransactionId | None


def open_message(frame: bytes, version: int = OPENWIRE_VERSION) -> Message:
    """The message of a frame that fills ``frame``, with ``raw`` if it has the layout of version 11.

    Raises RecordDamaged unless the frame has the layout of ``version`` and ends where it says. Older layouts are
    decoded at once, bodies and properties with them.
    """
    if version not in RAW_VERSIONS:
        return decode_message(frame, version)
    message = OpenedMessage.__new__(OpenedMessage)
    try:
        marks, stop, _ = read_fields(message, frame, version)
        _open(message, frame, marks[7], marks[8], marks[10], stop)
    except (IndexError, struct.error):
        raise RecordDamaged("an OpenWire message is truncated, or of another version") from None
    return message


def accept_frame(frame: bytes, broker_sequence: int, now_ms: int) -> Accepted:
    """Take a message from its producer: a whole frame, loose, version 11, size prefix included.

    The message's ``raw`` is the frame with ``broker_sequence``, and ``now_ms`` as arrival and broker-in time; without
    command id, wish for a response and transaction ids; all else byte for byte. Raises RecordDamaged for a frame whose
    structure is not sound; what body and properties hold is not looked at.
    """
    message = OpenedMessage.__new__(OpenedMessage)
    try:
        marks, stop, producer_id = read_fields(message, frame, OPENWIRE_VERSION)
        (
            _,
            transaction_at,
            original_at,
            _,
            sequence_at,
            group_at,
            _,
            content_at,
            properties_at,
            _,
            counter_at,
            arrival_at,
            in_time_at,
        ) = marks
        transaction: TransactionId | None = None
        if frame[transaction_at]:
            transaction, _ = loose.read_transaction_id(frame, transaction_at)
        command_id, is_response_required = _COMMAND.unpack_from(frame, loose.FRAME_SIZE)
        removed = original_at - transaction_at + group_at - sequence_at - 10
        time = loose.I64.pack(now_ms)
        raw = b"".join(
            (
                _HEAD.pack(len(frame) - 4 - removed, frame[4]),
                frame[PRODUCER_AT:transaction_at],
                loose.NULL,
                frame[original_at:sequence_at],
                _SEQUENCE.pack(broker_sequence),
                frame[group_at:arrival_at],
                time,
                frame[arrival_at + 8 : in_time_at],
                time,
                frame[in_time_at + 8 :],
            )
        )
        _open(message, raw, content_at - removed, properties_at - removed, counter_at - removed, stop - removed)
    except (IndexError, struct.error):
        raise RecordDamaged("an OpenWire message is truncated, or of another version") from None
    message.broker_sequence = broker_sequence
    return Accepted(message, command_id, is_response_required, producer_id, transaction)


_COMMAND = struct.Struct(">i?")
_SEQUENCE = struct.Struct(">qx")  # and no original transaction id


def _open(message: OpenedMessage, raw: bytes, content_at: int, properties_at: int, counter_at: int, stop: int) -> None:
    kind = message.body_kind
    if kind is BodyKind.BLOB or stop != len(raw):
        check_end(kind, raw, stop)
    message._body = raw[stop:] if kind is BodyKind.BLOB else None
    message._content_at = content_at
    message._is_compressed = raw[counter_at - 1] != 0
    message._properties = _NOT_READ if raw[properties_at] else None
    message.raw = raw
    message.cache = None


def nested_message(message: Message) -> memoryview:
    """The message as a MessageDispatch contains it behind the byte that says it is there: type, fields.

    Whoever has no ``raw`` yet gets it. The redelivery counter in it is the stored one: the dispatch has its own.
    Raises Unencodable for a message that OpenWire has no room for.
    """
    raw = message.raw
    if raw is None:
        raw = message.raw = encode_message(message)
    return memoryview(raw)[_SIZE.size :]
