"""The files of a journal directory and what their headers say, asked again and again by one who follows it.

A first batch that is good does not change any more, but for that of a file whose end no header names: it may never have
been synced. So it is read once, a look at a journal of thousands of files costs the listing of its directory, and a
promotion reads again what may have been in this host's memory only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from journal.errors import JournalMissing
from journal.files import JournalFiles
from journal.scan import FileSource, Scan
from store.headers import Chronicle, Header, decode_header, read_chronicle
from store.index_trust import is_blank

# Read of each file to see its header; a longer one takes a second read.
HEADER_BYTES = 4096


class HeaderReader:
    """``ids``, ``chronicle`` and ``misplaced`` (files that begin with the header of another one, and which) are as of
    the last ``look``. For one thread; OSError as the volume gives it.

    ``listed`` are all files that are there; ``ids`` leaves out the blank ones of which a header says that they were
    written. Such a one was reclaimed, and then a broker that had listed the files before put up its fence in the hole
    (and found itself deposed); or a disk lost what was in it. Either way what was written is not there.
    """

    def __init__(self, files: JournalFiles) -> None:
        self.listed: Sequence[int] = ()
        self.ids: Sequence[int] = ()
        self.chronicle = Chronicle({}, {})
        self.misplaced: dict[int, int] = {}
        self._files = files
        # By file, of those whose first batch is good: its header, None if it begins with something else.
        self._first: dict[int, Header | None] = {}

    def look(self) -> Sequence[int]:
        """Which files are there now, and what their headers say; returns the ids."""
        ids = self._files.list()
        if ids == self.listed and len(self._first) == len(ids):
            return self.ids  # nothing can have changed
        present = set(ids)
        self._first = {file: header for file, header in self._first.items() if file in present}
        self.listed = ids
        return self._read_chronicle()

    def look_at_disk(self) -> Sequence[int]:
        """As ``look``, and what no header names the end of is synced, and its header read from the disk.

        A header whose sync failed stands in the memory of the host where it was written, and is gone with that memory:
        then it named nothing. The files of failed promotions may stand behind it.
        """
        self.look()
        seen: set[int] = set()
        while unsettled := [file for file in self.listed if file not in self.chronicle.ends and file not in seen]:
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
            self._read_chronicle()
        return self.ids

    def _read_chronicle(self) -> Sequence[int]:
        self.misplaced = {}
        self.ids = ids = self.listed
        self.chronicle = read_chronicle(ids, self._header_of)
        ends = self.chronicle.ends
        if any(ends.get(file) and file not in self._first for file in ids):
            self.ids = [file for file in ids if not (ends.get(file) and is_blank(self._files, file))]
        return self.ids

    def has_batches(self, file: int) -> bool:
        """Whether the first batch of ``file`` is good."""
        return file in self._first or self._first_payload(file) is not None

    def size(self, file: int) -> int:
        """Its length; 0 when it was reclaimed since it was listed."""
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
            if header is not None or file != self.ids[-1]:  # of the last one, what is there may be half of it
                self._first[file] = header
        else:
            header = self._first[file]
        # prove: header-of-this-file "not _is_of(header, file)" -> "False"
        if header is not None and not _is_of(header, file):
            self.misplaced[file] = header.files[-1]
            return None
        return header

    def _first_payload(self, file: int, *, drop_cache: bool = False) -> bytes | None:
        """The first record of a file, None if it has no good batch."""
        source = partial(FileSource, self._files, file, drop_cache)
        try:
            batch = next(iter(Scan(source, file, is_live=True, chunk_bytes=HEADER_BYTES)), None)
        except JournalMissing:
            return None  # reclaimed while we listed
        return batch.records[0][1] if batch is not None and batch.records else None


def _is_of(header: Header, file: int) -> bool:
    """Whether a header can have been written into ``file``: it names it, and ends of earlier files only.

    It may name a later one: somebody put up a fence while it was being written.
    """
    return (not header.files or header.files[-1] >= file) and all(earlier < file for earlier in header.ends)
