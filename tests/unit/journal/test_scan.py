# proves: cache-dropped, scan-drops-cache

from __future__ import annotations

import struct
from pathlib import Path
from zlib import adler32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tandemmq.journal.errors import JournalCorrupt, JournalMissing
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import (
    END_RECORD,
    RECORD_HEADER,
    batch_checksum,
    decode_records,
    encode_batch,
    file_of,
    locate_records,
    location,
    offset_of,
)
from tandemmq.journal.scan import Batch, EndingKind, Scan, scan
from tests.support.journal.in_memory import MemorySource, batch_of, scan_bytes


def raw_batch(body: bytes, checksum: int | None = None, length: int | None = None) -> bytes:
    """Return a batch with ``body``, which may be invalid."""
    return (
        bytes.fromhex("0000001c02")
        + b"WRITE BATCH"
        + struct.pack(">iq", len(body) if length is None else length, adler32(body) if checksum is None else checksum)
        + body
    )


def record(payload: bytes, kind: int = 1) -> bytes:
    return struct.pack(">iB", 5 + len(payload), kind) + payload


def payloads(batches: list[Batch]) -> list[list[bytes]]:
    return [[payload for _, payload in batch.records] for batch in batches]


ONE, TWO, THREE = batch_of(b"first"), batch_of(b"second", b"and more"), batch_of(b"third")
FILE = ONE + TWO + THREE


# --- files of ActiveMQ ----------------------------------------------------------------------------------------------

# Records made with ActiveMQ's own classes (reference: KahaDB 7.3): headers, then payloads
ACTIVEMQ_RECORDS = [
    bytes.fromhex("0000001e0104170a150a130a0f") + b"ID:host-1-1-1:1" + bytes.fromhex("0801"),
    bytes.fromhex("0000001f0105180a160a140a0f") + b"ID:host-1-1-1:1" + bytes.fromhex("08ac02"),
    bytes.fromhex("0000001e0103170a15121308f9ffffffffffffffff011201091a03010203"),
    bytes.fromhex("0000001201030b0a091207080512001a0104"),
    bytes.fromhex("00000010010609") + bytes.fromhex("0a0708001203512e42"),
    bytes.fromhex("0000001a0107130a0708011203542e4112086369643a73756232"),
    bytes.fromhex("0000000b01100408021001"),
]
# The first batch of ActiveMQ's fixture KahaDBVersion6 (reference: KahaDB 7.2)
LOADED = (
    bytes.fromhex("0000001c025752495445204241544348 0000002c 00000000b5dc08ec 0000002c 01 00 25 0a23")
    + b"LOADED Wed Jul 08 16:03:02 GMT 2015"
)


def test_a_file_written_by_activemq_is_read() -> None:
    body = b"".join(ACTIVEMQ_RECORDS)
    content = LOADED + raw_batch(body)
    scan = scan_bytes(content + END_RECORD + bytes(500))
    first, second = scan
    assert (first.checksum, first.offset, first.end) == (0xB5DC08EC, 0, 72)
    assert first.records == [(28, LOADED[33:])]
    assert [payload for _, payload in second.records] == [each[5:] for each in ACTIVEMQ_RECORDS]
    assert second.records[1][0] == 72 + 28 + len(ACTIVEMQ_RECORDS[0])
    assert scan.ending.offset == len(content)


def test_batches_without_checksum_from_before_5_9_are_accepted() -> None:
    scan = scan_bytes(raw_batch(record(b"old"), checksum=0) + raw_batch(record(b"older"), checksum=0))
    assert payloads(list(scan)) == [[b"old"], [b"older"]]
    assert scan.ending.kind is EndingKind.FILE_END


def test_records_of_other_types_are_stepped_over() -> None:
    scan = scan_bytes(raw_batch(record(b"private", kind=9) + record(b"ours") + record(b"x", kind=2)))
    assert [batch.records for batch in scan] == [[(28 + 12, b"ours")]]


