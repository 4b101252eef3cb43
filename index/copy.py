"""Copy of another broker's index, made while that broker continues to work.

Pages that a root reaches are not overwritten while that root is in a slot. So the copy is good exactly if the root for
which it was made is still in its slot when the last page has been read; otherwise it is discarded. It is made under
other names, and appears whole or not at all.
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
    """Copy the newest root of a live index and all its pages; True when a whole copy is in place and durable.

    False: there was nothing whole to copy (or damage is noted there), or the other broker published twice meanwhile
    (try again, or do without). The source is only read. The target must have no index yet (FileExistsError); it is
    locked meanwhile (IndexInUse).
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
            disk.replace(names[0] + NEW_SUFFIX, names[0])  # last: this name makes it an index
            sync_directory(disk, target_directory)  # prove: copied-index-name-durable
        else:
            for name in names:
                disk.unlink(name + NEW_SUFFIX)
        return is_good
    finally:
        for fd in reversed(opened):
            disk.close(fd)


def _copy_pages(disk: Disk, source: int, target: int, root: Root) -> bool:
    """Copy pages and root. Return whether the root was still there at the end."""
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
    """Return the source's list of free pages, or None if it is not whole; the opening checks whether it belongs to the
    root."""
    try:
        fd = open_regular(disk, os.path.join(source_directory, FREE_NAME), os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        slot = read_free_slot(disk, fd, slot_of(root.generation))
    finally:
        disk.close(fd)
    # Read after the pages: the other broker may have begun to write another list, but then the ids differ.
    return slot if slot is not None and slot.generation == root.generation else None
