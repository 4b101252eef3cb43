"""Output of commands: sentences, one JSON object for a program, tables, and the progress of long work.

A table has the style of all commands: columns two spaces apart, one line a row, names and no frame. Columns are ordered
by importance, the most important first. A terminal shows what fits its width: the last columns of text are cut with an
ellipsis, then the last ones are left out. A pipe or a file gets everything. Numbers are never cut.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol

import click

#: Every command with output has this option, and is called with ``as_json``. A failure is JSON too: `cli.failures`.
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, also for failures.")


def tell(as_json: bool, facts: Mapping[str, Any], *sentences: object) -> None:
    """Print what was done: ``facts`` as an object with --json, else the sentences, one a line."""
    if as_json:
        click.echo(json.dumps(facts, indent=2, default=str))
        return
    for sentence in sentences:
        click.echo(sentence)


def say_each(label: str, texts: Iterable[object], *, is_error: bool = False) -> None:
    """Print each of ``texts`` after the ``label``, on a line of its own."""
    for text in texts:
        click.echo(f"{label}{text}", err=is_error)


GAP: Final = "  "
ELLIPSIS: Final = "…"
#: A column of text is cut to this width at least; if the table is still too wide, columns are left out.
CUT_CELLS_MIN: Final = 8


class Column(NamedTuple):
    """Column of a table. ``is_number``: aligned right, and never cut."""

    name: str
    is_number: bool = False


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> None:
    """Print a table. ``rows`` are as long as ``columns``; None is an empty cell, numbers get thousands separators."""
    for line in lines(columns, rows, terminal_width()):
        click.echo(line)


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print names and a text for each, one a line. Sentences are not cut: a terminal wraps them."""
    for line in lines([Column("fact"), Column("text")], facts, None, has_head=False):
        click.echo(line)


def terminal_width() -> int | None:
    """Return the number of cells in a line, or None if the output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def lines(
    columns: Sequence[Column], rows: Iterable[Sequence[object]], width: int | None, *, has_head: bool = True
) -> list[str]:
    """Return the table, for lines of ``width`` cells; None: as wide as needed."""
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
    """Return the text of a cell. Names that clients chose cannot move the cursor or leave the line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = f"{value:,}" if isinstance(value, int | float) else str(value)
    return "".join(each if each.isprintable() else "\ufffd" for each in text)


def _fitted(columns: Sequence[Column], widths: Sequence[int], width: int) -> tuple[list[int], bool]:
    """Return the width of each column, and whether some columns were left out."""
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


REFRESH_SECONDS = 0.2


class Advance(Protocol):
    """Called with the bytes done, further text to show, and the total number of bytes if that has changed."""

    def __call__(self, done_bytes: int, detail: str = "", total_bytes: int | None = None) -> None: ...


def unseen(done_bytes: int, detail: str = "", total_bytes: int | None = None) -> None:
    """An Advance that shows nothing."""


@contextmanager
def progress(what: str, total_bytes: int) -> Iterator[Advance]:
    """Yield a function to call with the bytes done, out of ``total_bytes``. Shows nothing without a terminal."""
    if not sys.stderr.isatty():
        yield unseen
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[detail]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total_bytes, detail="")

        def advance(done_bytes: int, detail: str = "", total_bytes: int | None = None) -> None:
            bar.update(task, completed=done_bytes, detail=detail, total=total_bytes)

        yield advance


@contextmanager
def watched(
    what: str, total_bytes: int, done_bytes: Callable[[], int], records: Callable[[], int] | None = None
) -> Iterator[None]:
    """Show progress as ``progress`` does, for work that another thread polls while it runs.

    With ``records``, the records done per second are shown as well.
    """
    with progress(what, total_bytes) as advance:
        has_ended = threading.Event()
        started = time.monotonic()

        def look() -> None:
            while not has_ended.wait(REFRESH_SECONDS):
                rate = "" if records is None else f"{records() / (time.monotonic() - started):,.0f} records/s"
                advance(done_bytes(), rate)

        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            has_ended.set()
            watcher.join()
