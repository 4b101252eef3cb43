"""The smallest db.data: 12,288 bytes that tell ActiveMQ the store's OpenWire version and nothing else.

    header 4096    cleanShutdown=true, no free pages
    page 0         metadata: open, destinations in page 1, no last update, no transaction, no audit, version 7,
                   no ack map, OpenWire version
    page 1         the destinations: an empty leaf

Without any db.data ActiveMQ does not know the version of its bodies; with this one it replays the whole journal and
keeps the version (kahadb.md 4.9). It also says that no newer index of ActiveMQ waits to be taken over.
"""

from __future__ import annotations

import os
import struct

from tandemmq.disk import Disk, exists, opened, sync_directory, write_fully
from tandemmq.store.kahadb.errors import KahaIndexDamaged
from tandemmq.store.kahadb.index import VERSION_LATEST, read_index
from tandemmq.store.kahadb.page_file import DATA, FREE, HEADER_COPY_BYTES, PAGE_BYTES_DEFAULT, PAGE_END, PAGE_HEAD, REDO

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
    """Return the whole file."""
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
    """Return whether ActiveMQ ran here after our last broker: it leaves an index, and collects files without a
    record."""
    return exists(disk, os.path.join(directory, DATA)) and not is_minimal(directory, disk)


def write_minimal(directory: str, openwire_version: int, disk: Disk = os) -> None:
    """Write db.data; durable on return. It replaces one that is there: ``set_index_aside`` first.

    A crash leaves the old file or the new one, whole.
    """
    path = os.path.join(directory, DATA)
    with opened(disk, path + NEW, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
        write_fully(disk, fd, encode_minimal(openwire_version), 0)
        disk.fsync(fd)  # prove: minimal-index-sync
    disk.replace(path + NEW, path)
    sync_directory(disk, directory)  # prove: minimal-index-name-durable


def set_index_aside(directory: str, time_ns: int, disk: Disk = os) -> tuple[str, ...]:
    """Rename db.data, db.redo and db.free, whichever are there, to ``<name>.aside-<time_ns>``; durable on return.

    Never deletes. db.data goes first, and for good: without its redo it could be torn, and would not show it. If a
    crash leaves the others, the next call sets them aside. Returns the new paths.
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
