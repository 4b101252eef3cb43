"""A summary for a terminal and as a page of HTML; needs no Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.cli.pipeline.common import summary_lines
from tandemmq.pipeline.drawing import (
    COLOURS,
    OTHERS_COLOUR,
    POINTS_MAX,
    WIDTH,
    amount,
    drawn,
    is_empty,
    log_ticks,
    thinned,
    ticks,
)
from tandemmq.pipeline.jobs.summary import Bars, Lines, Stacks, Summary
from tandemmq.pipeline.report import page
from tandemmq.pipeline.table import Table, shown, size

MADE = datetime(2026, 11, 3, 9, 8, 7, tzinfo=UTC)
HOSTILE = "<script>alert(1)</script>\"'&\x1b[2J"


class Elements(HTMLParser):
    """The tags of a page, and the text between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs), "nothing runs or loads"

    def handle_data(self, data: str) -> None:
        self.text += data


def drawings(text: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring("<svg" + part.split("</svg>")[0] + "</svg>") for part in text.split("<svg")[1:]]


@pytest.fixture
def hostile() -> Summary:
    return Summary(
        HOSTILE,
        (HOSTILE,),
        (Table(HOSTILE, (HOSTILE, "bytes"), [(HOSTILE, 1)], HOSTILE),),
        (Bars(HOSTILE, "bytes", [(HOSTILE, 1)]), Stacks(HOSTILE, HOSTILE, (HOSTILE,), [(HOSTILE, [2])])),
        written={HOSTILE: HOSTILE},
    )


def test_names_of_clients_are_escaped_on_the_page(hostile: Summary) -> None:
    text = page(hostile, [HOSTILE], MADE)
    elements = Elements(text)
    assert "script" not in elements.tags
    assert "<script>alert(1)</script>" in elements.text
    assert "\x1b" not in text


def test_names_of_clients_move_no_cursor_in_a_terminal(hostile: Summary) -> None:
    text = "\n".join(summary_lines(hostile.findings, hostile.tables, 120))
    assert "alert(1)" in text
    assert "\x1b" not in text


def test_bars_are_as_long_as_their_values() -> None:
    [drawing] = drawings(page(Summary("job", (), (), (Bars("b", "bytes", [("a", 400), ("b", 100)]),)), ["x"], MADE))
    long, short = (float(bar.attrib["width"]) for bar in drawing.iter("rect"))
    assert long == pytest.approx(4 * short, rel=0.01)
    assert [title.text for title in drawing.iter("title")] == ["a 400 B", "b 100 B"]


def test_parts_of_a_bar_follow_each_other_and_share_a_colour_from_bar_to_bar() -> None:
    plot = Stacks("s", "messages", ("x", "y"), [("1", [30, 10]), ("2", [0, 20])])
    [drawing] = drawings(page(Summary("job", (), (), (plot,)), ["x"], MADE))
    first, second, third = drawing.iter("rect")
    assert float(first.attrib["x"]) + float(first.attrib["width"]) == pytest.approx(float(second.attrib["x"]), abs=0.2)
    assert [bar.attrib["fill"] for bar in (first, second, third)] == [COLOURS[0], COLOURS[1], COLOURS[1]]


def test_more_parts_than_colours_are_others() -> None:
    parts = tuple(str(number) for number in range(len(COLOURS) + 2))
    text = page(Summary("job", (), (), (Stacks("s", "bytes", parts, [("1", [1] * len(parts))]),)), ["x"], MADE)
    [drawing] = drawings(text)
    assert [bar.attrib["fill"] for bar in drawing.iter("rect")][-2:] == [OTHERS_COLOUR] * 2
    assert "others" in text


def test_a_part_that_is_nowhere_has_no_colour() -> None:
    plot = Stacks("s", "bytes", ("there", "nowhere"), [("1", [1, 0]), ("2", [2, 0])])
    text = page(Summary("job", (), (), (plot,)), ["x"], MADE)
    assert "there" in Elements(text).text
    assert "nowhere" not in Elements(text).text


def test_a_store_that_all_rows_share_is_told_once() -> None:
    one = ["/data/a", 1]
    alone = Table("files", ("store", "file"), [one, one], "the first 2")
    for text in (
        "\n".join(summary_lines((), (alone,), None)),
        Elements(page(Summary("job", (), (alone,)), ["x"], MADE)).text,
    ):
        assert text.count("/data/a") == 1
        assert "store: /data/a; the first 2" in text
    assert Summary("job", (), (alone,)).figures()["tables"] == {"files": [{"store": "/data/a", "file": 1}] * 2}


def test_stores_are_named_from_the_directory_that_they_share() -> None:
    both = Table("files", ("store", "file"), [["/data/a", 1], ["/data/b/c", 2]], "the first 2")
    lines = list(summary_lines((), (both,), None))
    assert [line.split() for line in lines[2:5]] == [["store", "file"], ["a", "1"], ["b/c", "2"]]
    assert lines[5] == "stores in /data; the first 2"
    for stores in (["/a", "/b"], ["s3a://lake/a", "s3a://lake/b"]):
        named = summary_lines((), (Table("files", ("store",), [[store] for store in stores]),), None)
        assert list(named)[3:] == stores
    within = Table("files", ("store",), [["/data/a"], ["/data/a/b"]])
    assert list(summary_lines((), (within,), None))[3:] == ["a", "a/b", "stores in /data"]


