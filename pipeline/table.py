"""A small table of figures, once: the terminal and the HTML report show the same one. Knows nothing of Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from io import StringIO

Cell = str | int | float | bool | datetime | None

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True, slots=True)
class Table:
    """``rows`` as long as ``columns``. ``note`` says what was left out, or how to read it."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    note: str | None = None


def without_sole_store(table: Table) -> Table:
    """The same, with a store that all rows share in the note instead of in each of them."""
    if "store" not in table.columns:
        return table
    at = table.columns.index("store")
    stores = {row[at] for row in table.rows}
    if len(stores) != 1:
        return table
    note = "; ".join(filter(None, (f"store: {shown(stores.pop())}", table.note)))
    rows = [[*row[:at], *row[at + 1 :]] for row in table.rows]
    return Table(table.title, (*table.columns[:at], *table.columns[at + 1 :]), rows, note)


def shown(cell: Cell) -> str:
    """A cell as a person reads it; control characters of a destination's name or a cause do not reach a terminal."""
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
    """12345678 -> "11.8 MiB"."""
    amount = float(bytes)
    for unit in _UNITS:
        if abs(amount) < 1024 or unit == _UNITS[-1]:
            return f"{bytes} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("the last unit takes everything")


def is_number(cell: Cell) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def terminal(findings: Sequence[str], tables: Sequence[Table], width: int = 120) -> str:
    """Sentences, and the tables, for a terminal of ``width`` columns; plain text, without escapes."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(file=StringIO(), width=width, color_system=None, emoji=False, highlight=False)
    for finding in findings:
        console.print(Text(shown(finding)))
    for table in map(without_sole_store, tables):
        numeric = [all(is_number(row[i]) or row[i] is None for row in table.rows) for i in range(len(table.columns))]
        grid = RichTable()
        for name, is_right in zip(table.columns, numeric, strict=True):
            grid.add_column(Text(shown(name)), justify="right" if is_right else "left", overflow="fold")
        for row in table.rows:
            grid.add_row(*[Text(shown(cell)) for cell in row])
        console.print("", Text(shown(table.title)), grid, sep="\n")
        if table.note:
            console.print(Text(shown(table.note)))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()
