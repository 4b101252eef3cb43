"""A summary as one self-contained HTML page: it has plots as SVG and no scripts, and loads nothing.

Names of destinations, causes and ids come from clients. So all text is escaped, and the page's content security policy
blocks scripts and loads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from html import escape
from typing import Final

from tandemmq.pipeline import drawing
from tandemmq.pipeline.jobs.summary import Plot, Summary
from tandemmq.pipeline.reach import describe
from tandemmq.pipeline.table import Cell, Table, is_number, shown, with_short_stores

# Cells up to this length are not wrapped, for example times and names of commands.
SHORT_CHARS_MAX: Final = 24
# In tables with more columns than this, words are broken so that they fit on paper.
PAPER_COLUMNS_MAX: Final = 9

_STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem; color: #1c1c1c;
       background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; } h1, h2, p, li { overflow-wrap: anywhere; }
.finding { border-left: 4px solid #009e73; padding: .4rem .8rem; margin: .5rem 0; background: #f4f7f6; }
.look .finding { border-color: #d55e00; background: #fdf4ee; }
table { border-collapse: collapse; font-size: .9rem; } .wide { overflow-x: auto; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; max-width: 40ch;
         overflow-wrap: break-word; }
.n, .s { white-space: nowrap; } .n { text-align: right; font-variant-numeric: tabular-nums; }
.note, .legend { color: #444; font-size: .85rem; }
@media print {
  body { margin: 0; padding: 0; max-width: none; font-size: 11px; print-color-adjust: exact;
         -webkit-print-color-adjust: exact; }
  h1 { font-size: 1.2rem; } h2 { font-size: 1rem; break-after: avoid; } tr, svg { break-inside: avoid; }
  .wide { overflow: visible; } svg { min-width: 0; } table { font-size: 9px; }
  th, td { padding: .1rem .25rem; max-width: 30ch; }
  .many th, .many td { white-space: normal; overflow-wrap: anywhere; }
}
"""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def page(summary: Summary, sources: Sequence[str], made: datetime) -> str:
    """Return the page. Values are formatted as on the terminal. ``made``: time of the job's result, shown in its time
    zone."""
    title = f"{summary.job}: {', '.join(sources)}"
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_text(title)}</title><style>{drawing.STYLE}{_STYLE}</style></head>",
            f'<body class="{"clean" if summary.is_clean else "look"}"><h1>{_text(title)}</h1>',
            f'<p class="note">made {made:%Y-%m-%d %H:%M:%S %Z}</p>',
            *(f'<p class="finding">{_text(finding)}</p>' for finding in summary.findings),
            *(f'<p class="note">{_text(line)}</p>' for line in describe(summary.reached or ())),
            "" if summary.engine is None else f'<p class="note">{_text(str(summary.engine))}</p>',
            *(part for plot in summary.plots for part in _plot(plot)),
            *(part for table in map(with_short_stores, summary.tables) for part in _table(table)),
            *_written(summary.written),
            "</body></html>\n",
        )
    )


def _text(cell: Cell) -> str:
    return escape(shown(cell))


def _table(table: Table) -> Iterator[str]:
    numeric = [any(is_number(row[i]) for row in table.rows) for i in range(len(table.columns))]
    yield f"<h2>{_text(table.title)}</h2>"
    if not table.rows:
        yield '<p class="note">none</p>'
        return
    heads = "".join(
        f"<th{_kind(name, is_right)}>{_text(name)}</th>" for name, is_right in _pairs(table.columns, numeric)
    )
    many = ' class="many"' if len(table.columns) > PAPER_COLUMNS_MAX else ""
    yield f'<div class="wide"><table{many}><thead><tr>{heads}</tr></thead><tbody>'
    for row in table.rows:
        cells = "".join(f"<td{_kind(cell, is_right)}>{_text(cell)}</td>" for cell, is_right in _pairs(row, numeric))
        yield f"<tr>{cells}</tr>"
    yield "</tbody></table></div>"
    if table.note:
        yield f'<p class="note">{_text(table.note)}</p>'


def _pairs(cells: Sequence[Cell], numeric: Sequence[bool]) -> Iterator[tuple[Cell, bool]]:
    return zip(cells, numeric, strict=True)


def _kind(cell: Cell, is_right: bool) -> str:
    if is_right:
        return ' class="n"'
    return ' class="s"' if len(shown(cell)) <= SHORT_CHARS_MAX else ""


def _plot(plot: Plot) -> Iterator[str]:
    if not drawing.is_empty(plot):
        yield f"<h2>{_text(plot.title)}</h2>"
        yield from drawing.drawn(plot)


def _written(written: dict[str, str]) -> Iterator[str]:
    if written:
        yield "<h2>Tables, as Parquet</h2><ul>"
        yield from (f"<li>{_text(name)}: <code>{_text(place)}</code></li>" for name, place in written.items())
        yield "</ul>"
