"""Directory of this broker's index, and of indexes that were set aside.

An index belongs to one broker: ``<index root>/<broker>``. It has its own lock, held while it is open. If the directory
is in use, another directory is tried. An index that cannot be trusted is set aside, which means renamed; it is not
deleted. A broker without an index begins with a copy of another broker's index, or with an empty index.
"""

from __future__ import annotations

import logging
import os

from tandemmq import log_events
from tandemmq.disk import Disk, NotRegular, demand_directory, exists
from tandemmq.index.copy import copy
from tandemmq.index.errors import IndexDamaged, IndexInUse
from tandemmq.index.index import CACHE_PAGES_DEFAULT, Index
from tandemmq.index.lock import lock_directory
from tandemmq.store.threads import OS_THREADS, Threads

log = logging.getLogger(__name__)

# Number of directories that are tried if <index root>/<broker> is in use: <broker>-2, <broker>-3, ...
DIRECTORIES_MAX = 8
# An index that was not used for this time is removed: its broker can copy the index of another broker.
STALE_SECONDS = 7 * 24 * 3600.0
DATA = "db.data"
ASIDE = ".aside-"
# Directory of the temporary indexes of take-overs.
TAKEOVER = ".takeover"


def open_index(
    root: str,
    broker: str,
    disk: Disk = os,
    *,
    may_copy: bool = True,
    cache_pages: int = CACHE_PAGES_DEFAULT,
    threads: Threads = OS_THREADS,
) -> tuple[str, Index]:
    """Open the broker's index, and return its path and the index. If there is none, it begins with a copy of another
    broker's index (``may_copy``), or empty. Raises IndexInUse if all directories are in use, OSError."""
    for number in range(1, DIRECTORIES_MAX + 1):
        path = os.path.join(root, broker if number == 1 else f"{broker}-{number}")
        try:
            if may_copy and not _is_index(disk, path):
                _copy_neighbour(root, path, disk)
            return path, Index.open(path, disk, cache_pages=cache_pages)
        except IndexInUse:
            log.warning("index directory %s is in use; trying the next name", path)
        except (NotRegular, FileExistsError) as reason:
            log.warning("index directory %s cannot be used; trying the next name: %s", path, reason)
        except IndexDamaged as reason:
            if set_aside(path, str(reason), disk, threads) is not None:
                return path, Index.open(path, disk, cache_pages=cache_pages)
    raise IndexInUse(f"all {DIRECTORIES_MAX} index directories of {broker} are in use, or cannot be used")


def takeover_path(path: str) -> str:
    """Return the path of the temporary index for a take-over by the broker whose index is ``path``. Searches for
    indexes do not find it.

    A crash may leave the temporary index. No broker may begin with a copy of it: its position is ahead of the journal,
    so the broker would miss records that are written later.
    """
    root, name = os.path.split(path)
    return os.path.join(root, TAKEOVER, name)


def set_aside(path: str, reason: str, disk: Disk = os, threads: Threads = OS_THREADS) -> str | None:
    """Rename an index directory that cannot be trusted, so that the next ``open_index`` makes a new index. Return the
    new name. None: another process has locked the directory, so it is another index by now."""
    aside = f"{path}{ASIDE}{int(threads.wall() * 1e9)}"
    try:
        # prove: set-aside-under-the-lock "lock_directory(disk, path)" -> "disk.open(path, os.O_RDONLY)"
        lock = lock_directory(disk, path)
    except IndexInUse as error:
        log.warning("%s; it is not set aside", error)
        return None
    try:
        disk.replace(path, aside)
    finally:
        disk.close(lock)
    log.warning("index %s set aside as %s: %s", path, aside, reason, extra=log_events.INDEX_SET_ASIDE)
    return aside


def remove_stale(root: str, own: str, disk: Disk = os, threads: Threads = OS_THREADS) -> list[str]:
    """Remove the indexes that were not changed for STALE_SECONDS; only a master may call this. Return the removed
    paths.

    Indexes that were set aside are kept as evidence.
    """
    removed = []
    now = threads.wall()
    for path in (*_indexes(disk, root), *_indexes(disk, os.path.join(root, TAKEOVER))):
        if path == own or now - _modified(disk, path) < STALE_SECONDS:
            continue
        try:
            lock = lock_directory(disk, path)
        except (IndexInUse, NotRegular):
            continue
        try:
            remove(disk, path)
            removed.append(path)
        finally:
            disk.close(lock)
    return removed


def remove(disk: Disk, path: str) -> None:
    """Remove an index directory and its files. If something cannot be removed, that is logged; no error is raised."""
    try:
        demand_directory(disk, path)  # the target of a symbolic link must not be removed
        for name in disk.listdir(path):
            disk.unlink(os.path.join(path, name))
        disk.rmdir(path)
    except FileNotFoundError:
        pass
    except OSError as reason:
        log.info("the index %s cannot be removed: %s", path, reason)


def _copy_neighbour(root: str, path: str, disk: Disk) -> None:
    for neighbour in sorted(_indexes(disk, root), key=lambda path: _modified(disk, path), reverse=True):
        if neighbour == path:
            continue
        try:
            if copy(neighbour, path, disk):
                log.info("index begins as a copy of %s", neighbour)
                return
        except (OSError, IndexDamaged) as reason:
            log.info("index %s cannot be copied: %s", neighbour, reason)


def named_indexes(root: str, disk: Disk = os) -> list[str]:
    """Return the paths in ``root`` that may be indexes, sorted by name, without those that were set aside."""
    try:
        return [os.path.join(root, name) for name in sorted(disk.listdir(root)) if ASIDE not in name]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _indexes(disk: Disk, root: str) -> list[str]:
    return [path for path in named_indexes(root, disk) if _is_index(disk, path)]


def _is_index(disk: Disk, path: str) -> bool:
    return exists(disk, os.path.join(path, DATA))


def _modified(disk: Disk, path: str) -> float:
    try:
        return disk.stat(os.path.join(path, DATA)).st_mtime
    except FileNotFoundError:
        return 0.0
