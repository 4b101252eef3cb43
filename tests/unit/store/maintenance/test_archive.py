"""archive_data_logs: files are moved, never lost on the way, and nothing in the archive is overwritten."""

# proves: archive

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tandemmq.journal.files import JournalFiles, file_id
from tandemmq.journal.scan import Scan
from tandemmq.store.maintenance.archive import CHUNK_BYTES, Archive
from tandemmq.store.maintenance.manifest import SUFFIX, Manifest, decode_manifest
from tandemmq.store.records.headers import decode_header
from tandemmq.store.settings import StoreSettings
from tandemmq.store.tools.check import check
from tests.support.journal.in_memory import MemorySource
from tests.support.store.cut_off_disk import CutOffDisk
from tests.support.store.store_harness import KIB, Q, Term

CONTENT = {1: b"one" * 1000, 2: b"two" * (CHUNK_BYTES // 2), 7: b"seven" * 10}


class OtherVolume:
    """``os``, but the archive is on another volume: a link from the journal to it is refused. Notes what was done."""

    def __init__(self, inner: Any = os, *, archive: str = "archive") -> None:
        self.inner = inner
        self.archive = archive
        self.done: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def link(self, source: str, target: str) -> None:
        if os.path.dirname(source) != os.path.dirname(target):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        self.inner.link(source, target)


class Noting:
    """``os``, with the names and syncs of directories noted, in order."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []
        self._open: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        fd = os.open(path, flags, mode)
        self._open[fd] = path
        return fd

    def link(self, source: str, target: str) -> None:
        os.link(source, target)
        self.done.append(("name", target))

    def unlink(self, path: str) -> None:
        os.unlink(path)
        self.done.append(("unname", path))

    def replace(self, source: str, target: str) -> None:
        os.replace(source, target)
        self.done.append(("name", target))

    def fsync(self, fd: int) -> None:
        os.fsync(fd)
        self.done.append(("sync", self._open[fd]))


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    directory = tmp_path / "journal"
    directory.mkdir()
    for file, content in CONTENT.items():
        (directory / f"db-{file}.log").write_bytes(content)
    return directory


@pytest.fixture(params=["same volume", "another volume"])
def disk_of(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return (lambda disk: disk) if request.param == "same volume" else OtherVolume


def archive_of(journal: Path, disk: Any = os, directory: Path | None = None) -> Archive:
    return Archive(JournalFiles(str(journal), disk), str(directory or journal / "data-archive"), disk)


def contents(directory: Path) -> dict[str, bytes]:
    """Return the content of all files except manifests."""
    if not directory.exists():
        return {}
    return {
        path.name: path.read_bytes()
        for path in directory.iterdir()
        if path.is_file() and not path.name.endswith(SUFFIX)
    }


def manifests(directory: Path) -> dict[str, Manifest | None]:
    return {
        path.name.removesuffix(SUFFIX): decode_manifest(path.read_bytes())
        for path in directory.iterdir()
        if path.name.endswith(SUFFIX) and not path.name.startswith(".")
    }


def assert_manifests_tell_of_all_files(directory: Path) -> None:
    kept = {name: content for name, content in contents(directory).items() if not name.startswith(".")}
    found = manifests(directory)
    assert found.keys() == kept.keys()
    for name, content in kept.items():
        manifest = found[name]
        assert manifest is not None
        assert (manifest.name, manifest.bytes) == (name, len(content))
        assert manifest.sha256 == hashlib.sha256(content).hexdigest()


def test_files_are_moved_and_the_directory_is_made(journal: Path, disk_of: Callable[[Any], Any]) -> None:
    archive = archive_of(journal, disk_of(os))
    archive.remove([2, 1])
    assert archive.problem is None
    assert contents(journal / "data-archive") == {"db-1.log": CONTENT[1], "db-2.log": CONTENT[2]}
    assert contents(journal) == {"db-7.log": CONTENT[7]}
    assert_manifests_tell_of_all_files(journal / "data-archive")
    archive.remove([1])  # the file is removed already: no error
    assert archive.problem is None


def test_no_file_in_the_archive_is_overwritten(journal: Path, disk_of: Callable[[Any], Any]) -> None:
    kept = journal / "data-archive"
    kept.mkdir()
    (kept / "db-1.log").write_bytes(b"of another life")
    (kept / "db-1.log.1").write_bytes(CONTENT[1][:-1] + b"!")
    archive_of(journal, disk_of(os)).remove([1])
    assert contents(kept) == {
        "db-1.log": b"of another life",
        "db-1.log.1": CONTENT[1][:-1] + b"!",
        "db-1.log.2": CONTENT[1],
    }
    assert "db-1.log" not in contents(journal)
    assert set(manifests(kept)) == {"db-1.log.2"}, "the others are not ours to describe"


@pytest.mark.parametrize("is_copied", [False, True])
def test_a_file_is_named_in_the_archive_and_synced_before_the_journal_lets_go_of_it(
    journal: Path, is_copied: bool
) -> None:
    """A copy, for another volume, is synced before it has its name."""
    disk = Noting()
    archive_of(journal, OtherVolume(disk) if is_copied else disk).remove([1, 2])
    kept = str(journal / "data-archive")
    expected: list[tuple[str, str]] = [("sync", str(journal))]  # the archive's own name
    for file in (1, 2):
        copy = f"{kept}/.copying-db-{file}.log"
        expected += [
            *([("sync", copy)] if is_copied else []),
            ("name", f"{kept}/db-{file}.log"),
            *([("unname", copy)] if is_copied else []),
            ("sync", kept),
            ("sync", f"{kept}/.manifest-db-{file}.log"),
            ("name", f"{kept}/db-{file}.log.manifest.json"),
            ("sync", kept),
            ("unname", f"{journal}/db-{file}.log"),
            ("sync", str(journal)),
        ]
    assert disk.done == expected


def test_wherever_it_is_cut_off_every_file_is_somewhere_and_the_next_removal_ends_it(
    journal: Path, disk_of: Callable[[Any], Any]
) -> None:
    """For each call of the disk, a process ends at this call. Then a new process does the removal again."""
    untouched = CutOffDisk()
    archive_of(journal, disk_of(untouched), journal.parent / "count").remove([1, 2, 7])
    assert untouched.count > 20
    for fail_at in range(1, untouched.count + 1):
        for file, content in CONTENT.items():
            (journal / f"db-{file}.log").write_bytes(content)
        kept = journal.parent / f"archive-{fail_at}"
        cut = archive_of(journal, disk_of(CutOffDisk(fail_at)), kept)
        cut.remove([1, 2, 7])
        assert cut.problem is not None
        found = [*contents(journal).values(), *(c for n, c in contents(kept).items() if not n.startswith("."))]
        assert set(CONTENT.values()) <= set(found), f"cut off at change {fail_at}"
        for name in manifests(kept) if kept.exists() else ():
            assert (kept / name).exists(), f"cut off at change {fail_at}: a manifest without its file"
        again = archive_of(journal, disk_of(os), kept)
        again.remove([1, 2, 7])
        assert again.problem is None
        assert contents(kept) == {f"db-{file}.log": content for file, content in CONTENT.items()}
        assert contents(journal) == {}
        assert_manifests_tell_of_all_files(kept)
        shutil.rmtree(kept)


@pytest.mark.parametrize("name", ["open", "pwrite", "fsync", "replace"])
def test_a_manifest_that_cannot_be_written_leaves_the_file_in_the_journal(journal: Path, name: str) -> None:
    class Full(Noting):
        """No room for manifests."""

        def __getattribute__(self, asked: str) -> Any:
            real = super().__getattribute__(asked) if asked not in ("pwrite",) else os.pwrite
            if asked != name or not super().__getattribute__("is_full"):
                return real

            def call(target: Any, *arguments: Any) -> Any:
                path = self._open.get(target) if isinstance(target, int) else target
                if path is not None and os.path.basename(path).startswith(".manifest-"):
                    raise OSError(errno.ENOSPC, "injected")
                return real(target, *arguments)

            return call

        is_full = True

    disk = Full()
    archive = archive_of(journal, disk)
    archive.remove([1, 2])
    assert "injected" in str(archive.problem)
    assert {"db-1.log", "db-2.log"} <= set(contents(journal))
    disk.is_full = False
    archive.remove([])
    assert archive.problem is None
    assert set(contents(journal)) == {"db-7.log"}
    assert set(os.listdir(journal / "data-archive")) == {
        f"db-{file}.log{suffix}" for file in (1, 2) for suffix in ("", SUFFIX)
    }, "nothing is left over"
    assert_manifests_tell_of_all_files(journal / "data-archive")


def test_a_file_that_cannot_be_read_is_archived_without_a_manifest(
    journal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Unreadable(Noting):
        def pread(self, fd: int, length: int, offset: int) -> bytes:
            if self._open[fd].endswith("/db-1.log"):
                raise OSError(errno.EIO, "injected")
            return os.pread(fd, length, offset)

    archive = archive_of(journal, Unreadable())
    archive.remove([1, 2])
    assert archive.problem is None
    assert set(contents(journal / "data-archive")) == {"db-1.log", "db-2.log"}
    assert set(manifests(journal / "data-archive")) == {"db-2.log"}
    assert "without a manifest" in caplog.text


def test_a_file_that_cannot_be_moved_waits_with_all_that_follow(
    journal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An acknowledgement must not be gone while the message that it killed is still there."""
    blocked = journal.parent / "archive"
    blocked.write_text("a file where the directory should be")
    archive = archive_of(journal, directory=blocked)
    with caplog.at_level(logging.ERROR):
        archive.remove([1])
        archive.remove([2])
    assert archive.problem is not None
    assert str(blocked) in archive.problem
    assert len(caplog.records) == 1, "said once"
    assert set(contents(journal)) == {"db-1.log", "db-2.log", "db-7.log"}
    blocked.unlink()
    archive.remove([7])
    assert archive.problem is None
    assert set(contents(blocked)) == {"db-1.log", "db-2.log", "db-7.log"}


# proves: archived-file-is-removed, archived-file-is-the-one-that-was-opened
@pytest.mark.parametrize(("before", "archived"), [("link", ()), ("fsync", (1,)), ("replace", (1,))])
def test_a_file_that_others_put_in_its_place_is_neither_archived_nor_described_nor_removed(
    journal: Path, before: str, archived: tuple[int, ...]
) -> None:
    """The master was deposed and suspended: its successor moved the file, and a late broker linked another one under
    its name."""

    class Slept:
        count = 0

        def __getattr__(self, verb: str) -> Any:
            if verb == before and not self.count:
                self.count = 1
                (journal / "db-1.log").unlink()
                (journal / "db-1.log").write_bytes(b"late")
            return getattr(os, verb)

    archive = journal.parent / "archive"
    archive.mkdir()
    Archive(JournalFiles(str(journal)), str(archive), Slept()).remove([1])
    assert (journal / "db-1.log").read_bytes() == b"late"
    assert contents(archive) == {f"db-{file}.log": CONTENT[file] for file in archived}
    assert_manifests_tell_of_all_files(archive)


def test_after_a_failed_sync_of_the_archive_nothing_is_moved_any_more(journal: Path) -> None:
    class Failing(Noting):
        failures = 0

        def fsync(self, fd: int) -> None:
            if self._open[fd].endswith("data-archive"):
                self.failures += 1
                if self.failures == 1:
                    raise OSError(errno.EIO, "injected")
            super().fsync(fd)

    disk = Failing()
    archive = archive_of(journal, disk)
    archive.remove([1])
    archive.remove([2])
    assert disk.failures == 1, "no sync is tried again"
    assert "injected" in str(archive.problem)
    assert set(contents(journal)) == {"db-1.log", "db-2.log", "db-7.log"}


def test_a_real_second_volume(journal: Path, require_program: Callable[[object, str], None]) -> None:
    other = Path("/dev/shm")
    differs = other.is_dir() and other.stat().st_dev != journal.stat().st_dev
    require_program(differs, "there is no second volume at /dev/shm")
    import tempfile

    with tempfile.TemporaryDirectory(dir=other) as kept:
        archive = archive_of(journal, directory=Path(kept))
        archive.remove([1, 2, 7])
        assert archive.problem is None
        assert contents(Path(kept)) == {f"db-{file}.log": content for file, content in CONTENT.items()}
        assert contents(journal) == {}


# ---- a real store


def reclaiming(archive: Path | None) -> StoreSettings:
    return StoreSettings(
        journal_max_file_length=64 * KIB,
        checkpoint_interval=0.05,
        cleanup_interval=0.0,
        fence_check_interval=0.01,
        archive_data_logs=True,
        directory_archive=None if archive is None else str(archive),
    )


def journal_ids(directory: Path) -> set[int]:
    return {number for name in os.listdir(directory) if (number := file_id(name)) is not None}


@pytest.mark.parametrize("ends_by", ["close", "crash"])
@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_store_keeps_every_file_that_it_gives_up(tmp_path: Path, ends_by: str, is_elsewhere: bool) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    archive = tmp_path / "kept" if is_elsewhere else directory / "data-archive"
    for life in (1, 2):
        term = Term(str(directory), settings=reclaiming(archive if is_elsewhere else None))
        owner = term.store.queue(Q)

        def work(term: Term = term, owner: int = owner, wanted: int = 5 * life) -> bool:
            term.take(term.add_durably(20, body=b"x" * 4 * KIB), owner)
            return archive.exists() and len(journal_ids(archive)) >= wanted

        term.wait(work)
        kept = term.add_durably(1)
        if ends_by == "crash":
            term.crash()
        else:
            term.close()
        last = max(journal_ids(directory))
        assert journal_ids(directory) | journal_ids(archive) == set(range(1, last + 1)), "none is in neither"
    with Term(str(directory), settings=reclaiming(archive if is_elsewhere else None)) as term:
        assert len(term.bodies()) == 2, "what lives is no archive's affair"
        assert kept[0].message.body in term.bodies()
    assert check(str(directory)).problems == []
    assert_manifests_tell_of_all_files(archive)
    for file in sorted(journal_ids(archive)):
        batches = list(Scan(partial(MemorySource, (archive / f"db-{file}.log").read_bytes()), file))
        assert batches, "it can be read where it is"
        manifest = manifests(archive)[f"db-{file}.log"]
        assert manifest is not None
        assert manifest.header == decode_header(batches[0].records[0][1])
        assert manifest.end in (manifest.counted, None), "None: the file behind it went first"
        assert manifest.counted < manifest.bytes, "the farewell of a rotation does not count"
        assert manifest.directory == str(directory)
