"""The rows of the table ``records``, one by one, and what the rows of all tables of records have in common."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

from broker.pipeline import columns
from broker.pipeline.walk import JournalFile, Stretch, walk
from journal.format import RECORD_HEADER_SIZE
from store.headers import MARK
from store.hints import CopyHint, hint_of
from store.marks import OUR_TRACES, clock_of
from store.records import commands, loose
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
from store.records.fields import BROKER_IN_SINCE, read_fields
from store.records.message import SCHEMES, BodyKind, Destination, Message
from store.records.openwire import detect_version

PERMISSIVE: Final = "PERMISSIVE"
FAILFAST: Final = "FAILFAST"
DROPMALFORMED: Final = "DROPMALFORMED"
MODES: Final = (PERMISSIVE, FAILFAST, DROPMALFORMED)

Row = tuple[Any, ...]

# The last millisecond of the year 9999: later times, such as Java's "never", are no timestamps of Spark.
LAST_MS: Final = 253_402_300_799_999
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


def stretches(file: JournalFile, mode: str) -> Iterator[Stretch]:
    """``walk``, which in the mode FAILFAST raises Malformed at damage."""
    for stretch in walk(file):
        if mode == FAILFAST and stretch.status in (columns.BAD_SUM, columns.GAP):
            raise Malformed(f"{file.path} from {stretch.start} to {stretch.stop}: {stretch.detail}")
        yield stretch


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
            name = command_name(command, data)
            stored = command.add if isinstance(command, UpdateMessage) else command
            priority = body_bytes = broker_in = None
            if isinstance(stored, AddMessage):
                if self.version is None:
                    self.version = version_of(stored.message)
                priority = stored.priority
                body_bytes, broker_in = _body_and_time(self._scratch, stored.message, self.version)
            elif name == columns.CLOCK:
                assert isinstance(stored, Trace), "the name says so"
                broker_in = time_of(clock_of(stored.message or "") or 0)
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


_NOTHING: Final = (None,) * 8


def command_name(command: Command, data: bytes) -> str:
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
        return commands.SCHEDULES[command.kind]
    if isinstance(command, UpdateMessage) and trailing(data) and isinstance(hint_of(data), CopyHint):
        return columns.COPY
    return _COMMANDS[type(command)]


def version_of(frame: bytes) -> int:
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
        broker_in = _LONG.unpack_from(frame, in_time_at)[0] if version >= BROKER_IN_SINCE else 0
    except (IndexError, struct.error):
        raise RecordDamaged("an OpenWire message is truncated, or of another version") from None
    return size, time_of(broker_in)


def _plain_frame(data: bytes) -> bytes:
    """The frame in what ``plain_add_or_remove`` took for an add: it has made sure of the layout."""
    at = 2 if data[1] < 0x80 else 3 if data[2] < 0x80 else 4 if data[3] < 0x80 else 5
    at += 2 + data[at + 1]  # the destination
    at += 3 + data[at + 1]  # the message id, and the tag of the frame
    while data[at] > 0x7F:
        at += 1
    return data[at + 1 : -4]


def broker_in_of(frame: bytes, kind: BodyKind, version: int) -> int | None:
    """When the broker took a message whose frame is known to be sound: its time stands near the end of the frame."""
    if version < BROKER_IN_SINCE:
        return None
    if kind is BodyKind.BLOB:  # whose own fields stand behind the others
        return _body_and_time(Message.__new__(Message), frame, version)[1]
    return time_of(_LONG.unpack_from(frame, len(frame) - (17 if version >= _FIRST_FOR_CONSUMER_SINCE else 16))[0])


def time_of(milliseconds: int) -> int | None:
    return milliseconds * 1000 if 0 < milliseconds <= LAST_MS else None
