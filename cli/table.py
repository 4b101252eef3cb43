"""How every command shows a table: columns two spaces apart, one line a row, names and no frame.

Columns stand by importance, the first one is the most important. A terminal shows what fits into its width: the last
columns of text are cut with an ellipsis, then the last ones are left out. A pipe or a file gets all of it. Numbers are
never cut.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import click

GAP: Final = "  "
ELLIPSIS: Final = "…"
#: A column of text is cut down to this and no further; what is still too wide is left out.
CUT_CELLS_MIN: Final = 8


class Column(NamedTuple):
    """``is_number``: to the right, and whole."""

    name: str
    is_number: bool = False


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[object]], *, has_head: bool = True) -> None:
    """``rows`` are as long as ``columns``; None is an empty cell, numbers get thousands separators."""
    for line in lines(columns, rows, terminal_width(), has_head=has_head):
        click.echo(line)


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Names and what there is to say of each, below each other. Sentences are not cut: a terminal breaks them."""
    for line in lines([Column("fact"), Column("text")], facts, None, has_head=False):
        click.echo(line)


def terminal_width() -> int | None:
    """How many cells a line has; None: the output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def lines(
    columns: Sequence[Column], rows: Iterable[Sequence[object]], width: int | None, *, has_head: bool = True
) -> list[str]:
    """The table, for lines of ``width`` cells; None: as wide as it gets."""
    from rich.cells import cell_len

    cells = [[shown(value) for value in row] for row in rows]
    if has_head:
        cells.insert(0, [column.name for column in columns])
    widths = [max((cell_len(row[at]) for row in cells), default=0) for at in range(len(columns))]
    is_cut = False
    if width is not None:
        widths, is_cut = _fitted(columns, widths, width)
    table = []
    for row in cells:
        parts = [
            _cell(text, size, is_right=column.is_number)
            for text, size, column in zip(row, widths, columns, strict=False)
        ]
        if is_cut:
            parts.append(ELLIPSIS)
        table.append(GAP.join(parts).rstrip())
    return table


def shown(value: object) -> str:
    """A cell: what clients called their queues moves no cursor, and stays on its line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = f"{value:,}" if isinstance(value, int | float) else str(value)
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def _fitted(columns: Sequence[Column], widths: Sequence[int], width: int) -> tuple[list[int], bool]:
    """How wide each column may be, and whether some were left out."""
    left = list(widths)
    for at in reversed(range(len(columns))):
        over = _wide(left) - width
        if over > 0 and not columns[at].is_number:
            least = max(CUT_CELLS_MIN, len(columns[at].name))
            left[at] = min(left[at], max(least, left[at] - over))
    is_cut = False
    while len(left) > 1 and _wide(left) + (len(GAP + ELLIPSIS) if is_cut else 0) > width:
        left.pop()
        is_cut = True
    return left, is_cut


def _wide(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _cell(text: str, size: int, *, is_right: bool) -> str:
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) > size:
        return set_cell_size(text, size - 1) + ELLIPSIS
    padding = " " * (size - cell_len(text))
    return padding + text if is_right else text + padding
