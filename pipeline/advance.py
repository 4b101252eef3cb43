"""Progress of a stream: its next offsets, and the parts of files between two offsets.

Closed files are read completely, in the order of their numbers. The store with the largest backlog is read first. The
growing file, if requested, is read up to its last complete batch. A file that must be read and is missing is a loss: it
is reported, and skipped only if failOnDataLoss is false.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tandemmq.pipeline import columns
from tandemmq.pipeline.listing import Listing, grown, is_border, whole_end
from tandemmq.pipeline.offsets import Offsets, Position, beginning
from tandemmq.pipeline.walk import JournalFile

ADVICE: Final = (
    "A broker deletes files that it no longer needs. To keep them, set archive_data_logs, and read the directory with "
    "the archive in it. To continue without the lost data: failOnDataLoss=false"
)
_NOTHING: Final = Listing("", {}, None)


class DataLost(Exception):
    """Data that a stream must read was deleted."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Limit of a batch of the stream. It contains at least one file, or one batch of the growing file."""

    files: int | None = None
    bytes: int | None = None


@dataclass(slots=True)
class Advance:
    """Next offsets of a stream. ``losses``: sentences about data that is missing before the offsets and was skipped.
    ``fatal``: sentences about a loss after the offsets, which ends the stream."""

    offsets: Offsets = field(default_factory=Offsets)
    losses: list[str] = field(default_factory=list)
    fatal: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Step:
    """Advance by one file. ``is_growing``: it is the growing file, after which there is nothing to read yet."""

    position: Position
    size: int = 0
    loss: str | None = None
    is_growing: bool = False


def start_of(listing: Listing) -> Position:
    """Return the position before all data of a store."""
    return beginning(listing.files, has_all=listing.growing is not None)


def newest_of(listing: Listing) -> Position:
    """Return the position after all data of a store, or before the growing file if its end was not determined."""
    if listing.growing is None:
        position = Position()
        for number in listing.files:
            position = position.behind(number)
        return position
    return Position(listing.growing, listing.growing_stop or 0)


def advance(
    start: Offsets,
    stores: Mapping[str, Listing],
    *,
    is_tail_wanted: bool = False,
    is_loss_fatal: bool = True,
    limit: Limit | None = None,
) -> Advance:
    """Return the offsets after ``start`` up to the end of the data, or to ``limit``. Reads the growing file.

    A new store begins before its first file. Raises DataLost if a store ends before its position in ``start``.
    """
    limit = limit or Limit()
    positions = dict(start.stores)
    result = Advance()
    backlog: dict[str, int] = {}
    moved: set[str] = set()
    for store, listing in stores.items():
        if store in positions:
            backlog[store] = _backlog(listing, positions[store])
        else:
            positions[store] = start_of(listing)
    files = size = 0
    while backlog and (limit.files is None or files < limit.files) and (limit.bytes is None or size < limit.bytes):
        store = max(backlog, key=lambda store: (backlog[store], store))
        room = None if limit.bytes is None else limit.bytes - size
        step = _step(stores[store], positions[store], is_tail_wanted, room)
        if step is None:
            del backlog[store]
            continue
        if step.loss is not None and is_loss_fatal:
            if store not in moved:
                result.fatal.append(step.loss)
            del backlog[store]
            continue
        positions[store] = step.position
        if step.loss is not None:
            result.losses.append(step.loss)
        if step.size:
            moved.add(store)
            files += 1
            size += step.size
            backlog[store] -= step.size
        if step.is_growing:
            del backlog[store]
    result.offsets = Offsets(positions)
    return result


def parts_between(
    start: Offsets, end: Offsets, stores: Mapping[str, Listing], table: str
) -> tuple[list[JournalFile], list[str]]:
    """Return the parts of files between two offsets, by store and file, and sentences about missing data.

    Records are read only up to the end of their file: a broker may write an end marker after it, but the same offsets
    must always give the same rows.
    """
    is_rest_wanted = table in (columns.BATCHES, columns.FILES)
    found: list[JournalFile] = []
    losses: list[str] = []
    for store, until in sorted(end.stores.items()):
        since = start.stores.get(store)
        if since is None:
            continue  # a store without a start position begins here
        listing = stores.get(store, _NOTHING)
        missing: list[str] = []
        for number in _numbers(since, until):
            begin = since.offset if number == since.file else 0
            stop = None if until.is_past(number) else until.offset
            file = listing.files.get(number)
            if file is None:
                if (loss := _loss(listing, store, number, begin)) is not None:
                    missing.append(loss)
                continue
            if stop is not None and file.end is not None and stop > file.end:
                losses.append(_taken_back(file, stop))
                stop = max(begin, file.end)
            elif stop is None and not listing.is_closed(number):
                losses.append(f"{file.path} was closed when this batch was planned, and is now written again. {ADVICE}")
                continue
            if stop is None and not is_rest_wanted:
                stop = file.end
            if table == columns.FILES:
                begin = 0
            if stop is None or begin < stop:
                size = _size(file, begin) if stop is None else stop - begin
                found.append(replace(file, size=size, start=begin, stop=stop))
        if len(missing) > until.skipped - since.skipped:
            losses += missing
    return found, losses