# --- clean ends ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behind", "kind"),
    [
        (b"", EndingKind.FILE_END),
        (END_RECORD, EndingKind.END_RECORD),
        (END_RECORD + bytes(100), EndingKind.END_RECORD),
        (END_RECORD + b"what an older, longer write left", EndingKind.END_RECORD),
        (bytes(3), EndingKind.ZEROS),
        (bytes(100), EndingKind.ZEROS),
    ],
)
def test_an_end_mark_is_a_clean_end(behind: bytes, kind: EndingKind) -> None:
    scan = scan_bytes(FILE + behind)
    assert len(list(scan)) == 3
    assert (scan.ending.offset, scan.ending.kind, scan.ending.is_torn) == (len(FILE), kind, False)


def test_an_empty_file_and_a_prepared_one_end_at_once() -> None:
    for content in (b"", END_RECORD + bytes(1000), bytes(1000)):
        scan = scan_bytes(content)
        assert list(scan) == []
        assert (scan.ending.offset, scan.ending.is_torn) == (0, False)


# --- torn tails ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", [b"", bytes(200)], ids=["cut", "zeros behind"])
def test_a_file_torn_at_any_length_keeps_every_whole_batch(padding: bytes) -> None:
    ends = [0, len(ONE), len(ONE + TWO), len(FILE)]
    content = FILE + END_RECORD
    for length in range(len(content) + 1):
        scan = scan_bytes(content[:length] + padding)
        found = list(scan)
        whole = max(i for i, end in enumerate(ends) if end <= length)
        if padding and not any(content[length : ends[min(whole + 1, 3)]]):
            continue  # the bytes that were cut are zeros, like the padding
        assert len(found) == whole, length
        assert scan.ending.offset == ends[whole]
        left = content[ends[whole] : length]
        assert scan.ending.is_torn == (any(left) and left != END_RECORD)  # a control record begins with zeros


def test_a_torn_batch_with_a_hole_is_forgotten() -> None:
    last = batch_of(b"x" * 3000)
    scan = scan_bytes(ONE + last[:500] + bytes(1000) + last[1500:] + END_RECORD)
    assert payloads(list(scan)) == [[b"first"]]
    assert scan.ending.is_torn


def test_a_journal_sent_as_a_message_is_not_taken_for_batches() -> None:
    carrier = batch_of(b"attached: " + FILE + FILE, b"the second record")
    scan = scan_bytes(ONE + carrier[:-3] + bytes(100))
    assert payloads(list(scan)) == [[b"first"]]
    assert scan.ending.is_torn


def test_a_first_batch_that_is_torn_is_a_torn_tail() -> None:
    for cut in range(1, len(ONE)):
        scan = scan_bytes(ONE[:cut] + (END_RECORD + bytes(100))[cut:])
        assert list(scan) == []
        assert (scan.ending.offset, scan.ending.is_torn) == (0, not (END_RECORD + bytes(100)).startswith(ONE[:cut]))


def test_an_empty_batch_at_the_tail_ends_the_file() -> None:
    for length in (0, -1, -(2**31)):
        scan = scan_bytes(FILE + raw_batch(b"", length=length))
        assert len(list(scan)) == 3
        assert scan.ending.offset == len(FILE)


# --- corruption ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("middle", "reason"),
    [
        (raw_batch(record(b"x"), checksum=1), "checksum"),
        (raw_batch(record(b"x") + b"\0\0\0\x20\1"), "do not add up"),
        (raw_batch(record(b"x") + b"\0\0\0\0\1" + bytes(20)), "do not add up"),
        (raw_batch(record(b"x") + b"\0\0"), "do not add up"),
        (raw_batch(b""), "0 bytes long"),
        (raw_batch(record(b"x"), length=-5), "-5 bytes long"),
        (raw_batch(record(b"x"), length=2**30), "1073741824 bytes long"),
        (raw_batch(record(b"x"), length=len(record(b"x") + THREE)), "checksum"),
        (b"garbage between two batches", "no batch begins here"),
        (bytes(64), "end mark stands before"),
        (END_RECORD, "end mark stands before"),
    ],
)
def test_a_bad_batch_before_a_good_one_is_corruption(middle: bytes, reason: str) -> None:
    with pytest.raises(JournalCorrupt, match=reason) as caught:
        list(scan_bytes(ONE + middle + THREE + END_RECORD, 7))
    assert (caught.value.file, caught.value.start) == (7, len(ONE))
    assert caught.value.stop == len(ONE + middle)


