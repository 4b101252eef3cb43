"""The rows of each table in one journal file, as plain tuples in the order of its columns. No Spark, no Arrow.

Times are microseconds since 1970. Where a record cannot be decoded its row says so; nothing is left out silently.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from broker.pipeline import columns
from broker.pipeline.walk import JournalFile, Stretch, record_bytes, walk
from journal.format import CONTROL_SIZE, RECORD_HEADER_SIZE
from store.headers import MARK
from store.hints import CopyHint, hint_of
from store.marks import OUR_TRACES, clock_of
from store.records import commands, loose
from store.records.acknowledgements import AckType, decode_ack
from store.records.commands import (
    AckMap,
    AddMessage,
    Command,
    Commit,
    Prepare,
    ProducerAudit,
    RecordDamaged,
    RemoveDestination,
    RemoveMessage,
    Rewritten,
    Rollback,
    Schedule,
    Subscription,
    Trace,
    UpdateMessage,
    plain_add_or_remove,
    trailing,
)
from store.records.fields import read_fields
from store.records.message import SCHEMES, BodyKind, Destination, Message
from store.records.openwire import decode_message, detect_version
from store.records.properties import Char

PERMISSIVE: Final = "PERMISSIVE"
FAILFAST: Final = "FAILFAST"
DROPMALFORMED: Final = "DROPMALFORMED"
MODES: Final = (PERMISSIVE, FAILFAST, DROPMALFORMED)

Row = tuple[Any, ...]

# The last millisecond of the year 9999: later times, such as Java's "never", are no timestamps of Spark.
LAST_MS: Final = 253_402_300_799_999
_BROKER_IN_SINCE: Final = 3  # version of OpenWire
_FIRST_FOR_CONSUMER_SINCE: Final = 10  # one byte more behind it
_LONG: Final = struct.Struct(">q")

_COMMANDS: Final[dict[type, str]] = {
    AddMessage: columns.ADD_MESSAGE,
    UpdateMessage: columns.UPDATE_MESSAGE,
    RemoveMessage: columns.REMOVE_MESSAGE,
    Prepare: columns.PREPARE,
    Commit: columns.COMMIT,
    Rollback: columns.ROLLBACK,
    RemoveDestination: columns.REMOVE_DESTINATION,
    ProducerAudit: columns.PRODUCER_AUDIT,
    AckMap: columns.ACK_MAP,
    Rewritten: columns.REWRITTEN,
}


class Malformed(Exception):
    """A file has what cannot be read, and the mode is FAILFAST."""


def rows(file: JournalFile, table: str, mode: str = PERMISSIVE, *, payload: bool = False) -> Iterator[Row]:
    """The rows of one table. ``payload``: ``messages.raw`` has the frames. Raises FileNotFoundError; in the mode
    FAILFAST Malformed, at the first damage."""
    return _TABLES[table](file, mode, payload)


def stretches(file: JournalFile, mode: str) -> Iterator[Stretch]:
    """``walk``, which in the mode FAILFAST raises Malformed at damage."""
    for stretch in walk(file):
        if mode == FAILFAST and stretch.status in (columns.BAD_SUM, columns.GAP):
            raise Malformed(f"{file.path} from {stretch.start} to {stretch.stop}: {stretch.detail}")
        yield stretch


# ---- records


class RecordRows:
    """Makes the rows of the table ``records`` of one file, record by record, in order."""

    def __init__(self, file: JournalFile, mode: str) -> None:
        self._file = file
        self._mode = mode
        self._scratch = Message.__new__(Message)
        # of the bodies; while nobody says, the first message that is stored tells
        self.version = file.openwire

    def row(self, batch: int, offset: int, data: bytes) -> Row | None:
        """The row of a record; None where the mode leaves it out. Raises Malformed, as ``rows`` does."""
        file = self._file
        head = (file.store, file.file, offset, len(data) + RECORD_HEADER_SIZE, batch, file.epoch)
        plain = plain_add_or_remove(data) if data else None
        if plain is not None and (plain[0] == commands.REMOVE or self.version is not None):
            code, destination, message_id, subscription, rank = plain
            name, size, taken, priority = columns.REMOVE_MESSAGE, None, None, None
            try:
                if code == commands.ADD:
                    assert self.version is not None, "asked above"
                    name, priority = columns.ADD_MESSAGE, rank
                    size, taken = _body_and_time(self._scratch, _plain_frame(data), self.version)
            except RecordDamaged:
                pass  # told below
            else:
                place = (SCHEMES[destination.kind], destination.name, message_id)
                return (*head, name, *place, None, subscription, priority, size, taken, True)
        try:
            command = commands.decode(data)
            name = _name(command, data)
            stored = command.add if isinstance(command, UpdateMessage) else command
            priority = body_bytes = broker_in = None
            if isinstance(stored, AddMessage):
                if self.version is None:
                    self.version = _version(stored.message)
                priority = stored.priority
                body_bytes, broker_in = _body_and_time(self._scratch, stored.message, self.version)
            elif name == columns.CLOCK:
                assert isinstance(stored, Trace), "the name says so"
                broker_in = _time(clock_of(stored.message or "") or 0)
        except RecordDamaged as error:
            if self._mode == FAILFAST:
                raise Malformed(f"{file.path} at {offset}: {error}") from error
            return (*head, columns.UNREADABLE, *_NOTHING, False) if self._mode == PERMISSIVE else None
        found: Destination | None = getattr(stored, "destination", None)
        transaction = getattr(stored, "transaction", None)
        return (
            *head,
            name,
            None if found is None else SCHEMES[found.kind],
            None if found is None else found.name,
            getattr(stored, "message_id", None),
            None if transaction is None else transaction.key,
            getattr(stored, "subscription_key", None),
            priority,
            body_bytes,
            broker_in,
            True,
        )


def _records(file: JournalFile, mode: str, payload: bool) -> Iterator[Row]:
    made = RecordRows(file, mode)
    for stretch in stretches(file, mode):
        for offset, data in stretch.records:
            row = made.row(stretch.start, offset, data)
            if row is not None:
                yield row


_NOTHING: Final = (None,) * 8


def _name(command: Command, data: bytes) -> str:
    if isinstance(command, Trace):
        text = command.message or ""
        if text.startswith(MARK):
            return columns.HEADER
        if clock_of(text) is not None:
            return columns.CLOCK
        return columns.MARK if text.startswith(OUR_TRACES) else columns.TRACE
    if isinstance(command, Subscription):
        return columns.UNSUBSCRIPTION if command.info is None else columns.SUBSCRIPTION
    if isinstance(command, Schedule):
        return columns.SCHEDULES[command.kind]
    if isinstance(command, UpdateMessage) and trailing(data) and isinstance(hint_of(data), CopyHint):
        return columns.COPY
    return _COMMANDS[type(command)]


def _version(frame: bytes) -> int:
    version = detect_version([frame])
    if version is None:
        raise RecordDamaged("the message is sound in no version of OpenWire")
    return version


def _body_and_time(scratch: Message, frame: bytes, version: int) -> tuple[int, int | None]:
    """How many bytes of body a frame stores, compressed ones as they are, and when the broker took it."""
    try:
        marks, _, _ = read_fields(scratch, frame, version)
        content_at, in_time_at = marks[7], marks[12]
        size = loose.I32.unpack_from(frame, content_at + 1)[0] if frame[content_at] else 0
        broker_in = _LONG.unpack_from(frame, in_time_at)[0] if version >= _BROKER_IN_SINCE else 0
    except (IndexError, struct.error):
        raise RecordDamaged("an OpenWire message is truncated, or of another version") from None
    return size, _time(broker_in)


def _plain_frame(data: bytes) -> bytes:
    """The frame in what ``plain_add_or_remove`` took for an add: it has made sure of the layout."""
    at = 2 if data[1] < 0x80 else 3 if data[2] < 0x80 else 4 if data[3] < 0x80 else 5
    at += 2 + data[at + 1]  # the destination
    at += 3 + data[at + 1]  # the message id, and the tag of the frame
    while data[at] > 0x7F:
        at += 1
    return data[at + 1 : -4]


def _broker_in(frame: bytes, kind: BodyKind, version: int) -> int | None:
    """When the broker took a message whose frame is known to be sound: its time stands near the end of the frame."""
    if version < _BROKER_IN_SINCE:
        return None
    if kind is BodyKind.BLOB:  # whose own fields stand behind the others
        return _body_and_time(Message.__new__(Message), frame, version)[1]
    return _time(_LONG.unpack_from(frame, len(frame) - (17 if version >= _FIRST_FOR_CONSUMER_SINCE else 16))[0])


def _time(milliseconds: int) -> int | None:
    return milliseconds * 1000 if 0 < milliseconds <= LAST_MS else None


# ---- messages


class MessageRows:
    """Makes the rows of the table ``messages`` of one file, record by record, in order."""

    def __init__(self, file: JournalFile, mode: str, payload: bool) -> None:
        self._file = file
        self._mode = mode
        self._payload = payload
        # of the bodies; while nobody says, the first message that is stored tells
        self.version = file.openwire

    def row(self, batch: int, offset: int, data: bytes) -> Row | None:
        """The row of a record that is STORED; None where the mode leaves it out, and for what is no command, which the
        table of records has. Raises Malformed, as ``rows`` does."""
        file = self._file
        try:
            command = commands.decode(data)
        except RecordDamaged as error:
            if self._mode == FAILFAST:
                raise Malformed(f"{file.path} at {offset}: {error}") from error
            return None
        stored = command.add if isinstance(command, UpdateMessage) else command
        assert isinstance(stored, AddMessage), "both kinds store a message"
        head = (file.store, file.file, offset, _name(command, data))
        transaction = None if stored.transaction is None else stored.transaction.key
        producer, _, sequence = stored.message_id.rpartition(":")
        place = (
            SCHEMES[stored.destination.kind],
            stored.destination.name,
            stored.message_id,
            producer if sequence.isdecimal() else None,
            _sequence(sequence),
            transaction,
        )
        raw = stored.message if self._payload else None
        try:
            if self.version is None:
                self.version = _version(stored.message)
            message = decode_message(stored.message, self.version)
            broker_in = _broker_in(stored.message, message.body_kind, self.version)
        except RecordDamaged as error:
            if self._mode == FAILFAST:
                raise Malformed(f"{file.path} at {offset}: {error}") from error
            return (*head, *place, *_NO_MESSAGE, raw) if self._mode == PERMISSIVE else None
        body = message.body
        return (
            *head,
            *place,
            _optional(message.original_destination),
            message.correlation_id,
            _optional(message.reply_to),
            message.priority,
            message.persistent,
            _time(message.timestamp),
            broker_in,
            _time(message.expiration),
            message.redelivery_counter,
            message.type,
            message.group_id,
            message.group_sequence,
            message.user_id,
            properties_of(message.properties),
            message.body_kind.name.lower(),
            body,
            body.decode("utf-8", "replace") if message.body_kind is BodyKind.TEXT else None,
            raw,
        )


# The numbers of the commands of which the tables ``messages`` and ``acks`` have rows.
STORED: Final = frozenset((commands.ADD, commands.UPDATE))
REMOVED: Final = frozenset((commands.REMOVE,))


def _messages(file: JournalFile, mode: str, payload: bool) -> Iterator[Row]:
    return _of_kinds(file, mode, STORED, MessageRows(file, mode, payload).row)


def _of_kinds(
    file: JournalFile, mode: str, kinds: frozenset[int], make: Callable[[int, int, bytes], Row | None]
) -> Iterator[Row]:
    for stretch in stretches(file, mode):
        for offset, data in stretch.records:
            if data and data[0] in kinds and (row := make(stretch.start, offset, data)) is not None:
                yield row


_NO_MESSAGE: Final = (None,) * 17


def _sequence(digits: str) -> int | None:
    return int(digits) if digits.isdecimal() and len(digits) < 19 else None


def _optional(destination: Destination | None) -> str | None:
    return None if destination is None else str(destination)


def properties_of(properties: Mapping[str, object] | None) -> list[tuple[str, str | None]]:
    """A message's properties as the table has them."""
    return [(name, _property(value)) for name, value in (properties or {}).items()]


