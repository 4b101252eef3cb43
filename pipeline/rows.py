"""Rows of each table for one journal file, as tuples in the order of the columns. No Spark, no Arrow.

Times are microseconds since 1970. A record that cannot be decoded has a row that states this.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tandemmq.journal.format import CONTROL_SIZE
from tandemmq.pipeline import columns
from tandemmq.pipeline.message_rows import STORED, MessageRows
from tandemmq.pipeline.record_rows import (
    DROPMALFORMED,
    FAILFAST,
    MODES,
    PERMISSIVE,
    Malformed,
    RecordRows,
    Row,
    Rows,
    command_name,
    stretches,
)
from tandemmq.pipeline.walk import JournalFile, record_bytes
from tandemmq.store.records import commands
from tandemmq.store.records.acknowledgements import AckType, decode_ack
from tandemmq.store.records.commands import RemoveMessage, Trace, plain_add_or_remove
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.hints import CopyHint, OperationHint, hint_of
from tandemmq.store.records.message import SCHEMES
from tandemmq.store.records.openwire import VERSIONS_TRIED

__all__ = ["DROPMALFORMED", "FAILFAST", "MAKERS", "MODES", "PERMISSIVE", "REMOVED", "Malformed", "ack_kind", "rows"]

# Numbers of the commands that have a row in ``acks``.
REMOVED: Final = frozenset((commands.REMOVE,))


def rows(file: JournalFile, table: str, mode: str = PERMISSIVE, *, payload: bool = False) -> Iterator[Row]:
    """Yield the rows of one table. ``payload``: ``messages.raw`` has the frames. Raises FileNotFoundError; in the mode
    FAILFAST, Malformed at the first damage."""
    if table == columns.BATCHES:
        return _batches(file, mode)
    if table == columns.FILES:
        return _files(file, mode)
    maker, kinds = MAKERS[table]
    return _of_records(file, mode, maker(file, mode, payload), kinds)


def _of_records(file: JournalFile, mode: str, made: Rows, kinds: frozenset[int] | None) -> Iterator[Row]:
    for stretch in stretches(file, mode):
        for offset, data in stretch.records:
            is_meant = kinds is None or (data and data[0] in kinds)
            if is_meant and (row := made.row(stretch.start, offset, data)) is not None:
                yield row


# ---- acknowledgements


class AckRows(Rows):
    """Rows of the table ``acks``, for records that are REMOVED."""

    def row(self, batch: int, offset: int, data: bytes) -> Row | None:
        file = self._file
        command = self._decoded(offset, data)
        if command is None:
            return None
        assert isinstance(command, RemoveMessage), "the number of the command is that of a remove"
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


def ack_kind(frame: bytes | None, version: int | None) -> str | None:
    """Return the type of the acknowledgement; None: the record has none, or it cannot be read.

    An empty acknowledgement means UNMATCHED (KahaDBTopicMessageStore.doAcknowledge). A standard one without consumer
    and transaction is BY_BROKER: the broker made it (Queue.removeMessage, Topic.messageExpired). In an XA transaction
    it is of a consumer, although this broker writes no consumer into it.

    ``version``: OpenWire version of the bodies in the file. None: no header states it, so all versions are tried.
    (ActiveMQ keeps version 6 for a store that an old release made.)
    """
    if frame is None:
        return None
    if not frame:
        return AckType.UNMATCHED.name.lower()
    for tried in VERSIONS_TRIED if version is None else (version,):
        try:
            ack = decode_ack(frame, tried)
            kind = AckType(ack.ack_type)
        except (RecordDamaged, ValueError):
            continue
        break
    else:
        return None
    if kind is AckType.STANDARD and ack.consumer_id is None and ack.transaction is None:
        return columns.BY_BROKER
    return kind.name.lower()


# ---- marks


class MarkRows(Rows):
    """Rows of the table ``marks``: traces with their text, and records that contain the place from which they were
    moved."""

    def row(self, batch: int, offset: int, data: bytes) -> Row | None:
        if plain_add_or_remove(data) is not None:
            return None
        try:
            command = commands.decode(data)
            hint = hint_of(data)
        except RecordDamaged as error:
            self._refuse(offset, error)
            return None  # the table ``records`` has a row for it
        text = command.message if isinstance(command, Trace) else None
        if text is None and hint is None:
            return None
        moved, order = _NO_PLACE[:2], _NO_PLACE
        if isinstance(hint, CopyHint | OperationHint):
            moved = (hint.old_location >> 32, hint.old_location & 0xFFFFFFFF)
        if isinstance(hint, CopyHint):
            order = (hint.order_key >> 64, hint.order_key >> 32 & 0xFFFFFFFF, hint.order_key & 0xFFFFFFFF)
        return (self._file.store, self._file.file, offset, command_name(command, data), text, *moved, *order)


_MARKING: Final = frozenset((commands.TRACE, commands.ADD, commands.REMOVE, commands.UPDATE))
_NO_PLACE: Final[tuple[int | None, ...]] = (None, None, None)

# For each table made from records: the class that makes its rows, and the numbers of the commands that have rows (None:
# all).
MAKERS: Final[dict[str, tuple[type[Rows], frozenset[int] | None]]] = {
    columns.RECORDS: (RecordRows, None),
    columns.MESSAGES: (MessageRows, STORED),
    columns.ACKS: (AckRows, REMOVED),
    columns.MARKS: (MarkRows, _MARKING),
}


# ---- batches and files


def _batches(file: JournalFile, mode: str) -> Iterator[Row]:
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


def _files(file: JournalFile, mode: str) -> Iterator[Row]:
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
