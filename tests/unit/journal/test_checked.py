"""A read by location returns the written bytes, or nothing, whenever and wherever they were changed."""

# proves: damaged-batch-is-kept-back, block-is-compared, long-batch-is-verified

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tandemmq.journal import checked
from tandemmq.journal.checked import CheckedReader
from tandemmq.journal.errors import JournalCorrupt, JournalMissing
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import RECORD_HEADER_SIZE, encode_batch, location
from tandemmq.journal.verify import CHUNK_BYTES
from tests.support.prove import SEED

SIZES = [3, 100, 900, 5_000, CHUNK_BYTES + 5_000]


class Written:
    """A journal file that grows; ``records`` are (location, size, payload) of each."""

    def __init__(self, files: JournalFiles, chance: random.Random, file: int = 1) -> None:
        self.path = Path(files.path(file))
        self.content = bytearray()
        self.records: list[tuple[int, int, bytes]] = []
        self.starts: list[int] = []
        self._chance, self._file = chance, file

    def grow(self, batches: int) -> None:
        for _ in range(batches):
            sizes = self._chance.choices(SIZES, (6, 6, 6, 3, 1), k=self._chance.randint(1, 6))
            payloads = [self._chance.randbytes(size) for size in sizes]
            self.starts.append(len(self.content))
            batch, places = encode_batch(payloads, location(self._file, len(self.content)))
            self.records += [
                (at, len(payload) + RECORD_HEADER_SIZE, payload) for at, payload in zip(places, payloads, strict=True)
            ]
            self.content += batch[:-5]
        self.path.write_bytes(self.content + b"-qMa4" + bytes(50))


def read(reader: CheckedReader, record: tuple[int, int, bytes]) -> bytes | None:
    try:
        found = reader.read_many([record[:2]])[0]
        assert reader.read(record[0]) == found
    except JournalCorrupt:
        return None
    return found


@pytest.mark.parametrize("has_end", [False, True])
def test_a_read_returns_the_written_bytes_or_raises(files: JournalFiles, has_end: bool) -> None:
    print(f"seed {SEED} (TANDEMMQ_SEED)")
    for seed in range(SEED, SEED + 12):
        chance = random.Random(seed)
        written = Written(files, chance)
        written.grow(12)
        ends = {1: len(written.content)} if has_end else {}
        reader = CheckedReader(files, lambda file, ends=ends: ends.get(file))  # type: ignore[misc]
        for _ in range(chance.randint(0, 6)):
            record = chance.choice(written.records)
            assert read(reader, record) == record[2]
        if not has_end:
            written.grow(4)
        whole = bytes(written.content)
        spoilt = chance.sample(range(len(whole)), 3)
        for at in spoilt:
            written.content[at] ^= chance.randrange(1, 256)
        written.path.write_bytes(written.content)
        for record in chance.sample(written.records, len(written.records)):
            assert read(reader, record) in (None, record[2]), seed
        in_batches = {max(start for start in written.starts if start <= at) for at in spoilt}
        far = [each for each in written.records if is_far(written, each, spoilt, in_batches)]
        readable = [each for each in far if read(reader, each) is not None]
        last = max(in_batches)
        assert all(each in readable or (each[0] & 0xFFFFFFFF) > last for each in far), seed
        reader.close()


def is_far(written: Written, record: tuple[int, int, bytes], spoilt: list[int], batches: set[int]) -> bool:
    """Return whether neither the batch of the record nor a block of the record was changed."""
    at = record[0] & 0xFFFFFFFF
    first, last = at // checked.BLOCK_BYTES, (at + record[1]) // checked.BLOCK_BYTES
    batch = max(start for start in written.starts if start <= at)
    return batch not in batches and not any(first <= each // checked.BLOCK_BYTES <= last for each in spoilt)


def test_a_file_that_was_cut_after_it_was_looked_through_is_damaged(files: JournalFiles) -> None:
    places = encode_batch([b"x" * 10_000], location(1, 0))
    Path(files.path(1)).write_bytes(places[0])
    record = places[1][0], 10_000 + RECORD_HEADER_SIZE, b"x" * 10_000
    reader = CheckedReader(files, lambda file: None)
    assert read(reader, record) == record[2]
    os.truncate(files.path(1), checked.BLOCK_BYTES)
    assert read(reader, record) is None


def test_a_file_that_is_not_there_is_missing(files: JournalFiles) -> None:
    with pytest.raises(JournalMissing):
        CheckedReader(files, lambda file: None).read(location(1, 28))


def test_the_remembered_checksums_are_bounded(files: JournalFiles) -> None:
    chance = random.Random(SEED)
    several = [Written(files, chance, number) for number in range(1, 6)]
    for each in several:
        each.grow(20)
    largest = max(len(each.content) for each in several) // checked.BLOCK_BYTES
    reader = CheckedReader(files, lambda file: None, largest)
    for _ in range(2):
        for each in several:
            assert read(reader, each.records[-1]) == each.records[-1][2]
            assert 0 < reader.blocks <= largest
    reader.forget(range(1, 6))
    assert reader.blocks == 0
