"""Journal files below a path with the content of their headers, from which a read is planned.

A store is a directory with files named db-N.log. There may be several below one path (mKahaDB, several brokers). An
archive directory belongs to the store that contains it, and all its files are closed. Paths may be remote (places).
Archived files with a manifest are not opened, because the manifest has the content of their headers (manifests).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

from tandemmq.journal.files import file_id
from tandemmq.journal.scan import Scan
from tandemmq.pipeline.manifests import described, manifest_of
from tandemmq.pipeline.places import Access, Entry, NoPlace, Place, normal, place_of, warn_left_out
from tandemmq.pipeline.walk import JournalFile
from tandemmq.store.maintenance.manifest import Manifest
from tandemmq.store.records.headers import Header, decode_header, read_epoch_history

ARCHIVE_NAME: Final = "data-archive"
DEPTH_MAX: Final = 4
# Bytes that are read of each file for its header; a longer header needs a second read.
HEADER_BYTES: Final = 4096
# Number of headers or manifests that are read at once from a remote file system.
REMOTE_READS: Final = 16
# If the archive has a second file with the same name, from another store, it gets a further number.
_ARCHIVED: Final = re.compile(r"(db-\d+\.log)(\.\d+)?")
# Directories without journals: copies of damage, and the index.
_PASSED_OVER: Final = frozenset({"quarantine", "index"})


_Read = TypeVar("_Read")


class NoJournal(Exception):
    """A path has no journal files, or cannot be reached."""


class _Found(NamedTuple):
    path: str
    size: int
    is_archived: bool
    is_described: bool


def journal_files(
    paths: Iterable[str],
    *,
    is_tail_wanted: bool = False,
    first: int | None = None,
    last: int | None = None,
    access: Access = (),
) -> list[JournalFile]:
    """Return the files below ``paths``, ordered by store and number, with the content of the headers about them.

    Without ``is_tail_wanted``, the newest file of each store is left out, because a broker may be writing it. ``first``
    and ``last``: limits of the file numbers. ``access``: settings to reach remote paths. Files that are deleted
    meanwhile are left out. Raises NoJournal for a path without journals.
    """
    stores: dict[str, dict[int, _Found]] = {}
    places: dict[str, Place] = {}
    for path in paths:
        whole = normal(path)
        try:
            place = place_of(whole, access)
            found = list(_search(place, whole))
        except NoPlace as error:
            raise NoJournal(str(error)) from error
        except OSError as error:
            raise NoJournal(f"{whole} cannot be listed: {error}") from error
        if not found:
            raise NoJournal(f"no journal files (db-1.log, db-2.log, ...) at or below {whole}")
        for store, number, file in found:
            places[store] = place
            files = stores.setdefault(store, {})
            # A file in the store is preferred to the same file in the archive.
            if number not in files or files[number].is_archived:
                files[number] = file
    planned: list[JournalFile] = []
    for store in sorted(stores):
        for each in _plan(places[store], store, stores[store], access):
            is_wanted = (is_tail_wanted or not each.is_current) and each.file >= (first or 0)
            if is_wanted and (last is None or each.file <= last):
                planned.append(each)
    return planned


def _search(place: Place, path: str) -> Iterator[tuple[str, int, _Found]]:
    directory, name = posixpath.split(path)
    try:
        if _ARCHIVED.fullmatch(name):
            found = [found for found in _named(directory, place.entries(directory)) if found[2].path == path]
            number = file_id(name)
            if not found and number is not None:
                found = [(directory, number, file) for file in _moved(place, directory, {number}).values()]
            yield from found
        else:
            yield from _below(place, path, place.entries(path), DEPTH_MAX)
    except (FileNotFoundError, NotADirectoryError):
        return


def _below(place: Place, directory: str, entries: Sequence[Entry], depth: int) -> Iterator[tuple[str, int, _Found]]:
    yield from _named(directory, entries)
    for entry in entries if depth else ():
        if entry.is_directory and entry.name not in _PASSED_OVER:
            path = f"{directory.rstrip('/')}/{entry.name}"
            try:
                inner = place.entries(path)
            except (FileNotFoundError, PermissionError):  # for example lost+found
                continue
            yield from _below(place, path, inner, depth - 1)


def _named(directory: str, entries: Sequence[Entry]) -> Iterator[tuple[str, int, _Found]]:
    is_archive = posixpath.basename(directory) == ARCHIVE_NAME
    store = posixpath.dirname(directory) if is_archive else directory
    with_manifest = described(entries)
    for entry in entries:
        matched = _ARCHIVED.fullmatch(entry.name)
        if matched is None or (number := file_id(matched[1])) is None:
            continue
        if entry.is_directory:
            warn_left_out(f"{directory}/{entry.name}", "a directory")
            continue
        is_described = entry.name in with_manifest  # so it is archived, for any name of the directory
        found = _Found(f"{directory}/{entry.name}", entry.size, is_archive or is_described, is_described)
        if matched[2] is None:
            yield store, number, found
        elif found.is_archived:
            yield store + matched[2], number, found


def _plan(place: Place, store: str, found: dict[int, _Found], access: Access) -> Iterator[JournalFile]:
    # Even if only one file was named, all files of its store are listed, because a later file closes an earlier one.
    whole = {**_listed(place, store, store), **found}
    newest = max(whole)
    while True:
        gone: set[int] = set()
        manifests = _manifests(place, whole)
        paths = {number: file.path for number, file in whole.items()}
        epoch_history = read_epoch_history(paths, _headers(place, paths, manifests, gone))
        moved = _moved(place, store, {number for number in gone if not whole[number].is_archived})
        if not moved:
            break
        whole |= moved
    for number in sorted(found.keys() - gone):
        file = whole[number]
        header = epoch_history.headers.get(number)
        manifest = manifests.get(number)
        openwire = None if manifest is None else manifest.openwire
        yield JournalFile(
            path=file.path,
            store=store,
            file=number,
            size=file.size,
            end=epoch_history.ends.get(number, None if manifest is None else manifest.end),
            epoch=None if header is None else header.epoch,
            openwire=epoch_history.version_at(number) if epoch_history.headers else openwire,
            is_current=number == newest and not file.is_archived,
            access=access if place.is_remote else (),
        )


def _moved(place: Place, store: str, numbers: Collection[int]) -> dict[int, _Found]:
    """Return the files of a store with these numbers that its broker has moved into the archive since they were
    listed."""
    found = _listed(place, store, f"{store}/{ARCHIVE_NAME}") if numbers else {}
    return {number: file for number, file in found.items() if number in numbers}


def _listed(place: Place, store: str, directory: str) -> dict[int, _Found]:
    try:
        return {number: file for of, number, file in _named(directory, place.entries(directory)) if of == store}
    except OSError:
        return {}  # the second store in an archive has no directory


def _manifests(place: Place, files: Mapping[int, _Found]) -> dict[int, Manifest]:
    """Return the trusted manifests of archived files."""

    def manifest(number: int) -> Manifest | None:
        return manifest_of(place, files[number].path, files[number].size)

    numbers = [number for number, file in files.items() if file.is_described]
    found = zip(numbers, _each(place, manifest, numbers), strict=True)
    return {number: told for number, told in found if told is not None}


def _headers(
    place: Place, paths: Mapping[int, str], manifests: Mapping[int, Manifest], gone: set[int]
) -> Callable[[int], Header | None]:
    """Return a function from a file's number to its header. The function adds numbers of files that do not exist to
    ``gone``."""

    def header_of(number: int) -> Header | None:
        if number in manifests:
            return manifests[number].header
        try:
            return _header_of(place, paths[number], number)
        except FileNotFoundError:
            gone.add(number)
            return None

    if not place.is_remote:
        return header_of
    read = dict(zip(paths, _each(place, header_of, paths), strict=True))
    return read.get


def _each(place: Place, read: Callable[[int], _Read], numbers: Iterable[int]) -> Iterable[_Read]:
    """Return the results of ``read`` for ``numbers``, several at a time if the place is remote."""
    if not place.is_remote:
        return map(read, numbers)
    with ThreadPoolExecutor(REMOTE_READS) as readers:
        return list(readers.map(read, numbers))


def _header_of(place: Place, path: str, number: int) -> Header | None:
    source = place.open(path)
    try:
        batch = next(iter(Scan(lambda: source, number, is_live=True, chunk_bytes=HEADER_BYTES)), None)
    finally:
        source.release()
    return decode_header(batch.records[0][1]) if batch is not None and batch.records else None
