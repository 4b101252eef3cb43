"""A small table of figures for the terminal and the HTML report. Independent of Spark."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

Cell = str | int | float | bool | datetime | None

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True, slots=True)
class Table:
    """A table. Each row has as many cells as there are ``columns``. ``note``: a remark, for example about rows that are
    left out."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    note: str | None = None


def with_short_stores(table: Table) -> Table:
    """Return the table with the common directory of all stores, or the only store, in the note instead of in each
    row."""
    if "store" not in table.columns:
        return table
    at = table.columns.index("store")
    stores = {str(row[at]) for row in table.rows}
    if len(stores) == 1:
        note = "; ".join(filter(None, (f"store: {shown(stores.pop())}", table.note)))
        rows = [[*row[:at], *row[at + 1 :]] for row in table.rows]
        return Table(table.title, (*table.columns[:at], *table.columns[at + 1 :]), rows, note)
    directory = _directory_of(stores)
    if directory is None:
        return table
    note = "; ".join(filter(None, (f"stores in {shown(directory)}", table.note)))
    rows = [[*row[:at], posixpath.relpath(str(row[at]), directory), *row[at + 1 :]] for row in table.rows]
    return Table(table.title, table.columns, rows, note)


def _directory_of(stores: Collection[str]) -> str | None:
    """Return the common directory of all stores; None: it is "/", or not all stores are mounted."""
    if not stores or not all(store.startswith("/") for store in stores):
        return None
    shared = posixpath.commonpath(stores)
    directory = posixpath.dirname(shared) if shared in stores else shared
    return None if directory == "/" else directory


def shown(cell: Cell) -> str:
    """Return the text of a cell. Control characters, for example in a destination's name, are replaced."""
    match cell:
        case None:
            return "-"
        case bool():
            return "yes" if cell else "no"
        case int():
            return f"{cell:,}"
        case float():
            return f"{cell:.2f}"
        case datetime():
            return cell.strftime("%Y-%m-%d %H:%M")
        case str():
            return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in cell)


def size(bytes: int) -> str:
    """Format a size: 12345678 -> "11.8 MiB"."""
    amount = float(bytes)
    for unit in _UNITS:
        if abs(amount) < 1024 or unit == _UNITS[-1]:
            return f"{bytes} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("the last unit has no limit")


def is_number(cell: Cell) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)
