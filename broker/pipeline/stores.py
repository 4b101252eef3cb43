"""Which journal files stand below a path, and what their headers say of them: what a read is planned from.

A store is a directory with files named db-N.log; below one path there may be several (mKahaDB, many brokers). An
archive directory belongs to the store that it stands in, and all its files are closed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from broker.pipeline.walk import JournalFile
from journal.errors import JournalMissing
from journal.files import JournalFiles, file_id
from journal.scan import FileSource, Scan
from store.headers import Header, decode_header, read_chronicle

ARCHIVE_NAME: Final = "data-archive"
DEPTH_MAX: Final = 4
# Read of each file to see its header; a longer one takes a second read.
HEADER_BYTES: Final = 4096
# The archive gives a second file of the same name another number behind it: that was another store in the same place.
_ARCHIVED: Final = re.compile(r"(db-\d+\.log)(\.\d+)?")
# What never holds messages: copies of damage, and the index.
_PASSED_OVER: Final = frozenset({"quarantine", "index"})


class NoJournal(Exception):
    """There is no journal file where one was to be read."""


class _Found(NamedTuple):
    path: str
    is_archived: bool


def journal_files(
    paths: Iterable[str],
    *,
    is_tail_wanted: bool = False,
    first: int | None = None,
    last: int | None = None,
) -> list[JournalFile]:
    """The files below ``paths``, by store and number, with what the headers of each store say about them.

    Without ``is_tail_wanted`` the newest file of each store is left out: its broker may be writing it. ``first`` and
    ``last`` bound the numbers. What disappears meanwhile is left out. Raises NoJournal for a path without journals.
    """
    stores: dict[str, dict[int, _Found]] = {}
    for path in paths:
        local = _local(path)
        found = list(_search(local))
        if not found:
            raise NoJournal(f"no journal files (db-1.log, db-2.log, ...) at or below {local}")
        for store, number, file in found:
            files = stores.setdefault(store, {})
            if number not in files or files[number].is_archived:  # in both: the archive has it, and the journal still
                files[number] = file
    planned: list[JournalFile] = []
    for store in sorted(stores):
        planned.extend(_plan(store, stores[store], is_tail_wanted, first, last))
    return planned


def _local(path: str) -> str:
    scheme, separator, rest = path.partition(":")
    if separator and scheme == "file":
        path = "/" + rest.lstrip("/")
    elif "://" in path:
        raise NoJournal(f"{path}: journals are read from file systems that are mounted, not through {scheme}://")
    return os.path.abspath(path)


def _search(path: str) -> Iterator[tuple[str, int, _Found]]:
    if os.path.isfile(path):
        yield from _named(os.path.dirname(path), [os.path.basename(path)])
        return
    root_depth = path.rstrip("/").count("/")
    for directory, below, names in os.walk(path):
        yield from _named(directory, names)
        below[:] = sorted(name for name in below if name not in _PASSED_OVER)
        if directory.count("/") - root_depth >= DEPTH_MAX:
            below.clear()


def _named(directory: str, names: Iterable[str]) -> Iterator[tuple[str, int, _Found]]:
    is_archived = os.path.basename(directory) == ARCHIVE_NAME
    store = os.path.dirname(directory) if is_archived else directory
    for name in names:
        matched = _ARCHIVED.fullmatch(name)
        if matched is None or (number := file_id(matched[1])) is None:
            continue
        if matched[2] is None:
            yield store, number, _Found(f"{directory}/{name}", is_archived)
        elif is_archived:
            yield store + matched[2], number, _Found(f"{directory}/{name}", is_archived)


def _plan(
    store: str, found: dict[int, _Found], is_tail_wanted: bool, first: int | None, last: int | None
) -> Iterator[JournalFile]:
    # One file may have been asked for alone: its store is looked at whole, for a later file closes an earlier one.
    numbers = sorted(found)
    newest = max([*numbers, *_listed(store)])
    paths = {number: found[number].path for number in numbers}
    for number in _listed(store):
        paths.setdefault(number, f"{store}/db-{number}.log")
    chronicle = read_chronicle(paths, lambda number: _header_of(paths[number], number))
    for number in numbers:
        file = found[number]
        is_current = number == newest and not file.is_archived
        if (is_current and not is_tail_wanted) or number < (first or 0) or (last is not None and number > last):
            continue
        try:
            size = os.stat(file.path).st_size
        except FileNotFoundError:
            continue
        header = chronicle.headers.get(number)
        yield JournalFile(
            path=file.path,
            store=store,
            file=number,
            size=size,
            end=chronicle.ends.get(number),
            epoch=None if header is None else header.epoch,
            openwire=chronicle.version_at(number) if chronicle.headers else None,
            is_current=is_current,
        )


def _listed(store: str) -> list[int]:
    try:
        return list(JournalFiles(store).list())
    except OSError:
        return []  # the second store of an archive has no directory of its own


class _AtPath(JournalFiles):
    """One file whatever its name."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        super().__init__(os.path.dirname(path))
        self._path = path

    def path(self, file: int) -> str:
        return self._path


def _header_of(path: str, number: int) -> Header | None:
    files = _AtPath(path)
    scan = Scan(lambda: FileSource(files, number), number, is_live=True, chunk_bytes=HEADER_BYTES)
    try:
        batch = next(iter(scan), None)
    except JournalMissing:
        return None
    return decode_header(batch.records[0][1]) if batch is not None and batch.records else None
