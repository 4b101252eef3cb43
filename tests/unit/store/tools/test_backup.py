"""Copy of a journal while its files change, and refusals."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemmq.journal.files import JournalFiles
from tandemmq.store.damage.report import JournalLost
from tandemmq.store.membership import PROMISE_FILE
from tandemmq.store.tools import backup as module
from tandemmq.store.tools.backup import MANIFEST, BackupFailed, back_up, restore
from tests.support.store.store_harness import Term

Meanwhile = Callable[[int], None]

pytestmark = pytest.mark.promise("backup-is-consistent")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three messages in two journal files."""
    path = tmp_path / "data"
    path.mkdir()
    for _ in range(2):
        with Term(str(path)) as term:
            term.add_durably(3)
    return path


@pytest.fixture
def copied(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., set[int]]:
    """Copy the journal; ``before`` and ``after`` get the number of each file that is copied. What is there then."""

    def copy(target: str, *, before: Meanwhile = lambda _: None, after: Meanwhile = lambda _: None) -> set[int]:
        def copy_file(*arguments: Any) -> object:
            before(arguments[2])
            copied = original(*arguments)
            after(arguments[2])
            return copied

        original = module._copy_file
        with monkeypatch.context() as patched:
            patched.setattr(module, "_copy_file", copy_file)
            return set(module._copy_store(str(data), str(tmp_path / target), lambda _: None))

    return copy


def test_a_backup_can_be_restored(data: Path, tmp_path: Path) -> None:
    made = back_up(str(data), str(tmp_path / "copy"))
    assert made.messages > 0
    assert restore(str(tmp_path / "copy"), str(tmp_path / "again")) == made
    for file in JournalFiles(str(data)).list():
        assert (tmp_path / "again" / f"db-{file}.log").read_bytes() == (
            tmp_path / "copy" / f"db-{file}.log"
        ).read_bytes()
    with Term(str(tmp_path / "again")) as term:
        term.add_durably(1)


def test_a_file_that_is_reclaimed_meanwhile_takes_the_others_of_its_listing_with_it(
    data: Path, tmp_path: Path, copied: Callable[..., set[int]]
) -> None:
    """An acknowledgement in it may be for a message in an older file: that goes out of the copy, too."""
    files = JournalFiles(str(data))
    first, second, *_ = files.list()
    with Term(str(data)) as third:
        third.add_durably(1)
    kept = set(files.list()) - {first, second}
    assert copied("copy", after=lambda file: files.remove([first, second]) if file == first else None) == kept
    assert set(JournalFiles(str(tmp_path / "copy")).list()) == kept


def test_a_file_that_changed_after_it_was_copied_is_copied_again(data: Path, copied: Callable[..., set[int]]) -> None:
    files = JournalFiles(str(data))
    first = files.list()[0]
    seen: list[int] = []

    def write(file: int) -> None:
        seen.append(file)
        if seen.count(first) == 1:
            os.utime(files.path(first), (1, 1))

    copied("copy", after=write)
    assert seen.count(first) == 2


