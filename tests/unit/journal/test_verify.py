"""Bytes of a sealed file that fail verification: every changed one, and no other."""

from __future__ import annotations

import os
import random
import struct
import tempfile
from pathlib import Path
from zlib import adler32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tandemmq.journal.errors import JournalCorrupt, JournalMissing
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import CONTROL_SIZE, END_RECORD
from tandemmq.journal.scan import EndingKind, scan
from tandemmq.journal.verify import CHUNK_BYTES, Ranges, damage_in
from tests.support.journal.in_memory import batch_of
from tests.support.prove import SEED

BATCHES = [batch_of(b"header"), batch_of(b"one", b"two"), batch_of(b"x" * 300), batch_of(b"last")]
FILE = b"".join(BATCHES)
STARTS = [sum(map(len, BATCHES[:n])) for n in range(len(BATCHES) + 1)]


def damage(directory: Path, content: bytes, end: int | None) -> Ranges:
    """Return the ranges of a file with ``content`` that fail verification."""
    (directory / "db-1.log").write_bytes(content)
    return damage_in(JournalFiles(str(directory)), 1, end)


@pytest.mark.parametrize("behind", [b"", END_RECORD, END_RECORD + bytes(100), bytes(100), b"\xffwritten too late"])
@pytest.mark.parametrize("is_named", [True, False], ids=["end named", "no end named"])
def test_a_good_file_has_no_damage(tmp_path: Path, behind: bytes, is_named: bool) -> None:
    assert damage(tmp_path, FILE + behind, len(FILE) if is_named else None) == ()


def test_each_flipped_byte_is_found_in_its_batch(tmp_path: Path) -> None:
    print(f"seed {SEED} (TANDEMMQ_SEED)")
    dice = random.Random(SEED)
    for at in range(len(FILE)):
        content = bytearray(FILE + END_RECORD)
        content[at] ^= dice.randrange(1, 256)
        found = damage(tmp_path, bytes(content), len(FILE))
        batch = max(n for n in range(len(BATCHES)) if STARTS[n] <= at)
        if not found:
            # KahaDB reads a checksum below 0 as "not checksummed": the records themselves are as they were.
            assert at == STARTS[batch] + 20
            continue
        assert len(found) == 1, at
        assert found[0][0] <= at < found[0][1]
        assert found[0] == (STARTS[batch], STARTS[batch + 1]), at


def test_a_file_cut_short_is_damaged_from_the_batch_that_is_not_whole(tmp_path: Path) -> None:
    for length in range(len(FILE)):
        found = damage(tmp_path, FILE[:length], len(FILE))
        assert found == ((max(start for start in STARTS if start <= length), len(FILE)),)


def test_without_a_named_end_only_a_bad_batch_in_the_middle_is_damage(tmp_path: Path) -> None:
    assert damage(tmp_path, FILE[:-3], None) == ()
    content = bytearray(FILE)
    content[STARTS[1] + CONTROL_SIZE + 7] ^= 1
    assert damage(tmp_path, bytes(content), None) == ((STARTS[1], STARTS[2]),)


def test_several_damaged_batches_are_all_found(tmp_path: Path) -> None:
    content = bytearray(FILE)
    content[STARTS[0] + 30] ^= 1
    content[STARTS[2] + 50] ^= 1
    assert damage(tmp_path, bytes(content), len(FILE)) == ((0, STARTS[1]), (STARTS[2], STARTS[3]))


@pytest.mark.parametrize("flip", [None, CHUNK_BYTES + 5000, 2 * CHUNK_BYTES + 100])
def test_batches_longer_than_a_chunk_are_verified_too(tmp_path: Path, flip: int | None) -> None:
    content = bytearray(batch_of(b"y" * 100) + batch_of(b"z" * (2 * CHUNK_BYTES + 10)) + batch_of(b"small"))
    end = len(content)
    first = len(batch_of(b"y" * 100))
    if flip is not None:
        content[flip] ^= 4
    expected = () if flip is None else ((first, end - len(batch_of(b"small"))),)
    assert damage(tmp_path, bytes(content), end) == expected


def test_a_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(JournalMissing):
        damage_in(JournalFiles(str(tmp_path)), 1, None)


# ---- Files with holes: read as the zeros that they stand for, in no time for each


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
    """Return all results of a reader of db-1.log."""
    damage: list[JournalCorrupt] = []
    found = scan(JournalFiles(str(directory)), 1, 0, end, is_live=is_live, on_corrupt=damage.append)
    batches = [(batch.offset, batch.end, batch.checksum, list(batch.records)) for batch in found]
    told = [(each.start, each.stop, each.reason) for each in damage]
    ranges = damage_in(JournalFiles(str(directory)), 1, end)
    return batches, told, (found.ending.offset, found.ending.kind), ranges


def test_the_system_makes_holes_here(tmp_path: Path) -> None:
    """Without holes, the tests below prove little."""
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
