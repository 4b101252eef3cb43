"""Files that are not read at a promotion because an index covers them: are they as they were left?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from journal.errors import JournalMissing
from journal.files import JournalFiles
from journal.verify import damage_in
from store.damage import Damage
from store.header_reader import HeaderReader

# Files that a standby looks at in one call.
FILES_LOOKED_AT_MAX = 64


class SealedFiles:
    """Looks whether files are as long as their ends say, and have their headers; with ``checks_all`` at every byte.

    A standby looks while nobody waits for it, a few files at a time; the promotion at those that are left. For one
    thread; OSError as the volume gives it.
    """

    def __init__(self, files: JournalFiles, headers: HeaderReader, *, checks_all: bool) -> None:
        self._files = files
        self._headers = headers
        self._checks_all = checks_all
        self._whole: set[int] = set()

    def look_ahead(self, ids: Sequence[int], before: int) -> None:
        """Some of ``ids`` below ``before`` that have an end; what is wrong with them is left to the promotion."""
        self._whole.intersection_update(ids)
        ends = self._headers.chronicle.ends
        unseen = (file for file in ids if file < before and file in ends and file not in self._whole)
        for file in islice(unseen, 1 if self._checks_all else FILES_LOOKED_AT_MAX):
            try:
                if not self._look(file):
                    self._whole.add(file)
            except JournalMissing:
                pass  # reclaimed since it was listed

    def damage_in(self, file: int) -> list[Damage]:
        """What is wrong with ``file``, unless it was looked at before. Raises JournalMissing when it is gone."""
        return [] if file in self._whole else self._look(file)

    def _look(self, file: int) -> list[Damage]:
        headers = self._headers
        end = headers.chronicle.ends.get(file)
        if end == 0 or file in headers.misplaced:
            return []  # nothing counts in it
        is_headless = file not in headers.chronicle.headers and not headers.has_batches(file)
        is_short = end is not None and self._size(file) < end
        if not (self._checks_all or is_headless or is_short):
            return []
        return [Damage(file, *found, "it does not verify") for found in damage_in(self._files, file, end)]

    def _size(self, file: int) -> int:
        try:
            return self._files.size(file)
        except FileNotFoundError as error:
            raise JournalMissing(file, 0) from error
