"""Archive: moves journal files that are not needed any more to a directory, instead of deleting them (setting
archive_data_logs).

Steps for each file, oldest first: link it into the archive, sync the archive, write its manifest, sync the archive,
unlink it from the journal, sync the journal's directory. So after a crash the file is in the archive, in the journal or
in both, and a manifest exists only for a complete file. If the file is in both, the next removal writes its manifest
and unlinks it from the journal. If the archive is on another volume, the file is copied and synced before it gets its
name.

Files in the archive are not overwritten, except a manifest by its new version. If a name is taken, the file gets the
suffix ".1", ".2", ... See docs/formats/archive-manifest.md.
"""

# proofs: archive

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Final

from tandemmq import log_events
from tandemmq.disk import (
    FileDisk,
    NotRegular,
    exists,
    identity_of,
    open_with_status,
    read_fully,
    sync_directory,
    unlink_if_there,
    write_fully,
)
from tandemmq.journal.errors import JournalMissing
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.scan import FileSource
from tandemmq.modes import NEW_FILE
from tandemmq.store.maintenance.manifest import SUFFIX, Manifest, describe, encode_manifest
from tandemmq.store.recovery.header_reader import HeaderReader

log = logging.getLogger(__name__)

DEFAULT_NAME: Final = "data-archive"  # in the journal's directory, as in KahaDB
COPYING_PREFIX: Final = ".copying-"
MANIFEST_PREFIX: Final = ".manifest-"
CHUNK_BYTES: Final = 1 << 20
SAME_NAME_MAX: Final = 1_000

# Errors of link(2) after which the file is copied: the archive is on another volume, or has no hard links.
_NEEDS_COPY: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK})


Disk = FileDisk


