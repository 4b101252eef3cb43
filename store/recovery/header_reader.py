"""Reader of the headers of a journal directory, polled by a follower.

The first batch of a file is read only once. A file is identified by its inode, not only by its number, because a
deposed broker can link a file with the number of a reclaimed one. So a refresh of a journal with thousands of files
only lists the directory. A first batch can only change if no header states the end of its file, because it may not be
synced. A promotion reads these headers again, from the disk.
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

# Bytes of the first read of a file; a longer header needs a second read.
HEADER_BYTES = 4096


class HeaderReader:
    """Headers of a journal directory, for one thread. The attributes are the results of the last ``refresh``, which
    raises OSError.

    epoch_history  all valid headers
    misplaced      file -> number in its header, for files that have the header of another file
    listed         ids of all existing files, ascending
    ids            ``listed`` without the blank files that have content according to a header

    Such a blank file has one of two causes. Its file was reclaimed, and then a deposed broker, which had listed the
    directory before, linked a new file with the same number. Or the disk lost the content of the file. In both cases
    the content is missing.
    """

    def __init__(self, files: JournalFiles) -> None:
        self.listed: Sequence[int] = ()
        self.ids: Sequence[int] = ()
        self.epoch_history = EpochHistory({}, {})
        self.misplaced: dict[int, int] = {}
        self._files = files
        self._inodes: dict[int, int] = {}  # of the listed files
        # File with a good first batch -> its header, or None if its first record is no header.
        self._first: dict[int, Header | None] = {}

    def refresh(self, last: int | None = None) -> Sequence[int]:
        """List the files, read new headers, and return ``ids``. Files after ``last`` are ignored, because another file
        may still get the number of such a file."""
        inodes = self._files.inodes()
        if last is not None:
            # prove: behind-the-horizon-is-not-listed
            inodes = {file: inode for file, inode in inodes.items() if file <= last}
        if inodes == self._inodes and len(self._first) == len(inodes):
            return self.ids  # no file has changed
        # prove: header-of-the-file-that-is-there "== self._inodes[file]" -> "is not None"
        self._first = {file: header for file, header in self._first.items() if inodes.get(file) == self._inodes[file]}
        self._inodes = inodes
        self.listed = list(inodes)
        return self._read_epoch_history()

    def refresh_from_disk(self) -> Sequence[int]:
        """Do the same as ``refresh``. Also sync the files whose end no header states, and read their headers from the
        disk.

        If the sync of a header failed, the header may be only in the cache of its host. If the header is lost, its ends
        do not count. Such a file need not be the last one: fences of failed promotions may follow.
        """
        self.refresh()
        seen: set[int] = set()
        while unsettled := [file for file in self.listed if file not in self.epoch_history.ends and file not in seen]:
            for file in unsettled:
                try:
                    self._files.sync(file)  # prove: header-sync-before-reading
                except FileNotFoundError:
                    pass  # removed after the listing
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
        """Return (number, inode) of a listed file, which identify it: another file may get its number."""
        return file, self._inodes[file]  # prove: end-of-the-file-that-was-read "self._inodes[file]" -> "0"

    def has_batches(self, file: int) -> bool:
        """Return whether the first batch of ``file`` is good."""
        return file in self._first or self._first_payload(file) is not None

    def has_read(self, file: int) -> bool:
        """Return whether the last ``refresh`` read a good first batch, and the header if there is one."""
        return file in self._first

    def size(self, file: int) -> int:
        """Return the length of a file in bytes; 0: it was reclaimed after the listing."""
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
            if header is not None or file != self.ids[-1]:  # the first batch of the last file may be incomplete
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
            return None  # reclaimed after the listing
        return batch.records[0][1] if batch is not None and batch.records else None


def first_batch(files: JournalFiles, file: int, *, drop_cache: bool = False) -> Batch | None:
    """Return the first batch of a file, or None if it is not good. Little more than the batch is read. Raises
    JournalMissing."""
    source = partial(FileSource, files, file, drop_cache)
    return next(iter(Scan(source, file, is_live=True, chunk_bytes=HEADER_BYTES)), None)


def _is_of(header: Header, file: int) -> bool:
    """Return whether a header can have been written into ``file``: it names this file, and states only ends of earlier
    files.

    It may name a later file if another broker made a fence while the header was written.
    """
    return (not header.files or header.files[-1] >= file) and all(earlier < file for earlier in header.ends)