def _property(value: object) -> str | None:
    """As Java prints it; bytes as two digits each."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.hex()
    return str.__str__(value) if isinstance(value, Char) else str(value)


# ---- acknowledgements


class AckRows:
    """Makes the rows of the table ``acks`` of one file, record by record, in order."""

    def __init__(self, file: JournalFile, mode: str) -> None:
        self._file = file
        self._mode = mode
        self.version = file.openwire

    def row(self, batch: int, offset: int, data: bytes) -> Row | None:
        """The row of a record that is REMOVED; None for what is no command, which the table of records has. Raises
        Malformed, as ``rows`` does."""
        file = self._file
        try:
            command = commands.decode(data)
        except RecordDamaged as error:
            if self._mode == FAILFAST:
                raise Malformed(f"{file.path} at {offset}: {error}") from error
            return None
        assert isinstance(command, RemoveMessage), "the number of the command says so"
        return (
            file.store,
            file.file,
            offset,
            SCHEMES[command.destination.kind],
            command.destination.name,
            command.message_id,
            None if command.transaction is None else command.transaction.key,
            command.subscription_key,
            ack_kind(command.ack, self.version),
        )


def _acks(file: JournalFile, mode: str, payload: bool) -> Iterator[Row]:
    return _of_kinds(file, mode, REMOVED, AckRows(file, mode).row)


def ack_kind(frame: bytes | None, version: int | None) -> str | None:
    """What the consumer's acknowledgement calls itself; None where the record has none, or none that can be read."""
    if not frame:
        return None
    try:
        return AckType(decode_ack(frame, version or loose.OPENWIRE_VERSION).ack_type).name.lower()
    except (RecordDamaged, ValueError):
        return None


