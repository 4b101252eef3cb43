"""Findings of a job as lines: its sentences, then its tables in the style of all commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from tandemmq.cli import output
from tandemmq.cli.output import Column
from tandemmq.pipeline.table import Cell, Table, is_number, shown, with_short_stores

# Mostly the same in all rows: the first column that is dropped when there is no room.
_LAST: Final = "destination_type"


def summary_lines(findings: Sequence[str], tables: Sequence[Table], width: int | None) -> Iterator[str]:
    """Yield lines for a terminal of ``width`` cells, with tables cut to fit; None: for a pipe or a file, uncut."""
    yield from map(shown, findings)
    for table in map(with_short_stores, tables):
        yield ""
        yield shown(table.title)
        # An empty column is left out.
        places = [
            at for at in range(len(table.columns)) if not table.rows or any(row[at] is not None for row in table.rows)
        ]
        places.sort(key=lambda at: table.columns[at] == _LAST)
        columns = [Column(shown(table.columns[at]), is_number=_is_whole(table, at)) for at in places]
        yield from output.lines(columns, ([shown(row[at]) for at in places] for row in table.rows), width)
        if table.note:
            yield shown(table.note)


def _is_whole(table: Table, at: int) -> bool:
    """Return whether the column has only numbers and times, which are not cut."""
    return all(row[at] is None or is_number(row[at]) or _is_time(row[at]) for row in table.rows)


def _is_time(cell: Cell) -> bool:
    """Return whether the cell is a time; jobs give some times as text."""
    try:
        return isinstance(cell, datetime) or (isinstance(cell, str) and bool(datetime.fromisoformat(cell)))
    except ValueError:
        return False
