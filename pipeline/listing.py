"""Listings of the stores below some paths, refreshed periodically: closed files, and the growing one.

Spark asks a stream without an interval about a hundred times a second. So a listing is used for a while, ten times as
long as it took: listing never takes more than a tenth of the time, even on a share or an object store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tandemmq.disk import NotRegular
from tandemmq.journal.files import PREFIX, SUFFIX
from tandemmq.pipeline.places import Access, open_file
from tandemmq.pipeline.stores import journal_files
from tandemmq.pipeline.walk import JournalFile, walk
from tandemmq.store.records.headers import decode_header

LOOK_SECONDS_MIN: Final = 0.25
LOOK_SHARE: Final = 10
# How often a listing is repeated because a file was closed meanwhile.
LOOKS_MAX: Final = 10
# The same for a single read. ActiveMQ makes the next file long before it is used.
LOOKS_ONCE: Final = 2


@dataclass(frozen=True, slots=True)
class Listing:
    """Files of one store, by ascending number. Those from ``growing`` on may be written; None: an archive.

    ``growing_stop``: end of the whole part of the growing file before another one followed; None: not checked yet.
    """

    store: str
    files: dict[int, JournalFile]
    growing: int | None = None
    growing_stop: int | None = None

    @property
    def newest(self) -> int:
        return next(reversed(self.files))

    def is_closed(self, number: int) -> bool:
        return self.growing is None or number < self.growing

    def named_end(self, number: int) -> int | None:
        """Return where a missing file ended, by the header of a later file."""
        for later in reversed(self.files):
            if later <= number:
                break
            record = first_record(self.files[later])
            found = None if record is None else decode_header(record)
            if found is not None and number in found.ends:
                return found.ends[number]
        return None


class Stores:
    """The stores below ``paths``. For one thread."""

    def __init__(self, paths: Iterable[str], access: Access = (), clock: Callable[[], float] = time.monotonic) -> None:
        self._paths = tuple(paths)
        self._access = access
        self._clock = clock
        self._seen: Mapping[str, Listing] | None = None
        self._good_until = 0.0
        self._begun: set[tuple[str, int]] = set()  # newest files that have a first batch

    def now(self) -> Mapping[str, Listing]:
        """Return the listings by path of the store; a missing one does not exist. NoJournal: a path has no journals."""
        # A file that goes into the archive during a listing may be missed in both places, but not by the next listing.
        before, found = self._look(), self._look()
        merged = {store: dict(sorted({**before.get(store, {}), **files}.items())) for store, files in found.items()}
        self._seen = {store: self._listing(store, files) for store, files in merged.items()}
        return self._seen

    def now_to_the_end(self) -> Mapping[str, Listing]:
        """Return ``now`` with the end of the whole part of growing files. A file that is followed by another at each
        listing gets 0."""
        found = self._to_the_end(self.now, whole_end, LOOKS_MAX)
        return {store: replace(listing, growing_stop=listing.growing_stop or 0) for store, listing in found.items()}

    def _to_the_end(
        self, look: Callable[[], Mapping[str, Listing]], end_of: Callable[[JournalFile, int], int], looks: int
    ) -> Mapping[str, Listing]:
        found: Mapping[str, Listing] = {}
        for _ in range(looks):
            found = {store: _with_stop(listing, end_of) for store, listing in look().items()}
            if all(listing.growing is None or listing.growing_stop is not None for listing in found.values()):
                break
        return found

    def once_to_the_end(self) -> Mapping[str, Listing]:
        """Do as ``now_to_the_end``, for one read: a file that is about to be archived may be missing, batches after
        damage count, and a file that stays followed by an empty one is read up to its last whole batch."""
        found = self._to_the_end(self._listed, last_whole_end, LOOKS_ONCE)
        return {store: _with_stop(listing, last_whole_end, is_followed=True) for store, listing in found.items()}

    def lately(self) -> Mapping[str, Listing]:
        """Return a recent listing, possibly without a file that was about to be archived, which ``now`` has.

        Returns the same object as long as it is recent enough.
        """
        began = self._clock()
        if self._seen is None or began >= self._good_until:
            self._seen = self._listed()
            ended = self._clock()
            self._good_until = ended + max(LOOK_SECONDS_MIN, LOOK_SHARE * (ended - began))
        return self._seen

    def _listed(self) -> Mapping[str, Listing]:
        return {store: self._listing(store, files) for store, files in self._look().items()}

    def _look(self) -> dict[str, dict[int, JournalFile]]:
        found = self._files()
        newest = {(store, number) for store, files in found.items() if (number := _newest(files)) is not None}
        begun = {
            (store, number)
            for store, number in newest - self._begun
            if _is_end_unknown(found[store], number) and first_record(found[store][number]) is not None
        }
        self._begun = (self._begun & newest) | begun
        # A header that has come since its file was listed gives the end of the file before it.
        return self._files() if begun else found

    def _files(self) -> dict[str, dict[int, JournalFile]]:
        found: dict[str, dict[int, JournalFile]] = {}
        for file in journal_files(self._paths, is_tail_wanted=True, access=self._access):
            found.setdefault(file.store, {})[file.file] = file
        return found

    def _listing(self, store: str, files: dict[int, JournalFile]) -> Listing:
        newest = _newest(files)
        if newest is None:
            return Listing(store, files)
        # A new file without a first batch is a promotion or a rotation under way: the file before it has no end yet.
        if _is_end_unknown(files, newest) and (store, newest) not in self._begun:
            return Listing(store, files, newest - 1)
        return Listing(store, files, newest)


def whole_end(file: JournalFile, start: int, bytes_max: int | None = None) -> int:
    """Return the end of the last whole batch from ``start`` on, in a file that may grow; at most about ``bytes_max``
    further, but at least one batch if there is one. Raises FileNotFoundError."""
    end = start
    for stretch in walk(replace(file, start=start, is_current=file.end is None)):
        if not stretch.is_batch or (bytes_max is not None and end - start >= bytes_max):
            break
        end = stretch.stop
    return end


def last_whole_end(file: JournalFile, start: int) -> int:
    """Return the end of the last whole batch, even after damage, in a file that may grow: the writer of a batch had
    written all before it. Raises FileNotFoundError."""
    whole = replace(file, start=start, is_current=False)
    return max((stretch.stop for stretch in walk(whole) if stretch.is_batch), default=start)


def grown(file: JournalFile, start: int, bytes_max: int | None = None) -> int | None:
    """Do as ``whole_end``; None if there is a later file: after the end that this one has then, batches may not count,
    such as a master's last ones, or those of a deposed master.

    A later file appears before its master reads where this one ends. So batches that were whole without one count.
    """
    return _unless_followed(file, whole_end(file, start, bytes_max))


def _unless_followed(file: JournalFile, end: int) -> int | None:
    try:
        open_file(f"{file.store}/{PREFIX}{file.file + 1}{SUFFIX}", file.access).release()
    except (FileNotFoundError, NotRegular):  # a master makes regular files only
        return end
    return None


def is_border(file: JournalFile, offset: int) -> bool:
    """Return whether a batch, or the space after the last one, begins at ``offset``."""
    return offset == 0 or any(offset in (stretch.start, stretch.stop) for stretch in walk(file))


def _with_stop(listing: Listing, end_of: Callable[[JournalFile, int], int], *, is_followed: bool = False) -> Listing:
    if listing.growing not in listing.files or listing.growing_stop is not None:
        return listing
    file = listing.files[listing.growing]
    try:
        end = end_of(file, 0)
        return replace(listing, growing_stop=end if is_followed else _unless_followed(file, end))
    except FileNotFoundError:
        return listing


def _newest(files: dict[int, JournalFile]) -> int | None:
    """Return the number of the file that may be written."""
    return next((number for number in reversed(files) if files[number].is_current), None)


def _is_end_unknown(files: Mapping[int, JournalFile], newest: int) -> bool:
    before = files.get(newest - 1)
    return before is not None and before.end is None


def first_record(file: JournalFile) -> bytes | None:
    """Return the first record of the first batch, or None if there is none yet, or no file."""
    try:
        first = next(walk(replace(file, end=None, is_current=True)), None)
    except FileNotFoundError:
        return None
    return first.records[0][1] if first is not None and first.records else None
