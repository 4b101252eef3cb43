"""Lines as SVG; bars are in jobs/test_report.py. Needs no Spark."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest

from tandemmq.pipeline.drawing import POINTS_MAX, WIDTH, drawn, is_empty, thinned
from tandemmq.pipeline.jobs.summary import Bars, Lines


def drawing(plot: Bars | Lines) -> ElementTree.Element:
    return ElementTree.fromstring(list(drawn(plot))[-1])


def hours(count: int) -> list[str]:
    return [f"2026-11-03 {hour:02}:00" for hour in range(count)]


def test_a_line_rises_with_its_values_and_each_point_tells_its_own() -> None:
    svg = drawing(Lines("latency", "ms", hours(3), [("p50", [0, 500, 1000]), ("p99", [2000, 2000, 2000])]))
    points = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in svg.iter("circle")]
    (_, low), (_, middle), (_, high), *p99 = points
    assert low - middle == pytest.approx(middle - high, abs=0.2)
    assert low - p99[0][1] == pytest.approx(2 * (low - high), abs=0.2)
    assert [title.text for title in svg.iter("title")][2:4] == [
        "p50, 2026-11-03 02:00: 1 s",
        "p99, 2026-11-03 00:00: 2 s",
    ]


def test_a_value_that_is_not_there_is_a_gap() -> None:
    svg = drawing(Lines("backlog", "messages", hours(5), [("orders", [1, 2, None, 3, None])]))
    assert len(list(svg.iter("circle"))) == 3
    assert [path.attrib["d"].count("L") for path in svg.iter("path") if path.attrib["class"] == "line"] == [1, 0]


def test_of_many_points_the_greatest_stay() -> None:
    line: list[float | None] = [1.0] * 10_000
    line[7777] = 50
    line[:5000] = [None] * 5000
    points = thinned(line)
    assert len(points) <= POINTS_MAX
    assert (7777, 50) in points
    assert all(value is None for index, value in points if index < 4900)
    assert [index for index, _ in points] == sorted(index for index, _ in points)


def test_few_points_stay_as_they_are() -> None:
    assert thinned([3, None, 0]) == [(0, 3), (1, None), (2, 0)]


@pytest.mark.parametrize("count", [1, 2, 24, 1000])
def test_names_of_hours_have_room_beside_each_other(count: int) -> None:
    xs = [f"2026-11-03 {number:05}" for number in range(count)]
    svg = drawing(Lines("backlog", "messages", xs, [("orders", [5.0] * count)]))
    places = [float(text.attrib["x"]) for text in svg.iter("text") if text.attrib["text-anchor"] == "middle"]
    assert places
    assert all(after - before > 16 * 7.3 for before, after in pairwise(places))
    assert places[0] >= 16 * 7.3 / 2
    assert places[-1] <= WIDTH - 16 * 7.3 / 2


def test_a_long_name_keeps_its_end_and_is_told_whole() -> None:
    name = "/data/" + "broker/" * 20 + "db-17.log"
    labels = [text for text in drawing(Bars("files", "bytes", [(name, 5)])).iter("text") if "…" in (text.text or "")]
    [label] = labels
    assert label.text is not None
    assert label.text.endswith("db-17.log")
    assert label.text.startswith("/data/broker")
    assert [title.text for title in label.iter("title")] == [name]


def test_lines_without_a_value_are_nothing_to_draw() -> None:
    assert is_empty(Lines("latency", "ms", hours(2), [("p50", [None, None])]))
    assert is_empty(Lines("latency", "ms", [], []))
    assert not is_empty(Lines("latency", "ms", hours(1), [("p50", [0])]))
