"""Parquet in the layout of Spark: partition columns are directories ``name=value``, with Spark's escapes."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tandemmq.pipeline.local.column import SQL_TYPES, literal, quoted

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

# Characters that Spark writes as %XX in the name of a directory (ExternalCatalogUtils.escapePathName).
SPECIAL: Final = r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]"
_SPECIAL: Final = re.compile(SPECIAL)
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
# Limits of a row group; the writer may set another number of rows.
GROUP_BYTES: Final = 32 << 20
GROUP_ROWS: Final = 1 << 20
_ANY: Final = "file:"


@dataclass(frozen=True, slots=True)
class Form:
    """Format of written Parquet. ``partitions``: columns that become directories; the rows must be sorted by them."""

    partitions: tuple[str, ...]
    compression: str = "snappy"
    rows_per_file: int | None = None
    rows_per_group: int = GROUP_ROWS


def path_of(target: str) -> Path:
    """Return the path of ``target``, with or without the prefix "file:"."""
    return Path(target.removeprefix(_ANY))


def files_of(targets: Sequence[str]) -> list[str]:
    """Return the files ``*.parquet`` at or below ``targets``, without names that begin with "." or "_"."""
    found: list[str] = []
    for target in map(path_of, targets):
        if target.is_file():
            found.append(str(target))
            continue
        found += [
            str(path)
            for path in sorted(target.rglob("*.parquet"))
            if not any(part.startswith((".", "_")) for part in path.relative_to(target).parts)
        ]
    return found


def scan(files: Sequence[str], *, is_partitioned: bool) -> str:
    """Return the SQL after FROM that reads ``files``. Values of directories are strings."""
    named = ", ".join(literal(glob.escape(path)) for path in files)
    hive = str(is_partitioned).lower()
    return f"read_parquet([{named}], union_by_name = true, hive_partitioning = {hive}, hive_types_autocast = false)"


def as_schema(schema: Sequence[tuple[str, str]], there: Sequence[str]) -> str:
    """Return the SQL after SELECT that casts the columns of ``schema`` to its types. ``there``: columns of the files; a
    column that is not among them is null."""
    return ", ".join(
        f"CAST({quoted(name) if name in there else 'NULL'} AS {SQL_TYPES[kind]}) AS {quoted(name)}"
        for name, kind in schema
    )


def write(reader: pa.RecordBatchReader, directory: Path, form: Form) -> None:
    """Write the rows of ``reader``, which must be sorted by the partitions, into a new ``directory``. One file is open
    at a time."""
    kept = [name for name in reader.schema.names if name not in form.partitions]
    schema = reader.schema.empty_table().select(kept).schema
    file: _File | None = None
    try:
        for values, batch in _pieces(reader, form.partitions):
            place = directory.joinpath(*map(directory_name, form.partitions, values))
            rows = batch.select(kept)
            while rows.num_rows:
                if file is None or file.place != place or file.room == 0:
                    if file is not None:
                        file.close()
                    file = _File(place, 0 if file is None or file.place != place else file.number + 1, schema, form)
                taken = rows.slice(0, file.room)
                file.add(taken)
                rows = rows.slice(taken.num_rows)
    finally:
        if file is not None:
            file.close()


def directory_name(column: str, value: Any) -> str:
    text = "" if value is None else str(value)
    escaped = _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", text)
    return f"{column}={escaped or _NULL}"


def _pieces(
    reader: pa.RecordBatchReader, partitions: Sequence[str]
) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
    """Yield consecutive rows with equal values of the partition columns."""
    for batch in reader:
        values = list(zip(*(batch.column(name).to_pylist() for name in partitions), strict=True))
        begin = 0
        for at in range(1, batch.num_rows + 1):
            if at == batch.num_rows or values[at] != values[begin]:
                yield values[begin], batch.slice(begin, at - begin)
                begin = at


class _File:
    """A Parquet file that is being written, row group by row group."""

    def __init__(self, place: Path, number: int, schema: pa.Schema, form: Form) -> None:
        import pyarrow.parquet as pq

        place.mkdir(parents=True, exist_ok=True)
        self.place = place
        self.number = number
        self._form = form
        self._rows = 0
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        path = place / f"part-{number:05}.parquet"
        self._writer: pq.ParquetWriter = pq.ParquetWriter(path, schema, compression=form.compression)

    @property
    def room(self) -> int:
        """Number of rows that may be added at once."""
        in_group = self._form.rows_per_group - self._waiting_rows
        return in_group if self._form.rows_per_file is None else min(in_group, self._form.rows_per_file - self._rows)

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= self._form.rows_per_group or self._waiting_bytes >= GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=self._form.rows_per_group)
            self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0


def form_of(options: Mapping[str, str], partitions: tuple[str, ...]) -> Form:
    """Return the format for the options that a job gives to Spark's writer."""
    known = {"compression", "maxRecordsPerFile", "parquet.block.row.count.limit"}
    assert options.keys() <= known, f"unsupported options of a writer: {options.keys() - known}"
    in_group = int(options.get("parquet.block.row.count.limit", GROUP_ROWS))
    assert in_group > 0, "a row group without rows"
    rows = options.get("maxRecordsPerFile", "0")  # 0 and less: no limit
    return Form(
        partitions,
        options.get("compression", "snappy"),
        max(int(rows), 0) or None,
        in_group,
    )
