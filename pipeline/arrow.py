"""Rows of a table as Arrow record batches with limits of rows and bytes. So a worker has one batch in memory, not a
file.

The lockstep decoder decodes the usual records, many at once. Other records, and tables that are not made from records,
are decoded by ``rows``. Both give the same rows in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from tandemmq.pipeline import columns
from tandemmq.pipeline.blocks import Block, array, blocks
from tandemmq.pipeline.lockstep_messages import messages
from tandemmq.pipeline.lockstep_tables import Found, acks, records
from tandemmq.pipeline.message_rows import STORED
from tandemmq.pipeline.parts import groups
from tandemmq.pipeline.record_rows import PERMISSIVE, Row, stretches
from tandemmq.pipeline.rows import MAKERS, rows

if TYPE_CHECKING:
    from tandemmq.pipeline.walk import JournalFile

ROWS_MAX: Final = 10_000
BYTES_MAX: Final = 8 << 20

# Columns whose values may be long, by table.
_LONG: Final = {columns.MESSAGES: ("properties", "body", "text", "raw")}


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Requested columns of a table, and the limits of a batch."""

    schema: pa.Schema
    places: Sequence[int]  # positions of the columns in a row of the table
    sized: Sequence[int]
    rows_max: int
    bytes_max: int


def record_batches(
    file: JournalFile,
    table: str,
    names: Sequence[str] | None = None,
    mode: str = PERMISSIVE,
    *,
    payload: bool = False,
    rows_max: int = ROWS_MAX,
    bytes_max: int = BYTES_MAX,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``table`` in one file, with the columns ``names`` in that order (None: all). The other
    arguments are those of ``rows.rows``.

    A batch has at most ``rows_max`` rows, and at most ``bytes_max`` bytes of bodies unless one row has more.
    """
    all_names = [name for name, _ in columns.COLUMNS[table]]
    whole = columns.arrow_schema(table)
    places = [all_names.index(name) for name in (all_names if names is None else names)]
    sized = [all_names.index(name) for name in _LONG.get(table, ())]
    wanted = _Wanted(pa.schema([whole.field(place) for place in places]), places, sized, rows_max, bytes_max)
    # Lockstep decoders by table. Tables that are not made from records, or from few of them, have none.
    lockstep: dict[str, Callable[[Block, JournalFile, int | None], Found]] = {
        columns.RECORDS: records,
        columns.MESSAGES: partial(messages, payload=payload),
        columns.ACKS: acks,
    }
    find = lockstep.get(table)
    if find is None:
        yield from _of_rows(rows(file, table, mode, payload=payload), wanted)
        return
    maker, kinds = MAKERS[table]
    made = maker(file, mode, payload)
    for block in blocks(stretches(file, mode), rows_max):
        chosen = block if kinds is None else block.of_kinds(kinds)
        # The first stored message shows the OpenWire version of all messages in the file.
        stored = chosen.of_kinds(STORED) if made.version is None else chosen
        for number in range(len(stored)):
            if made.version is not None:
                break
            made.row(*stored.record(number))
        if len(chosen):
            yield from _of_block(chosen, find(chosen, file, made.version), made.row, wanted)


def _of_rows(made: Iterator[Row], wanted: _Wanted) -> Iterator[pa.RecordBatch]:
    for together in groups(made, partial(_size, wanted=wanted), wanted.bytes_max, wanted.rows_max):
        yield _batch(_arrays(together, wanted), len(together), wanted)


def _of_block(
    block: Block, found: Found, make: Callable[[int, int, bytes], Row | None], wanted: _Wanted
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a block. Rows that fit come from ``found``; ``make`` makes each of the others."""
    ready = [found.columns[field.name]() for field in wanted.schema]
    edges = np.concatenate(([0], np.cumsum(np.where(found.fits, found.sizes, 0))))
    others = np.flatnonzero(~found.fits).tolist()
    begin = at = size = 0  # the next batch: its beginning, its present end, its bytes
    made: dict[int, Row | None] = {}
    for other in [*others, len(block)]:
        while size + edges[other] - edges[at] > wanted.bytes_max:
            cut = int(np.searchsorted(edges, edges[at] + wanted.bytes_max - size, "right")) - 1
            cut = max(cut, at, begin + 1)
            yield from _piece(ready, found, made, begin, cut, wanted)
            begin = at = cut
            size, made = 0, {}
        size += int(edges[other] - edges[at])
        if other < len(block):
            row = make(*block.record(other))
            length = 0 if row is None else _size(row, wanted)
            if other > begin and size + length > wanted.bytes_max:
                yield from _piece(ready, found, made, begin, other, wanted)
                begin, size, made = other, 0, {}
            made[other] = row
            size += length
            at = other + 1
    yield from _piece(ready, found, made, begin, len(block), wanted)


def _piece(
    ready: Sequence[pa.Array], found: Found, made: dict[int, Row | None], begin: int, end: int, wanted: _Wanted
) -> Iterator[pa.RecordBatch]:
    """Yield rows ``begin`` to ``end`` of a block."""
    count = end - begin
    arrays = [column.slice(begin, count) for column in ready]
    if made:
        order = np.arange(count)
        kept = [row for row in made.values() if row is not None]
        order[[index - begin for index, row in made.items() if row is not None]] = count + np.arange(len(kept))
        order = np.delete(order, [index - begin for index, row in made.items() if row is None])
        count = len(order)
        arrays = [
            pa.concat_arrays([column, other]).take(pa.array(order))
            for column, other in zip(arrays, _arrays(kept, wanted), strict=True)
        ]
    if count:
        yield _batch(arrays, count, wanted)


def _size(row: Row, wanted: _Wanted) -> int:
    return sum(_length(row[place]) for place in wanted.sized)


def _length(value: Any) -> int:
    if isinstance(value, list):
        return sum(len(name) + len(text or "") for name, text in value)
    return 0 if value is None else len(value)


def _arrays(made: Sequence[Row], wanted: _Wanted) -> list[pa.Array]:
    return [
        array([row[place] for row in made], field.type)
        for place, field in zip(wanted.places, wanted.schema, strict=True)
    ]


def _batch(arrays: Sequence[pa.Array], count: int, wanted: _Wanted) -> pa.RecordBatch:
    if not arrays:  # a query that only counts requests no columns, but needs the rows
        return pa.RecordBatch.from_struct_array(pa.array(list(repeat({}, count)), pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=wanted.schema)
