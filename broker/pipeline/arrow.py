"""The rows of a table as Arrow record batches, bounded in rows and in bytes: a worker holds one, never a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from broker.pipeline import columns
from broker.pipeline.rows import PERMISSIVE, Row, rows

if TYPE_CHECKING:
    from broker.pipeline.walk import JournalFile

ROWS_MAX: Final = 10_000
BYTES_MAX: Final = 8 << 20

# Columns of any length, by table: the others are short.
_LONG: Final = {columns.MESSAGES: ("properties", "body", "text", "raw")}


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
    """The rows of ``table`` in one file, of its columns those with ``names``, in that order. See rows.rows.

    A batch has ``rows_max`` rows at most, and more than ``bytes_max`` bytes of bodies only if one row has.
    """
    all_names = [name for name, _ in columns.COLUMNS[table]]
    whole = columns.arrow_schema(table)
    chosen = [all_names.index(name) for name in (all_names if names is None else names)]
    schema = pa.schema([whole.field(index) for index in chosen])
    sized = [all_names.index(name) for name in _LONG.get(table, ())]
    pending: list[Row] = []
    size = 0
    for row in rows(file, table, mode, payload=payload):
        if sized:
            length = sum(_size(row[index]) for index in sized)
            if pending and size + length > bytes_max:
                yield _batch(pending, chosen, schema)
                pending, size = [], 0
            size += length
        pending.append(row)
        if len(pending) >= rows_max:
            yield _batch(pending, chosen, schema)
            pending, size = [], 0
    if pending:
        yield _batch(pending, chosen, schema)


def _size(value: Any) -> int:
    if isinstance(value, list):
        return sum(len(name) + len(text or "") for name, text in value)
    return 0 if value is None else len(value)


def _batch(pending: list[Row], chosen: list[int], schema: pa.Schema) -> pa.RecordBatch:
    by_column = list(zip(*pending, strict=True))
    arrays = [_array(by_column[index], field.type) for index, field in zip(chosen, schema, strict=True)]
    if not arrays:  # a count asks for rows without columns
        return pa.RecordBatch.from_struct_array(pa.array(list(repeat({}, len(pending))), pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(values: tuple[Any, ...], type: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, type)
    except UnicodeEncodeError:  # half a character, as Java allows them in its strings
        return pa.array([_whole(value) for value in values], type)


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_whole(entry) for entry in value]
    return tuple(map(_whole, value)) if isinstance(value, tuple) else value