class Archive:
    """Archive directory, for one thread at a time. ``directory`` is made when the first file is moved.

    ``problem``: the reason why files could not be moved, or None. After a failed sync of the archive no more files are
    moved, because a second sync could succeed although names are not on the disk. ``pause`` is called regularly while a
    file is read for its manifest.
    """

    def __init__(
        self, files: JournalFiles, directory: str, disk: Disk = os, pause: Callable[[], object] = lambda: None
    ) -> None:
        self.problem: str | None = None
        self.directory = os.path.abspath(directory)
        self._files = files
        self._disk = disk
        self._pause = pause
        self._headers = HeaderReader(files)
        self._waiting: list[int] = []
        self._is_latched = False

    def remove(self, files: Iterable[int]) -> None:
        """Move ``files``, oldest first; missing files are ignored. Durable on return, unless ``problem`` is set.

        If a file cannot be moved, it remains in the journal with all later files, because a later file may have the
        acknowledgements of its messages. The next call tries again.
        """
        waiting = sorted({*self._waiting, *files})
        try:
            while waiting and not self._is_latched:  # prove: no-archiving-after-failed-sync " and not self._is_latched"
                self._move(waiting[0])
                del waiting[0]
            if not self._is_latched:
                self.problem = None
        except OSError as error:
            problem = f"journal files wait to be archived in {self.directory}: {error}"
            if problem != self.problem:
                log.error("%s", problem, extra=log_events.ARCHIVE_FAILED)
            self.problem = problem
        self._waiting = waiting

    def _move(self, file: int) -> None:
        try:
            source = FileSource(self._files, file)
        except JournalMissing:
            self._files.remove([file])  # the file is missing; this makes the removal durable
            return
        # The file stays open during all steps, so that they apply to the same file even if names change meanwhile.
        with closing(source):
            self._make_directory()
            name = os.path.basename(self._files.path(file))
            try:
                archived = self._give_name(self._files.path(file), name, source)
            except OSError as error:
                if error.errno not in _NEEDS_COPY:
                    raise
                archived = self._copy(source, name)
            if archived is None:
                return
            self._sync_archive()  # prove: archived-before-removed
            manifest = self._describe(file, source, archived)
            if manifest is not None:
                self._write(manifest)
                self._sync_archive()  # prove: manifest-before-removed
            # prove: archived-file-is-removed "source.has_name(self._files.path(file))" -> "True"
            if source.has_name(self._files.path(file)):
                self._files.remove([file])

    def _describe(self, file: int, source: FileSource, archived: str) -> Manifest | None:
        """Return the manifest of the file, or None if the file cannot be read."""
        try:
            self._headers.refresh()
            epoch_history = self._headers.epoch_history
            return describe(
                source,
                name=archived,
                file=file,
                directory=os.path.abspath(self._files.directory),
                end=epoch_history.ends.get(file),
                openwire=epoch_history.version_at(file) if epoch_history.headers else None,
                pause=self._pause,
            )
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            log.error("%s is archived without a manifest, because it cannot be read: %s", self._files.path(file), error)
            return None

    def _write(self, manifest: Manifest) -> None:
        disk = self._disk
        path = os.path.join(self.directory, MANIFEST_PREFIX + manifest.name)
        try:
            with self._new_file(path) as fd:
                write_fully(disk, fd, encode_manifest(manifest), 0)
                disk.fsync(fd)  # prove: manifest-sync
            disk.replace(path, os.path.join(self.directory, manifest.name + SUFFIX))
        except OSError:
            unlink_if_there(self._disk, path)  # frees the space on a full volume
            raise

    def _sync_archive(self) -> None:
        try:
            sync_directory(self._disk, self.directory)
        except OSError:
            self._is_latched = True  # prove: archive-latches
            raise

    def _make_directory(self) -> None:
        if not exists(self._disk, self.directory):
            self._disk.makedirs(self.directory, exist_ok=True)
            # The name of the directory must be durable before its contents count.
            sync_directory(self._disk, os.path.dirname(self.directory))  # prove: archive-name-durable

    def _copy(self, source: FileSource, name: str) -> str | None:
        disk = self._disk
        copy = os.path.join(self.directory, COPYING_PREFIX + name)
        try:
            with self._new_file(copy) as fd:
                offset = 0
                for data in _chunks(source):
                    write_fully(disk, fd, data, offset)
                    offset += len(data)
                disk.fsync(fd)  # prove: archived-copy-sync
            return self._give_name(copy, name, source, is_copy=True)
        finally:
            unlink_if_there(self._disk, copy)

    @contextmanager
    def _new_file(self, path: str) -> Iterator[int]:
        """Open a new file for writing and yield its descriptor. An existing file, left by a crash, is removed."""
        unlink_if_there(self._disk, path)
        fd = self._disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, NEW_FILE)
        try:
            yield fd
        finally:
            self._disk.close(fd)

    def _give_name(self, path: str, name: str, source: FileSource, *, is_copy: bool = False) -> str | None:
        """Link the file as ``name``, or ``name`` with a suffix, into the archive, and return that name. Existing files
        are not changed. None: ``path`` does not lead to ``source`` any more, and there is no new link."""
        for number in range(SAME_NAME_MAX):
            archived = f"{name}.{number}" if number else name
            target = os.path.join(self.directory, archived)
            try:
                self._disk.link(path, target)
            except FileNotFoundError:
                return None
            except FileExistsError:
                if self._is_same(source, target):  # prove: archive-keeps-what-is-there
                    return archived  # a crash came before the file was unlinked from the journal
                continue
            # prove: archived-file-is-the-one-that-was-opened " or source.has_name(target)" -> " or True"
            if is_copy or source.has_name(target):
                return archived
            self._disk.unlink(target)  # ``path`` led to another file
            return None
        raise FileExistsError(errno.EEXIST, f"{SAME_NAME_MAX} files with that name exist", name)

    def _is_same(self, source: FileSource, other: str) -> bool:
        try:
            fd, there = open_with_status(self._disk, other, os.O_RDONLY)
        except NotRegular as error:
            log.warning("%s: another name is taken", error)
            return False
        try:
            if identity_of(there) == identity_of(source.status):
                return True
            return there.st_size == source.size() and all(
                data == read_fully(self._disk, fd, len(data), number * CHUNK_BYTES)
                for number, data in enumerate(_chunks(source))
            )
        finally:
            self._disk.close(fd)


def _chunks(source: FileSource) -> Iterator[bytes]:
    offset = 0
    while data := source.read(offset, CHUNK_BYTES):
        yield data
        offset += len(data)
