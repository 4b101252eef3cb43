"""Rows of the table ``records``, made one by one, and the base class for the rows of all tables made from records."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Final

from tandemmq.journal.format import RECORD_HEADER_SIZE
from tandemmq.pipeline import columns
from tandemmq.pipeline.walk import JournalFile, Stretch, walk
from tandemmq.store.records import commands, loose
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.fields import BROKER_IN_SINCE, read_fields
from tandemmq.store.records.headers import MARK
from tandemmq.store.records.hints import CopyHint, hint_of
from tandemmq.store.records.marks import OUR_TRACES, clock_of
from tandemmq.store.records.message import SCHEMES, Destination, Message, unread
from tandemmq.store.records.openwire import detect_version

PERMISSIVE: Final = "PERMISSIVE"
FAILFAST: Final = "FAILFAST"
DROPMALFORMED: Final = "DROPMALFORMED"
MODES: Final = (PERMISSIVE, FAILFAST, DROPMALFORMED)

Row = tuple[Any, ...]

# The last millisecond of the year 9999. Spark has no timestamps for later times, such as Java's "never".
LAST_MS: Final = 253_402_300_799_999
_LONG: Final = struct.Struct(">q")

_COMMANDS: Final[dict[type, str]] = {
    commands.AddMessage: columns.ADD_MESSAGE,
    commands.UpdateMessage: columns.UPDATE_MESSAGE,
    commands.RemoveMessage: columns.REMOVE_MESSAGE,
    commands.Prepare: columns.PREPARE,
    commands.Commit: columns.COMMIT,
    commands.Rollback: columns.ROLLBACK,
    commands.RemoveDestination: columns.REMOVE_DESTINATION,
    commands.ProducerAudit: columns.PRODUCER_AUDIT,
    commands.AckMap: columns.ACK_MAP,
    commands.Rewritten: columns.REWRITTEN,
}


class Malformed(Exception):
    """A file has unreadable content and the mode is FAILFAST."""


def stretches(file: JournalFile, mode: str) -> Iterator[Stretch]:
    """Yield the stretches of ``walk``. In the mode FAILFAST, raise Malformed at damage."""
    for stretch in walk(file):
        if mode == FAILFAST and stretch.status in (columns.BAD_SUM, columns.GAP):
            raise Malformed(f"{file.path} from {stretch.start} to {stretch.stop}: {stretch.detail}")
        yield stretch


class Rows(ABC):
    """Maker of the rows of one table for one file, record by record, in order. ``payload``: messages have their
    frames."""

    def __init__(self, file: JournalFile, mode: str, payload: bool = False) -> None:
        self._file = file
        self._mode = mode
        self._payload = payload
        self._scratch = unread()
        # OpenWire version of the bodies; None until the first stored message shows it
        self.version = file.openwire

    @abstractmethod
    def row(self, batch: int, offset: int, data: bytes) -> Row | None:
        """Return the row of a record; None: the record has no row in the table, or the mode leaves it out. Raises
        Malformed."""

    def _decoded(self, offset: int, data: bytes) -> commands.Command | None:
        """Return the command; None: it cannot be decoded. (The table ``records`` has a row for it.)"""
        try:
            return commands.decode(data)
        except RecordDamaged as error:
            self._refuse(offset, error)
            return None

    def _refuse(self, offset: int, error: RecordDamaged) -> None:
        """Raise Malformed in the mode FAILFAST."""
        if self._mode == FAILFAST:
            raise Malformed(f"{self._file.path} at {offset}: {error}") from error


class RecordRows(Rows):
    """Rows of the table ``records``."""

    def row(self, batch: int, offset: int, data: bytes) -> Row | None:
        file = self._file
        head = (file.store, file.file, offset, len(data) + RECORD_HEADER_SIZE, batch, file.epoch)
        try:
            command = commands.decode(data)
            name = command_name(command, data)
            stored = command.add if isinstance(command, commands.UpdateMessage) else command
            priority = body_bytes = broker_in = None
            if isinstance(stored, commands.AddMessage):
                if self.version is None:
                    self.version = version_of(stored.message)
                priority = stored.priority
                body_bytes, broker_in = body_and_time(self._scratch, stored.message, self.version)
            elif name == columns.CLOCK:
                assert isinstance(stored, commands.Trace), "these names are of traces"
                broker_in = time_of(clock_of(stored.message or "") or 0)
        except RecordDamaged as error:
            self._refuse(offset, error)
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


def command_name(command: commands.Command, data: bytes) -> str:
    if isinstance(command, commands.Trace):
        text = command.message or ""
        if text.startswith(MARK):
            return columns.HEADER
        if clock_of(text) is not None:
            return columns.CLOCK
        return columns.MARK if text.startswith(OUR_TRACES) else columns.TRACE
    if isinstance(command, commands.Subscription):
        return columns.UNSUBSCRIPTION if command.info is None else columns.SUBSCRIPTION
    if isinstance(command, commands.Schedule):
        return commands.NAMES[command.kind]
    if isinstance(command, commands.UpdateMessage) and commands.trailing(data) and isinstance(hint_of(data), CopyHint):
        return columns.COPY
    return _COMMANDS[type(command)]


def version_of(frame: bytes) -> int:
    version = detect_version([frame])
    if version is None:
        raise RecordDamaged("the message is sound in no version of OpenWire")
    return version


def body_and_time(scratch: Message, frame: bytes, version: int) -> tuple[int, int | None]:
    """Return the length of the body as stored (compressed or not), and the time in microseconds at which the broker
    received the message."""
    try:
        marks, _, _ = read_fields(scratch, frame, version)
        content_at, in_time_at = marks[7], marks[12]
        size = loose.I32.unpack_from(frame, content_at + 1)[0] if frame[content_at] else 0
        broker_in = _LONG.unpack_from(frame, in_time_at)[0] if version >= BROKER_IN_SINCE else 0
    except (IndexError, struct.error):
        raise RecordDamaged("an OpenWire message is truncated, or of another version") from None
    return size, time_of(broker_in)


def time_of(milliseconds: int) -> int | None:
    return milliseconds * 1000 if 0 < milliseconds <= LAST_MS else None
