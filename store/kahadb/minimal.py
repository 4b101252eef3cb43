"""Minimal db.data for ActiveMQ: 12,288 bytes with the OpenWire version of the store and no other facts.

    header 4096    cleanShutdown=true, no free pages
    page 0         metadata: open, destinations in page 1, no last update, no transaction, no audit, version 7,
                   no ack map, OpenWire version
    page 1         the destinations: an empty leaf

Without db.data ActiveMQ does not know the version of the bodies. With this file it replays the whole journal and keeps
the version (kahadb.md 4.9). For TandemMQ a minimal file means that ActiveMQ did not run after the last TandemMQ broker.
"""

from __future__ import annotations

import os
import struct

from tandemmq.disk import Disk, exists, opened, sync_directory, write_fully
from tandemmq.store.kahadb.index import VERSION_LATEST, read_index
from tandemmq.store.kahadb.page_file import (
    DATA,
    FREE,
    HEADER_COPY_BYTES,
    PAGE_BYTES_DEFAULT,
    PAGE_END,
    PAGE_HEAD,
    REDO,
    KahaIndexDamaged,
)

ASIDE = ".aside-"
NEW = ".new"

_METADATA = struct.Struct(">iq???i?i")
_STATE_OPEN = 2
_DESTINATIONS_PAGE = 1
_EMPTY_LEAF = struct.pack(">h?q", 0, False, -1)
_PROPERTIES = (
    "#\n#\n"
    "fileType=org.apache.activemq.store.kahadb.disk.page.PageFile\n"
    "fileTypeVersion=1\n"
    f"pageSize={PAGE_BYTES_DEFAULT}\n"
    "cleanShutdown=true\n"
    "lastTxId=2\n"
    "freePages=0\n"
    "metaDataTxId=1\n"
)


def encode_minimal(openwire_version: int) -> bytes:
    """Return the content of the file."""
    header = _PROPERTIES.encode().ljust(HEADER_COPY_BYTES)
    metadata = _METADATA.pack(
        _STATE_OPEN, _DESTINATIONS_PAGE, False, False, False, VERSION_LATEST, False, openwire_version
    )
    return header + header + _page(metadata) + _page(_EMPTY_LEAF)


def _page(content: bytes) -> bytes:
    head = PAGE_HEAD.pack(PAGE_END, 1, PAGE_HEAD.size + len(content), 0)
    return (head + content).ljust(PAGE_BYTES_DEFAULT, b"\0")


def is_minimal(directory: str, disk: Disk = os) -> bool:
    """Return whether ``directory`` has a db.data that contains only the OpenWire version."""
    try:
        found = read_index(directory, disk)
        if found is None:
            return False
        with found:
            return found.is_minimal
    except KahaIndexDamaged:
        return False


def has_foreign_index(directory: str, disk: Disk = os) -> bool:
    """Return whether ActiveMQ ran in this directory after the last TandemMQ broker: it has then written an index."""
    return exists(disk, os.path.join(directory, DATA)) and not is_minimal(directory, disk)


def write_minimal(directory: str, openwire_version: int, disk: Disk = os) -> None:
    """Write db.data; durable on return. An existing db.data is replaced: call ``set_index_aside`` before to keep it.

    A crash leaves the old file or the new one complete. Raises OSError.
    """
    path = os.path.join(directory, DATA)
    with opened(disk, path + NEW, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
        write_fully(disk, fd, encode_minimal(openwire_version), 0)
        disk.fsync(fd)  # prove: minimal-index-sync
    disk.replace(path + NEW, path)
    sync_directory(disk, directory)  # prove: minimal-index-name-durable


def set_index_aside(directory: str, time_ns: int, disk: Disk = os) -> tuple[str, ...]:
    """Rename db.data, db.redo and db.free, as far as they exist, to ``<name>.aside-<time_ns>``; durable on return.
    Return the new paths.

    db.data is renamed first and durably: without db.redo it may be torn, and a reader could not detect that. If a crash
    leaves the other files, the next call renames them.
    """
    moved = []
    for name in (DATA, REDO, FREE):
        path = os.path.join(directory, name)
        aside = f"{path}{ASIDE}{time_ns}"
        try:
            disk.replace(path, aside)
        except FileNotFoundError:
            continue
        sync_directory(disk, directory)  # prove: aside-name-durable
        moved.append(aside)
    return tuple(moved)
