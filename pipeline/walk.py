"""Walk over a journal file: all its bytes as stretches, which are batches, damage or padding.

It only reads, takes no lock, and imports neither Spark nor Arrow. The stretches have no gaps between them, so their
lengths add up to the size of the file, and the figures of a report can be checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tandemmq.journal.errors import JournalCorrupt
from tandemmq.journal.format import (
    CONTROL,
    CONTROL_MARK,
    CONTROL_SIZE,
    END_RECORD,
    END_RECORD_SIZE,
    Records,
    locate_records,
)
from tandemmq.journal.scan import Batch, Scan
from tandemmq.pipeline import columns
from tandemmq.pipeline.places import Access, Opened, open_file
from tandemmq.store.records.commands import encode_trace

CHUNK_BYTES: Final = 1 << 20
# Beginning of the trace that a rotation writes after the end of a file. It is defined in store.damage.report, which
# would import too much in a worker.
_NEXT: Final = b"TANDEMMQ-NEXT "
_NEXT_WITHIN: Final = len(encode_trace(None)) + 4 + len(_NEXT)


@dataclass(frozen=True, slots=True)
class JournalFile:
    """A journal file to read, or a part of one. ``end``: its end, stated in the header of a later file; None: no header
    states it.

    ``openwire``: OpenWire version of its bodies; None: no header states it, so all versions are tried. ``is_current``:
    a broker may be writing it. ``size`` is only for planning; the walk uses the size when it begins.

    ``start`` and ``stop`` (None: no limit) select a part: the stretches that begin from ``start`` and before ``stop``.
    Both must be borders of stretches. ``cut``: the end of a batch at which the file ends for this read: all before it
    must be sound, and the rest is treated as padding. ``access``: settings to reach a remote path, which may contain a
    secret.
    """

    path: str
    store: str
    file: int
    size: int
    end: int | None = None
    epoch: int | None = None
    openwire: int | None = None
    is_current: bool = False
    start: int = 0
    stop: int | None = None
    cut: int | None = None
    access: Access = field(default=(), repr=False)

    @property
    def state(self) -> str:
        return columns.CURRENT if self.is_current else columns.CLOSED


NO_RECORDS: Final = Records(b"", 0, [], [])


class Stretch(NamedTuple):
    """Bytes from ``start`` to ``stop`` of a file with one ``status``. ``records``: (offset of the header, payload);
    only batches that count have records."""

    start: int
    stop: int
    status: str
    records: Records = NO_RECORDS
    checksum: int | None = None
    detail: str | None = None

    @property
    def is_batch(self) -> bool:
        return self.status in (columns.OK, columns.UNSUMMED)


def walk(file: JournalFile) -> Iterator[Stretch]:
    """Yield the stretches of a file or a part, in order. Damage is a stretch; the walk continues at the next sound
    batch.

    In the current file, complete batches up to ``cut`` count; the rest is padding, because it may still be written.
    Raises FileNotFoundError.
    """
    for stretch in _from_start(file):
        if file.stop is not None and stretch.start >= file.stop:
            return
        yield stretch


def _from_start(file: JournalFile) -> Iterator[Stretch]:
    source = open_file(file.path, file.access)
    try:
        size = source.size()
        bound = file.end if file.cut is None else file.cut
        end = None if bound is None else min(bound, size)
        at = file.start
        if end is None or at < end:
            damage: list[JournalCorrupt] = []
            found = Scan(
                lambda: source,
                file.file,
                at,
                end,
                is_live=file.is_current and end is None,
                on_corrupt=damage.append,
                decode=locate_records,
            )
            for batch in found:
                yield from (_damage(source, corruption) for corruption in damage)
                damage.clear()
                yield _batch(batch)
                at = batch.end
            for corruption in damage:
                yield _damage(source, corruption)
                at = corruption.stop
        if end is not None and file.cut is None:
            for batch in Scan(lambda: source, file.file, max(end, file.start), is_live=True, decode=locate_records):
                at = batch.end
                if all(_NEXT in payload[:_NEXT_WITHIN] for _, payload in batch.records):
                    yield _batch(batch)  # the end marker of a rotation
                else:
                    text = f"a successor's header ends the file at {end}"
                    yield Stretch(batch.offset, batch.end, columns.BEHIND_THE_END, NO_RECORDS, batch.checksum, text)
        yield from _rest(source, at, size, is_torn_possible=end is None and not file.is_current)
    finally:
        source.release()


def _batch(batch: Batch) -> Stretch:
    status = columns.OK if batch.checksum > 0 else columns.UNSUMMED
    assert isinstance(batch.records, Records), "the scan does not copy the records"
    return Stretch(batch.offset, batch.end, status, batch.records, batch.checksum)


def _damage(source: Opened, corruption: JournalCorrupt) -> Stretch:
    """Return the stretch for damage: a complete batch with a wrong checksum, or a gap of bytes that cannot be read."""
    control = source.read(corruption.start, CONTROL_SIZE)
    status, checksum = columns.GAP, None
    if len(control) == CONTROL_SIZE:
        mark, length, stored = CONTROL.unpack(control)
        if mark == CONTROL_MARK and corruption.start + CONTROL_SIZE + length == corruption.stop:
            status, checksum = columns.BAD_SUM, stored
    return Stretch(corruption.start, corruption.stop, status, NO_RECORDS, checksum, corruption.reason)


def _rest(source: Opened, at: int, size: int, *, is_torn_possible: bool) -> Iterator[Stretch]:
    """Yield the stretches after the last batch: an end mark, an incomplete write, unused space."""
    if source.read(at, END_RECORD_SIZE) == END_RECORD:
        yield Stretch(at, at + END_RECORD_SIZE, columns.END)
        at += END_RECORD_SIZE
    elif is_torn_possible and (torn := _last_written(source, at, size)) > at:
        yield Stretch(at, torn, columns.TORN, NO_RECORDS, None, "an incomplete write, which was never confirmed")
        at = torn
    if at < size:
        yield Stretch(at, size, columns.PADDING)


def _last_written(source: Opened, start: int, stop: int) -> int:
    """Return the start of the zeros at the end of the bytes between ``start`` and ``stop``. Holes are skipped without a
    read."""
    while stop > start:
        stop = _hole_before(source, start, stop)
        begin = max(start, stop - CHUNK_BYTES)
        kept = len(source.read(begin, stop - begin).rstrip(b"\0"))
        if kept:
            return begin + kept
        stop = begin
    return start


def _hole_before(source: Opened, start: int, stop: int) -> int:
    """Return the start of the hole that ends at ``stop``, but not before ``start``; ``stop`` if there is no such
    hole."""
    low, high = start, stop
    while low < high:
        middle = (low + high) // 2
        if source.data_from(middle) >= stop:
            high = middle
        else:
            low = middle + 1
    return low


def record_bytes(stretch: Stretch) -> int:
    """Return the length of all records of a batch with their headers."""
    return sum(stretch.records.stops) - sum(stretch.records.starts)
