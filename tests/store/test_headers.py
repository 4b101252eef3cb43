"""What the headers of a journal's files say together: newest first, and none that lies behind an end."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from store.headers import Chronicle, Header, decode_header, encode_header, read_chronicle


def header(epoch: int, ends: Mapping[int, int], *, reason: str = "promotion") -> Header:
    return Header(epoch, "a", reason, ends, (*sorted(ends), max(ends, default=0) + 1))


def chronicle(headers: Mapping[int, Header], files: int) -> Chronicle:
    return read_chronicle(range(1, files + 1), headers.get)


def test_the_newest_header_that_names_a_file_says_where_it_ends() -> None:
    """Two promotions read file 1, and the late bytes of a zombie were there for one of them only."""
    told = chronicle({1: header(1, {}), 2: header(2, {1: 300}), 3: header(3, {1: 80, 2: 500})}, 3)
    assert told.ends == {1: 80, 2: 500}


def test_a_header_behind_an_end_does_not_exist() -> None:
    """Whoever made file 3 slept until somebody else had read it as empty: then it wrote, to nobody."""
    told = chronicle({1: header(1, {}), 3: header(2, {1: 900, 2: 900}), 4: header(2, {1: 50, 2: 60, 3: 0})}, 4)
    assert told.ends == {1: 50, 2: 60, 3: 0}
    assert sorted(told.headers) == [1, 4]
    assert told.epoch_at(3) == 1


def test_a_header_that_nothing_hides_says_what_newer_ones_do_not() -> None:
    told = chronicle({1: header(1, {}), 2: header(2, {1: 70}), 3: header(2, {2: 40}, reason="rotation")}, 3)
    assert told.ends == {1: 70, 2: 40}


@pytest.mark.parametrize(("file", "is_first"), [(1, True), (2, False), (3, True), (4, True), (5, True)])
def test_what_fenced_off_an_epoch_or_may_have_is_known(file: int, is_first: bool) -> None:
    """File 3 has no header and ends at 0: a promotion died there. File 5, the last, is nobody's yet."""
    headers = {1: header(1, {}), 2: header(1, {1: 10}, reason="rotation"), 4: header(3, {2: 20, 3: 0})}
    told = chronicle({**headers, 5: header(4, {4: 30})}, 5)
    assert told.first_of_epoch(file) is is_first


def test_a_file_of_activemq_fences_off_nobody() -> None:
    assert not chronicle({3: header(1, {2: 40})}, 3).first_of_epoch(1)
    assert not chronicle({3: header(1, {2: 40})}, 3).first_of_epoch(2)


def test_a_header_is_read_as_it_was_written() -> None:
    written = header(7, {1: 5, 2: 0})
    assert decode_header(encode_header(written)) == written