# proves: backup-is-of-the-newest-file, backup-scans-what-it-copies
def test_a_newest_file_that_is_replaced_while_it_is_read_is_copied_whole(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes are of one file, as the end is; and it is the file that has the name in the end."""
    newest = data / f"db-{JournalFiles(str(data)).list()[-1]}.log"
    content = newest.read_bytes()
    (data / "other").write_bytes(content.replace(b"body 3", b"BODY 3"))  # damaged there: it ends before
    identity = newest.stat().st_ino
    fstat = os.fstat

    def replace_once(fd: int) -> os.stat_result:
        status = fstat(fd)
        if status.st_ino == identity and (data / "other").exists():
            os.replace(data / "other", newest)
        return status

    monkeypatch.setattr(os, "fstat", replace_once)
    read: list[tuple[int, int]] = []
    copy_file = module._copy_file

    def note(*arguments: object) -> object:
        copied = copy_file(*arguments)  # type: ignore[arg-type]
        read.append((copied.mark[1], copied.end))
        return copied

    monkeypatch.setattr(module, "_copy_file", note)
    copied = module._copy_store(str(data), str(tmp_path / "copy"), lambda _: None)
    ends = dict(read[-3:])
    assert copied[max(copied)].mark[1] == newest.stat().st_ino
    assert ends[identity] > ends[newest.stat().st_ino]


def test_a_file_that_is_begun_meanwhile_is_copied_too(data: Path, copied: Callable[..., set[int]]) -> None:
    """The file before it may have a record that this file follows. A copy without this file would have lost it."""
    files = JournalFiles(str(data))
    newest = files.list()[-1]

    def begin(file: int) -> None:
        if file == newest == files.list()[-1]:
            with Term(str(data)) as term:
                term.add_durably(1)

    assert max(copied("copy", before=begin)) == files.list()[-1] > newest


def test_a_file_that_another_host_deleted_while_it_was_read_is_reclaimed(
    data: Path, copied: Callable[..., set[int]]
) -> None:
    """NFS reports this as ESTALE. Any other error ends the backup."""
    files = JournalFiles(str(data))
    first = files.list()[0]

    def fail(file: int, code: int) -> None:
        if file == first and first in files.list():
            files.remove([first])
            raise OSError(code, os.strerror(code))

    assert sorted(copied("copy", before=lambda file: fail(file, errno.ESTALE))) == files.list()
    first = files.list()[0]
    with pytest.raises(OSError, match="Input/output"):
        copied("other", before=lambda file: fail(file, errno.EIO))


def test_a_backup_that_broke_off_has_no_manifest_and_is_not_restored(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("the volume is gone")

    monkeypatch.setattr(module, "check_all", fail)
    with pytest.raises(OSError, match="gone"):
        back_up(str(data), str(tmp_path / "copy"))
    with pytest.raises(BackupFailed, match="no complete backup"):
        restore(str(tmp_path / "copy"), str(tmp_path / "again"))


def test_a_backup_that_was_altered_is_refused_and_its_manifest_leads_nowhere_else(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    back_up(str(data), str(copy))
    manifest = json.loads((copy / MANIFEST).read_text())
    path = next(copy.glob("db-*.log"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(BackupFailed, match="differs from the backed-up file"):
        restore(str(copy), str(tmp_path / "again"))
    assert not list((tmp_path / "again").glob("db-*.log")), "a broker would take a part of it for the whole"
    manifest["entries"][0]["store"] = "../queue#x"
    (copy / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(BackupFailed, match="not the name of a store"):
        restore(str(copy), str(tmp_path / "other"))


def test_a_broker_that_starts_while_a_backup_is_put_back_loses_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(str(data), str(tmp_path / "copy"))
    copy_bytes = module._copy_bytes

    def begin(*arguments: Any) -> int:
        with Term(str(tmp_path / "again")) as term:
            term.add_durably(1)
        return copy_bytes(*arguments)

    monkeypatch.setattr(module, "_copy_bytes", begin)
    with pytest.raises(BackupFailed, match="a broker has started there"):
        restore(str(tmp_path / "copy"), str(tmp_path / "again"))
    with Term(str(tmp_path / "again")) as term:
        assert term.bodies() == [b"body 1"] * 2


# proves: newest-is-restored-first
def test_a_broker_refuses_a_backup_of_which_not_all_was_put_back(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(str(data), str(tmp_path / "copy"))
    unlink = os.unlink

    def stop(path: str) -> None:
        unlink(path)
        raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", stop)
        with pytest.raises(OSError, match="killed"):
            restore(str(tmp_path / "copy"), str(tmp_path / "again"))
    with pytest.raises(JournalLost):
        Term(str(tmp_path / "again"))


def test_neither_goes_where_something_is(data: Path, tmp_path: Path) -> None:
    back_up(str(data), str(tmp_path / "copy"))
    with pytest.raises(BackupFailed, match="not empty"):
        back_up(str(data), str(tmp_path / "copy"))
    with pytest.raises(BackupFailed, match="not empty"):
        restore(str(tmp_path / "copy"), str(data))


def test_a_directory_that_is_no_single_store_is_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BackupFailed, match="no journal"):
        back_up(str(tmp_path / "empty"), str(tmp_path / "copy"))
    (data / PROMISE_FILE).write_bytes(b"")
    with pytest.raises(BackupFailed, match="replicated set"):
        back_up(str(data), str(tmp_path / "copy"))


def test_too_little_room_is_said_before_anything_is_copied(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(BackupFailed, match="10 are free"):
        back_up(str(data), str(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()


def test_the_index_of_the_check_needs_room_too(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The room is needed beside the copy if both are on one file system, otherwise on the index's file system."""
    journals = sum(path.stat().st_size for path in data.glob("db-*.log"))
    [index] = (path.stat().st_size for path in data.glob("index/*/db.data"))
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda _: usage._replace(free=journals + index - 1))
        with pytest.raises(BackupFailed, match=f"{journals + index:,} bytes are needed"):
            back_up(str(data), str(tmp_path / "copy"), scratch=str(tmp_path))
    back_up(str(data), str(tmp_path / "copy"), scratch=str(tmp_path))
