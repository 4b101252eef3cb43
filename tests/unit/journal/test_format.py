from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.journal.format import (
    RECORD_HEADER,
    batch_checksum,
    decode_records,
    encode_batch,
    file_of,
    locate_records,
    location,
    offset_of,
)

# The first batch of ActiveMQ's fixture KahaDBVersion6 (reference: KahaDB 7.2)
LOADED = bytes.fromhex("00250a23") + b"LOADED Wed Jul 08 16:03:02 GMT 2015"
LOADED_BATCH = (
    bytes.fromhex("0000001c02") + b"WRITE BATCH" + bytes.fromhex("0000002c00000000b5dc08ec0000002c01") + LOADED
)


def test_a_batch_is_encoded_byte_for_byte_as_activemq_does() -> None:
    batch, offsets = encode_batch([LOADED])
    assert bytes(batch) == LOADED_BATCH + b"\x2d\x71\x4d\x61\x34"
    assert offsets == [28]
    assert batch_checksum(batch) == 0xB5DC08EC


def test_offsets_are_counted_from_the_origin() -> None:
    _, starts = encode_batch([b"a", b"bcd"], location(3, 1000))
    assert [(file_of(start), offset_of(start)) for start in starts] == [(3, 1028), (3, 1034)]


def test_a_batch_without_records_is_never_written() -> None:
    with pytest.raises(AssertionError, match="at least one record"):
        encode_batch([])


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_a_location_names_file_and_offset_and_orders_by_both(file: int, offset: int) -> None:
    where = location(file, offset)
    assert (file_of(where), offset_of(where)) == (file, offset)
    assert where < location(file, offset + 1) < location(file + 1, 0)


@given(st.lists(st.tuples(st.integers(-3, 40), st.integers(0, 3))), st.integers(0, 9), st.integers(0, 9))
def test_records_that_stay_where_they_are_are_those_that_are_copied_out(
    value: list[tuple[int, int]], start: int, cut: int
) -> None:
    content = b"#" * start + b"".join(RECORD_HEADER.pack(size, kind).ljust(size, b"x") for size, kind in value)
    stop = max(start, len(content) - cut)
    copied = decode_records(content + b"y" * 9, start, stop, 100)
    located = locate_records(content + b"y" * 9, start, stop, 100)
    assert (None if located is None else list(located)) == copied
    if located is not None:
        assert len(located) == len(copied or ())
        assert list(located[1:]) == [located[index] for index in range(1, len(located))]
