"""What a job found, as lines: its sentences, then its tables in the style of all commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from tandemmq.cli import table as cli_table
from tandemmq.cli.table import Column
from tandemmq.pipeline.table import Cell, Table, is_number, shown, with_short_stores

# Mostly the same in all rows: it goes first where there is no room.
_LAST: Final = "destination_type"


def summary_lines(findings: Sequence[str], tables: Sequence[Table], width: int | None) -> Iterator[str]:
    """For a terminal of ``width`` cells, whose tables are cut to it; None: for a pipe or a file, which gets all."""
    yield from map(shown, findings)
    for table in map(with_short_stores, tables):
        yield ""
        yield shown(table.title)
        # A column without any value says nothing.
        places = [
            at for at in range(len(table.columns)) if not table.rows or any(row[at] is not None for row in table.rows)
        ]
        places.sort(key=lambda at: table.columns[at] == _LAST)
        columns = [Column(shown(table.columns[at]), is_number=_is_whole(table, at)) for at in places]
        yield from cli_table.lines(columns, ([shown(row[at]) for at in places] for row in table.rows), width)
        if table.note:
            yield shown(table.note)


def _is_whole(table: Table, at: int) -> bool:
    """Numbers and times are not cut."""
    return all(row[at] is None or is_number(row[at]) or _is_time(row[at]) for row in table.rows)


def _is_time(cell: Cell) -> bool:
    """Jobs give some times as text."""
    try:
        return isinstance(cell, datetime) or (isinstance(cell, str) and bool(datetime.fromisoformat(cell)))
    except ValueError:
        return False
