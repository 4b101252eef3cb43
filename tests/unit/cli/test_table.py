"""The one table of all commands: fitted to a terminal, whole in a pipe."""

from __future__ import annotations

from tandemmq.cli.table import Column, lines

QUEUES = [Column("queue"), Column("messages", is_number=True), Column("mode"), Column("remark")]
LONG = "orders." + "x" * 200
ROWS = [[LONG, 1234567, "normal", "nobody reads it, and it grows all the time"], ["b", 5, None, "-"]]


def test_a_pipe_gets_each_row_whole_on_one_line() -> None:
    head, first, second = lines(QUEUES, ROWS, None)
    assert head.split() == ["queue", "messages", "mode", "remark"]
    assert first == f"{LONG}  1,234,567  normal  nobody reads it, and it grows all the time"
    assert second.split() == ["b", "5", "-"]


def test_columns_stand_below_each_other_two_spaces_apart() -> None:
    columns = [Column("a"), Column("bb", is_number=True), Column("c")]
    assert lines(columns, [["xxx", 10000, "y"], ["z", 1, "w"]], None) == [
        "a        bb  c",
        "xxx  10,000  y",
        "z         1  w",
    ]  # fmt: skip


def test_on_a_terminal_the_last_text_is_cut_first_and_numbers_never() -> None:
    row = [["orders", 1234567, "normal", "nobody reads it"]]
    assert lines(QUEUES, row, 38)[1] == "orders  1,234,567  normal  nobody rea…"
    assert lines(QUEUES, row, 80)[1] == "orders  1,234,567  normal  nobody reads it"


def test_of_two_long_texts_the_first_stays_whole() -> None:
    columns = [Column("queue"), Column("remark")]
    assert lines(columns, [["orders.of.today", "nobody reads it"]], 27, has_head=False) == [
        "orders.of.today  nobody re…"
    ]


def test_what_does_not_fit_though_cut_is_left_out_from_the_end() -> None:
    for width in range(24, 90):
        shown = lines(QUEUES, ROWS, width)
        assert max(map(len, shown)) <= width
        assert "1,234,567" in shown[1]
        assert shown[1].startswith("orders.")
    assert [line[-1] for line in lines(QUEUES, ROWS, 24)] == ["…"] * 3
    assert "mode" not in lines(QUEUES, ROWS, 24)[0]


def test_what_a_client_called_its_queue_moves_no_cursor() -> None:
    assert lines([Column("queue")], [["a\x1b[2Jb\nc"]], None, has_head=False) == ["a�[2Jb�c"]


def test_wide_characters_take_two_cells() -> None:
    table = lines([Column("queue"), Column("n", is_number=True)], [["注文", 1], ["abcd", 2]], None, has_head=False)
    assert table == ["注文  1", "abcd  2"]
    cut = lines([Column("queue"), Column("n", is_number=True)], [["注文注文注文", 1]], 11, has_head=False)
    assert cut == ["注文注 …  1"]  # half a character is none
