"""A disk that writes only a part, or nothing: files of the store beside the journal are complete, or do not exist."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tandemmq.journal.files import JournalFiles, file_id
from tandemmq.journal.scan import scan
from tandemmq.store.damage.report import Damage, quarantine
from tandemmq.store.kahadb.minimal import encode_minimal, is_minimal, write_minimal
from tandemmq.store.maintenance.archive import Archive
from tandemmq.store.maintenance.manifest import SUFFIX, decode_manifest
from tandemmq.store.migration.handback import end_file
from tests.support.crash.unwilling_disk import ENDS_WITH, MOODS, UnwillingDisk
from tests.support.store.store_harness import Q, Term


@pytest.fixture(params=MOODS)
def mood(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class OtherVolume(UnwillingDisk):
    """The archive is on another volume, so files are copied."""

    def link(self, source: str, target: str) -> None:
        if os.path.dirname(source) != os.path.dirname(target):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        os.link(source, target)


@pytest.mark.parametrize("kind", [UnwillingDisk, OtherVolume], ids=["same volume", "another volume"])
def test_an_archived_file_and_its_manifest_are_whole_or_the_journal_keeps_it(
    tmp_path: Path, mood: str, kind: type[UnwillingDisk]
) -> None:
    content = b"some bytes of a journal file" * 50
    (tmp_path / "db-1.log").write_bytes(content)
    disk = kind(mood)
    archive = Archive(JournalFiles(str(tmp_path), disk), str(tmp_path / "archive"), disk)
    archive.remove([1])
    names = set(os.listdir(tmp_path / "archive"))
    if mood in ENDS_WITH:
        assert str(ENDS_WITH[mood]) in str(archive.problem)
        assert (tmp_path / "db-1.log").read_bytes() == content
        assert not {name for name in names if file_id(name) is None}, "nothing is left over"
        disk.is_unwilling = False
        archive.remove([])
    assert archive.problem is None
    assert set(os.listdir(tmp_path / "archive")) == {"db-1.log", f"db-1.log{SUFFIX}"}
    assert (tmp_path / "archive" / "db-1.log").read_bytes() == content
    assert decode_manifest((tmp_path / "archive" / f"db-1.log{SUFFIX}").read_bytes()) is not None
    assert not (tmp_path / "db-1.log").exists()


def test_evidence_of_damage_is_whole_or_not_there(tmp_path: Path, mood: str) -> None:
    (tmp_path / "db-1.log").write_bytes(b"damaged" * 100)
    damage = Damage(file=1, start=70, stop=700, reason="a test")
    disk = UnwillingDisk(mood)
    if mood in ENDS_WITH:
        with pytest.raises(OSError) as failure:  # noqa: PT011 its number tells
            quarantine(JournalFiles(str(tmp_path), disk), damage)
        assert failure.value.errno == ENDS_WITH[mood]
        disk.is_unwilling = False
    quarantine(JournalFiles(str(tmp_path), disk), damage)
    assert (tmp_path / "quarantine" / "db-1.70-700.bin").read_bytes() == (b"damaged" * 100)[70:700]


def test_the_minimal_index_for_activemq_is_whole_or_not_there(tmp_path: Path, mood: str) -> None:
    disk = UnwillingDisk(mood)
    if mood in ENDS_WITH:
        with pytest.raises(OSError) as failure:  # noqa: PT011 its number tells
            write_minimal(str(tmp_path), 11, disk)
        assert failure.value.errno == ENDS_WITH[mood]
        assert not (tmp_path / "db.data").exists()
        return
    write_minimal(str(tmp_path), 11, disk)
    assert (tmp_path / "db.data").read_bytes() == encode_minimal(11)
    assert is_minimal(str(tmp_path))


def test_a_file_that_is_ended_for_activemq_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path, mood: str) -> None:
    with Term(str(tmp_path)) as term:
        term.add_durably(3, Q)
    files = JournalFiles(str(tmp_path), UnwillingDisk(mood))
    before = (tmp_path / "db-1.log").read_bytes()
    end = [batch.end for batch in scan(files, 1)][1]
    if mood in ENDS_WITH:
        with pytest.raises(OSError) as failure:  # noqa: PT011 its number tells
            end_file(files, 1, end, files.disk)  # type: ignore[arg-type]
        assert failure.value.errno == ENDS_WITH[mood]
        assert (tmp_path / "db-1.log").read_bytes() == before
        return
    end_file(files, 1, end, files.disk)  # type: ignore[arg-type]
    assert (tmp_path / "db-1.log").read_bytes()[:end] == before[:end]
    assert [batch.end for batch in scan(files, 1)][-1] == end
    assert (tmp_path / "db-1.log").stat().st_size == len(before)