# ---- marks


def _marks(file: JournalFile, mode: str, payload: bool) -> Iterator[Row]:
    """Traces with their text, and the records that say behind their command from where they were moved."""
    for stretch in stretches(file, mode):
        for offset, data in stretch.records:
            if not data or data[0] not in _MARKING or plain_add_or_remove(data) is not None:
                continue
            try:
                command = commands.decode(data)
                hint = hint_of(data)
            except RecordDamaged as error:
                if mode == FAILFAST:
                    raise Malformed(f"{file.path} at {offset}: {error}") from error
                continue  # the table of records has it
            text = command.message if isinstance(command, Trace) else None
            if text is None and hint is None:
                continue
            moved, order = _NO_PLACE[:2], _NO_PLACE
            if hint is not None:
                moved = (hint.old_location >> 32, hint.old_location & 0xFFFFFFFF)
            if isinstance(hint, CopyHint):
                order = (hint.order_key >> 64, hint.order_key >> 32 & 0xFFFFFFFF, hint.order_key & 0xFFFFFFFF)
            yield (file.store, file.file, offset, _name(command, data), text, *moved, *order)


_MARKING: Final = frozenset((commands.TRACE, commands.ADD, commands.REMOVE, commands.UPDATE))
_NO_PLACE: Final[tuple[int | None, ...]] = (None, None, None)


