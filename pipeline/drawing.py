"""Plots as SVG in an HTML page: horizontal bars with their names, and lines over time or another axis.

    | names | bars, over a grid ........ | amounts |      | amounts | lines, over a grid ............ |
    |       | 0     1 GiB     2 GiB      |         |      |         | 09:00      10:00      11:00    |

All text has a fixed-width font, so that its width is known without a browser. Text that is too long is cut in the
middle; its title has the whole text.

Amounts as text, and round values for an axis: bytes in steps of 1024, times in ms, s, min, h and d, other units in
powers of ten.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import count
from typing import Final

from rich.cells import cell_len, set_cell_size

from tandemmq.pipeline.jobs.summary import Bars, Lines, Plot, Stacks
from tandemmq.pipeline.table import shown, size

BYTES: Final = "bytes"
MILLISECONDS: Final = "ms"
# Units that are part of each label of an axis. Other units are written once beside the axis.
NAMED_BY_TICKS: Final = frozenset({BYTES, MILLISECONDS})

_CLOCK: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms"))
_ROUNDED: Final = 1e-9  # tolerance for the rounding of a logarithm
_MEMORY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def amount(value: float, unit: str) -> str:
    """Format an amount: (1536, "bytes") -> "1.5 KiB"; (2300, "ms") -> "2.3 s"; (1200, "items") -> "1,200 items"."""
    if unit == BYTES:
        return size(round(value))
    if unit == MILLISECONDS:
        length, name = next((part for part in _CLOCK if value >= part[0]), _CLOCK[-1])
        return f"{_plain(round(value / length, 1))} {name}"
    return f"{_plain(value)} {unit}"


def ticks(greatest: float, unit: str, most: int) -> list[tuple[float, str]]:
    """Return at most ``most`` + 1 round amounts, from 0 to the first one that is at least ``greatest`` (above 0), with
    their labels. All labels have the same unit; those of counted items have none. ``most`` must be at least 1.
    """
    factor, length, name = next(step for step in _steps(unit) if math.ceil(greatest / (step[0] * step[1])) <= most)
    factors = [number * factor for number in range(math.ceil(greatest / (factor * length)) + 1)]
    return [(factor * length, f"{factor:,} {name}".rstrip()) for factor in factors]


def log_ticks(least: float, greatest: float, unit: str, most: int) -> list[tuple[float, str]]:
    """Return at most ``most`` + 1 powers of ten (for bytes: of 32) at equal distances, with their labels. They begin at
    or below ``least`` (at least 1), and end at or above ``greatest``."""
    base = 32 if unit == BYTES else 10
    low = max(math.ceil(math.log(least, base) - _ROUNDED) - 1, 0)
    high = max(math.ceil(math.log(greatest, base) - _ROUNDED), low + 1)
    every = -(-(high - low) // most)
    powers = [float(base) ** (low + every * number) for number in range(-(-(high - low) // every) + 1)]
    if unit in NAMED_BY_TICKS:
        return [(value, amount(value, unit)) for value in powers]
    return [(value, _plain(value)) for value in powers]


def _steps(unit: str) -> Iterator[tuple[int, int, str]]:
    """Yield steps of increasing length, each as a factor, the length of its unit, and the name of the unit."""
    if unit == BYTES:
        for power, name in enumerate(_MEMORY):
            yield from ((factor, 1024**power, name) for factor in (1, 2, 5, 10, 20, 50, 100, 200, 500))
    elif unit == MILLISECONDS:
        yield from ((factor, 1, "ms") for factor in (1, 2, 5, 10, 20, 50, 100, 200, 500))
        yield from ((factor, 1000, "s") for factor in (1, 2, 5, 10, 20, 30))
        yield from ((factor, 60_000, "min") for factor in (1, 2, 5, 10, 20, 30))
        yield from ((factor, 3_600_000, "h") for factor in (1, 2, 6, 12))
    length, name = {BYTES: (1024 ** len(_MEMORY), "EiB"), MILLISECONDS: _CLOCK[0]}.get(unit, (1, ""))
    yield from ((factor * 10**power, length, name) for power in count() for factor in (1, 2, 5))


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


# Colours of the parts. Colour-blind readers can distinguish them, too (Okabe and Ito). Further parts are grey.
COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442")
OTHERS_COLOUR: Final = "#999999"
OTHERS: Final = "others"

WIDTH: Final = 900
BAR_HEIGHT: Final = 16
ROW_HEIGHT: Final = 22
LINES_HEIGHT: Final = 260
TEXT_HEIGHT: Final = 16
GAP: Final = 8
# Width of a character of 12 px in the widest font that STYLE names.
CELL_WIDTH: Final = 7.3
LABEL_CELLS_MAX: Final = 40
# Cells at the end of a label that are not cut: the end of a name is often the most useful part.
LABEL_END_CELLS: Final = 20
# If the longest bar is at least this many times the shortest, a collapsed drawing on a logarithmic scale is added.
LOG_FROM: Final = 20
# Minimum distances of grid lines, in pixels.
TICK_DISTANCE_MIN: Final = 90
LOG_TICK_DISTANCE_MIN: Final = 140
LINE_TICK_DISTANCE_MIN: Final = 40
# Maximum number of points of a line. A longer line shows the maximum of each stretch, because the maxima of a backlog
# matter.
POINTS_MAX: Final = 300
# Radius of a point; smaller in lines with MANY_POINTS.
POINT_RADIUS: Final = 2.5
POINT_RADIUS_OF_MANY: Final = 1.2
MANY_POINTS: Final = 60

STYLE: Final = """
svg { display: block; width: 100%; height: auto; min-width: 45rem; }
svg text { font: 12px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1c1c1c; white-space: pre; }
svg .grid { stroke: #e2e2e2; } svg .tick { fill: #555; }
svg .line { fill: none; stroke-width: 1.75; stroke-linejoin: round; }
summary { color: #444; font-size: .85rem; cursor: pointer; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .3em; }
.legend span { display: inline-block; margin-right: 1em; overflow-wrap: anywhere; }
"""


def is_empty(plot: Plot) -> bool:
    """Return whether there is nothing to draw."""
    match plot:
        case Lines(xs=xs, lines=lines):
            return not xs or not any(value is not None for _, values in lines for value in values)
        case Bars() | Stacks():
            return not plot.bars


def drawn(plot: Plot) -> Iterator[str]:
    """Yield the HTML of a non-empty plot: a legend if there are several colours, and the drawing."""
    match plot:
        case Bars(title, unit, bars):
            rows = [(label, [(COLOURS[0], "", value)]) for label, value in bars]
            yield _bars(title, unit, rows)
            there = [value for _, value in bars if value > 0]
            if there and max(there) >= LOG_FROM * min(there):
                yield "<details><summary>The same on a logarithmic scale</summary>"
                yield _bars(f"{title}, on a logarithmic scale", unit, rows, min(there))
                yield "</details>"
        case Stacks(title, unit, parts, stacks):
            colours = _colours(len(parts))
            yield _legend([part if any(values[i] for _, values in stacks) else "" for i, part in enumerate(parts)])
            rows = [(label, [*zip(colours, parts, values, strict=True)]) for label, values in stacks]
            yield _bars(title, unit, rows)
        case Lines(lines=lines):
            yield _legend([name for name, _ in lines])
            yield _lines(plot)


def _colours(parts: int) -> list[str]:
    return [COLOURS[i] if i < len(COLOURS) else OTHERS_COLOUR for i in range(parts)]


def _legend(parts: Sequence[str]) -> str:
    """Return the legend for the parts of a drawing. An empty name is left out."""
    named = [*zip(COLOURS, parts, strict=False)]
    if any(parts[len(COLOURS) :]):
        named.append((OTHERS_COLOUR, OTHERS))
    marks = (f'<span><i style="background:{colour}"></i>{_text(part)}</span>' for colour, part in named if part)
    return f'<p class="legend">{" ".join(marks)}</p>'


Piece = tuple[str, str, int]  # colour, name of the part, value


def _bars(title: str, unit: str, rows: Sequence[tuple[str, Sequence[Piece]]], least: int | None = None) -> str:
    """Return a drawing of bars. ``least``: for a logarithmic scale, the least value above 0; then each bar has one
    piece."""
    sums = [sum(max(value, 0) for _, _, value in pieces) for _, pieces in rows]
    greatest = max(*sums, 1)
    totals = [amount(total, unit) for total in sums]
    left = _room(_fitted(label) for label, _ in rows)
    room = WIDTH - left - _room(totals)
    bottom = len(rows) * ROW_HEIGHT
    parts = []
    most = max(1, int(room / (TICK_DISTANCE_MIN if least is None else LOG_TICK_DISTANCE_MIN)))
    marks = ticks(greatest, unit, most) if least is None else log_ticks(least, greatest, unit, most)
    low, top = marks[0][0], marks[-1][0]

    def length(value: float) -> float:
        share = value / top if least is None else math.log(max(value, low) / low) / math.log(top / low)
        return share * room

    for value, text in marks:
        x = left + length(value)
        parts.append(f'<path class="grid" d="M{x:.1f} 0V{bottom}"/>')
        parts.append(_word(x, bottom + TEXT_HEIGHT, text, "middle", "tick"))
    for number, ((label, pieces), total) in enumerate(zip(rows, totals, strict=True)):
        y = number * ROW_HEIGHT + (ROW_HEIGHT - BAR_HEIGHT) / 2
        parts.append(_word(left - GAP, y + BAR_HEIGHT - 4, label, "end"))
        x = left
        for colour, part, value in pieces:
            if value <= 0:
                continue
            width = length(value)
            text = " ".join(word for word in (label, part, amount(value, unit)) if word)
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{BAR_HEIGHT}" fill="{colour}">'
                f"<title>{_text(text)}</title></rect>"
            )
            x += width
        parts.append(_word(x + GAP, y + BAR_HEIGHT - 4, total, "start"))
    return _svg(title, bottom + TEXT_HEIGHT + GAP, parts)


def _lines(plot: Lines) -> str:
    values = [value for _, line in plot.lines for value in line if value is not None]
    greatest = max(*values, 1)
    marks = ticks(greatest, plot.unit, LINES_HEIGHT // LINE_TICK_DISTANCE_MIN)
    top = marks[-1][0]
    label_room = _room(_fitted(x) for x in plot.xs)
    left = max(_room(label for _, label in marks), label_room / 2)
    right = WIDTH - label_room / 2
    room = right - left
    bottom = 2 * TEXT_HEIGHT + LINES_HEIGHT

    def across(index: float) -> float:
        return left + (index / (len(plot.xs) - 1) if len(plot.xs) > 1 else 0.5) * room

    def up(value: float) -> float:
        return bottom - max(value, 0) / top * LINES_HEIGHT

    parts = [] if plot.unit in NAMED_BY_TICKS else [_word(0, TEXT_HEIGHT - 4, plot.unit, "start", "tick")]
    for value, label in marks:
        parts.append(f'<path class="grid" d="M{left:.1f} {up(value):.1f}H{right:.1f}"/>')
        parts.append(_word(left - GAP, up(value) + 4, label, "end", "tick"))
    every = max(1, -(-len(plot.xs) * int(label_room) // int(room)))
    parts += [
        _word(across(index), bottom + TEXT_HEIGHT + 2, plot.xs[index], "middle", "tick")
        for index in range(0, len(plot.xs), every)
    ]
    for colour, (name, line) in zip(_colours(len(plot.lines)), plot.lines, strict=True):
        for stretch in _stretches(thinned(line)):
            radius = POINT_RADIUS if len(stretch) <= MANY_POINTS else POINT_RADIUS_OF_MANY
            # The points of all lines have the same x coordinates.
            places = [(across(middle(index, len(line))), up(value)) for index, value in stretch]
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
            parts.append(f'<path class="line" stroke="{colour}" d="M{path}"/>')
            for (x, y), (index, value) in zip(places, stretch, strict=True):
                label = f"{name}, {plot.xs[index]}: {amount(value, plot.unit)}"
                parts.append(
                    f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}">'
                    f"<title>{_text(label)}</title></circle>"
                )
    return _svg(plot.title, bottom + TEXT_HEIGHT + GAP, parts)


def middle(index: int, count: int) -> float:
    """Return the middle of the stretch of ``thinned`` that contains the point ``index``; in a line with few points,
    ``index`` itself."""
    stretch = -(-count // POINTS_MAX)
    start = index // stretch * stretch
    return (start + min(start + stretch, count) - 1) / 2


def thinned(line: Sequence[float | None]) -> list[tuple[int, float | None]]:
    """Return index and value of the points to draw: all points, or the maximum of each of POINTS_MAX stretches. The
    value is None if a stretch has no value."""
    stretch = -(-len(line) // POINTS_MAX)
    found: list[tuple[int, float | None]] = []
    for start in range(0, len(line), max(stretch, 1)):
        there = [
            (value, -index) for index, value in enumerate(line[start : start + stretch], start) if value is not None
        ]
        value, index = max(there, default=(None, -start))
        found.append((-index, value))
    return found


def _stretches(points: Sequence[tuple[int, float | None]]) -> Iterator[list[tuple[int, float]]]:
    """Yield the sequences of points between gaps."""
    stretch: list[tuple[int, float]] = []
    for index, value in points:
        if value is not None:
            stretch.append((index, value))
        elif stretch:
            yield stretch
            stretch = []
    if stretch:
        yield stretch


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<div class="wide"><svg role="img" aria-label="{_text(title)}" viewBox="0 0 {WIDTH} {height:g}">'
        f"{''.join(parts)}</svg></div>"
    )


def _word(x: float, y: float, word: str, anchor: str, kind: str = "") -> str:
    """Return a text element. A text that is too long is cut; its title has the whole text."""
    fitted = _fitted(word)
    title = f"<title>{_text(word)}</title>" if fitted != shown(word) else ""
    of_kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{of_kind}>{escape(fitted)}{title}</text>'


def _fitted(word: str) -> str:
    word = shown(word)
    if cell_len(word) <= LABEL_CELLS_MAX:
        return word
    end = set_cell_size(word[::-1], LABEL_END_CELLS)[::-1]
    return f"{set_cell_size(word, LABEL_CELLS_MAX - LABEL_END_CELLS - 1)}…{end}"


def _room(words: Iterator[str] | Sequence[str]) -> float:
    """Return the width of the longest of ``words``, with a gap on both sides."""
    return max((cell_len(word) for word in words), default=0) * CELL_WIDTH + 2 * GAP


def _text(word: str) -> str:
    return escape(shown(word))
