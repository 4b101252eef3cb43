"""Check of files that a promotion does not read, because the index includes them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from tandemmq.journal.errors import JournalMissing
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.verify import damage_in
from tandemmq.store.damage.report import Damage
from tandemmq.store.recovery.header_reader import HeaderReader

# Files that a standby checks in one call.
FILES_CHECKED_MAX = 64


class SealedFiles:
    """Check that files have their headers and are as long as later headers state. With ``checks_all``, all batches are
    compared with their checksums.

    A standby checks a few files at a time, in advance; the promotion checks the rest. For one thread. Raises OSError.
    """

    def __init__(self, files: JournalFiles, headers: HeaderReader, *, checks_all: bool) -> None:
        self._files = files
        self._headers = headers
        self._checks_all = checks_all
        self._sound: set[int] = set()

    def check_ahead(self, ids: Sequence[int], before: int) -> None:
        """Check some of the files ``ids`` below ``before`` whose end is known. Damage is not reported here: a promotion
        checks a damaged file again and reports it."""
        self._sound.intersection_update(ids)
        ends = self._headers.epoch_history.ends
        unseen = (file for file in ids if file < before and file in ends and file not in self._sound)
        for file in islice(unseen, 1 if self._checks_all else FILES_CHECKED_MAX):
            try:
                if not self._check_file(file):
                    self._sound.add(file)
            except JournalMissing:
                pass  # reclaimed after the listing

    def damage_in(self, file: int) -> list[Damage]:
        """Return the damage in ``file``; empty if a former check found none. Raises JournalMissing."""
        return [] if file in self._sound else self._check_file(file)

    def _check_file(self, file: int) -> list[Damage]:
        headers = self._headers
        end = headers.epoch_history.ends.get(file)
        if end == 0 or file in headers.misplaced:
            return []  # nothing in it counts
        is_headless = file not in headers.epoch_history.headers and not headers.has_batches(file)
        is_short = end is not None and self._size(file) < end
        if not (self._checks_all or is_headless or is_short):
            return []
        return [Damage(file, *found, "it does not match its checksum") for found in damage_in(self._files, file, end)]

    def _size(self, file: int) -> int:
        try:
            return self._files.size(file)
        except FileNotFoundError as error:
            raise JournalMissing(file, 0) from error
