"""Sealing: makes journal files end at the ends that TandemMQ's headers state, for ActiveMQ, which ignores headers.

TandemMQ ignores bytes after the end of a file; ActiveMQ would read them. They are late writes of a deposed master, or a
torn tail. Such a file is copied up to its end, and the copy is renamed to its name, so the name always leads to a
complete file. The original stays in ``quarantine/``. The copy has the same length as the original: after its end record
it is filled with zeros.
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
# Record type that every reader skips (kahadb.md 1.2).
SKIPPED_TYPE = 9


def content_after_end(files: JournalFiles, file: int, end: int) -> str | None:
    """Return a text that describes the content that ActiveMQ would read at or after ``end``, or None if there is none.

    The end marker of a rotation, a batch of traces after the end, is harmless.
    """
    for batch in scan(files, file, end, is_live=True):
        if any(payload[0] != TRACE for _, payload in batch.records):
            break
        end = batch.end
    with closing(FileSource(files, file)) as source:
        mark = source.read(end, END_RECORD_SIZE)
        if mark and mark != END_RECORD and mark != bytes(END_RECORD_SIZE):
            return "bytes that are no end record follow its end"
        size = source.size()
        overlap = CONTROL_MARK_SIZE - 1
        for start in range(end, size, CHUNK_BYTES):
            if CONTROL_MARK in source.read(start, CHUNK_BYTES + overlap):
                return "a batch follows its end"
    return None


def hidden_strays(files: JournalFiles, file: int, end: int | None) -> bool:
    """Return whether ActiveMQ would skip records of ``file`` that no other file has.

    A file of copies begins with a mark. ActiveMQ skips the whole file while its source file exists. It may nevertheless
    have appended other records than removes and commits to the file (kahadb.md 8.1, item 4).
    """
    is_marked = False
    for batch in scan(files, file, 0, end):
        for _, payload in batch.records:
            if not is_marked:
                if payload[0] != REWRITTEN:
                    return False
                command = decode(payload)
                assert isinstance(command, Rewritten), "the number is that of Rewritten"
                if not command.skip_if_source_exists or not files.exists(command.source_file):
                    return False
                is_marked = True
            elif payload[0] not in (TRACE, REMOVE, COMMIT):
                return True
    return False


def end_file(files: JournalFiles, file: int, end: int, disk: Disk = os) -> str:
    """Replace the file by a copy that ends at ``end``; durable on return. Return the new path of the original."""
    return _put_in_place(files, file, end, b"", disk)


def unmark_file(files: JournalFiles, file: int, end: int, disk: Disk = os) -> str:
    """Replace a file of copies by a copy without its mark, so that ActiveMQ reads it. It ends at ``end``. Durable on
    return; return the new path of the original."""
    with closing(FileSource(files, file)) as source:
        control = source.read(0, CONTROL_SIZE)
        mark, length, checksum = CONTROL.unpack(control)
        body = bytearray(source.read(CONTROL_SIZE, length))
    body[RECORD_HEADER_SIZE - 1] = SKIPPED_TYPE
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
    aside = _keep_original(files, file, disk)
    disk.replace(new, path)
    sync_directory(disk, files.directory)  # prove: sealed-name-durable
    return aside


def _keep_original(files: JournalFiles, file: int, disk: Disk) -> str:
    """Link the original into quarantine; durable on return. Return its path there."""
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