def _step(listing: Listing, position: Position, is_tail_wanted: bool, room: int | None) -> _Step | None:
    if listing.growing is None:
        arrived = _next_arrived(list(listing.files), position)
        if arrived is None:
            return None
        number = arrived
    else:
        number = position.file
        if listing.newest < number:
            raise DataLost(
                f"{listing.store} has no file behind db-{listing.newest}.log, and the stream is at db-{number}.log: "
                "it is an older copy, or another store; begin with a new checkpoint"
            )
    begin = position.offset if number == position.file else 0
    file = listing.files.get(number)
    if file is None:
        loss = _loss(listing, listing.store, number, begin)
        return _Step(position.behind(number, is_skipped=loss is not None), 0, loss)
    if not listing.is_closed(number):
        if not is_tail_wanted or number != listing.growing:
            return None
        stop = _whole_end(file, begin, room, listing.growing_stop)
        return _Step(position.within(stop), stop - begin, is_growing=True) if stop > begin else None
    if file.end is not None and begin > file.end:
        return _Step(position.behind(number), 0, _taken_back(file, begin))
    loss = None if file.end is not None or _is_border(file, begin) else _written_over(file, begin)
    return _Step(position.behind(number), _size(file, begin), loss)


def _next_arrived(numbers: list[int], position: Position) -> int | None:
    """Return the first file of an archive that was not read. Files may arrive in an archive in any order."""
    number = position.next_from(position.file)
    while (at := bisect_left(numbers, number)) < len(numbers):
        number = position.next_from(numbers[at])
        if number == numbers[at]:
            return number
    return None


def _whole_end(file: JournalFile, begin: int, room: int | None, known_stop: int | None) -> int:
    try:
        if known_stop is None:
            return grown(file, begin, room) or begin
        return known_stop if room is None else min(whole_end(file, begin, room), known_stop)
    except FileNotFoundError:  # closed and moved since the listing
        return begin if known_stop is None else known_stop


def _is_border(file: JournalFile, offset: int) -> bool:
    try:
        return is_border(file, offset)
    except FileNotFoundError:
        return True  # the read reports it, or finds it under another path


def _size(file: JournalFile, begin: int) -> int:
    return max(1, (file.size if file.end is None else file.end) - begin)


def _backlog(listing: Listing, position: Position) -> int:
    return sum(_size(file, 0) for number, file in listing.files.items() if not position.is_past(number))


def _numbers(since: Position, until: Position) -> list[int]:
    """Return the numbers of the files with data between two positions."""
    found = []
    for first, last in ((since.file, until.file), *until.skipped_ranges):
        number = since.next_from(first)
        while number <= last:
            if until.is_past(number) or (
                number == until.file and until.offset > (since.offset if number == since.file else 0)
            ):
                found.append(number)
            number = since.next_from(number + 1)
    return found


def _loss(listing: Listing, store: str, number: int, begin: int) -> str | None:
    """Return a sentence about the loss of a missing file; None if it had no data to read."""
    end = listing.named_end(number)
    if end is not None and begin >= end:
        return None
    rest = f" from {begin} on" if begin else ""
    return f"db-{number}.log of {store} was deleted before this stream had read it{rest}. {ADVICE}"


def _taken_back(file: JournalFile, offset: int) -> str:
    return (
        f"{file.path} ends at {file.end} according to a later file, but this stream read it up to {offset}: the data "
        "between was never confirmed to a client, and a power loss or a change of masters removed it (follow=tail). "
        "To continue after it: failOnDataLoss=false"
    )


def _written_over(file: JournalFile, offset: int) -> str:
    return (
        f"{file.path} has no batch that begins or ends at {offset}, up to where this stream read it: a power loss "
        "removed the data there, and other batches were written in its place (follow=tail). To continue with the next "
        "batch: failOnDataLoss=false"
    )