def test_on_a_narrow_terminal_stand_the_columns_that_matter() -> None:
    """Columns without a value are omitted, the kind of a destination goes first, and times and numbers are not cut."""
    when = datetime(2026, 11, 3, 9, 5, tzinfo=UTC)
    columns = ("destination_type", "destination", "subscription", "oldest", "bytes")
    table = Table("held", columns, [["queue", "orders." + "x" * 40, None, when, 1234567]])
    head, row = list(summary_lines((), (table,), 48))[2:4]
    assert head.split() == ["destination", "oldest", "bytes", "…"]
    assert row.startswith("orders.")
    assert "2026-11-03 09:05" in row
    assert "1,234,567" in row
    assert len(row) <= 48
    whole = list(summary_lines((), (table,), None))[3]
    assert whole.split() == ["orders." + "x" * 40, "2026-11-03", "09:05", "1,234,567", "queue"]


def test_an_empty_summary_is_a_page() -> None:
    text = page(Summary("job", (), (Table("none", ("a",), []),), (Bars("b", "bytes", []),)), ["x"], MADE)
    assert "made 2026-11-03 09:08:07 UTC" in text
    assert "svg" not in Elements(text).tags


def test_cells_are_shown_alike_everywhere() -> None:
    cells = (None, True, 1234567, 1.005, datetime(2026, 11, 3, 9, 5, tzinfo=UTC), "q\n")
    assert [shown(cell) for cell in cells] == [
        "-", "yes", "1,234,567", "1.00", "2026-11-03 09:05", "q\N{REPLACEMENT CHARACTER}",
    ]  # fmt: skip


def test_sizes_are_in_the_unit_that_fits() -> None:
    assert [size(number) for number in (0, 1023, 1024, 5 << 30)] == ["0 B", "1023 B", "1.0 KiB", "5.0 GiB"]


# ---- Lines as SVG; bars are in jobs/test_report.py. Needs no Spark


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


def test_lines_that_do_not_cross_are_not_drawn_across() -> None:
    """Each point shows the greatest value of its interval, at the same x for all lines."""
    p95 = [float(number * 7919 % 1000) for number in range(4 * POINTS_MAX)]
    p99 = [value + number * 104729 % 500 for number, value in enumerate(p95)]
    xs = [f"{number:05}" for number in range(len(p95))]
    svg = drawing(Lines("latency", "ms", xs, [("p95", p95), ("p99", p99)]))
    points = [(dot.attrib["cx"], float(dot.attrib["cy"])) for dot in svg.iter("circle")]
    below, above = points[: len(points) // 2], points[len(points) // 2 :]
    assert [x for x, _ in below] == [x for x, _ in above]
    assert all(high <= low for (_, low), (_, high) in zip(below, above, strict=True)), "the axis counts from the top"


def test_the_scale_reaches_the_greatest_value() -> None:
    lines = drawing(Lines("backlog", "messages", hours(2), [("orders", [0, 12_345])]))
    tops = [
        float(path.attrib["d"].split()[1].split("H")[0])
        for path in lines.iter("path")
        if "grid" in path.attrib["class"]
    ]
    assert min(tops) <= min(float(dot.attrib["cy"]) for dot in lines.iter("circle"))
    bars = drawing(Bars("files", "messages", [("a", 12_345)]))
    ends = [float(path.attrib["d"][1:].split()[0]) for path in bars.iter("path")]
    [bar] = bars.iter("rect")
    assert max(ends) >= float(bar.attrib["x"]) + float(bar.attrib["width"])


def test_bars_that_differ_much_have_a_logarithmic_scale_to_open() -> None:
    few, many = (
        list(drawn(Bars("files", "messages", [("a", 10), ("b", value), ("c", 0)]))) for value in (100, 1_000_000)
    )
    assert len(few) == 1
    assert many[1].startswith("<details>")
    short, long = (float(bar.attrib["width"]) for bar in ElementTree.fromstring(many[2]).iter("rect"))
    assert long == pytest.approx(6 * short, rel=0.01), "10 is one power of ten above 1, and a million six"


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


# ---- Amounts and the ticks of an axis; needs no Spark


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (1536, "bytes", "1.5 KiB"),
        (0, "ms", "0 ms"),
        (0.25, "ms", "0.2 ms"),
        (2300, "ms", "2.3 s"),
        (60_000, "ms", "1 min"),
        (5_400_000, "ms", "1.5 h"),
        (3 * 86_400_000, "ms", "3 d"),
        (1200, "messages", "1,200 messages"),
        (1.25, "messages/s", "1.2 messages/s"),
    ],
)
def test_an_amount_is_in_the_unit_that_fits(value: float, unit: str, expected: str) -> None:
    assert amount(value, unit) == expected


def test_ticks_are_round_in_their_unit() -> None:
    assert [text for _, text in ticks(5 << 30, "bytes", 6)] == [f"{number} GiB" for number in range(6)]
    assert [text for _, text in ticks(100_000, "ms", 6)] == ["0 s", "20 s", "40 s", "60 s", "80 s", "100 s"]
    assert [text for _, text in ticks(12_345, "messages", 3)] == ["0", "5,000", "10,000", "15,000"]
    assert [text for _, text in log_ticks(3, 2_000, "messages", 6)] == ["1", "10", "100", "1,000", "10,000"]
    assert [text for _, text in log_ticks(1024, 40 << 20, "bytes", 6)] == [
        "32 B",
        "1.0 KiB",
        "32.0 KiB",
        "1.0 MiB",
        "32.0 MiB",
        "1.0 GiB",
    ]


@given(st.floats(1, 1e18), st.sampled_from(("bytes", "ms", "messages")), st.integers(1, 12))
def test_there_are_no_more_ticks_than_have_room(greatest: float, unit: str, most: int) -> None:
    values = [value for value, _ in ticks(greatest, unit, most)]
    assert (values[0], values) == (0, sorted(set(values)))
    assert values[-2] < greatest <= values[-1] * (1 + 1e-12)
    assert len(values) <= most + 1
