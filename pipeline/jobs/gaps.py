"""Gaps: data that cannot be read, because files are missing, bytes are damaged or records cannot be decoded. They make
the figures of a job uncertain, so the job reports them.

    missing    a header of this broker names the file, and no mark says that a broker removed it
    elsewhere  the same, if only archives are read: the store may still have it
    unknown    reclaimed or lost. The journal has no header (it is ActiveMQ's), or ActiveMQ wrote after the newest
               header. The file's number lies between those of other files, or this header names the file
    gone       it existed when the job began, and was reclaimed before the job ended
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tandemmq.pipeline import columns
from tandemmq.pipeline.engine import F
from tandemmq.pipeline.jobs.tables import Sources, only_row
from tandemmq.pipeline.listing import first_record
from tandemmq.pipeline.lost import ranges_of
from tandemmq.pipeline.reach import read_files
from tandemmq.pipeline.rows import rows
from tandemmq.pipeline.table import size
from tandemmq.pipeline.walk import JournalFile
from tandemmq.store.records.commands import encode_trace
from tandemmq.store.records.headers import Header, decode_header
from tandemmq.store.records.marks import decode_gone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Maximum number of ranges of missing files in a sentence.
RANGES_LISTED: Final = 5
# Maximum number of stores that are named.
STORES_LISTED: Final = 5
_ALONE: Final = re.compile(r"db-\d+\.log(\.\d+)?")
# Text of the trace that ActiveMQ writes at each start (MessageDatabase.load).
_LOADED: Final = "LOADED "

ByStore = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Gaps:
    """Missing files by store and kind (see above). ``places`` and ``bytes``: damage of batches that were confirmed to
    clients. ``unreadable``: records in sound batches that cannot be decoded."""

    missing: ByStore = field(default_factory=dict)
    elsewhere: ByStore = field(default_factory=dict)
    unknown: ByStore = field(default_factory=dict)
    gone: ByStore = field(default_factory=dict)
    places: int = 0
    bytes: int = 0
    unreadable: int = 0

    @property
    def is_certain(self) -> bool:
        """True if no data is known to be missing. (``elsewhere`` and ``unknown`` files may still exist.)"""
        return not (self.missing or self.gone or self.places or self.unreadable)


def of_files(spark: SparkSession, sources: Sources) -> Gaps:
    """Return only the missing files of ``sources``. Call it at the end of a job, with sources that are ``fixed``."""
    return Gaps(*_files(sources, read_files(sources.paths, access=sources.access_in(spark))))


def gaps(spark: SparkSession, sources: Sources) -> Gaps:
    """Return all gaps of ``sources``. Call it at the end of a job, with sources that are ``fixed``. Reads batches and
    records again."""
    files = of_files(spark, sources)
    is_damaged = F.col("status").isin(columns.BAD_SUM, columns.GAP)
    batches = sources.read(spark, columns.BATCHES, ("length", "status")).where(is_damaged)
    damaged = only_row(batches.agg(F.count("*"), F.sum("length")))
    records = sources.read(spark, columns.RECORDS, ("is_sound",)).where(~F.col("is_sound"))
    return replace(files, places=damaged[0], bytes=damaged[1] or 0, unreadable=records.count())


def _files(sources: Sources, there: Iterable[JournalFile]) -> tuple[ByStore, ByStore, ByStore, ByStore]:
    """Return ``missing``, ``elsewhere``, ``unknown`` and ``gone`` of all stores. ``there``: the files that exist."""
    by_store: dict[str, dict[int, JournalFile]] = {}
    for file in there:
        by_store.setdefault(file.store, {})[file.file] = file
    read: dict[str, set[int]] = {}
    for store, number in sources.there or ():
        read.setdefault(store, set()).add(number)
    lost: dict[str, list[int]] = {}
    elsewhere: dict[str, list[int]] = {}
    unknown: dict[str, list[int]] = {}
    gone: dict[str, list[int]] = {}
    is_whole = not any(_ALONE.fullmatch(path.rstrip("/").rpartition("/")[2]) for path in sources.paths)
    for store, numbers in read.items():
        files = by_store.get(store, {})
        gone[store] = sorted(numbers - files.keys())
        if not is_whole:
            continue  # single files were named, so the others are left out on purpose
        texts, is_foreign = traces(files)
        named_ones = missing(texts, files.keys() | numbers, None)
        if is_foreign:
            between = set(range(min(numbers), max(numbers))) - numbers - files.keys()
            unknown[store] = [number for number in sorted(between.union(named_ones)) if sources.takes(number)]
        else:
            is_archive = all(file.cut is None for file in files.values())
            (elsewhere if is_archive else lost)[store] = [number for number in named_ones if sources.takes(number)]
    return _filled(lost), _filled(elsewhere), _filled(unknown), _filled(gone)


def _filled(files: Mapping[str, Sequence[int]]) -> ByStore:
    return {store: numbers for store, numbers in files.items() if numbers}


def traces(files: Mapping[int, JournalFile], cut: int | None = None) -> tuple[list[tuple[int, str]], bool]:
    """Return the newest header of a store and the marks in its file and later ones, each with its place. The second
    value is True if ActiveMQ wrote after that header, or if there is no header. (ActiveMQ writes no mark for a file
    that it removes.) ``cut``: only records before that place."""
    before = [number for number in files if cut is None or number << 32 < cut]
    newest = max((number for number in before if files[number].epoch is not None), default=None)
    if newest is None:
        return [], True
    later = sorted(number for number in before if number > newest)
    is_foreign = any(first_record(files[number]) is not None for number in later)
    found: list[tuple[int, str]] = []
    # If ActiveMQ continued the journal, many files may follow, and they have no marks.
    for number in [newest] if is_foreign else [newest, *later]:
        try:
            for _, _, offset, _, text, *_ in rows(files[number], columns.MARKS):
                if text is not None and (cut is None or number << 32 | offset < cut):
                    found.append((number << 32 | offset, text))
        except FileNotFoundError:
            continue  # archived or removed meanwhile
    return found, is_foreign or any(text.startswith(_LOADED) for _, text in found)


def missing(traces: Sequence[tuple[int, str]], there: Iterable[int], cut: int | None) -> list[int]:
    """Return the files of one store that existed at the place ``cut`` and are missing. ``traces``: place and text of
    its headers and marks. ``there``: the files that can be read."""
    newest: tuple[int, Header] | None = None
    gone: set[int] = set()
    for at, text in sorted(traces):
        if cut is not None and at >= cut:
            break
        payload = encode_trace(text)
        header = decode_header(payload)
        if header is not None:
            newest = at, header
        gone |= set(decode_gone(payload))
    if newest is None:
        return []
    ended = {file for file, end in newest[1].ends.items() if end == 0}  # files in which no record counts
    return sorted(set(newest[1].files) - gone - ended - set(there))


def remarks(gaps: Gaps, uncertain: str) -> tuple[str, ...]:
    """Return sentences about the gaps; empty without gaps. ``uncertain``: end of a sentence about their effect on the
    result."""
    lines = [
        *_sentences(gaps.missing, "missing, and no broker removed {them}."),
        *_sentences(gaps.gone, "no longer there: a broker removed {them} while this job ran."),
    ]
    if gaps.places:
        count = "1 place" if gaps.places == 1 else f"{gaps.places:,} places"
        lines.append(f"Damaged: {count}, {size(gaps.bytes)}. `tandemmq pipeline verify` shows where.")
    if gaps.unreadable:
        lines.append(f"{gaps.unreadable:,} records cannot be decoded. `tandemmq pipeline verify` names them.")
    if lines:
        lines.append(f"So {uncertain}.")
    if gaps.elsewhere:
        lines += _sentences(gaps.elsewhere, "not among these archived files, but may still be in the store.")
    if gaps.unknown:
        lines += _sentences(
            gaps.unknown, "not there. ActiveMQ removes files that are not needed, without a record of it."
        )
    if gaps.elsewhere or gaps.unknown:
        lines.append(f"If the missing files were lost, {uncertain}.")
    return tuple(lines)


def _sentences(files: ByStore, predicate: str) -> list[str]:
    """Return a sentence for each store, for at most STORES_LISTED stores. ``predicate`` follows the names of the files
    and "is" or "are"."""
    lines = []
    for store, numbers in list(files.items())[:STORES_LISTED]:
        is_one = len(numbers) == 1
        rest = predicate.format(them="it" if is_one else "them")
        lines.append(f"{store}: {named(numbers)} {'is' if is_one else 'are'} {rest}")
    if len(files) > STORES_LISTED:
        lines.append(f"The same applies to {len(files) - STORES_LISTED:,} more stores.")
    return lines


def named(files: Sequence[int]) -> str:
    """Format file numbers: [3, 4, 9] -> "db-3.log to db-4.log, db-9.log"."""
    ranges = ranges_of(files).split(", ")
    return ", ".join(ranges[:RANGES_LISTED]) + (" and more" if len(ranges) > RANGES_LISTED else "")
