"""A summary as one HTML page that stands alone: plots are SVG in the page, there are no scripts and nothing is loaded.

Names of destinations, causes and ids come from clients: everything is escaped, and the page's own policy forbids
whatever would still get through.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from broker.pipeline.jobs.summary import Bars, Plot, Stacks, Summary
from broker.pipeline.table import Cell, Table, is_number, shown, size

# Told apart by people who see colours differently, too (Okabe and Ito); beyond these everything is one grey part.
COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442")
OTHERS_COLOUR: Final = "#999999"

WIDTH: Final = 900
LABEL_WIDTH: Final = 260
VALUE_WIDTH: Final = 110
BAR_HEIGHT: Final = 18
ROW_HEIGHT: Final = 24
LABEL_CHARS_MAX: Final = 36

_STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1c1c1c;
       background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.finding { border-left: 4px solid #009e73; padding: .4rem .8rem; margin: .5rem 0; background: #f4f7f6; }
.look .finding { border-color: #d55e00; background: #fdf4ee; }
table { border-collapse: collapse; font-size: .9rem; } .wide { overflow-x: auto; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid #ddd; text-align: left; overflow-wrap: anywhere; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
svg { max-width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: #1c1c1c; }
.note, .legend { color: #555; font-size: .85rem; } .legend i { display: inline-block; width: .8em; height: .8em; }
"""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def page(summary: Summary, sources: Sequence[str]) -> str:
    """The whole page. Values are written as the terminal shows them; where a bar has no room, its title tells."""
    title = f"{summary.job}: {', '.join(sources)}"
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_text(title)}</title><style>{_STYLE}</style></head>",
            f'<body class="{"clean" if summary.is_clean else "look"}"><h1>{_text(title)}</h1>',
            *(f'<p class="finding">{_text(finding)}</p>' for finding in summary.findings),
            *(part for plot in summary.plots for part in _plot(plot)),
            *(part for table in summary.tables for part in _table(table)),
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
    heads = "".join(f"<th{_right(is_right)}>{_text(name)}</th>" for name, is_right in _pairs(table.columns, numeric))
    yield f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>'
    for row in table.rows:
        cells = "".join(f"<td{_right(is_right)}>{_text(cell)}</td>" for cell, is_right in _pairs(row, numeric))
        yield f"<tr>{cells}</tr>"
    yield "</tbody></table></div>"
    if table.note:
        yield f'<p class="note">{_text(table.note)}</p>'


def _pairs(cells: Sequence[Cell], numeric: Sequence[bool]) -> Iterator[tuple[Cell, bool]]:
    return zip(cells, numeric, strict=True)


def _right(is_right: bool) -> str:
    return ' class="n"' if is_right else ""


def _plot(plot: Plot) -> Iterator[str]:
    if not plot.bars:
        return
    yield f"<h2>{_text(plot.title)}</h2>"
    match plot:
        case Bars(title, unit, bars):
            yield _drawn(title, unit, [(label, [(COLOURS[0], "", value)]) for label, value in bars])
        case Stacks(title, unit, parts, stacks):
            colours = [COLOURS[i] if i < len(COLOURS) else OTHERS_COLOUR for i in range(len(parts))]
            yield _legend(parts)
            rows = [(label, [*zip(colours, parts, values, strict=True)]) for label, values in stacks]
            yield _drawn(title, unit, rows)


def _legend(parts: Sequence[str]) -> str:
    named = [*zip(COLOURS, parts, strict=False)]
    if len(parts) > len(COLOURS):
        named.append((OTHERS_COLOUR, "others"))
    marks = (f'<i style="background:{colour}"></i> {_text(part)}' for colour, part in named)
    return f'<p class="legend">{" ".join(marks)}</p>'


Piece = tuple[str, str, int]  # colour, name of the part, value


def _drawn(title: str, unit: str, rows: Sequence[tuple[str, Sequence[Piece]]]) -> str:
    greatest = max(max(sum(value for _, _, value in pieces) for _, pieces in rows), 1)
    scale = (WIDTH - LABEL_WIDTH - VALUE_WIDTH) / greatest
    drawn = []
    for number, (label, pieces) in enumerate(rows):
        y = number * ROW_HEIGHT
        middle = y + BAR_HEIGHT - 5
        short = label if len(label) <= LABEL_CHARS_MAX else label[: LABEL_CHARS_MAX - 1] + "…"
        drawn.append(f'<text x="{LABEL_WIDTH - 8}" y="{middle}" text-anchor="end">{_text(short)}</text>')
        x = float(LABEL_WIDTH)
        for colour, part, value in pieces:
            if value <= 0:
                continue
            width = value * scale
            said = " ".join(word for word in (label, part, _amount(value, unit)) if word)
            drawn.append(
                f'<rect x="{x:.1f}" y="{y}" width="{max(width, 0.5):.1f}" height="{BAR_HEIGHT}" fill="{colour}">'
                f"<title>{_text(said)}</title></rect>"
            )
            x += width
        total = _amount(sum(value for _, _, value in pieces), unit)
        drawn.append(f'<text x="{x + 6:.1f}" y="{middle}">{_text(total)}</text>')
    height = len(rows) * ROW_HEIGHT
    return (
        f'<svg role="img" aria-label="{_text(title)}" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}">{"".join(drawn)}</svg>'
    )


def _amount(value: int, unit: str) -> str:
    return size(value) if unit == "bytes" else f"{value:,} {unit}"


def _written(written: dict[str, str]) -> Iterator[str]:
    if written:
        yield "<h2>Tables, as Parquet</h2><ul>"
        yield from (f"<li>{_text(name)}: <code>{_text(place)}</code></li>" for name, place in written.items())
        yield "</ul>"
