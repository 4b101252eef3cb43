"""Which bytes of a sealed file do not verify: every one that was changed, and no other."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tandemmq.journal.errors import JournalMissing
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import CONTROL_SIZE, END_RECORD, encode_batch
from tandemmq.journal.verify import CHUNK_BYTES, Ranges, damage_in

SEED = int(os.environ.get("TANDEMMQ_SEED", "20261121"))


def batch_of(*payloads: bytes) -> bytes:
    return bytes(encode_batch(payloads)[0][: -len(END_RECORD)])


BATCHES = [batch_of(b"header"), batch_of(b"one", b"two"), batch_of(b"x" * 300), batch_of(b"last")]
FILE = b"".join(BATCHES)
STARTS = [sum(map(len, BATCHES[:n])) for n in range(len(BATCHES) + 1)]


def damage(directory: Path, content: bytes, end: int | None) -> Ranges:
    """What does not verify of a file that has ``content``."""
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
