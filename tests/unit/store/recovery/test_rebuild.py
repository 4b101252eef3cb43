"""An index that is rebuilt from the journal replaces the old index, and nothing else changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tandemmq.journal.files import JournalFiles
from tandemmq.store.damage.report import StoreCorrupt
from tandemmq.store.recovery.rebuild import Rebuild
from tandemmq.store.settings import StoreSettings
from tandemmq.store.tools.check import check
from tests.support.store.store_harness import KIB, Term

pytestmark = pytest.mark.promise("journal-is-enough", "index-is-rebuilt")

STILL = StoreSettings(journal_max_file_length=64 * KIB, checkpoint_interval=3600.0, fence_check_interval=0.01)


def rebuild(directory: str, name: str = "a") -> Rebuild:
    return Rebuild(directory, f"{directory}/index", name, STILL)


def test_a_broker_starts_from_the_rebuilt_index_and_reads_nothing_again(directory: str) -> None:
    with Term(directory, settings=STILL) as term:
        bodies = [operation.message.body for operation in term.add_durably(200)]
    Path(directory, "index/a/db.data").write_bytes(b"not an index" * 1000)

    task = rebuild(directory)
    rebuilt = task.run(is_live=False)

    assert rebuilt.messages == 200
    assert rebuilt.aside is not None
    assert Path(rebuilt.aside, "db.data").read_bytes().startswith(b"not an index"), "evidence is kept"
    assert task.records == rebuilt.records >= 200
    assert 0 < task.bytes_read <= task.bytes_total
    assert sorted(os.listdir(f"{directory}/index")) == ["a", os.path.basename(rebuilt.aside)]
    assert check(directory).problems == []
    with Term(directory, settings=STILL) as term:
        assert term.store.records_replayed <= 5, "the header of this epoch, and little else"
        assert term.bodies() == bodies


def test_beside_a_running_master_an_index_of_another_name_is_made(directory: str) -> None:
    with Term(directory, settings=STILL) as term:
        bodies = [operation.message.body for operation in term.add_durably(50)]

        rebuilt = rebuild(directory, "b").run(is_live=True)

        assert rebuilt.aside is None
        bodies += [operation.message.body for operation in term.add_durably(50)]
    assert check(directory).problems == []
    with Term(directory, "b", settings=STILL) as term:
        assert term.bodies() == bodies


def test_a_damaged_journal_is_not_made_into_an_index(unchecked: str) -> None:
    with Term(unchecked, settings=STILL) as term:
        (first,) = term.add_durably(1)
        term.add_durably(1)
    with open(JournalFiles(unchecked).path(first.location >> 32), "r+b") as file:
        file.seek((first.location & 0xFFFFFFFF) + first.size - 20)
        file.write(b"\xff\xff")
    before = sorted(path for path in Path(unchecked).rglob("*") if path.is_file())

    with pytest.raises(StoreCorrupt, match=first.message.message_id):
        rebuild(unchecked).run(is_live=False)

    assert sorted(path for path in Path(unchecked).rglob("*") if path.is_file()) == before


def test_the_rest_of_a_crashed_rebuild_is_ignored(directory: str) -> None:
    with Term(directory, settings=STILL) as term:
        term.add_durably(5)
    left = Path(directory, "index/.rebuild/a")
    left.mkdir(parents=True)
    (left / "db.data").write_bytes(b"half of an index")

    assert check(directory).problems == []
    rebuild(directory).run(is_live=False)

    assert not left.parent.exists()
