"""Extent of a read: closed files whole, and the growing one up to its last whole batch, as it was at one moment.

A broker may be writing. The part of the newest file that was complete while no other file followed counts, even if that
file is closed before it is read. Bytes that a deposed master may have written after it are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tandemmq.pipeline.listing import Listing, Stores
from tandemmq.pipeline.offsets import Offsets, Position
from tandemmq.pipeline.options import Options
from tandemmq.pipeline.places import Access
from tandemmq.pipeline.stores import journal_files
from tandemmq.pipeline.walk import JournalFile

# Stores whose extent is printed; the JSON has all.
TOLD_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Reach:
    """A store was read up to ``offset`` of ``file``. ``is_growing``: a broker may write after it, and the last bytes
    before it may not be synced yet. Otherwise the file is closed, and was read whole."""

    store: str
    file: int
    offset: int
    is_growing: bool


def read_files(
    paths: Iterable[str],
    *,
    is_tail_wanted: bool = True,
    until: Offsets | None = None,
    first: int | None = None,
    last: int | None = None,
    access: Access = (),
) -> list[JournalFile]:
    """Return the files below ``paths`` to read, by store and number: as they are now, or up to ``until`` as they were
    then. Without ``is_tail_wanted``, only closed ones. ``first`` and ``last`` bound the numbers. Raises NoJournal."""
    stores: Mapping[str, Mapping[int, JournalFile]]
    if until is None:
        listings = Stores(paths, access)
        found = listings.once_to_the_end() if is_tail_wanted else listings.lately()
        stores = {store: listing.files for store, listing in found.items()}
        ends = {store: _end(listing) for store, listing in found.items()}
    else:
        by_store: dict[str, dict[int, JournalFile]] = {}
        for there in journal_files(paths, is_tail_wanted=True, access=access):
            by_store.setdefault(there.store, {})[there.file] = there
        stores, ends = by_store, dict(until.stores)
    return [
        file
        for store in sorted(stores.keys() & ends.keys())
        for number, each in stores[store].items()
        if number >= (first or 0) and (last is None or number <= last)
        if (file := _until(each, ends[store])) is not None
    ]


def files_for(options: Options) -> list[JournalFile]:
    """Return ``read_files`` for the options of a read."""
    return read_files(
        options.paths,
        is_tail_wanted=options.is_tail_wanted,
        until=options.until,
        first=options.first,
        last=options.last,
        access=options.access,
    )


def _end(listing: Listing) -> Position:
    if listing.growing is None:
        return Position(listing.newest + 1, 0)
    return Position(listing.growing, listing.growing_stop or 0)


def _until(file: JournalFile, end: Position) -> JournalFile | None:
    if file.file < end.file:
        return replace(file, is_current=False)
    if file.file == end.file and end.offset:
        # Batches that a power loss and another master have removed since do not count any more.
        cut = end.offset if file.end is None else min(end.offset, file.end)
        return replace(file, cut=cut, is_current=True)
    return None


def reaches(files: Iterable[JournalFile]) -> tuple[Reach, ...]:
    """Return how far each store is read, from the result of ``read_files``."""
    newest: dict[str, JournalFile] = {}
    for file in files:
        newest[file.store] = file  # they ascend
    return tuple(
        Reach(store, file.file, file.cut or file.end or file.size, file.cut is not None)
        for store, file in newest.items()
    )


def offsets_of(reached: Iterable[Reach]) -> Offsets:
    """Return offsets with which ``read_files`` reads the same."""
    return Offsets(
        {
            each.store: Position(each.file, each.offset) if each.is_growing else Position(each.file + 1, 0)
            for each in reached
        }
    )


def told(reached: Sequence[Reach]) -> tuple[str, ...]:
    """Return sentences on how far was read."""
    several = len(reached) > 1
    lines = []
    for each in reached[:TOLD_MAX]:
        where = f"{each.store}: read" if several else "Read"
        if each.is_growing:
            lines.append(
                f"{where} up to {each.offset:,} of db-{each.file}.log, which a broker may be writing: its last bytes "
                "may not be synced yet."
            )
        else:
            lines.append(f"{where} up to the end of db-{each.file}.log, which is closed.")
    if len(reached) > TOLD_MAX:
        lines.append(f"The JSON has the extent of {len(reached) - TOLD_MAX:,} more stores.")
    return tuple(lines)
