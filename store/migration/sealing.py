"""Make sealed journal files end where our headers say, for a reader that does not know our headers.

Bytes after an end never count for us; ActiveMQ would read them: a zombie's late writes, a torn tail, a file whose
writer died. Such a file is copied up to its end and the copy takes its name, so at each moment the name leads to a
whole file; the original stays in ``quarantine/``. The copy has the length of the original: no file of ours gets
shorter.
"""

from __future__ import annotations

import os
from contextlib import closing
from zlib import adler32

from tandemmq.disk import Disk, opened, sync_directory, write_fully
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import (
    CONTROL,
    CONTROL_MARK,
    CONTROL_MARK_SIZE,
    CONTROL_SIZE,
    END_RECORD,
    END_RECORD_SIZE,
    RECORD_HEADER_SIZE,
)
from tandemmq.journal.scan import FileSource, scan
from tandemmq.store.records.commands import COMMIT, REMOVE, REWRITTEN, TRACE, Rewritten, decode

QUARANTINE = "quarantine"
NEW = ".new"
CHUNK_BYTES = 1 << 20
# A record type that every reader steps over by its size (kahadb.md 1.2).
STEPPED_OVER = 9


def what_is_behind(files: JournalFiles, file: int, end: int) -> str | None:
    """Return in words what ActiveMQ would read at or after ``end``; None if it would read nothing.

    An end marker is harmless: a batch of traces that a rotation leaves after the end of the old file.
    """
    for batch in scan(files, file, end, is_live=True):
        if any(payload[0] != TRACE for _, payload in batch.records):
            break
        end = batch.end
    with closing(FileSource(files, file)) as source:
        mark = source.read(end, END_RECORD_SIZE)
        if mark and mark != END_RECORD and mark != bytes(END_RECORD_SIZE):
            return "other bytes than an end mark stand behind its end"
        size = source.size()
        overlap = CONTROL_MARK_SIZE - 1
        for start in range(end, size, CHUNK_BYTES):
            if CONTROL_MARK in source.read(start, CHUNK_BYTES + overlap):
                return "a batch stands behind its end"
    return None


def hidden_strays(files: JournalFiles, file: int, end: int | None) -> bool:
    """Return whether ActiveMQ would skip records of ``file`` that no other file has.

    A file of copies begins with a mark, and is skipped as a whole while its source file exists. ActiveMQ may have
    appended to it anyway (kahadb.md 8.1, item 4): then it holds more than removes and commits.
    """
    is_marked = False
    for batch in scan(files, file, 0, end):
        for _, payload in batch.records:
            if not is_marked:
                if payload[0] != REWRITTEN:
                    return False
                command = decode(payload)
                assert isinstance(command, Rewritten), "that is its number"
                if not command.skip_if_source_exists or not files.exists(command.source_file):
                    return False
                is_marked = True
            elif payload[0] not in (TRACE, REMOVE, COMMIT):
                return True
    return False


def end_file(files: JournalFiles, file: int, end: int, disk: Disk = os) -> str:
    """Put a copy that ends at ``end`` in the place of the file. Durable on return; returns the original's new path."""
    return _put_in_place(files, file, end, b"", disk)


def unmark_file(files: JournalFiles, file: int, end: int, disk: Disk = os) -> str:
    """Replace a file of copies by one without its mark, so that readers read it; otherwise as ``end_file``."""
    with closing(FileSource(files, file)) as source:
        control = source.read(0, CONTROL_SIZE)
        mark, length, checksum = CONTROL.unpack(control)
        body = bytearray(source.read(CONTROL_SIZE, length))
    body[RECORD_HEADER_SIZE - 1] = STEPPED_OVER
    if checksum > 0:
        checksum = adler32(body)
    return _put_in_place(files, file, end, CONTROL.pack(mark, length, checksum) + body, disk)


def _put_in_place(files: JournalFiles, file: int, end: int, head: bytes, disk: Disk) -> str:
    path = files.path(file)
    new = path + NEW
    with closing(FileSource(files, file)) as source, opened(disk, new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
        write_fully(disk, fd, head, 0)
        for start in range(len(head), end, CHUNK_BYTES):
            write_fully(disk, fd, source.read(start, min(CHUNK_BYTES, end - start)), start)
        write_fully(disk, fd, END_RECORD, end)
        disk.ftruncate(fd, max(source.size(), end + END_RECORD_SIZE))
        disk.fsync(fd)  # prove: sealed-copy-sync
    aside = _keep(files, file, disk)
    disk.replace(new, path)
    sync_directory(disk, files.directory)  # prove: sealed-name-durable
    return aside


def _keep(files: JournalFiles, file: int, disk: Disk) -> str:
    """Give the original a second name, in quarantine; durable on return."""
    quarantine = os.path.join(files.directory, QUARANTINE)
    disk.makedirs(quarantine, exist_ok=True)
    number = 1
    while True:
        aside = os.path.join(quarantine, f"db-{file}.log.{number}")
        try:
            disk.link(files.path(file), aside)
            break
        except FileExistsError:
            number += 1
    sync_directory(disk, quarantine)  # prove: original-kept-before-replaced
    sync_directory(disk, files.directory)
    return aside
