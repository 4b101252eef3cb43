"""Root slots: the first two blocks of db.data.

    db.data  | root slot 0, 4096 | root slot 1, 4096 | page 1 | page 2 | ...

    slot     | magic 8 | checksum u32 | format u32 | page size u32 | depth u32 | generation u64 | incarnation u64
             | freePageUniqueId u64 | page count u64 | key count u64 | root page u32 | root checksum u32
             | root generation u64 | meta length u32 | meta | zeros |

The checksum is CRC-32C of all bytes of the slot after the checksum. Generation g is in slot g % 2, so publishing a root
does not overwrite the previous root. Depth 0 is an empty tree, depth 1 a single leaf.

Pure: no I/O.
"""

import struct
from typing import NamedTuple

from tandemmq.index.freelist import crc32c
from tandemmq.index.page import Pointer

MAGIC = b"TMQROOT1"
FORMAT = 1
SLOT_BYTES = 4096  # the usual sector size: a torn write of one slot does not damage the other
SLOT_COUNT = 2
PAGES_AT = SLOT_BYTES * SLOT_COUNT
CHECKSUM = struct.Struct("<I")
HEAD = struct.Struct("<IIIQQQQQIIQI")
CHECKED_AT = len(MAGIC) + CHECKSUM.size
META_AT = CHECKED_AT + HEAD.size
META_BYTES_MAX = 3 * 1024
assert META_AT + META_BYTES_MAX <= SLOT_BYTES, "meta does not fit into a slot"


class Root(NamedTuple):
    """A published generation of the tree. The first seven fields are stored in a slot in this order."""

    page_size: int
    depth: int
    generation: int
    incarnation: int
    free_page_unique_id: int  # 0: the free pages were not all known when this root was written
    page_count: int
    key_count: int
    pointer: Pointer | None
    meta: bytes


def page_at(page: int, page_size: int) -> int:
    """Return the offset of a page in db.data. The first page is 1."""
    return PAGES_AT + (page - 1) * page_size


def slot_of(generation: int) -> int:
    """Return the number of a generation's slot, 0 or 1, which is the same in db.data and db.free."""
    return generation % SLOT_COUNT


def encode_root(root: Root) -> bytes:
    """Return the slot's bytes."""
    pointer = root.pointer or Pointer(0, 0, 0)
    numbers = root[:7]
    rest = HEAD.pack(FORMAT, *numbers, pointer.page, pointer.checksum, pointer.generation, len(root.meta))
    rest = (rest + root.meta).ljust(SLOT_BYTES - CHECKED_AT, b"\0")
    return MAGIC + CHECKSUM.pack(crc32c(rest)) + rest


def decode_root(data: bytes) -> Root | None:
    """Return the root in a slot's bytes, or None if the bytes are no root that matches its checksum."""
    if len(data) != SLOT_BYTES or not data.startswith(MAGIC):
        return None
    if CHECKSUM.unpack_from(data, len(MAGIC))[0] != crc32c(data[CHECKED_AT:]):  # prove: root-checksum
        return None
    form, *numbers, page, checksum, generation, meta_length = HEAD.unpack_from(data, CHECKED_AT)
    if form != FORMAT:
        return None
    pointer = Pointer(page, generation, checksum)
    root = Root._make((*numbers, pointer, data[META_AT : META_AT + meta_length]))
    return root if root.depth else root._replace(pointer=None)


def decode_roots(slots: list[bytes]) -> list[Root]:
    """Return the valid roots of the two slots, the newest first. A root in the wrong slot is ignored."""
    roots = [decode_root(data) for data in slots]
    whole = [root for slot, root in enumerate(roots) if root is not None and slot_of(root.generation) == slot]
    return sorted(whole, key=lambda root: root.generation, reverse=True)
