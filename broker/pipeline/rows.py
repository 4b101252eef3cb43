"""The rows of each table in one journal file, as plain tuples in the order of its columns. No Spark, no Arrow.

Times are microseconds since 1970. Where a record cannot be decoded its row says so; nothing is left out silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from broker.pipeline import columns
from broker.pipeline.message_rows import STORED, MessageRows
from broker.pipeline.record_rows import (
    DROPMALFORMED,
    FAILFAST,
    MODES,
    PERMISSIVE,
    Malformed,
    RecordRows,
    Row,
    command_name,
    stretches,
)
from broker.pipeline.walk import JournalFile, record_bytes
from journal.format import CONTROL_SIZE
from store.hints import CopyHint, OperationHint, hint_of
from store.records import commands, loose
from store.records.acknowledgements import AckType, decode_ack
from store.records.commands import RecordDamaged, RemoveMessage, Trace, plain_add_or_remove
from store.records.message import SCHEMES

__all__ = ["DROPMALFORMED", "FAILFAST", "MODES", "PERMISSIVE", "REMOVED", "AckRows", "Malformed", "ack_kind", "rows"]

# The numbers of the commands that have a row of ``acks``.
REMOVED: Final = frozenset((commands.REMOVE,))


def rows(file: JournalFile, table: str, mode: str = PERMISSIVE, *, payload: bool = False) -> Iterator[Row]:
    """The rows of one table. ``payload``: ``messages.raw`` has the frames. Raises FileNotFoundError; in the mode
    FAILFAST Malformed, at the first damage."""
    return _TABLES[table](file, mode, payload)


def _records(file: JournalFile, mode: str, payload: bool) -> Iterator[Row]:
    made = RecordRows(file, mode)
    for stretch in stretches(file, mode):
        for offset, data in stretch.records:
            row = made.row(stretch.start, offset, data)
            if row is not None:
                yield row


def _messages(file: JournalFile, mode: str, payload: bool) -> Iterator[Row]:
    return _of_kinds(file, mode, STORED, MessageRows(file, mode, payload).row)


def _of_kinds(
    file: JournalFile, mode: str, kinds: frozenset[int], make: Callable[[int, int, bytes], Row | None]
) -> Iterator[Row]:
    for stretch in stretches(file, mode):
        for offset, data in stretch.records:
            if data and data[0] in kinds and (row := make(stretch.start, offset, data)) is not None:
                yield row


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
            if isinstance(hint, CopyHint | OperationHint):
                moved = (hint.old_location >> 32, hint.old_location & 0xFFFFFFFF)
            if isinstance(hint, CopyHint):
                order = (hint.order_key >> 64, hint.order_key >> 32 & 0xFFFFFFFF, hint.order_key & 0xFFFFFFFF)
            yield (file.store, file.file, offset, command_name(command, data), text, *moved, *order)


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