# ---- batches and files


def _batches(file: JournalFile, mode: str, payload: bool) -> Iterator[Row]:
    for stretch in stretches(file, mode):
        yield (
            file.store,
            file.file,
            stretch.start,
            stretch.stop - stretch.start,
            len(stretch.records),
            stretch.checksum,
            stretch.status,
            stretch.detail,
        )
        other = stretch.stop - stretch.start - CONTROL_SIZE - record_bytes(stretch) if stretch.is_batch else 0
        if other and mode == FAILFAST:
            raise Malformed(f"{file.path} at {stretch.start}: the batch has records of a type that no broker writes")


def _files(file: JournalFile, mode: str, payload: bool) -> Iterator[Row]:
    records = batches = padding = damaged = size = 0
    for stretch in stretches(file, mode):
        length = stretch.stop - stretch.start
        size = stretch.stop
        if stretch.is_batch:
            batches += 1
            records += len(stretch.records)
            padding += length - CONTROL_SIZE - record_bytes(stretch)
        elif stretch.status in columns.DAMAGED:
            damaged += length
        else:
            padding += length
    yield (
        file.store,
        file.file,
        file.path,
        size,
        records,
        batches,
        batches * CONTROL_SIZE,
        padding,
        damaged,
        file.state,
        file.epoch,
    )


_TABLES: Final[dict[str, Callable[[JournalFile, str, bool], Iterator[Row]]]] = {
    columns.RECORDS: _records,
    columns.MESSAGES: _messages,
    columns.ACKS: _acks,
    columns.MARKS: _marks,
    columns.BATCHES: _batches,
    columns.FILES: _files,
}
