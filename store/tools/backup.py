"""Backup of the journals of a data directory while a broker writes there, and restore of a backup.

The journal alone is enough, because an index can be built from it. The copy is consistent (docs/backup.md):

- A round lists the files, and copies those that are not copied yet, the newest last. Files before the newest are not
  written any more, so each is copied once. If a file has changed (by the last batch of a deposed master), it is copied
  again.
- If a file is removed during a round, a new round begins. The removed file may have had the acknowledgement of a
  message in an older file that is already copied; without the acknowledgement the message would be delivered again. So
  the copy has exactly the files of one listing, and each of them is complete.
- Of the newest file, all good batches up to the end of file at the time of the copy are copied. After that offset the
  broker continues to write.
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
#: Maximum number of rounds. Later rounds copy only new files. If all rounds fail, files are removed faster than they
#: can be copied.
ROUNDS_MAX: Final = 200
CHUNK_BYTES: Final = 1 << 20
#: Suffix of restored files until all of them are complete, so that no broker starts with only some of them.
PART_SUFFIX: Final = ".part"
#: Errors for a file that another host deleted. NFS returns ESTALE, even if this process has the file open.
GONE: Final = (errno.ENOENT, errno.ESTALE)

#: Called with the number of bytes that were copied so far.
Copied = Callable[[int], None]
#: Reads at (offset, maximum number of bytes).
Read = Callable[[int, int], bytes]
_Mark = tuple[int, int, int, int]


class BackupFailed(Exception):
    """A backup or restore failed. The text gives the reason."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Contents of a backup. ``began`` and ``ended``: seconds since 1970. ``ends``: name of a store -> [newest file, end
    offset of its good batches]."""

    files: int
    bytes: int
    messages: int
    owners: int
    began: float
    ended: float
    ends: Mapping[str, list[int]]


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copied file: mark of the source before it was read (``_mark``), its length, end of the copied batches, CRC-32
    of the copy."""

    mark: _Mark
    size: int
    end: int
    crc: int


def back_up(directory: str, target: str, *, on_copied: Copied = lambda _: None, scratch: str | None = None) -> Summary:
    """Copy the journals of ``directory`` into ``target``, which is empty or does not exist, and check the copy.

    A broker may write in ``directory`` during the copy; this function only reads. On return the copy is durable and
    has its manifest. Raises BackupFailed, OSError and JournalError; then the copy has no manifest and may be deleted.
    ``scratch``: directory for the temporary index of the check. ``on_copied`` is called with numbers of copied bytes.
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
        names = _names(directory)  # the broker may have made a new store meanwhile
    sync_directory(os, target)
    report = check_all(target, scratch=scratch)
    if report.problems:
        raise BackupFailed(f"the copy is damaged: {report.problems[0]}; tandemmq store check {target} lists all damage")
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

    The next broker that starts there builds its index, and begins a new epoch. This function takes no lock, because it
    does not know the kind of lock: a broker that starts too early finds no journal, or refuses the incomplete one.
    Raises BackupFailed and OSError.
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
    """Rename the restored files to their final names, the newest of each store first. Its header names the files before
    it, so a broker that finds only some of them refuses to start. Raises BackupFailed if a broker started meanwhile."""
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
            f"a broker has started there meanwhile. Stop it, and restore into another directory: {error}"
        ) from error


# ---- the directories


def _names(directory: str) -> list[str]:
    """Return the names of the stores, txStore first: it has the decision of a transaction that is only prepared in a
    store, until all stores have the decision."""
    return sorted(stores_in(directory), key=lambda name: name != OUTCOMES_DIRECTORY)


def _demand_empty(directory: str) -> None:
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return
    if names:
        raise BackupFailed(f"{directory} is not empty: {names[0]} is there")


def _demand_space(directory: str, names: list[str], target: str, scratch: str) -> None:
    """Check that there is space for the copy, and for the temporary index of the check, which is as large as a broker's
    index. The stores are checked one after the other. Raises BackupFailed."""
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
            newest = listed[-1]  # the broker may have written to it
            if _mark_now(files, newest)[:2] != copied[newest].mark[:2]:  # prove: backup-is-of-the-newest-file
                continue
            if files.list()[-1] != newest:
                continue  # the newest may have an end marker that names the next file, which would seem lost
        except JournalMissing:
            continue  # the broker has removed it
        except OSError as error:
            if error.errno not in GONE:
                raise
            continue
        for file in copied.keys() - set(listed):
            os.unlink(there.path(file))
            del copied[file]
        there.sync_directory()
        if not read_headers(there).headers:
            raise BackupFailed(f"ActiveMQ wrote the journal in {directory}, and TandemMQ has not taken it over yet")
        return copied
    raise BackupFailed(f"files of {directory} are removed faster than they are copied ({ROUNDS_MAX} rounds)")


def _mark(status: os.stat_result) -> _Mark:
    """Return the identity of a file, its size, and its time of modification in ns."""
    return *identity_of(status), status.st_size, status.st_mtime_ns


def _mark_now(files: JournalFiles, file: int) -> _Mark:
    """Return the mark of the file that has the name of ``file`` now."""
    return _mark(os.stat(files.path(file), follow_symlinks=False))


def _copy_file(files: JournalFiles, there: JournalFiles, file: int, is_newest: bool, on_copied: Copied) -> _Copy:
    with closing(FileSource(files, file)) as source:
        status = source.status
        size = end = status.st_size
        if is_newest:
            # The broker may write while the chunks are read: a later chunk may have a batch although an earlier chunk
            # lacks the batch before it. So copy only batches that were good in a scan: they do not change. Scan the
            # open file, because another file may have its name now.
            # prove: backup-scans-what-it-copies "Borrowed(source)" -> "FileSource(files, file)"
            batches = Scan(lambda: Borrowed(source), file)
            for _ in batches:
                pass
            end = min(batches.ending.offset, size)
        crc = _copy_bytes(source.read, there.path(file), end, size, on_copied)
    return _Copy(_mark(status), size, end, crc)


def _copy_bytes(read: Read, path: str, end: int, size: int, on_copied: Copied = lambda _: None) -> int:
    """Copy ``end`` bytes to ``path``, write an end record and zeros up to ``size``, and sync. Return the CRC-32 of the
    new file."""
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
                raise BackupFailed(f"{path}: {name!r} is not the name of a store")
            if not all(isinstance(entry[key], int) for key in ("file", "size", "crc32")):
                raise BackupFailed(f"{path} is no manifest of a backup")
        return dict(manifest)
    except FileNotFoundError as error:
        raise BackupFailed(f"{source} is no complete backup: it has no {MANIFEST}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BackupFailed(f"{path} is no manifest of a backup") from error
