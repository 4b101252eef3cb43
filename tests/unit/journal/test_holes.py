"""Files with holes: read as the zeros that they stand for, in no time for each."""

from __future__ import annotations

import os
import struct
import tempfile
from pathlib import Path
from zlib import adler32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tandemmq.journal.errors import JournalCorrupt
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import END_RECORD
from tandemmq.journal.scan import EndingKind, scan
from tandemmq.journal.verify import damage_in
from tests.support.journal.in_memory import batch_of

BLOCK = 4096
ENDLESS = 1 << 41


def wrong(batch: bytes) -> bytes:
    """The batch with a checksum that does not match."""
    return batch[:20] + struct.pack(">i", 1 + adler32(batch) % 1000) + batch[24:]


def write_sparse(path: Path, pieces: list[tuple[int, bytes]], size: int) -> None:
    with open(path, "wb") as file:
        for offset, piece in pieces:
            os.pwrite(file.fileno(), piece, offset)
        file.truncate(size)


def outcome(directory: Path, end: int | None, is_live: bool) -> object:
    """All that a reader learns of db-1.log."""
    damage: list[JournalCorrupt] = []
    found = scan(JournalFiles(str(directory)), 1, 0, end, is_live=is_live, on_corrupt=damage.append)
    batches = [(batch.offset, batch.end, batch.checksum, list(batch.records)) for batch in found]
    told = [(each.start, each.stop, each.reason) for each in damage]
    ranges = damage_in(JournalFiles(str(directory)), 1, end)
    return batches, told, (found.ending.offset, found.ending.kind), ranges


def test_the_system_makes_holes_here(tmp_path: Path) -> None:
    """Without them the tests below say little."""
    write_sparse(tmp_path / "db-1.log", [(0, batch_of(b"one"))], 64 * 1024 * 1024)
    assert (tmp_path / "db-1.log").stat().st_blocks * 512 < 1024 * 1024


@given(
    st.lists(st.tuples(st.integers(-4, 4), st.integers(1, 400), st.booleans()), min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from([None, "last", "size"]),
    st.booleans(),
)
# A mark begins with zeros, which may lie in the hole before the block with the rest of it.
@example([(0, 200, True), (-3, 100, False)], True, None, False)
@example([(0, 200, True), (-1, 300, False)], False, "size", False)
def test_holes_are_read_as_zeros(
    places: list[tuple[int, int, bool]], begins_well: bool, end: str | None, is_live: bool
) -> None:
    pieces = [(0, batch_of(b"first"))] if begins_well else [(0, END_RECORD)]
    at = 0
    for shift, blocks, is_wrong in places:
        at = (at // BLOCK + blocks) * BLOCK + BLOCK
        batch = batch_of(b"at %d" % at)
        pieces.append((at + shift, wrong(batch) if is_wrong else batch))
    last = pieces[-1][0] + len(pieces[-1][1])
    size = last + 50 * BLOCK
    bound = {None: None, "last": last, "size": size}[end]
    with tempfile.TemporaryDirectory() as directory:
        holes, filled = Path(directory, "holes"), Path(directory, "zeros")
        for place in (holes, filled):
            place.mkdir()
        # What is zero at the ends of a piece is left to the hole: a file system makes no smaller ones than a block.
        write_sparse(
            holes / "db-1.log", [(o + len(p) - len(p.lstrip(b"\0")), p.lstrip(b"\0")) for o, p in pieces], size
        )
        content = bytearray(size)
        for offset, piece in pieces:
            content[offset : offset + len(piece)] = piece
        (filled / "db-1.log").write_bytes(content)
        assert outcome(holes, bound, is_live) == outcome(filled, bound, is_live)


@pytest.mark.timeout(60)
def test_two_terabytes_of_hole_take_no_time(tmp_path: Path) -> None:
    write_sparse(tmp_path / "db-1.log", [], ENDLESS)
    found = scan(JournalFiles(str(tmp_path)), 1)
    assert list(found) == []
    assert found.ending.kind is EndingKind.ZEROS
    assert damage_in(JournalFiles(str(tmp_path)), 1, None) == ()


@pytest.mark.timeout(60)
def test_a_batch_behind_two_terabytes_of_hole_is_found(tmp_path: Path) -> None:
    one, two = batch_of(b"one"), batch_of(b"two")
    write_sparse(tmp_path / "db-1.log", [(0, one), (ENDLESS, two)], ENDLESS + 2 * BLOCK)
    damage: list[JournalCorrupt] = []
    found = list(scan(JournalFiles(str(tmp_path)), 1, on_corrupt=damage.append))
    assert [batch.offset for batch in found] == [0, ENDLESS]
    assert [(each.start, each.stop) for each in damage] == [(len(one), ENDLESS)]
