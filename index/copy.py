"""Copy of another broker's index, made while that broker continues to work.

Pages that a root reaches are not overwritten while that root is in a slot. So the copy is valid only if the copied root
is still in its slot after the last page was read; otherwise the copy is discarded. The copy is written under temporary
names, and renamed when it is complete.
"""

import os

from tandemmq.disk import Disk, exists, open_regular, read_fully, sync_directory, write_fully
from tandemmq.index.freelist import FreeSlot
from tandemmq.index.index import DATA_NAME, FREE_NAME, NEW_SUFFIX, read_note
from tandemmq.index.lock import lock_directory
from tandemmq.index.pages import read_free_slot, read_slots, write_free_slot
from tandemmq.index.roots import PAGES_AT, SLOT_BYTES, SLOT_COUNT, Root, decode_roots, page_at, slot_of

CHUNK_BYTES = 1024 * 1024


def copy(source_directory: str, target_directory: str, disk: Disk = os) -> bool:
    """Copy the newest root of a live index and all its pages. Return True when the copy is complete and durable.

    Return False if the source has no valid root or a note of damage, or if the other broker published two checkpoints
    during the copy; a later call may succeed. The source is only read. Raises FileExistsError if the target has an
    index, IndexInUse if another process has locked the target, OSError if the disk fails.
    """
    disk.makedirs(target_directory, exist_ok=True)
    opened = [lock_directory(disk, target_directory)]
    names = [os.path.join(target_directory, name) for name in (DATA_NAME, FREE_NAME)]
    try:
        if exists(disk, names[0]):
            raise FileExistsError(f"there is an index in {target_directory}")
        if read_note(disk, source_directory) is not None:
            return False
        try:
            opened.append(open_regular(disk, os.path.join(source_directory, DATA_NAME), os.O_RDONLY))
        except FileNotFoundError:
            return False
        source = opened[-1]
        roots = decode_roots(read_slots(disk, source))
        if not roots:
            return False
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        opened.extend(open_regular(disk, name + NEW_SUFFIX, flags) for name in names)
        data, free = opened[-2:]
        is_good = _copy_pages(disk, source, data, roots[0])
        if is_good:
            slot = _free_slot(disk, source_directory, roots[0])
            if slot is not None:
                write_free_slot(disk, free, slot)
            disk.fsync(free)
            disk.fsync(data)  # prove: copied-index-sync
            disk.replace(names[1] + NEW_SUFFIX, names[1])
            disk.replace(names[0] + NEW_SUFFIX, names[0])  # last: an index exists once db.data does
            sync_directory(disk, target_directory)  # prove: copied-index-name-durable
        else:
            for name in names:
                disk.unlink(name + NEW_SUFFIX)
        return is_good
    finally:
        for fd in reversed(opened):
            disk.close(fd)


def _copy_pages(disk: Disk, source: int, target: int, root: Root) -> bool:
    """Copy the pages and the root. Return whether the root was still in its slot after the last page was read."""
    slot = slot_of(root.generation)
    before = read_slots(disk, source)[slot]
    end = page_at(root.page_count + 1, root.page_size)
    for at in range(PAGES_AT, end, CHUNK_BYTES):
        chunk = read_fully(disk, source, min(CHUNK_BYTES, end - at), at)
        if chunk:  # free pages at the end may not be written yet
            write_fully(disk, target, chunk, at)
    # The other slot stays empty: pages that only its root reaches may have changed while they were read.
    slots = [bytes(SLOT_BYTES)] * SLOT_COUNT
    slots[slot] = before
    write_fully(disk, target, b"".join(slots), 0)
    is_still_there = read_slots(disk, source)[slot] == before  # prove: copied-root-is-still-there
    return decode_roots(slots) == [root] and is_still_there


def _free_slot(disk: Disk, source_directory: str, root: Root) -> FreeSlot | None:
    """Return the source's list of free pages, or None if it is not whole. Opening the copy checks that the list belongs
    to the root."""
    try:
        fd = open_regular(disk, os.path.join(source_directory, FREE_NAME), os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        slot = read_free_slot(disk, fd, slot_of(root.generation))
    finally:
        disk.close(fd)
    # Read after the pages: if the other broker has begun to write another list, its ids differ from the root's.
    return slot if slot is not None and slot.generation == root.generation else None
