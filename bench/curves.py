"""``python -m tandemmq.bench.curves REPORT... PICTURE``: growth reports as curves, an SVG for a page. A later report
replaces subjects of an earlier one.

Both axes are logarithmic: a figure that grows with its subject is a straight line, an independent one is level.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

PANELS = {
    "bytes": ("memory, KiB", 1 / 1024),
    "cpu_us": ("CPU of a message beside them, us", 1.0),
    "start_seconds": ("start, s", 1.0),
}
COLOURS = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#b9770e")
WIDTH, HEIGHT, MARGIN, GAP = 300, 220, 60, 24

Points = list[tuple[float, float]]


def picture(steps: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the three panels beside each other, with a curve for each subject that has the figure."""
    parts = [_panel(number, name, steps) for number, name in enumerate(PANELS)]
    below = HEIGHT + 2 * MARGIN - 8
    legend = [
        f'<text x="{MARGIN + 170 * place}" y="{below}" fill="{COLOURS[place]}">{escape(subject)}</text>'
        for place, subject in enumerate(steps)
    ]
    width = len(PANELS) * (WIDTH + MARGIN + GAP)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT + 2 * MARGIN}"'
            ' font-family="sans-serif" font-size="12">',
            *parts,
            *legend,
            "</svg>\n",
        ]
    )


def _panel(number: int, name: str, steps: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    title, unit = PANELS[name]
    curves = {
        subject: [(step["count"], step[name] * unit) for step in found if (step[name] or 0) > 0]
        for subject, found in steps.items()
    }
    every = [point for points in curves.values() for point in points]
    if not every:
        return ""
    across = _decades([x for x, _ in every])
    up = _decades([y for _, y in every])
    left = MARGIN + number * (WIDTH + MARGIN + GAP)

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            left + WIDTH * (math.log10(x) - across[0]) / (across[-1] - across[0]),
            MARGIN + HEIGHT - HEIGHT * (math.log10(y) - up[0]) / (up[-1] - up[0]),
        )

    lines = [f'<text x="{left}" y="{MARGIN - 16}">{escape(title)}</text>']
    for decade in across:
        x, _ = place(10**decade, 10 ** up[0])
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{MARGIN}" y2="{MARGIN + HEIGHT}" stroke="#ddd"/>')
        lines.append(f'<text x="{x:.1f}" y="{MARGIN + HEIGHT + 16}" text-anchor="middle">{_word(decade)}</text>')
    for decade in up:
        _, y = place(10 ** across[0], 10**decade)
        lines.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{_word(decade)}</text>')
    for colour, points in zip(COLOURS, curves.values(), strict=False):
        drawn = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in points)
        if drawn:
            lines.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return "\n".join(lines)


def _decades(values: Sequence[float]) -> list[int]:
    """Return the powers of ten around the values, at least two."""
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return list(range(first, max(last, first + 1) + 1))


def _word(decade: int) -> str:
    if decade >= 6:
        return f"{10 ** (decade - 6)}M"
    return f"{10 ** (decade - 3)}k" if decade >= 4 else f"{10.0**decade:g}"


def main(*reports: str, target: str) -> None:
    steps: dict[str, Any] = {}
    for report in reports:
        steps |= json.loads(Path(report).read_text())["steps"]
    Path(target).write_text(picture(steps))


if __name__ == "__main__":
    main(*sys.argv[1:-1], target=sys.argv[-1])