def test_in_a_declared_mode_corruption_is_reported_and_stepped_over() -> None:
    reported: list[JournalCorrupt] = []
    content = ONE + b"garbage" + TWO + raw_batch(record(b"x"), checksum=1) + THREE + END_RECORD
    scan = Scan(lambda: MemorySource(content), 1, on_corrupt=reported.append)
    assert len(list(scan)) == 3
    assert [(each.start, each.stop) for each in reported] == [
        (len(ONE), len(ONE) + 7),
        (len(ONE + TWO) + 7, len(content) - len(THREE + END_RECORD)),
    ]
    assert scan.ending.offset == len(content) - len(END_RECORD)


def test_a_foreign_file_is_refused_and_not_called_torn() -> None:
    for content in (b"#!/bin/sh\necho this is not a journal\n" * 10, b"\x7fELF", b"PK"):
        with pytest.raises(JournalCorrupt, match="does not begin as a journal file"):
            list(scan_bytes(content))


@given(st.integers(0, len(FILE) - 1), st.integers(0, 7))
@example(len(ONE) + 20, 7)  # the sign of the checksum: KahaDB then does not verify; the records are unharmed
def test_a_flipped_bit_is_never_served(position: int, bit: int) -> None:
    content = bytearray(FILE + END_RECORD)
    content[position] ^= 1 << bit
    reported: list[JournalCorrupt] = []
    scan = Scan(lambda: MemorySource(bytes(content)), 1, on_corrupt=reported.append)
    found = payloads(list(scan))
    whole = [[b"first"], [b"second", b"and more"], [b"third"]]
    if found != whole:
        hit = 0 if position < len(ONE) else 1 if position < len(ONE + TWO) else 2
        assert found == whole[:hit] + whole[hit + 1 :]
        bounds = [0, len(ONE), len(ONE + TWO)]
        expected = [(bounds[hit], bounds[hit + 1])] if hit < 2 else []  # in the last batch: a torn tail
        assert [(each.start, each.stop) for each in reported] == expected
        assert scan.ending.is_torn == (hit == 2)


@given(st.binary(max_size=300))
def test_any_bytes_end_in_an_ending_or_in_corruption(content: bytes) -> None:
    for prefix in (b"", ONE):
        reported: list[JournalCorrupt] = []
        scan = Scan(lambda content=prefix + content: MemorySource(content), 1, on_corrupt=reported.append)
        list(scan)
        assert len(prefix) <= scan.ending.offset <= len(prefix + content)
        assert all(0 <= each.start < each.stop <= len(prefix + content) for each in reported)


# --- the end that a successor named --------------------------------------------------------------------------------


def test_batches_of_a_deposed_master_after_the_end_do_not_count() -> None:
    for behind in (THREE + END_RECORD, b"half a write", bytes(50), b""):
        scan = scan_bytes(ONE + TWO + behind, end=len(ONE + TWO))
        assert len(list(scan)) == 2
        assert (scan.ending.offset, scan.ending.kind) == (len(ONE + TWO), EndingKind.BOUND)


def test_no_batch_counts_in_a_file_whose_end_is_0() -> None:
    scan = scan_bytes(b"anything", end=0)
    assert list(scan) == []
    assert scan.ending.offset == 0


@pytest.mark.parametrize(
    "content",
    [ONE, ONE + TWO[:-1], ONE + END_RECORD + bytes(100), ONE + bytes(100), ONE + TWO[:30] + bytes(100)],
)
def test_a_file_that_ends_before_its_named_end_is_corrupt(content: bytes) -> None:
    with pytest.raises(JournalCorrupt, match=f"ends at {len(ONE + TWO)}") as caught:
        list(scan_bytes(content, end=len(ONE + TWO)))
    assert (caught.value.start, caught.value.stop) == (len(ONE), len(ONE + TWO))


def test_a_batch_across_the_named_end_is_corruption() -> None:
    with pytest.raises(JournalCorrupt):
        list(scan_bytes(FILE, end=len(ONE + TWO) - 1))


# --- files that are being written ----------------------------------------------------------------------------------


