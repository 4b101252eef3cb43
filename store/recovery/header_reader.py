"""The files of a journal directory and their headers, polled by a follower.

A good first batch does not change any more, except that of a file whose end no header names: it may never have been
synced. So it is read once for each file, which is known by its inode and not by its name: a late broker can link a file
in the place of one that was reclaimed. A refresh of a journal of thousands of files costs the listing of its directory.
A promotion reads again all headers that may have been in this host's cache only.
"""

# proofs: journal-reading

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tandemmq.journal.errors import JournalMissing
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.scan import Batch, FileSource, Scan
from tandemmq.store.records.headers import EpochHistory, Header, decode_header, read_epoch_history
from tandemmq.store.recovery.index_trust import is_blank

# Bytes read of each file to get its header; a longer header takes a second read.
HEADER_BYTES = 4096


class HeaderReader:
    """``ids``, ``epoch_history`` and ``misplaced`` (files that begin with the header of another file, by file) are
    those of the last ``refresh``. For one thread; raises the OSError of the volume.

    ``listed`` are all files that are there; ``ids`` leaves out the blank ones that a header names as written. Such a
    file was reclaimed, and then a late broker, which had listed the files before, put up its fence in the gap (and
    found itself deposed); or a disk lost the contents. In both cases the contents are missing.
    """

    def __init__(self, files: JournalFiles) -> None:
        self.listed: Sequence[int] = ()
        self.ids: Sequence[int] = ()
        self.epoch_history = EpochHistory({}, {})
        self.misplaced: dict[int, int] = {}
        self._files = files
        self._inodes: dict[int, int] = {}  # of the listed ones
        # By file, of those whose first batch is good: its header, None if it begins with something else.
        self._first: dict[int, Header | None] = {}

    def refresh(self, last: int | None = None) -> Sequence[int]:
        """Read which files exist now, and their headers; return the ids. Files after ``last`` are ignored: another
        file may yet get such a number, and the header of the former one would be kept."""
        inodes = self._files.inodes()
        if last is not None:
            # prove: behind-the-horizon-is-not-listed
            inodes = {file: inode for file, inode in inodes.items() if file <= last}
        if inodes == self._inodes and len(self._first) == len(inodes):
            return self.ids  # nothing can have changed
        # prove: header-of-the-file-that-is-there "== self._inodes[file]" -> "is not None"
        self._first = {file: header for file, header in self._first.items() if inodes.get(file) == self._inodes[file]}
        self._inodes = inodes
        self.listed = list(inodes)
        return self._read_epoch_history()

    def refresh_from_disk(self) -> Sequence[int]:
        """Do what ``refresh`` does; sync files whose end no header names, and read their headers from the disk.

        A header whose sync failed is only in the cache of the host that wrote it, and may be lost: then it named
        no end. The files of failed promotions may be after it.
        """
        self.refresh()
        seen: set[int] = set()
        while unsettled := [file for file in self.listed if file not in self.epoch_history.ends and file not in seen]:
            for file in unsettled:
                try:
                    self._files.sync(file)  # prove: header-sync-before-reading
                except FileNotFoundError:
                    pass  # removed while we listed
                self._first.pop(file, None)  # prove: header-read-anew
                payload = self._first_payload(file, drop_cache=True)  # prove: header-drops-cache "True" -> "False"
                if payload is not None:
                    self._first[file] = decode_header(payload)
            seen.update(unsettled)
            self._read_epoch_history()
        return self.ids

    def _read_epoch_history(self) -> Sequence[int]:
        self.misplaced = {}
        self.ids = ids = self.listed
        self.epoch_history = read_epoch_history(ids, self._header_of)
        ends = self.epoch_history.ends
        if any(ends.get(file) and file not in self._first for file in ids):
            self.ids = [file for file in ids if not (ends.get(file) and is_blank(self._files, file))]
        return self.ids

    def key(self, file: int) -> tuple[int, int]:
        """Number and inode of a listed file: another file may get its number."""
        return file, self._inodes[file]  # prove: end-of-the-file-that-was-read "self._inodes[file]" -> "0"

    def has_batches(self, file: int) -> bool:
        """Return whether the first batch of ``file`` is good."""
        return file in self._first or self._first_payload(file) is not None

    def has_read(self, file: int) -> bool:
        """Return whether the last ``refresh`` read a good first batch, and the header if there is one."""
        return file in self._first

    def size(self, file: int) -> int:
        """Return the length of a file; 0 when it was reclaimed since it was listed."""
        try:
            return self._files.size(file)
        except FileNotFoundError:
            return 0

    def _header_of(self, file: int) -> Header | None:
        if file not in self._first:
            payload = self._first_payload(file)
            if payload is None:
                return None
            header = decode_header(payload)
            if header is not None or file != self.ids[-1]:  # the last header may be half written
                self._first[file] = header
        else:
            header = self._first[file]
        # prove: header-of-this-file "not _is_of(header, file)" -> "False"
        if header is not None and not _is_of(header, file):
            self.misplaced[file] = header.files[-1]
            return None
        return header

    def _first_payload(self, file: int, *, drop_cache: bool = False) -> bytes | None:
        """Return the first record of a file, None if it has no good batch."""
        try:
            batch = first_batch(self._files, file, drop_cache=drop_cache)
        except JournalMissing:
            return None  # reclaimed while we listed
        return batch.records[0][1] if batch is not None and batch.records else None


def first_batch(files: JournalFiles, file: int, *, drop_cache: bool = False) -> Batch | None:
    """Return the first batch of a file, None if it has no good one; reads little more than that batch. Raises
    JournalMissing."""
    source = partial(FileSource, files, file, drop_cache)
    return next(iter(Scan(source, file, is_live=True, chunk_bytes=HEADER_BYTES)), None)


def _is_of(header: Header, file: int) -> bool:
    """Return whether a header can have been written into ``file``: it names that file, and ends of earlier files only.

    The header may name a later file: another broker put up a fence while the header was being written.
    """
    return (not header.files or header.files[-1] >= file) and all(earlier < file for earlier in header.ends)
