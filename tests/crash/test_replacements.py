"""After a power failure, a replaced file is the complete old or new file; after the call, it is the new one."""

# proves: aside-name-durable, copied-index-name-durable, copied-index-sync, copied-root-is-still-there, index
# proves: minimal-index-name-durable, minimal-index-sync, original-kept-before-replaced, sealed-copy-sync
# proves: sealed-name-durable

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tandemmq.index import Index
from tandemmq.index.copy import copy
from tandemmq.index.roots import PAGES_AT, SLOT_BYTES, decode_roots
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.scan import scan
from tandemmq.journal.writer import JournalWriter
from tandemmq.store.kahadb.minimal import encode_minimal, set_index_aside, write_minimal
from tandemmq.store.migration.handback import QUARANTINE, end_file
from tests.support.crash.crash_images import Disk
from tests.support.crash.recording_disk import RecordingDisk
from tests.support.journal.in_memory import scan_bytes

pytestmark = pytest.mark.promise("index-is-rebuilt")

# Path -> content; None: a directory.
Contents = Mapping[str, bytes | None]


def images(disk: RecordingDisk, upto: int) -> Iterator[Contents]:
    """Return the possible contents if the power fails after ``upto`` events."""
    model = Disk(random.Random(1))
    for event in disk.events[:upto]:
        model.apply(event)
    for image in model.images():
        yield {path: None if content is None else content.data for path, content in image.entries}


def at_every_moment(disk: RecordingDisk, holds: Callable[[Contents], Any], is_done: Callable[[Contents], Any]) -> None:
    for upto in range(disk.start, len(disk.events) + 1):
        for found in images(disk, upto):
            assert holds(found), f"after {disk.events[:upto][-1]}: {list(found)}"
    for found in images(disk, len(disk.events)):
        assert is_done(found), list(found)


@pytest.mark.parametrize("is_there", [False, True])
def test_the_minimal_index_for_activemq(tmp_path: Path, is_there: bool) -> None:
    if is_there:
        write_minimal(str(tmp_path), 6)
    disk = RecordingDisk(str(tmp_path))
    write_minimal(str(tmp_path), 11, disk)
    before = encode_minimal(6) if is_there else None
    at_every_moment(
        disk,
        lambda found: found.get("db.data") in (before, encode_minimal(11)),
        lambda found: found["db.data"] == encode_minimal(11),
    )


def test_activemqs_index_goes_before_what_repairs_it(tmp_path: Path) -> None:
    names = ["db.data", "db.redo", "db.free"]
    for name in names:
        (tmp_path / name).write_text(name)
    disk = RecordingDisk(str(tmp_path))
    set_index_aside(str(tmp_path), 17, disk)

    def holds(found: Contents) -> bool:
        is_all_there = all(name in found or f"{name}.aside-17" in found for name in names)
        return is_all_there and ("db.data" not in found or all(name in found for name in names))

    at_every_moment(disk, holds, lambda found: sorted(found) == sorted(f"{name}.aside-17" for name in names))


def test_each_name_that_is_set_aside_is_so_for_good_before_the_next(tmp_path: Path) -> None:
    for name in ("db.data", "db.redo"):
        (tmp_path / name).write_text(name)
    disk = RecordingDisk(str(tmp_path))
    set_index_aside(str(tmp_path), 17, disk)
    moves = [number for number, event in enumerate(disk.events) if type(event).__name__ == "Move"]
    assert len(moves) == 2
    for found in images(disk, moves[1]):
        assert "db.data" not in found


def test_a_journal_file_that_is_ended_where_its_header_says(tmp_path: Path) -> None:
    files = JournalFiles(str(tmp_path))
    files.prepare("a", 4096)
    writer = JournalWriter(files, "a", files.publish("a", 1), file_length_max=4096)
    for number in range(3):
        writer.append([b"record %d" % number])
    writer.close()
    end = [batch.end for batch in scan(files, 1)][1]
    before = (tmp_path / "db-1.log").read_bytes()
    disk = RecordingDisk(str(tmp_path))
    end_file(files, 1, end, disk)

    def is_ended(found: Contents) -> bool:
        content = found.get("db-1.log")
        return content is not None and len(content) == len(before) and [b.end for b in scan_bytes(content)][-1] == end

    def is_kept(found: Contents) -> bool:
        return found.get(f"{QUARANTINE}/db-1.log.1") == before

    at_every_moment(
        disk,
        lambda found: found["db-1.log"] == before or (is_ended(found) and is_kept(found)),
        lambda found: is_ended(found) and is_kept(found),
    )


def test_a_new_index(tmp_path: Path) -> None:
    """A new index has a valid root as soon as it exists. An index without one would be set aside, and the journal would
    be read again."""
    disk = RecordingDisk(str(tmp_path))
    Index.open(str(tmp_path), disk, page_size=512).close()

    def is_whole(found: Contents) -> bool:
        data = found.get("db.data")
        return data is None or len(decode_roots([data[:SLOT_BYTES], data[SLOT_BYTES:PAGES_AT]])) == 1

    at_every_moment(disk, is_whole, lambda found: found.get("db.data") is not None)


def test_the_copy_of_a_neighbours_index(tmp_path: Path) -> None:
    keys = {b"key %d" % number: b"value" for number in range(20)}
    (tmp_path / "disk" / "copy").mkdir(parents=True)
    with Index.open(str(tmp_path / "source")) as index:
        for _ in index.checkpoint(sorted(keys.items()), b"meta"):
            pass
        disk = RecordingDisk(str(tmp_path / "disk"))
        assert copy(str(tmp_path / "source"), str(tmp_path / "disk" / "copy"), disk)
    seen: dict[tuple[tuple[str, bytes | None], ...], bool] = {}

    def is_whole(found: Contents) -> bool:
        contents = tuple(sorted(found.items()))
        if contents not in seen:
            directory = tmp_path / "image" / str(len(seen))
            for path, content in found.items():
                if content is None:
                    (directory / path).mkdir(parents=True)
                else:
                    (directory / path).write_bytes(content)
            with Index.open(str(directory / "copy")) as copied:
                seen[contents] = dict(copied.scan()) == keys and copied.meta == b"meta"
        return seen[contents]

    at_every_moment(
        disk,
        lambda found: "copy/db.data" not in found or is_whole(found),
        lambda found: "copy/db.data" in found,
    )