def test_a_live_file_ends_for_now_where_it_is_not_whole() -> None:
    for middle in (TWO[:-4] + b"\0\0\0\0", bytes(len(TWO))):
        scan = Scan(lambda content=ONE + middle + THREE: MemorySource(content), 1, is_live=True)
        assert payloads(list(scan)) == [[b"first"]]
        assert scan.ending.offset == len(ONE)


def test_a_batch_met_half_written_is_read_again_before_it_is_called_corrupt() -> None:
    class Racing(MemorySource):
        """The first read takes place while the second batch is being written."""

        reads = 0

        def read(self, offset: int, length: int) -> bytes:
            self.reads += 1
            if self.reads == 1:
                return (ONE + TWO[:-4] + b"\0\0\0\0" + THREE)[offset : offset + length]
            return super().read(offset, length)

    scan = Scan(lambda: Racing(FILE), 1)
    assert len(list(scan)) == 3


def test_a_scan_goes_on_from_the_end_of_the_last() -> None:
    first = scan_bytes(ONE + TWO[:10])
    assert len(list(first)) == 1
    second = scan_bytes(FILE, start=first.ending.offset)
    assert payloads(list(second)) == [[b"second", b"and more"], [b"third"]]
    assert [batch.offset for batch in second] == [len(ONE), len(ONE + TWO)]


# --- chunks --------------------------------------------------------------------------------------------------------


@given(
    st.integers(1, 400),
    st.lists(st.lists(st.binary(max_size=80), min_size=1, max_size=4), max_size=8),
    st.integers(0, 40),
    st.booleans(),
)
def test_the_size_of_the_chunks_changes_nothing(
    chunk_bytes: int, batches: list[list[bytes]], cut: int, is_damaged: bool
) -> None:
    content = b"".join(batch_of(*each) for each in batches) + END_RECORD
    content = content[: max(0, len(content) - cut)]
    if is_damaged and len(content) > 40:
        content = content[:40] + bytes([content[40] ^ 1]) + content[41:]

    def outcome(chunk: int) -> tuple[object, ...]:
        reported: list[JournalCorrupt] = []
        scan = Scan(lambda: MemorySource(content), 1, chunk_bytes=chunk, on_corrupt=reported.append)
        found = [(batch.offset, batch.end, batch.checksum, batch.records) for batch in scan]
        return found, repr(scan.ending), [str(each) for each in reported]

    assert outcome(chunk_bytes) == outcome(2**20)


def test_memory_is_one_chunk_or_one_batch_where_that_is_longer() -> None:
    longest = 0

    class Measured(MemorySource):
        def read(self, offset: int, length: int) -> bytes:
            nonlocal longest
            longest = max(longest, length)
            return super().read(offset, length)

    big = batch_of(b"b" * 300_000)
    content = ONE * 5000 + big + ONE * 5000 + END_RECORD + bytes(1_000_000)
    found = sum(1 for _ in Scan(lambda: Measured(content), 1, chunk_bytes=65536))
    assert found == 10_001
    assert longest == len(big)


def test_an_impossible_length_is_not_read() -> None:
    class Bounded(MemorySource):
        def read(self, offset: int, length: int) -> bytes:
            assert length < 10_000
            return super().read(offset, length)

    scan = Scan(lambda: Bounded(ONE + raw_batch(b"", length=2**31 - 1)), 1, chunk_bytes=4096)
    assert len(list(scan)) == 1
    assert scan.ending.is_torn


# --- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop_cache", [False, True])
def test_a_file_is_scanned_by_its_id(files: JournalFiles, drop_cache: bool) -> None:
    Path(files.path(5)).write_bytes(FILE + END_RECORD)
    found = scan(files, 5, drop_cache=drop_cache)
    assert [batch.file for batch in found] == [5, 5, 5]
    assert found.ending.offset == len(FILE)


def test_a_missing_file_is_named(files: JournalFiles) -> None:
    with pytest.raises(JournalMissing, match=r"db-5\.log"):
        list(scan(files, 5))


def test_a_batch_is_encoded_byte_for_byte_as_activemq_does() -> None:
    batch, offsets = encode_batch([LOADED[33:]])
    assert bytes(batch) == LOADED + b"\x2d\x71\x4d\x61\x34"
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
