"""Listings of the stores below some paths: closed files and the growing file. Listings are cached for a short time.

Spark requests the offsets of a stream without an interval about a hundred times a second. So a listing is reused for
ten times as long as it took. Listing then takes at most a tenth of the time, also on a network share or an object
store.
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

FRESH_SECONDS_MIN: Final = 0.25
FRESH_FACTOR: Final = 10
# Maximum number of listings if files are closed meanwhile.
LISTINGS_MAX: Final = 10
# The same for a single read. ActiveMQ makes the next file long before it uses it.
LISTINGS_ONCE: Final = 2


@dataclass(frozen=True, slots=True)
class Listing:
    """Files of one store, by ascending number. ``growing``: number of the first file that may still be written; None:
    an archive.

    ``growing_stop``: end of the last complete batch in the growing file while no other file followed; None: not
    determined yet.
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
        """Return the end of a missing file, from the header of a later file; None: no header states it."""
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
        self._fresh_until = 0.0
        self._begun: set[tuple[str, int]] = set()  # newest files in which a batch was found

    def now(self) -> Mapping[str, Listing]:
        """Return a new listing of each store, by its path. Raises NoJournal if a path has no journals."""
        # A listing may miss a file that is moved into the archive meanwhile, but the next listing finds it.
        before, found = self._listed_files(), self._listed_files()
        merged = {store: dict(sorted({**before.get(store, {}), **files}.items())) for store, files in found.items()}
        self._seen = {store: self._listing(store, files) for store, files in merged.items()}
        return self._seen

    def now_to_the_end(self) -> Mapping[str, Listing]:
        """Return ``now`` with ``growing_stop`` of growing files. If at each listing another file already follows, it is
        0."""
        found = self._to_the_end(self.now, whole_end, LISTINGS_MAX)
        return {store: replace(listing, growing_stop=listing.growing_stop or 0) for store, listing in found.items()}

    def _to_the_end(
        self, listed: Callable[[], Mapping[str, Listing]], end_of: Callable[[JournalFile, int], int], count: int
    ) -> Mapping[str, Listing]:
        found: Mapping[str, Listing] = {}
        for _ in range(count):
            found = {store: _with_stop(listing, end_of) for store, listing in listed().items()}
            if all(listing.growing is None or listing.growing_stop is not None for listing in found.values()):
                break
        return found

    def once_to_the_end(self) -> Mapping[str, Listing]:
        """Return the listing for a single read, like ``now_to_the_end``, with these differences: a file that is being
        archived may be missing, batches after damage count, and a file that is followed by an empty one is read up to
        its last complete batch."""
        found = self._to_the_end(self._listed, last_whole_end, LISTINGS_ONCE)
        return {store: _with_stop(listing, last_whole_end, is_followed=True) for store, listing in found.items()}

    def lately(self) -> Mapping[str, Listing]:
        """Return a recent listing, which may lack a file that was being archived.

        The same object is returned while it is recent enough.
        """
        began = self._clock()
        if self._seen is None or began >= self._fresh_until:
            self._seen = self._listed()
            ended = self._clock()
            self._fresh_until = ended + max(FRESH_SECONDS_MIN, FRESH_FACTOR * (ended - began))
        return self._seen

    def _listed(self) -> Mapping[str, Listing]:
        return {store: self._listing(store, files) for store, files in self._listed_files().items()}

    def _listed_files(self) -> dict[str, dict[int, JournalFile]]:
        found = self._files()
        newest = {(store, number) for store, files in found.items() if (number := _newest(files)) is not None}
        begun = {
            (store, number)
            for store, number in newest - self._begun
            if _is_end_unknown(found[store], number) and first_record(found[store][number]) is not None
        }
        self._begun = (self._begun & newest) | begun
        # A header that was written after its file was listed states the end of the file before it.
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
        # If the newest file has no batch yet, a promotion or rotation is in progress, and the end of the file before it
        # is not known.
        if _is_end_unknown(files, newest) and (store, newest) not in self._begun:
            return Listing(store, files, newest - 1)
        return Listing(store, files, newest)


def whole_end(file: JournalFile, start: int, bytes_max: int | None = None) -> int:
    """Return the end of the last complete batch after ``start`` in a file that may grow: at most about ``bytes_max``
    after ``start``, but at least one batch if there is one. Raises FileNotFoundError."""
    end = start
    for stretch in walk(replace(file, start=start, is_current=file.end is None)):
        if not stretch.is_batch or (bytes_max is not None and end - start >= bytes_max):
            break
        end = stretch.stop
    return end


def last_whole_end(file: JournalFile, start: int) -> int:
    """Return the end of the last complete batch, also after damage, in a file that may grow: all bytes before a
    complete batch were written. Raises FileNotFoundError."""
    whole = replace(file, start=start, is_current=False)
    return max((stretch.stop for stretch in walk(whole) if stretch.is_batch), default=start)


def grown(file: JournalFile, start: int, bytes_max: int | None = None) -> int | None:
    """Return the result of ``whole_end``; None if there is a later file. The later file states the end of this one, and
    batches after that end, for example of a deposed master, do not count.

    A new master makes the later file before it determines the end of this one. So batches that were complete while
    there was no later file count.
    """
    return _unless_followed(file, whole_end(file, start, bytes_max))


def _unless_followed(file: JournalFile, end: int) -> int | None:
    try:
        open_file(f"{file.store}/{PREFIX}{file.file + 1}{SUFFIX}", file.access).release()
    except (FileNotFoundError, NotRegular):  # a master makes only regular files
        return end
    return None


def is_border(file: JournalFile, offset: int) -> bool:
    """Return whether a stretch begins or ends at ``offset``."""
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
    """Return the number of the newest file if it may still be written; None: there is none."""
    return next((number for number in reversed(files) if files[number].is_current), None)


def _is_end_unknown(files: Mapping[int, JournalFile], newest: int) -> bool:
    before = files.get(newest - 1)
    return before is not None and before.end is None


def first_record(file: JournalFile) -> bytes | None:
    """Return the first record of the first batch; None: the file does not exist, or has no batch yet."""
    try:
        first = next(walk(replace(file, end=None, is_current=True)), None)
    except FileNotFoundError:
        return None
    return first.records[0][1] if first is not None and first.records else None
