"""A summary for a terminal and as a page of HTML; needs no Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from tandemmq.cli.pipeline.summary_text import summary_lines
from tandemmq.pipeline.drawing import COLOURS, OTHERS_COLOUR
from tandemmq.pipeline.jobs.summary import Bars, Stacks, Summary
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


def test_what_clients_named_is_text_on_the_page(hostile: Summary) -> None:
    text = page(hostile, [HOSTILE], MADE)
    elements = Elements(text)
    assert "script" not in elements.tags
    assert "<script>alert(1)</script>" in elements.text
    assert "\x1b" not in text


def test_what_clients_named_moves_no_cursor_in_a_terminal(hostile: Summary) -> None:
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
    """Those without a value are left out, the kind of a destination goes first, and times and numbers are whole."""
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
        "-",
        "yes",
        "1,234,567",
        "1.00",
        "2026-11-03 09:05",
        "q\N{REPLACEMENT CHARACTER}",
    ]


def test_sizes_are_in_the_unit_that_fits() -> None:
    assert [size(number) for number in (0, 1023, 1024, 5 << 30)] == ["0 B", "1023 B", "1.0 KiB", "5.0 GiB"]
