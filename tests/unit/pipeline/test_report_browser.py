"""The pages of jobs in a real browser: wide, narrow and printed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tandemmq.pipeline.jobs.summary import Bars, Lines, Stacks, Summary
from tandemmq.pipeline.report import page
from tandemmq.pipeline.table import Table
from tests.support.pipeline.pipeline_stores import write_days

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.service

MADE = datetime(2026, 11, 3, 9, 8, 7, tzinfo=UTC)
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&"
WIDE, NARROW, PAPER = 1280, 400, 720
ONE_PIXEL = 1.0
# Minimum height of readable text, in pixels.
TEXT_HEIGHT_MIN = 10

# What is drawn, as the browser has laid it out: for each drawing its own box and those of its texts, bars and lines.
_DRAWINGS = """
() => (document.querySelectorAll("details").forEach(each => { each.open = true; }),
    [...document.querySelectorAll("svg")].map(svg => {
    const box = node => { const {left, top, right, bottom} = node.getBoundingClientRect();
                          return {left, top, right, bottom, said: node.firstChild?.nodeValue ?? node.tagName}; };
    const boxes = kind => [...svg.querySelectorAll(kind)].map(box);
    return {own: box(svg), texts: boxes("text"), bars: boxes("rect"), lines: boxes("path.line"),
            points: boxes("circle")};
}))
"""
Box = dict[str, Any]


@pytest.fixture
def opened(browser: Browser) -> Iterator[Callable[[Path, int], Any]]:
    """``opened(report, width)``: a page that shows the report; what it complained about fails the test."""
    complaints: list[str] = []
    pages = []

    def open_(report: Path, width: int) -> Any:
        shown = browser.new_page(viewport={"width": width, "height": 900})
        pages.append(shown)
        shown.on("console", lambda message: complaints.append(f"console: {message.text}"))
        shown.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        shown.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        shown.on("requestfailed", lambda request: complaints.append(f"failed: {request.url}"))
        shown.on("request", lambda request: request.url == report.as_uri() or complaints.append(request.url))
        shown.goto(report.as_uri())
        return shown

    yield open_
    for shown in pages:
        shown.close()
    assert not complaints


def check_drawings(shown: Any) -> list[dict[str, Any]]:
    """Every drawing is visible, nothing hangs out of it, and no text lies on another or on a bar."""
    drawings: list[dict[str, Any]] = shown.evaluate(_DRAWINGS)
    for drawing in drawings:
        own, texts, bars = drawing["own"], drawing["texts"], drawing["bars"]
        assert bars or drawing["lines"], "something is drawn"
        assert all(bar["right"] - bar["left"] > 0 and bar["bottom"] - bar["top"] > 1 for bar in bars)
        for line in drawing["lines"]:
            assert line["right"] - line["left"] + line["bottom"] - line["top"] > 0 or drawing["points"]
        for box in (*texts, *bars, *drawing["lines"], *drawing["points"]):
            assert box["left"] >= own["left"] - ONE_PIXEL, box
            assert box["right"] <= own["right"] + ONE_PIXEL, box
            assert box["top"] >= own["top"] - ONE_PIXEL, box
            assert box["bottom"] <= own["bottom"] + ONE_PIXEL, box
        for index, text in enumerate(texts):
            for other in (*texts[index + 1 :], *bars):
                assert not overlap(text, other), (text, other)
    return drawings


def overlap(one: Box, other: Box) -> bool:
    across = min(one["right"], other["right"]) - max(one["left"], other["left"])
    down = min(one["bottom"], other["bottom"]) - max(one["top"], other["top"])
    # Boxes of text are higher than their letters.
    return across > ONE_PIXEL and down > 3 * ONE_PIXEL


def check_page(opened: Callable[[Path, int], Any], report: Path) -> Any:
    """The page can be read at any width; returns it as a wide window shows it."""
    for width in (NARROW, WIDE):
        shown = opened(report, width)
        for drawing in check_drawings(shown):
            assert all(text["bottom"] - text["top"] >= TEXT_HEIGHT_MIN for text in drawing["texts"])
        assert shown.evaluate("document.scrollingElement.scrollWidth") <= width, "what is wide scrolls by itself"
    shown.set_viewport_size({"width": PAPER, "height": 1000})
    shown.emulate_media(media="print")
    assert all(drawing["own"]["right"] <= PAPER for drawing in check_drawings(shown))
    assert shown.evaluate("document.scrollingElement.scrollWidth") <= PAPER, "paper does not scroll"
    shown.emulate_media(media="screen")
    shown.set_viewport_size({"width": WIDE, "height": 900})
    assert shown.locator("script, img").count() == 0
    return shown


def test_sixty_files_and_forty_destinations_can_be_read(opened: Callable[[Path, int], Any], tmp_path: Path) -> None:
    destinations = [f"com.example.{'orders.' * (number % 7)}region-{number}" for number in range(38)]
    destinations += [HOSTILE, "注文" * 30, "Ω" * 100, "W" * 36]
    parts = tuple(f"COMMAND_{number}" for number in range(10))
    hours = [f"2026-11-{day:02} {hour:02}:00" for day in range(1, 8) for hour in range(24)]
    hourly = [None if 50 < number < 60 else number % 24 * 40_000.0 for number in range(len(hours))]
    summary = Summary(
        "composition",
        (HOSTILE, "x" * 500),
        (
            Table("Bytes by destination", ("destination", "bytes"), [(name, 10**11) for name in destinations]),
            Table("Wide", tuple(f"a_long_name_{number}" for number in range(15)), [[10**9] * 15]),
        ),
        (
            Bars("By destination", "bytes", [(name, 10**11 >> number) for number, name in enumerate(destinations)]),
            Bars("Messages", "messages", [("one", 999_999_999_999)]),
            Stacks(
                "By file", "bytes", parts, [(f"/data/{HOSTILE} db-{number}.log", [number] * 10) for number in range(60)]
            ),
            Lines("Latency", "ms", hours, [("p50", hourly), (HOSTILE, [None] * 100 + [3e6] * 68)]),
            Lines("Backlog", "messages", ["now"], [(f"line {number}", [number]) for number in range(12)]),
            Lines("Long names", "bytes", [HOSTILE * 3] * 5000, [("w", [10**12] * 5000)]),
        ),
        is_clean=False,
        written={"composition": "/tmp/" + "out" * 60},
    )
    report = tmp_path / "report.html"
    report.write_text(page(summary, [HOSTILE, "/data/" + "store" * 40], MADE), encoding="utf-8")
    shown = check_page(opened, report)
    assert shown.locator("details").count() == 1, "the bars of one plot differ much"
    assert len(shown.evaluate(_DRAWINGS)) == len(summary.plots) + 1
    assert HOSTILE in shown.inner_text("body")
    assert shown.title().startswith("composition: <script>")
    legend = shown.locator(".legend i").first
    assert legend.evaluate("mark => getComputedStyle(mark).backgroundColor") == "rgb(0, 114, 178)", (
        "its style is allowed"
    )


def test_text_that_lies_on_text_is_found(opened: Callable[[Path, int], Any], tmp_path: Path) -> None:
    """The check itself: the same page, with the text moved."""
    report = tmp_path / "report.html"
    text = page(Summary("job", (), (), (Bars("b", "bytes", [("one", 1), ("two", 2)]),)), ["x"], MADE)
    report.write_text(text)
    check_drawings(opened(report, WIDE))
    for found, moved in (('<text x="', '<text x="1'), ('y="', 'data-y="'), ('viewBox="0 0 900', 'viewBox="0 0 200')):
        assert found in text
        report.write_text(text.replace(found, moved))
        with pytest.raises(AssertionError):
            check_drawings(opened(report, WIDE))


@pytest.fixture
def busy(tmp_path: Path) -> Path:
    """Queues whose names clients chose."""
    names = [HOSTILE, "orders.regional.europe.west.priority.high.retry.incoming", *(f"q{n}" for n in range(11))]
    write_days(tmp_path / "busy", random.Random(1), names)
    return tmp_path / "busy"


@pytest.mark.parametrize(
    ("job", "drawings"),
    [
        ("composition", 3),
        pytest.param("pins", 1, marks=[pytest.mark.prove, pytest.mark.proof_only]),
        pytest.param("latency", 2, marks=[pytest.mark.prove, pytest.mark.proof_only]),
    ],
)
def test_the_page_of_a_job_is_readable_in_a_browser(
    spark: SparkSession, opened: Callable[[Path, int], Any], busy: Path, tmp_path: Path, job: str, drawings: int
) -> None:
    from tandemmq.pipeline.jobs import JOBS
    from tandemmq.pipeline.jobs.tables import Sources

    summary = import_module(JOBS[job]).run(spark, Sources((str(busy),), is_tail_wanted=True), str(tmp_path / "out"))
    report = tmp_path / "report.html"
    report.write_text(page(summary, [str(busy)], MADE), encoding="utf-8")
    shown = check_page(opened, report)
    assert len(shown.evaluate(_DRAWINGS)) >= drawings
    assert HOSTILE in shown.inner_text("body")
