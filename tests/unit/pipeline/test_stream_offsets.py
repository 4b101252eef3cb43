"""Offsets of a stream: content and meaning of a checkpoint."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.pipeline.offsets import BadOffsets, Offsets, Position, beginning
from tandemmq.pipeline.options import BadOption, Options, StreamOptions

numbers = st.integers(1, 12)


@given(st.permutations(range(1, 12)), st.data())
def test_files_read_in_any_order_are_done_and_no_others(order: list[int], data: st.DataObject) -> None:
    position = Position()
    read: set[int] = set()
    for file in order[: data.draw(numbers)]:
        position = position.behind(file)
        read.add(file)
        assert {number for number in range(1, 15) if position.is_past(number)} == read
        assert Position.of(json.loads(json.dumps(position.as_json()))) == position
        following = [number for number in range(1, 15) if number not in read]
        for number in range(1, 14):
            assert position.next_from(number) == min(left for left in following if left >= number)


@given(st.sets(numbers, min_size=1))
def test_a_store_begins_with_the_files_that_are_there(files: set[int]) -> None:
    position = beginning(files, has_all=True)
    assert {number for number in range(1, max(files) + 1) if not position.is_past(number)} == files
    assert not position.is_past(max(files) + 1)


def test_an_archive_begins_at_the_first_file_that_a_store_can_have() -> None:
    assert beginning([5, 7], has_all=False) == Position(1, 0)


def test_a_part_of_a_file_is_forgotten_when_its_rest_was_read() -> None:
    position = Position(3).within(500)
    assert not position.is_past(3)
    assert position.behind(4) == Position(3, 500, ((4, 4),))
    assert position.behind(4).behind(3) == Position(5, 0)
    assert position.behind(3, is_skipped=True) == Position(4, 0, (), 1)


def test_offsets_are_the_same_text_whatever_order_the_stores_came_in() -> None:
    one, other = Position(3, 100, ((5, 6),), 2), Position(1)
    told = Offsets({"/b": one, "/a": other}).as_json()
    assert json.dumps(told) == json.dumps(Offsets({"/a": other, "/b": one}).as_json())
    assert json.dumps(told) == (
        '{"version": 1, "stores": {"/a": {"file": 1, "offset": 0}, '
        '"/b": {"file": 3, "offset": 100, "passed": [[5, 6]], "skipped": 2}}}'
    )
    assert Offsets.of(told) == Offsets({"/a": other, "/b": one})


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ([], "offsets are"),
        ({"version": 1}, "offsets are"),
        ({"version": 2, "stores": {}}, "of version 2, and this is version 1"),
        ({"version": 1, "stores": {"/a": 3}}, "a position must be"),
        ({"version": 1, "stores": {"/a": {"file": 3}}}, "a position must be"),
        ({"version": 1, "stores": {"/a": {"file": 3, "offset": 0, "page": 1}}}, "a position must be"),
        ({"version": 1, "stores": {"/a": {"file": -3, "offset": 0}}}, "numbers from 0 on"),
        ({"version": 1, "stores": {"/a": {"file": True, "offset": 0}}}, "numbers from 0 on"),
        ({"version": 1, "stores": {"/a": {"file": 3, "offset": "0"}}}, "numbers from 0 on"),
        ({"version": 1, "stores": {"/a": {"file": 3, "offset": 0, "passed": [3]}}}, "a list of ranges"),
        ({"version": 1, "stores": {"/a": {"file": 3, "offset": 0, "passed": 3}}}, "a list of ranges"),
        ({"version": 1, "stores": {"/a": {"file": 3, "offset": 0, "passed": [[3, 4]]}}}, "ascend"),
        ({"version": 1, "stores": {"/a": {"file": 3, "offset": 0, "passed": [[6, 7], [5, 5]]}}}, "ascend"),
        ({"version": 1, "stores": {"/a": {"file": 3, "offset": 0, "passed": [[5, 6], [7, 7]]}}}, "do not touch"),
    ],
)
def test_invalid_offsets_are_refused(value: object, told: str) -> None:
    with pytest.raises(BadOffsets, match=told):
        Offsets.of(value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"failOnDataLoss": "ture"}, "failOnDataLoss is one of true, false, not 'ture'"),
        ({"failondataloss": "no"}, "failOnDataLoss is one of true, false"),
        ({"startingOffset": "latest"}, "unknown options: startingoffset; there are: .*startingOffsets"),
        ({"startingOffsets": "newest"}, "startingOffsets is earliest, latest, or offsets in JSON"),
        ({"startingOffsets": '{"version": 2, "stores": {}}'}, "of version 2"),
        ({"maxFilesPerTrigger": "0"}, "maxFilesPerTrigger is a number of journal files, at least 1, not '0'"),
        ({"maxBytesPerTrigger": "1MB"}, "maxBytesPerTrigger is a number of bytes"),
        ({"maxBytesPerTrigger": "1", "maxFilesPerTrigger": "1"}, "Spark takes one limit"),
        ({"fromFile": "3"}, "unknown options: fromfile; .*; fromFile, toFile, endingOffsets are options of read"),
        ({"table": "files", "follow": "tail"}, "not with follow=tail"),
        ({"paths": "/a"}, "paths is a list in JSON"),
    ],
)
def test_an_unknown_stream_option_is_refused(options: dict[str, str], told: str) -> None:
    with pytest.raises(BadOption, match=told):
        StreamOptions.of({"path": "/data", **options})


def test_an_option_of_a_stream_is_none_of_a_read() -> None:
    with pytest.raises(BadOption, match=r"unknown options: startingoffsets; .* are options of readStream"):
        Options.of({"path": "/data", "startingOffsets": "latest"})


def test_options_of_a_stream_are_taken_in_any_letters() -> None:
    starting = Offsets({"/data": Position(3, 100)})
    options = StreamOptions.of(
        {
            "paths": '["/data", "/other"]',
            "TABLE": "messages",
            "startingoffsets": json.dumps(starting.as_json()),
            "failondataloss": "false",
            "maxbytespertrigger": "1000",
            "follow": "tail",
        }
    )
    assert options == StreamOptions(
        Options(("/data", "/other"), "messages", is_tail_wanted=True), starting, is_loss_fatal=False, bytes_max=1000
    )
