"""Backup and restore: the journals of a data directory are copied, while a broker writes there, and copied back.

The journal alone is enough, because an index can be built from it. The copy is consistent (docs/backup.md):

- A round lists the files, and copies those that are not copied yet, the newest last. A file that is not the newest is
  not written any more, so it is copied once; it is copied again if it changed (a deposed master's last batch).
- If a file is reclaimed during a round, a new round begins: its acknowledgements may be needed for a message in an
  older file that is already copied, and without them the message would return. So the copy has exactly the files of one
  listing, each of them complete; of the newest, the part that was there after the listing.
- Of the newest file, all good batches are copied, up to the end that it had when it was read. After this offset the
  broker is writing.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Final

from tandemmq.disk import identity_of, opened, read_fully, sync_directory, write_fully
from tandemmq.journal.errors import JournalMissing
from tandemmq.journal.files import JournalFiles, file_id
from tandemmq.journal.format import END_RECORD
from tandemmq.journal.scan import FileSource, Scan
from tandemmq.journal.verify import Borrowed
from tandemmq.store.membership import PROMISE_FILE
from tandemmq.store.recovery.index_directory import DATA, named_indexes
from tandemmq.store.several.filters import OUTCOMES_DIRECTORY
from tandemmq.store.several.layout import ROOT, is_store_name, path_of, stores_in
from tandemmq.store.tools.check_several import check_all
from tandemmq.store.tools.inspect import read_headers

MANIFEST: Final = "backup.json"
VERSION: Final = 1
#: Maximum number of rounds. After the first, a round copies only new files; if this many fail, files are removed faster
#: than they can be copied.
ROUNDS_MAX: Final = 200
CHUNK_BYTES: Final = 1 << 20
#: Suffix of restored files until all of them are complete, so that no broker starts with only some of them.
PART_SUFFIX: Final = ".part"
#: Errors for a file that another host deleted. NFS returns the second one, even if the file is open here.
GONE: Final = (errno.ENOENT, errno.ESTALE)

#: Called with the number of bytes that were copied so far.
Copied = Callable[[int], None]
#: Returns at most a number of bytes at an offset.
Read = Callable[[int, int], bytes]
_Mark = tuple[int, int, int, int]


class BackupFailed(Exception):
    """No backup was made, or none was restored; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Contents of a backup. ``ends``: for each store the newest file and the end of its good batches."""

    files: int
    bytes: int
    messages: int
    owners: int
    began: float
    ended: float
    ends: Mapping[str, list[int]]


@dataclass(frozen=True, slots=True)
class _Copy:
    """A file that was copied: its mark before it was read, its length, the end of its batches, its CRC-32."""

    mark: _Mark
    size: int
    end: int
    crc: int


def back_up(directory: str, target: str, *, on_copied: Copied = lambda _: None, scratch: str | None = None) -> Summary:
    """Copy the journals of ``directory`` into ``target``, which is empty or does not exist, and check the copy.

    A broker may be writing in ``directory``; it is only read. On return the copy is durable, and has its manifest.
    Raises BackupFailed, OSError and JournalError; then the copied files have no manifest, and may be deleted.
    ``scratch`` is the place of the temporary index of the check.
    """
    began = time.time()
    if os.path.lexists(os.path.join(directory, PROMISE_FILE)):
        raise BackupFailed(f"{directory} belongs to a replicated set: the copy on another node is its backup")
    names = _names(directory)
    if not names:
        raise BackupFailed(f"there is no journal in {directory}")
    _demand_empty(target)
    _demand_space(directory, names, target, scratch or tempfile.gettempdir())
    os.makedirs(target, exist_ok=True)
    copied: dict[str, dict[int, _Copy]] = {}
    while missing := [name for name in names if name not in copied]:
        for name in missing:
            copied[name] = _copy_store(path_of(directory, name), path_of(target, name), on_copied)
        names = _names(directory)  # a store that began meanwhile
    sync_directory(os, target)
    report = check_all(target, scratch=scratch)
    if report.problems:
        raise BackupFailed(f"the copy is not sound: {report.problems[0]}; tandemmq store check {target} lists all")
    ends = {name: [max(files), files[max(files)].end] for name, files in copied.items()}
    summary = Summary(report.files, report.bytes, report.messages, report.owners, began, time.time(), ends)
    entries = [
        {"store": name, "file": file, "size": copy.size, "crc32": copy.crc}
        for name, files in copied.items()
        for file, copy in sorted(files.items())
    ]
    _write_manifest(target, {"version": VERSION, "source": os.path.abspath(directory), **asdict(summary)}, entries)
    return summary


def restore(source: str, directory: str) -> Summary:
    """Copy a backup into ``directory``, which is empty or does not exist. Durable on return.

    The next broker there makes its index, and begins an epoch of its own. No lock is taken, because the kind of lock
    is not known here: a broker that starts too early finds no journal, or one that it refuses. Raises BackupFailed
    and OSError.
    """
    manifest = _read_manifest(source)
    entries = manifest["entries"]
    _demand_empty(directory)
    total = sum(entry["size"] for entry in entries)
    _demand_room(_existing(directory), total)
    os.makedirs(directory, exist_ok=True)
    there = {entry["store"]: JournalFiles(path_of(directory, entry["store"])) for entry in entries}
    for entry in entries:
        name, file = entry["store"], entry["file"]
        os.makedirs(there[name].directory, exist_ok=True)
        path = JournalFiles(path_of(source, name)).path(file)
        with opened(os, path, os.O_RDONLY) as fd:
            size = os.fstat(fd).st_size
            part = there[name].path(file) + PART_SUFFIX
            crc = _copy_bytes(lambda offset, length: read_fully(os, fd, length, offset), part, size, size)
        if (size, crc) != (entry["size"], entry["crc32"]):
            raise BackupFailed(f"{path} differs from the backed-up file in length or checksum. Empty {directory}")
    _give_names(there, [(entry["store"], entry["file"]) for entry in entries])
    for files in there.values():
        files.sync_directory()
    sync_directory(os, directory)
    return Summary(**{key: manifest[key] for key in Summary.__dataclass_fields__})


def _give_names(there: Mapping[str, JournalFiles], entries: Sequence[tuple[str, int]]) -> None:
    """Give the restored files their names, the newest of each store first. Its header names the files before it: a
    broker that finds only some of them refuses to start. Raises BackupFailed if a broker began meanwhile."""
    newest = {name: max(file for store, file in entries if store == name) for name in there}
    # prove: newest-is-restored-first "newest[entry[0]] - entry[1]" -> "entry[1]"
    ordered = sorted(entries, key=lambda entry: newest[entry[0]] - entry[1])
    found = [files.path(file) for files in there.values() for file in files.list()]
    try:
        if found:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), found[0])
        for name, file in ordered:
            path = there[name].path(file)
            os.link(path + PART_SUFFIX, path)
            os.unlink(path + PART_SUFFIX)
    except FileExistsError as error:
        raise BackupFailed(
            f"a broker began there meanwhile. Stop it, and restore into another directory: {error}"
        ) from error


# ---- the directories


def _names(directory: str) -> list[str]:
    """Return the stores, that of outcomes first: a transaction that is only prepared in a store is decided there, and
    is removed there when all stores have the decision."""
    return sorted(stores_in(directory), key=lambda name: name != OUTCOMES_DIRECTORY)


def _demand_empty(directory: str) -> None:
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return
    if names:
        raise BackupFailed(f"{directory} is not empty: {names[0]} is there")


def _demand_space(directory: str, names: list[str], target: str, scratch: str) -> None:
    """Check that there is space for the copy, and for the index of the check, which is as large as a broker's. Stores
    are checked one at a time. Raises BackupFailed."""
    journals = index = 0
    for name in names:
        path = path_of(directory, name)
        with os.scandir(path) as entries:
            journals += sum(_size(entry.path) for entry in entries if file_id(entry.name) is not None)
        indexes = filter(os.path.isdir, named_indexes(os.path.join(path, "index")))
        index = max([index, *(_size(os.path.join(each, DATA)) for each in indexes)])
    place, scratch_place = _existing(target), _existing(scratch)
    if os.stat(place).st_dev == os.stat(scratch_place).st_dev:
        _demand_room(place, journals + index)
    else:
        _demand_room(place, journals)
        _demand_room(scratch_place, index)


def _size(path: str) -> int:
    """Return the size of a file; 0 if it was removed meanwhile."""
    try:
        return os.stat(path, follow_symlinks=False).st_size
    except OSError as error:
        if error.errno not in GONE:
            raise
        return 0


def _existing(path: str) -> str:
    """Return the directory, or the nearest existing one above it."""
    place = os.path.abspath(path)
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    return place


def _demand_room(place: str, needed: int) -> None:
    free = shutil.disk_usage(place).free
    if free < needed:
        raise BackupFailed(f"{needed:,} bytes are needed at {place}, {free:,} are free")


# ---- one store


def _copy_store(directory: str, target: str, on_copied: Copied) -> dict[int, _Copy]:
    files, there = JournalFiles(directory), JournalFiles(target)
    os.makedirs(target, exist_ok=True)
    copied: dict[int, _Copy] = {}
    for _ in range(ROUNDS_MAX):
        listed = files.list()
        try:
            for file in listed:
                is_newest = file == listed[-1]
                if is_newest or file not in copied or copied[file].mark != _mark_now(files, file):
                    copied[file] = _copy_file(files, there, file, is_newest, on_copied)
            if any(_mark_now(files, file) != copied[file].mark for file in listed[:-1]):
                continue
            newest = listed[-1]  # it may have grown
            if _mark_now(files, newest)[:2] != copied[newest].mark[:2]:  # prove: backup-is-of-the-newest-file
                continue
            if files.list()[-1] != newest:
                continue  # the newest may name a following file by now, which would seem lost
        except JournalMissing:
            continue  # reclaimed meanwhile
        except OSError as error:
            if error.errno not in GONE:
                raise
            continue
        for file in copied.keys() - set(listed):
            os.unlink(there.path(file))
            del copied[file]
        there.sync_directory()
        if not read_headers(there).headers:
            raise BackupFailed(f"the journal in {directory} is ActiveMQ's, and no broker has taken it over yet")
        return copied
    raise BackupFailed(f"files of {directory} are reclaimed faster than they are copied ({ROUNDS_MAX} rounds)")


def _mark(status: os.stat_result) -> _Mark:
    """Return the identity of a file, and the values that change when it is written."""
    return *identity_of(status), status.st_size, status.st_mtime_ns


def _mark_now(files: JournalFiles, file: int) -> _Mark:
    """Return the mark of the file that has the name now."""
    return _mark(os.stat(files.path(file), follow_symlinks=False))


def _copy_file(files: JournalFiles, there: JournalFiles, file: int, is_newest: bool, on_copied: Copied) -> _Copy:
    with closing(FileSource(files, file)) as source:
        status = source.status
        size = end = status.st_size
        if is_newest:
            # Chunks of a file that is being written are of different moments: a later chunk may have a batch that
            # follows one that an earlier chunk lacks. A batch that was good when it was scanned does not change. Scan
            # the open file: another one may have its name by now.
            # prove: backup-scans-what-it-copies "Borrowed(source)" -> "FileSource(files, file)"
            batches = Scan(lambda: Borrowed(source), file)
            for _ in batches:
                pass
            end = min(batches.ending.offset, size)
        crc = _copy_bytes(source.read, there.path(file), end, size, on_copied)
    return _Copy(_mark(status), size, end, crc)


def _copy_bytes(read: Read, path: str, end: int, size: int, on_copied: Copied = lambda _: None) -> int:
    """Copy ``end`` bytes, write an end record and zeros up to ``size``, and sync. Returns the CRC-32 of the whole
    file."""
    crc = 0
    with opened(os, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as out:
        for offset in range(0, end, CHUNK_BYTES):
            chunk = read(offset, min(CHUNK_BYTES, end - offset))
            write_fully(os, out, chunk, offset)
            crc = zlib.crc32(chunk, crc)
            on_copied(len(chunk))
        rest = END_RECORD[: size - end]
        write_fully(os, out, rest, end)
        crc = zlib.crc32(rest, crc)
        zeros = size - end - len(rest)
        os.ftruncate(out, size)
        for offset in range(0, zeros, CHUNK_BYTES):
            crc = zlib.crc32(bytes(min(CHUNK_BYTES, zeros - offset)), crc)
        os.fsync(out)
    return crc


# ---- the manifest


def _write_manifest(target: str, facts: dict[str, Any], entries: list[dict[str, Any]]) -> None:
    path = os.path.join(target, MANIFEST)
    text = json.dumps({**facts, "entries": entries}, indent=1).encode()
    with opened(os, path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
        write_fully(os, fd, text, 0)
        os.fsync(fd)
    os.replace(path + ".new", path)
    sync_directory(os, target)
    sync_directory(os, os.path.dirname(os.path.abspath(target)))


def _read_manifest(source: str) -> dict[str, Any]:
    path = os.path.join(source, MANIFEST)
    try:
        with open(path, encoding="utf-8") as stream:
            manifest = json.load(stream)
        if manifest["version"] != VERSION:
            raise BackupFailed(f"{path} has version {manifest['version']}; this program reads {VERSION}")
        for entry in manifest["entries"]:
            name = entry["store"]
            if name != ROOT and (os.path.basename(name) != name or not is_store_name(name)):
                raise BackupFailed(f"{path}: {name!r} is no store")
            if not all(isinstance(entry[key], int) for key in ("file", "size", "crc32")):
                raise BackupFailed(f"{path} is no manifest of a backup")
        return dict(manifest)
    except FileNotFoundError as error:
        raise BackupFailed(f"{source} is no whole backup: it has no {MANIFEST}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BackupFailed(f"{path} is no manifest of a backup") from error
