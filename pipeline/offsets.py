"""Offsets of a stream: how far each store was read, in the form that Spark writes into a checkpoint. Pure.

    {"version": 1, "stores": {"/data/a": {"file": 7, "offset": 4096}, "/data/b": {"file": 2, "offset": 0}}}

All files before db-``file``.log were read, and this file up to ``offset``, which is between two batches. After a file
was read to its end, the position is the next number with offset 0: {"file": 8, "offset": 0}, even if db-8.log does not
exist yet.

``passed``, for example "passed": [[9, 11]], are later files that will not be read: files that did not exist when the
stream began, and in an archive files that were already read (a broker may move db-9.log into the archive before
db-8.log). ``skipped``: number of files that were deleted before they were read, with failOnDataLoss=false.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tandemmq.journal.format import FILE_ID_LIMIT
from tandemmq.store.records.headers import ranges

VERSION: Final = 1
FIRST_FILE: Final = 1

_KEYS: Final = frozenset({"file", "offset", "passed", "skipped"})


class BadOffsets(ValueError):
    """Invalid offsets, or offsets of a later version."""


@dataclass(frozen=True, slots=True)
class Position:
    """Position up to which a store was read. ``skipped_ranges``: ranges of file numbers after ``file``, ascending, both
    ends included (``passed`` in JSON)."""

    file: int = FIRST_FILE
    offset: int = 0
    skipped_ranges: tuple[tuple[int, int], ...] = ()
    skipped: int = 0

    @classmethod
    def of(cls, raw: object) -> Position:
        """Parse a position. Raises BadOffsets."""
        if not isinstance(raw, Mapping) or not _KEYS.issuperset(raw) or not {"file", "offset"} <= raw.keys():
            raise BadOffsets(f'a position must be {{"file": N, "offset": M}}, not {raw!r}')
        file, offset, skipped = raw["file"], raw["offset"], raw.get("skipped", 0)
        if not all(_is_number(value) for value in (file, offset, skipped)) or file > FILE_ID_LIMIT + 1:
            raise BadOffsets(f"file and offset must be numbers from 0 on, not {file!r} and {offset!r}")
        return cls(file, offset, tuple(_ranges(raw.get("passed", []), file)), skipped)

    def as_json(self) -> dict[str, Any]:
        """Return the position for JSON."""
        found: dict[str, Any] = {"file": self.file, "offset": self.offset}
        if self.skipped_ranges:
            found["passed"] = [list(pair) for pair in self.skipped_ranges]
        if self.skipped:
            found["skipped"] = self.skipped
        return found

    def is_past(self, file: int) -> bool:
        """Return whether ``file`` was read completely or will not be read."""
        return file < self.next_from(file)

    def next_from(self, file: int) -> int:
        """Return the lowest file number, at least ``file``, that may still be read."""
        file = max(file, self.file)
        at = bisect_right(self.skipped_ranges, (file, FILE_ID_LIMIT)) - 1
        return max(file, self.skipped_ranges[at][1] + 1) if at >= 0 else file

    def behind(self, file: int, *, is_skipped: bool = False) -> Position:
        """Return the position after the rest of ``file`` was read or skipped."""
        number, offset, skipped_ranges = self.file, self.offset, self.skipped_ranges
        if file == number:
            number, offset = self.next_from(file + 1), 0
            skipped_ranges = tuple(pair for pair in skipped_ranges if pair[0] > number)
        elif not self.is_past(file):
            at = bisect_right(skipped_ranges, (file, file))
            first = last = file
            before, after = at, at
            if at > 0 and skipped_ranges[at - 1][1] == file - 1:
                first, before = skipped_ranges[at - 1][0], at - 1
            if at < len(skipped_ranges) and skipped_ranges[at][0] == file + 1:
                last, after = skipped_ranges[at][1], at + 1
            skipped_ranges = (*skipped_ranges[:before], (first, last), *skipped_ranges[after:])
        return Position(number, offset, skipped_ranges, self.skipped + is_skipped)

    def within(self, offset: int) -> Position:
        """Return the position after the file was read up to ``offset``."""
        return replace(self, offset=offset)


def beginning(files: Iterable[int], *, has_all: bool) -> Position:
    """Return the position before the first of the existing ``files``.

    ``has_all``: missing files will not appear later. In an archive they may.
    """
    if not has_all:
        return Position()
    there = ranges(files)
    gaps = [(before[1] + 1, after[0] - 1) for before, after in itertools.pairwise(there)]
    return Position(there[0][0], 0, tuple(gaps))


@dataclass(frozen=True, slots=True)
class Offsets:
    """The position in each store, by the store's path."""

    stores: Mapping[str, Position] = field(default_factory=dict)

    @classmethod
    def of(cls, value: object) -> Offsets:
        """Parse the result of ``as_json``. Raises BadOffsets."""
        if (
            not isinstance(value, Mapping)
            or set(value) != {"version", "stores"}
            or not isinstance(value["stores"], dict)
        ):
            raise BadOffsets(f'offsets are {{"version": {VERSION}, "stores": {{...}}}}, not {value!r}')
        if value["version"] != VERSION:
            raise BadOffsets(f"these offsets are of version {value['version']!r}, and this is version {VERSION}")
        return cls({str(store): Position.of(position) for store, position in value["stores"].items()})

    def as_json(self) -> dict[str, Any]:
        """Return the offsets for JSON; equal offsets give the same text."""
        return {"version": VERSION, "stores": {store: self.stores[store].as_json() for store in sorted(self.stores)}}


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _ranges(raw: object, file: int) -> Iterator[tuple[int, int]]:
    before = file + 1
    for pair in raw if isinstance(raw, list) else [raw]:
        if not isinstance(pair, list) or len(pair) != 2 or not all(_is_number(value) for value in pair):
            raise BadOffsets(f"passed is a list of ranges, [[first, last], ...], not {raw!r}")
        first, last = pair
        if not before <= first <= last <= FILE_ID_LIMIT:
            raise BadOffsets(f"the ranges in passed must ascend, do not touch, and follow db-{file}.log: {raw!r}")
        before = last + 2
        yield first, last
