"""Extent of a read: closed files completely, and the growing file up to its last complete batch at one moment.

A broker may be writing. The batches of the newest file that were complete while no other file followed count, even if
the file is closed before it is read. Bytes that a deposed master may have written after them are not read.
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

# Maximum number of stores whose extent is printed; the JSON has all.
STORES_LISTED: Final = 5


@dataclass(frozen=True, slots=True)
class Reach:
    """A store was read up to ``offset`` of ``file``. ``is_growing``: a broker may be writing the file, and the last
    bytes that were read may not be synced yet. Otherwise the file is closed, and was read completely."""

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
    """Return the files below ``paths`` to read, by store and number: up to their present end, or up to ``until``.
    Without ``is_tail_wanted``, only closed files. ``first`` and ``last``: limits of the file numbers. Raises
    NoJournal."""
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
    """Return the result of ``read_files`` for the options of a read."""
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
        # The file may be shorter now: after a power loss, a new master may have excluded unsynced batches.
        cut = end.offset if file.end is None else min(end.offset, file.end)
        return replace(file, cut=cut, is_current=True)
    return None


def reaches(files: Iterable[JournalFile]) -> tuple[Reach, ...]:
    """Return how far each store is read, from the result of ``read_files``."""
    newest: dict[str, JournalFile] = {}
    for file in files:
        newest[file.store] = file  # the files are in ascending order
    return tuple(
        Reach(store, file.file, file.cut or file.end or file.size, file.cut is not None)
        for store, file in newest.items()
    )


def offsets_of(reached: Iterable[Reach]) -> Offsets:
    """Return the offsets with which ``read_files`` reads the same extent."""
    return Offsets(
        {
            each.store: Position(each.file, each.offset) if each.is_growing else Position(each.file + 1, 0)
            for each in reached
        }
    )


def describe(reached: Sequence[Reach]) -> tuple[str, ...]:
    """Return sentences about the extent of a read."""
    several = len(reached) > 1
    lines = []
    for each in reached[:STORES_LISTED]:
        where = f"{each.store}: read" if several else "Read"
        if each.is_growing:
            lines.append(
                f"{where} up to {each.offset:,} of db-{each.file}.log, which a broker may be writing: its last bytes "
                "may not be synced yet."
            )
        else:
            lines.append(f"{where} up to the end of db-{each.file}.log, which is closed.")
    if len(reached) > STORES_LISTED:
        lines.append(f"The JSON has the extent of {len(reached) - STORES_LISTED:,} more stores.")
    return tuple(lines)
